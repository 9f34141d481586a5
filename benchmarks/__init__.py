"""Speed, memory and time to success, beside robomimic's where it can be run. See ``python -m benchmarks --help``."""
