"""Algorithms: one file each. ``algo.py`` is the contract that all of them keep."""
