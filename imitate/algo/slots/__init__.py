"""Parts that a section of the configuration adds to any algorithm that has the slot."""
