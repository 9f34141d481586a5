"""Files and processes of the operating system, time, seeds, text and progress, for all layers."""
