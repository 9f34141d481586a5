"""Files and processes of the system, time, seeds, words and progress, for every room."""
