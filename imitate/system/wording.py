"""Words of the lines that commands print."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 episode``, ``3 episodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
