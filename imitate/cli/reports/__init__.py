"""Reports of ``imitate info`` on each kind of file: plain values for JSON, and lines for a person."""
