"""Processes of this machine that a fork server started, as tests start them: they are no children of this one."""

import threading

from imitate.crew.local import LocalBackend
from tests import fork_server


def work(reports):
    return abs


def test_join_waits_for_the_end(monkeypatch):
    monkeypatch.setattr("imitate.crew.local.CONTEXT", fork_server.context())
    member = LocalBackend().start(work)
    dismissal = threading.Timer(1.0, member.dismiss)
    dismissal.start()
    member.join()
    assert member.exit_code == 0
    member.stop()
