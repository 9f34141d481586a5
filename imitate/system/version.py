"""The version of this package, which checkpoints record."""

__version__ = "0.1.0"
