"""Optional parts of algorithms, which a section of the configuration enables."""
