"""The command line: one module per verb, which parses arguments, calls the package and prints."""
