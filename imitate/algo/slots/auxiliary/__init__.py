"""Auxiliary losses and intrinsic rewards that the configuration adds to an algorithm, one file each."""
