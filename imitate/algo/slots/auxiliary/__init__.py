"""Auxiliary losses and intrinsic rewards that a section adds to an algorithm, one file each."""
