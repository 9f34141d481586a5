"""Benchmarks of speed, memory and time to success, compared with robomimic. See ``python -m benchmarks --help``."""
