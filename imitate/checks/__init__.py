"""Checks of a new algorithm or environment against the contracts of the package."""
