"""The end of processes of this machine."""

import os
import threading
import time

import pytest

from imitate.crew.local import LocalBackend
from tests import fork_server

pytestmark = pytest.mark.usefixtures("spawned_workers")


def work(reports):
    return abs


def test_join_waits_for_a_process_that_a_fork_server_started(monkeypatch):
    """It is no child of this one."""
    monkeypatch.setattr("imitate.crew.local.CONTEXT", fork_server.context())
    member = LocalBackend().start(work)
    dismissal = threading.Timer(1.0, member.dismiss)
    dismissal.start()
    member.join()
    assert member.exit_code == 0
    member.stop()


def leaves_a_process(reports):
    if os.fork() == 0:
        time.sleep(100_000)
        os._exit(0)
    return abs


def test_join_does_not_wait_for_what_an_ended_process_has_started():
    member = LocalBackend().start(leaves_a_process)
    member.dismiss()
    while member.exit_code is None:  # and so its exit code is read
        time.sleep(0.01)
    member.join()
    member.stop()
