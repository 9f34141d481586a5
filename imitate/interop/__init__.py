"""Other toolkits' checkpoints, read and written."""
