"""Benchmarks of speed, memory and time to success, with robomimic as peer. See ``python -m benchmarks --help``."""
