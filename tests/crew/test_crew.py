"""Crews on each back end: order, retries, limits, faults."""

import functools
import multiprocessing
import os
import signal
import sys
import time

import numpy as np
import pytest

from imitate.crew import CancelledError, Crew, Lost, Shared, open_backend
from imitate.crew.backend import Answer, Limits, Ready
from imitate.crew.local import ROOM, LocalBackend
from imitate.errors import DatasetError, EnvError, WorkerError
from imitate.system.processes import MAKE

ON_RAY_TOO = pytest.mark.parametrize(
    "backend", ["local", pytest.param("ray", marks=pytest.mark.ray)], indirect=True
)
"""Tests that run on a cluster in the fast set too; the others do so by night."""
QUICK = Limits(call_s=0.5, quiet_s=60.0)


def worker(reports):
    """Calls what an item names with the worker's reports and the item's arguments."""
    return lambda item: globals()[item[0]](reports, *item[1:])


def echo(reports, value):
    return value


def touch(reports, flag, value=None):
    os.mkdir(flag)
    return value


def until(reports, flag, value=None):
    """Returns a value once there is a flag."""
    while not os.path.exists(flag):
        time.sleep(0.01)
    return value


def meet(reports, folder):
    """Waits until two processes are here at once; returns its number."""
    os.makedirs(f"{folder}/{os.getpid()}", exist_ok=True)
    while len(os.listdir(folder)) < 2:
        time.sleep(0.01)
    return os.getpid()


def pid(reports):
    return os.getpid()


def die(reports):
    os.kill(os.getpid(), signal.SIGKILL)


def once(reports, flag, what, *arguments):
    """Does something the first time; then returns "done"."""
    if not os.path.exists(flag):
        os.mkdir(flag)
        return globals()[what](reports, *arguments)
    return "done"


def calling(reports, *calls):
    """Makes calls that take so many seconds each."""
    for call, seconds in calls:
        reports(call)
        time.sleep(seconds)
    reports("")
    return "done"


def stop(reports, call):
    reports(call)
    os.kill(os.getpid(), signal.SIGSTOP)


def spin(reports):
    """Hangs in one call that never lets another thread of Python run."""
    reports("step()")
    sum(range(10**15))


def fail(reports, kind, words):
    raise kind(words)


def unsendable(reports):
    return lambda: None


def made_here(reports):
    return OnlyHere()


def noise(reports):
    os.write(1, b"noise from below\n")
    sys.stdout.write("noise\n")
    return "quiet"


def notes(reports, count):
    for number in range(count):
        reports.note(number)
    return "end"


def half_an_answer(reports):
    """Stops in the middle of sending what a pipe cannot hold."""

    class Stopping:
        def __reduce__(self):
            return bytes, (bytes(50_000_000),)

    os.system(f"(sleep 0.3; kill -STOP {os.getpid()}) &")
    while True:
        reports.note(Stopping())


