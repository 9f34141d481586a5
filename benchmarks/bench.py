"""Arguments that every benchmark gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer import Peer


@dataclass(frozen=True)
class Bench:
    """Data, peer and folder of a benchmark's run.

    Args:
        data: demonstrations to measure on.
        peer: measurements of robomimic.
        folder: folder for files that are removed when the run ends.
    """

    data: Path
    peer: Peer
    folder: Path
