"""Batches of windows for training, out of demonstration files."""
