"""Training runs: set up, train, log, save, resume and compare."""
