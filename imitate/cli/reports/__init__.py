"""What ``imitate info`` tells of each kind of file: plain values for JSON, and lines for a person."""
