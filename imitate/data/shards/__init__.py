"""Datasets of several demonstration files, the shards, with an index that tells what each of them holds."""
