"""Model of this machine's processor: different models give different last digits in the same computation."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@cache
def cpu_model() -> str:
    """Return the processor's own model name, such as "AMD EPYC 7B13", or else the architecture."""
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, name = line.partition(":")
            if key.strip() == "model name" and name.strip():
                return name.strip()
    return platform.processor() or platform.machine()
