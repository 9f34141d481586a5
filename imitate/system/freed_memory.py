"""Release memory that the C library keeps after it was freed."""

from __future__ import annotations

import ctypes
import sys


def return_freed_memory() -> None:
    """Return memory that the C library keeps to the kernel. Takes milliseconds. Does nothing without glibc."""
    malloc_trim = (
        getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    )
    if malloc_trim is not None:
        malloc_trim(0)
