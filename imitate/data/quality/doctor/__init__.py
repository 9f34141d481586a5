"""Doctor: finds faults in a demonstration file, rates their severity, and repairs them."""
