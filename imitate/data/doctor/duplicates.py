"""Check for demos that occur twice in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from imitate.data.doctor.finding import Finding, Level, Place, Remedy, counted
from imitate.data.doctor.survey import Piece


class Duplicates:
    """Comparison of digests of the actions, and of the first and last observations other than images."""

    def __init__(self) -> None:
        self._digests: dict[str, Any] = {}

    def see(self, piece: Piece) -> None:
        """Add a piece to a demo's digest."""
        if piece.large is not None:
            return
        digest = self._digests.setdefault(piece.demo, hashlib.sha256())
        for key in sorted(piece.small):
            values = piece.small[key]
            if key.startswith("obs/"):
                values = values[[0, -1]]
            elif key != "actions":
                continue
            digest.update(values.tobytes())

    def findings(self) -> Iterator[Finding]:
        """Return a finding for each demo that repeats an earlier one."""
        first: dict[bytes, str] = {}
        again: dict[str, str] = {}
        for demo, digest in self._digests.items():
            original = first.setdefault(digest.digest(), demo)
            if original != demo:
                again[demo] = original
        if again:
            pairs = ", ".join(f"'{demo}' is '{of}'" for demo, of in list(again.items())[:3])
            yield Finding(
                "duplicate",
                Level.warning,
                f"{counted(len(again), 'repeats repeat')} others: {pairs}{' ...' if len(again) > 3 else ''}",
                [Place(demo) for demo in again],
                Remedy(drop_demos=list(again)),
            )
