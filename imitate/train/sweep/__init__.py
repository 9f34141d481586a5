"""Many runs from one configuration, and their results over seeds; start reading in ``sweep.py``."""
