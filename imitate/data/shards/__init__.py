"""Datasets of several demonstration files, called shards, with an index of their content."""
