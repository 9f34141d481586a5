"""Many runs from one configuration, and their results over seeds: ``sweep.py`` first."""
