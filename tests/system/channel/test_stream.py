"""Tokens, and how many connections may wait before they show theirs."""

import hashlib
import hmac
import time

from imitate.system.channel.stream import Budget, Lobby, proof, same_token


def test_tokens_and_proofs():
    found = [same_token(got, "abc") for got in ("abc", "abd", "ab", "", b"abc", None, "ab\udcff")]
    assert found == [True] + [False] * 6
    made = hmac.new(b"key", b"server 17", hashlib.sha256).hexdigest()
    assert proof(b"key", "server", "17") == made


def test_the_oldest_connections_leave_first(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lobby = Lobby(2, 5.0)
    assert lobby.most == 2
    assert (lobby.patience_s(), lobby.oldest()) == (None, [])
    assert lobby.enter("a") == []
    now[0] = 102.0
    assert lobby.enter("b") == []
    assert lobby.enter("c") == ["a"]
    assert (lobby.patience_s(), lobby.oldest()) == (3.0, ["a"])
    lobby.leave("a")
    assert (lobby.patience_s(), lobby.oldest()) == (5.0, ["b"])
    lobby.leave("a")  # is gone already
    now[0] = 108.0
    assert lobby.patience_s() == 0.0


def test_bytes_that_connections_hold_together():
    budget = Budget(10)
    taken = [
        budget.hold(*ask) for ask in [("a", 6), ("b", 5), ("b", 4), ("a", 7), ("a", 5), ("b", 5)]
    ]
    assert taken == [True, False, True, False, True, True]
    budget.leave("a")
    budget.leave("a")
    assert (budget.hold("c", 6), budget.hold("c", 5)) == (False, True)
