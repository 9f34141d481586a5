"""Tools that make a demonstration file from others: masks, subsets, merges, edits, statistics."""
