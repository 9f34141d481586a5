"""Training runs: setup, training loop, logging, checkpoints, resuming, comparison."""
