"""Memory that the C library keeps after it was freed."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of glibc's ``mallopt``, by their numbers in ``malloc.h``."""
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
KEPT_BYTES = 2**30
LARGEST_BYTES = 2**25
"""Larger pieces, 32 MB, always come from the kernel: glibc allows no higher limit."""


def keep_freed_memory() -> None:
    """Let the C library keep up to 1 GB that was freed, for the rest of the process.

    An update allocates what the one before has freed. glibc gives such memory back to the kernel as soon as a few MB at
    the end of its heap are free, and gets it again page by page, zeroed: an update of SAC with layers of 256 takes 160
    such pages. The peak of a process, which each update reaches, is about the same. Does nothing without glibc, or
    where the environment has thresholds of its own for it (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``).
    """
    if any(name in os.environ for name in _VARIABLES):
        return
    mallopt = _function_of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, LARGEST_BYTES)


def return_freed_memory() -> None:
    """Return to the kernel what the C library keeps. Takes milliseconds. Does nothing without glibc."""
    malloc_trim = _function_of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _function_of_glibc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
