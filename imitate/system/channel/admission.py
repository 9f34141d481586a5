"""Admission of connections: the comparison of tokens, and a bound on connections that have not shown theirs."""

from __future__ import annotations

import hmac
import threading
import time
from typing import Generic, TypeVar

T = TypeVar("T")


def same_token(got: object, wanted: str) -> bool:
    """Return true if a token or a proof is correct; the duration does not depend on where they differ."""
    return isinstance(got, str) and hmac.compare_digest(
        got.encode(errors="replace"), wanted.encode()
    )


def proof(token: bytes, role: str, nonce: str) -> str:
    """Return the answer to a nonce that proves that this side knows the token, which is not sent itself."""
    return hmac.new(token, f"{role} {nonce}".encode(), "sha256").hexdigest()


class Lobby(Generic[T]):
    """Connections that have not shown that they know the token. Several threads may use it.

    Args:
        most: largest number of them; one more ends the oldest.
        seconds: longest time of each.

    Attributes:
        most: the same.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self._seconds = most, seconds
        self._ends: dict[T, float] = {}
        self._lock = threading.Lock()

    def enter(self, connection: T) -> list[T]:
        """Add a connection; return the oldest ones, which the caller must end because there are too many."""
        with self._lock:
            self._ends[connection] = time.monotonic() + self._seconds
            return list(self._ends)[: -self.most]

    def leave(self, connection: T) -> None:
        """Remove a connection, if it is there, after it has shown its token or has ended."""
        with self._lock:
            self._ends.pop(connection, None)

    def patience_s(self) -> float | None:
        """Return the seconds until the oldest connection must be ended, or None if there is none."""
        with self._lock:
            first = next(iter(self._ends.values()), None)
        return None if first is None else max(0.0, first - time.monotonic())

    def oldest(self) -> list[T]:
        """Return the oldest connection, if there is any."""
        with self._lock:
            return list(self._ends)[:1]
