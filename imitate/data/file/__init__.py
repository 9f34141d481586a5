"""Demonstration files: reading, writing, checking."""
