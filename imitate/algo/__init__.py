"""Algorithms, one file each. The contract of all algorithms is in ``base/algo.py``."""
