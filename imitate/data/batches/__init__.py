"""Batches of windows for training, read from demonstration files."""
