"""Slots: optional parts of algorithms, each of which a section of the configuration enables."""
