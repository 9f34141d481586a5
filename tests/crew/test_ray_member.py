"""Errors that Ray reports of a worker, with a stand-in for Ray."""

from types import SimpleNamespace

import pytest

from imitate.crew.backend import Lost, Ready, Unprepared
from imitate.crew.ray_backend import Origin, RayMember, RayPacked
from imitate.errors import EnvError, WorkerError


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


def caused(cause):
    error = RayError("a task failed")
    error.cause = cause
    return error


class Ray:
    """References are what they give, or raise; None is not there yet."""

    exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError)

    def __init__(self):
        self.killed = []
        self.kill = self.killed.append

    def wait(self, references, timeout):
        return [found for found in references if found is not None], []

    def get(self, reference):
        if isinstance(reference, Exception):
            raise reference
        return reference


def member(begin, hear=None, ray=None):
    def method(answer):
        remote = SimpleNamespace(remote=lambda *args: answer)
        return SimpleNamespace(remote=remote.remote, options=lambda **options: remote)

    actor = SimpleNamespace(begin=method(begin), hear=method(hear), ended=method(None))
    return RayMember(ray or Ray(), actor, b"", Origin(("", 0), "worker", 1))


NOT_THERE = EnvError("no such environment")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (caused(NOT_THERE), EnvError, "no such environment"),
        (RayError("first\nno module"), EnvError, "a node of the cluster cannot run workers: no m"),
        (RayActorError("creation task\nbad"), WorkerError, "a node cannot run workers: bad"),
        (RayActorError("its node has died"), None, "its node was lost"),
        (RayActorError("gone"), None, "its node or its parent process was lost (RayActorError)"),
    ],
)
def test_a_worker_that_does_not_begin_is_told_as_refused_or_lost(error, kind, words):
    one = member(error)
    assert not one.waits() and one.has_news()
    told = one.answer()
    if kind is None:
        assert told == Lost(words, died=True) and not told.begun
    else:
        assert isinstance(told, Unprepared) and isinstance(told.error, kind)
        assert words in str(told.error)


def test_a_worker_that_is_lost_at_its_item_has_begun():
    ray = Ray()
    one = member(b"", hear=RayActorError("gone"), ray=ray)
    assert not one.waits() and one.answer() == Ready()
    assert one.give(RayPacked(b"item", {}))
    one.receive()
    assert one.answer().begun
    one.stop()
    one.stop()
    assert len(ray.killed) == 1


def test_a_worker_without_a_place_keeps_its_item_until_it_gives_up():
    one = member(None)
    assert one.waits() and one.give(RayPacked(b"item", {})) and not one.has_news()
    one.give_up(NOT_THERE)
    assert one.answer() == Unprepared(NOT_THERE)
