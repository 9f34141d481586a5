"""The doctor: what is wrong with a demonstration file, how bad it is, and what repairs it."""
