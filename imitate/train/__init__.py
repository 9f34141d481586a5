"""Training runs: set up, run, logged, saved, resumed, compared."""