@pytest.fixture(
    scope="module",
    params=["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.nightly])],
)
def backend(request):
    """Where workers run."""
    if request.param == "local":
        with open_backend() as backend:
            yield backend
        return
    nodes = request.getfixturevalue("two_nodes")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in nodes.environ.items():
            patch.setenv(name, value)
        nodes.mend()
        with open_backend(nodes.on) as backend:
            yield backend


@pytest.fixture(scope="module")
def crew(backend):
    """Two workers for the whole module."""
    with Crew(worker, 2, limits=QUICK, backend=backend) as crew:
        yield crew


def shared_twice(reports, first, second):
    """Returns whether two values came as one object, the first one's size, and all sizes."""
    return first.get() is second.get(), len(first.get())


def shared_nested(reports, carried):
    return {name: value.get()[:1] for name, value in carried.items()}


def results(crew, items, **kwargs):
    return {done.item: done.result for done in crew.as_completed(items, **kwargs)}


def both(crew, folder):
    """Return the numbers of both workers, once both have begun."""
    return {done.result for done in crew.as_completed([("meet", str(folder))] * 2)}


# ---- order ---------------------------------------------------------------------------------------


@pytest.mark.slow("workers on a cluster start")
@ON_RAY_TOO
def test_results_in_the_order_of_the_items(crew, tmp_path):
    flags = [str(tmp_path / name) for name in "xy"]
    for flag, run in zip(flags, (crew.in_order, crew.as_completed), strict=True):
        # Four items can be begun before the first one is done.
        quick = [("echo", name) for name in "bce"]
        items = [("until", flag, "a"), *quick[:2], ("touch", flag, "d"), quick[2]]
        done = list(run(items))
        if run == crew.in_order:
            found = [(entry.result, entry.number, entry.item) for entry in done]
            assert found == list(zip("abcde", range(5), items, strict=True))
    by_time = [entry.result for entry in done]
    assert by_time[:2] == ["b", "c"] and sorted(by_time) == list("abcde")


def test_workers_are_not_far_ahead_of_the_item_that_is_waited_for(crew, tmp_path):
    begun, flag = [], str(tmp_path / "flag")

    def items():
        for number in range(20):
            begun.append(number)
            calls = {0: ("until", flag, 0), 3: ("touch", flag, 3)}
            yield calls.get(number, ("echo", number))

    results = crew.in_order(items())
    assert next(results).result == 0
    assert len(begun) == 4  # 2 workers, 2 each
    assert [done.result for done in results] == list(range(1, 20))


def test_items_are_taken_as_workers_become_free(crew):
    taken = []

    def items():
        for number in range(6):
            taken.append(number)
            yield ("echo", number)

    for count, _ in enumerate(crew.as_completed(items())):
        assert len(taken) <= count + 2  # those that are done, and one that the other worker has
    assert taken == list(range(6))


class Growing:
    """Items of which each but the last brings the next one, once its result is there."""

    def __init__(self, last):
        self.ready, self._last, self._given = 0, last, -1

    def __iter__(self):
        return self

    def __next__(self):
        if self._given == self.ready or self._given == self._last:
            raise StopIteration
        self._given += 1
        return "echo", self._given


def test_an_iterator_is_asked_again_after_each_result(crew):
    items, results = Growing(last=3), []
    for done in crew.as_completed(items):
        results.append(done.result)
        items.ready += 1
    assert results == [0, 1, 2, 3]


def test_workers_are_kept_and_idle_ones_that_died_are_no_loss_of_an_item(crew, backend, tmp_path):
    known = both(crew, tmp_path)
    assert {done.result for done in crew.as_completed([("pid",)] * 20)} <= known
    gone = min(known)
    os.kill(gone, signal.SIGKILL)
    while gone in {child.pid for child in multiprocessing.active_children()}:
        time.sleep(0.01)
    for done in crew.as_completed([("pid",)] * 4):
        assert done.result != gone
        if isinstance(backend, LocalBackend):  # on a cluster its end is known a moment later
            assert done.retried == ()


def test_the_loss_of_an_idle_worker_is_heard_after_it_was_given_an_item(backend):
    member = backend.start(worker)
    try:
        assert member.give(backend.pack(("pid",)))
        os.kill(heard_answer(backend, member).value, signal.SIGKILL)
        while member.give(backend.pack(("pid",))):  # on a cluster its end is known a moment later
            assert heard_answer(backend, member).died
            time.sleep(0.5)
        lost = heard_answer(backend, member)
        assert lost.died and "exit code -9" in lost.reason
    finally:
        member.stop()


def heard_answer(backend, member):
    while not (heard := backend.heard([member], QUICK)):
        pass
    assert heard == [member]
    return member.answer()


def test_arrays_arrive_and_can_be_written_to(crew):
    large = np.arange(400_000, dtype=np.float64)
    assert large.nbytes > ROOM
    (done,) = crew.in_order([("echo", large)])
    np.testing.assert_array_equal(done.result, large)
    assert done.result.flags.writeable


@ON_RAY_TOO
def test_notes_come_in_order_ahead_of_the_result(crew):
    heard = []
    item = ("notes", 5)
    (done,) = crew.as_completed([item], on_note=lambda item, value: heard.append((item, value)))
    assert heard == [(item, number) for number in range(5)] and done.result == "end"


@ON_RAY_TOO
def test_shared_values_are_unpacked_once_in_a_worker_and_those_in_use_are_kept(crew):
    one, two, three = (Shared(bytes([number]) * 300_000) for number in (1, 2, 3))
    assert list(results(crew, [("shared_twice", one, one)]).values()) == [(True, 300_000)]
    items = [("shared_nested", {"a": value}) for value in (one, two, three, two, one, one)] * 2
    items.append(("shared_nested", {"a": one, "b": two, "c": three}))
    wanted = [{"a": bytes([number])} for number in (1, 2, 3, 2, 1, 1)] * 2
    wanted.append({"a": b"\1", "b": b"\2", "c": b"\3"})
    assert [done.result for done in crew.in_order(items)] == wanted
    assert one.get() == b"\1" * 300_000


def test_a_shared_value_travels_inside_items_only(crew):
    (done,) = crew.in_order([("echo", Shared(1))])
    assert done.result.reason.startswith("its result cannot be sent (WorkerError: a Shared value")


# ---- faults --------------------------------------------------------------------------------------


@ON_RAY_TOO
def test_an_item_that_kills_two_workers_is_named_and_the_others_go_on(crew):
    lost = []

    def on_loss(item, loss):
        lost.append((item, loss))
        return True

    items = [("echo", 1), ("die",), ("echo", 2)]
    done = {entry.item: entry for entry in crew.as_completed(items, on_loss=on_loss)}
    first = Lost("its process died (exit code -9)", died=True)
    assert lost == [(("die",), first)] * 2
    assert done[("die",)].result == Lost(f"{first.reason}, in 2 tries", died=True)
    assert done[("die",)].retried == (first,)
    assert (done[("echo", 1)].result, done[("echo", 2)].result) == (1, 2)


@pytest.mark.parametrize("what", ["die", "spin"])
def test_an_item_whose_worker_was_lost_once_is_done(crew, tmp_path, what):
    (done,) = crew.as_completed([("once", str(tmp_path / "flag"), what)])
    assert done.result == "done"
    (loss,) = done.retried
    words = {"die": "exit code -9", "spin": r"step() did not return within 0.5 s"}
    assert loss.died and words[what] in loss.reason


def test_a_single_try_is_enough_where_that_is_wanted(crew):
    (done,) = crew.as_completed([("die",)], tries=1)
    assert done.result == Lost("its process died (exit code -9)", died=True)
    assert done.retried == ()
    (again,) = crew.as_completed([("die",)], on_loss=lambda item, loss: False)
    assert again == done


@pytest.mark.parametrize(
    ("item", "limits", "reason"),
    [
        (("stop", "step()"), QUICK, "step() did not return within 0.5 s"),
        (("stop", ""), Limits(60.0, 2.0), "its process reported nothing for 2 s"),
        (("stop", MAKE), Limits(0.2, 60.0), "making the environment did not return within 1 s"),
        (("until", "/never"), Limits(60.0, 60.0, 2.0), "it took longer than 2 s"),
        (("spin",), QUICK, "step() did not return within 0.5 s"),
        (("half_an_answer",), Limits(60.0, 2.0), "its process reported nothing for 2 s"),
    ],
)
def test_a_worker_that_hangs_is_ended_and_the_call_is_named(crew, tmp_path, item, limits, reason):
    both(crew, tmp_path)
    found = results(crew, [item, ("echo", 1)], limits=limits, tries=1)
    assert found == {item: Lost(reason, died=True), ("echo", 1): 1}


def test_many_short_calls_and_long_work_of_ones_own_are_no_hang(crew):
    calls = [("step()", 0.25)] * 9 + [("", 2.2), (MAKE, 2.2)]
    (done,) = crew.as_completed([("calling", *calls)], limits=Limits(2.0, 60.0))
    assert done.result == "done" and done.retried == ()


def test_errors_of_the_work_end_their_item_and_keep_the_worker(crew, tmp_path):
    items = [
        ("fail", ValueError, "first line\nsecond"),
        ("fail", DatasetError, "no states"),
        ("fail", SystemExit, 3),
        ("unsendable",),
        ("echo", 1),
    ]
    before = both(crew, tmp_path)
    done = list(crew.in_order(items))
    assert [entry.result for entry in done[:3]] == [
        Lost("ValueError: first line"),
        Lost("no states"),
        Lost("the environment called sys.exit(3)"),
    ]
    assert isinstance(done[1].result.error, DatasetError) and done[0].result.error is None
    assert done[3].result.reason.startswith("its result cannot be sent (")
    assert done[4].result == 1
    assert {done.result for done in crew.as_completed([("pid",)] * 20)} <= before


def test_an_item_that_cannot_be_sent_is_an_error_of_the_caller(crew):
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        list(crew.as_completed([("echo", lambda: None)]))
    assert results(crew, [("echo", 1)]) == {("echo", 1): 1}


class OnlyHere:
    """An object that other processes than the one that made it cannot read."""

    def __reduce__(self):
        return _here, (os.getpid(),)


def _here(pid):
    if pid != os.getpid():
        raise ImportError("no such module here")


def test_what_cannot_be_read_at_the_other_end_is_told_as_that(crew):
    item = ("echo", OnlyHere())
    (done,) = crew.as_completed([item])
    assert done.result == Lost("its item cannot be read (ImportError: no such module here)")
    (done,) = crew.as_completed([("made_here",)])
    assert done.result == Lost("its result cannot be read (ImportError: no such module here)")
    assert results(crew, [("echo", 1)]) == {("echo", 1): 1}


def test_what_a_worker_prints_does_not_come_on_stdout(backend, capfd):
    with Crew(worker, backend=backend) as crew:
        assert results(crew, [("noise",)]) == {("noise",): "quiet"}
        out, err = capfd.readouterr()
        while err.count("noise") < 2:  # what is printed on another node takes a moment
            time.sleep(0.1)
            more, more_err = capfd.readouterr()
            out, err = out + more, err + more_err
    assert out == "" and "noise from below\n" in err and err.count("noise") == 2


def test_leaving_the_loop_ends_busy_workers_only(crew, tmp_path):
    known = both(crew, tmp_path)
    for done in crew.as_completed([("pid",), ("until", "/never")]):
        kept = done.result
        break
    now = both(crew, tmp_path / "again")
    assert now & known == {kept}


# ---- factories -----------------------------------------------------------------------------------


def refuses(reports):
    raise EnvError("no such environment")


def breaks(reports):
    raise ZeroDivisionError("in the factory")


def dies_at_once(reports):
    os._exit(3)


@pytest.mark.parametrize(
    ("prepare", "kind", "words"),
    [
        (refuses, EnvError, "no such environment"),
        (breaks, WorkerError, "cannot be prepared: ZeroDivisionError: in the factory"),
        (sys.exit, EnvError, r"the environment called sys.exit"),
    ],
)
def test_a_factory_that_fails_is_told_at_once(backend, prepare, kind, words):
    with pytest.raises(kind, match=words), Crew(prepare, 2, backend=backend) as crew:
        list(crew.in_order([("echo", 1)] * 5))


def prepared_once(flag, reports):
    os.mkdir(flag)  # fails the second time
    return worker(reports)


def test_a_factory_that_fails_later_costs_an_item(backend, tmp_path):
    prepare = functools.partial(prepared_once, str(tmp_path / "flag"))
    with Crew(prepare, backend=backend) as crew:
        done = list(crew.in_order([("echo", 1), ("die",), ("echo", 2)]))
    assert [entry.result for entry in done[:1]] == [1]
    assert "cannot be prepared: FileExistsError" in done[1].result.reason
    assert "cannot be prepared: FileExistsError" in done[2].result.reason


def test_a_process_that_ends_in_its_factory_has_begun(backend):
    (done,) = Crew(dies_at_once, backend=backend).as_completed([("echo", 1)], tries=1)
    assert done.result.reason == "its process died (exit code 3)" and done.result.begun


class NeverThere:
    """A factory that never arrives in its process."""

    def __call__(self, reports):
        return worker(reports)

    def __reduce__(self):
        return time.sleep, (1000,)


def test_a_process_that_does_not_begin_is_ended(backend):
    crew = Crew(NeverThere(), limits=Limits(start_s=1.0), backend=backend)
    (done,) = crew.as_completed([("echo", 1)], tries=1)
    assert done.result == Lost("its process did not begin within 1 s", died=True)
    assert not done.result.begun


# ---- ends ----------------------------------------------------------------------------------------


def test_cancelled_work_ends_soon(backend):
    with Crew(worker, 2, backend=backend) as crew, pytest.raises(CancelledError):
        for _ in crew.as_completed([("echo", 1), ("until", "/never")]):
            crew.cancel()
    with Crew(worker, backend=backend) as crew, pytest.raises(CancelledError):
        list(crew.as_completed([("until", "/never")], stopped=lambda: True))


class Closing:
    def __init__(self, flag, reports):
        self.flag = flag

    def __call__(self, item):
        return item

    def close(self):
        os.mkdir(self.flag)


def test_idle_workers_close_what_they_hold(backend, tmp_path):
    flag = tmp_path / "closed"
    with Crew(functools.partial(Closing, str(flag)), backend=backend) as crew:
        list(crew.in_order([1]))
        assert not flag.exists()
    assert flag.exists()


# ---- another place for workers -------------------------------------------------------------------


class Here:
    """Workers in this process: the first ``losses`` items are lost; a worker beyond ``places`` waits for two looks."""

    def __init__(self, losses=0, places=1000):
        self.losses, self.free, self.started, self.stopped = losses, places, 0, 0

    def start(self, prepare):
        self.started += 1
        self.free -= 1
        return HereMember(self, prepare(lambda call: None), looks=2 if self.free < 0 else 0)

    def pack(self, item):
        return [item]

    def heard(self, members, limits, timeout_s=0.5):
        for member in members:
            if member.waits():
                member.looks -= 1
                member.message = None if member.looks else Ready()
        return [member for member in members if member.message is not None]


class HereMember:
    def __init__(self, backend, work, looks):
        self.backend, self.work, self.looks, self.message = backend, work, looks, None

    def waits(self):
        return self.looks > 0

    def give(self, packed):
        (item,) = packed
        self.backend.losses -= 1
        lost = self.backend.losses >= 0
        self.message = Lost("the node is gone", died=True) if lost else Answer(self.work(item))
        return True

    def answer(self):
        message, self.message = self.message, None
        return message

    def dismiss(self):
        pass

    def stop(self, patience_s=0.0):
        self.backend.stopped += 1


@pytest.mark.parametrize(
    ("losses", "wanted", "retried"),
    [(0, [0, 1, 2, 3], 0), (1, [0, 1, 2, 3], 1), (3, [0, None, 2, 3], 2)],
)
def test_the_policy_is_the_same_wherever_workers_run(losses, wanted, retried):
    backend = Here(losses)
    with Crew(worker, 2, backend=backend) as crew:
        done = list(crew.in_order([("echo", number) for number in range(4)]))
    gone = Lost("the node is gone, in 2 tries", died=True)
    assert [entry.result for entry in done] == [gone if n is None else n for n in wanted]
    assert sum(len(entry.retried) for entry in done) == retried
    assert backend.started == backend.stopped == 2 + losses


@pytest.mark.parametrize(("places", "workers", "most"), [(2, 6, 6), (6, 2, 2), (0, 3, 3)])
def test_items_go_to_workers_that_have_a_place(places, workers, most):
    backend = Here(places=places)
    with Crew(worker, workers, backend=backend) as crew:
        items = [("echo", number) for number in range(12)]
        assert [done.result for done in crew.in_order(items)] == list(range(12))
    assert backend.started == backend.stopped <= most


def test_workers_that_do_not_end_are_waited_for_together():
    waited = []

    class Stuck:
        """A worker that hangs as it closes its simulator."""

        def dismiss(self):
            pass

        def stop(self, patience_s):
            waited.append(patience_s)
            time.sleep(patience_s)

    crew = Crew(worker)
    crew._members = [Stuck(), Stuck(), Stuck()]
    crew.close(patience_s=0.2)
    assert 0.1 < waited[0] <= 0.2 and waited[1:] == [0.0, 0.0]


def test_a_worker_that_gets_its_place_just_after_it_was_asked_gets_its_item():
    """Nobody else works then, and the crew must not take that for the end."""
    backend = LocalBackend()
    start, asked = backend.start, []

    def start_later(prepare):
        member = start(prepare)
        member.waits = lambda: asked.append(None) or len(asked) == 1
        return member

    backend.start = start_later
    with Crew(worker, 1, backend=backend) as crew:
        assert [done.result for done in crew.in_order([("echo", 1), ("echo", 2)])] == [1, 2]
    assert len(asked) > 1
