"""Trainings as work items: the process of each, what its worker reports, and what a sweep makes of its end."""

import contextlib
import json
import os
import signal
import threading
from types import SimpleNamespace

import pytest

from imitate.config import load_config
from imitate.crew import CancelledError, Done, Limits, Lost
from imitate.errors import TrainingError
from imitate.system.processes import LOCAL
from imitate.system.run_folder import RunFolder
from imitate.system.trust import trust_given
from imitate.train.sweep import work
from imitate.train.sweep.state import InTurn, SweepRun
from imitate.train.sweep.work import (
    VISIBLE,
    FolderChanges,
    Part,
    Resources,
    SweepWork,
    TrainingItem,
    prepare,
)
from tests.refusals import refused

from .conftest import config_dict

# ---- the process of a training ---------------------------------------------------------------------

SAYS = """
import json, os, sys
names = ("OWN", "PYTHONPATH", "IMITATE_SCRATCH")
print(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in names}]))
print(os.getsid(0) == os.getpid(), file=sys.stderr)
sys.exit(3)
"""


class Reported:
    """Counts signs of life, and keeps notes."""

    def __init__(self):
        self.beats, self.notes = [], []

    def __call__(self, call):
        self.beats.append(call)

    def note(self, value):
        self.notes.append(value)


def trained(item, reported=None):
    """Run a training; return its exit code."""
    return prepare(reported or Reported())(item)


def item(tmp_path, program=SAYS, **more):
    return TrainingItem("a", '{"x": 1}', str(tmp_path), program=program, **more)


def output(tmp_path):
    """The arguments and variables of a training, and whether it leads a session."""
    first, second = (tmp_path / "a" / "output.txt").read_text().splitlines()
    return *json.loads(first), second


@pytest.mark.parametrize(
    ("until", "pause"), [(None, []), (0, ["--until-epoch", "0"]), (3, ["--until-epoch", "3"])]
)
def test_a_training_begins_in_the_folder_of_its_name(tmp_path, monkeypatch, until, pause):
    monkeypatch.setenv("PYTHONPATH", "mine")
    more = {} if until is None else {"until_epoch": until}
    assert trained(item(tmp_path, variables={"OWN": "7"}, **more)) == 3
    config = tmp_path / "a" / "config_of_run.json"
    assert config.read_text() == '{"x": 1}\n'
    arguments, variables, leads = output(tmp_path)
    assert arguments == ["train", "--config", str(config), "--output-dir", str(tmp_path), *pause]
    assert variables == {"OWN": "7", "PYTHONPATH": "mine", "IMITATE_SCRATCH": None}
    assert leads == "True"


def test_a_training_that_was_begun_is_resumed_after_its_last_process_has_ended(
    tmp_path, monkeypatch
):
    for name in ("20260101_000000", "20260102_000000"):
        (tmp_path / "a" / name).mkdir(parents=True)
        (tmp_path / "a" / name / "config.json").write_text("{}")
        (tmp_path / "a" / name / "results.json").write_text("{}")
    newest, locks, reported = tmp_path / "a" / name, [True, True, False], Reported()
    monkeypatch.setattr(RunFolder, "is_locked", lambda folder: locks.pop(0))
    monkeypatch.setattr(work, "POLL_S", 0.01)
    assert trained(item(tmp_path, until_epoch=2), reported) == 3
    assert not locks and reported.beats[:2] == ["", ""]
    arguments, _, _ = output(tmp_path)
    assert arguments == ["train", str(newest), "--resume", "--until-epoch", "2"]
    assert not (tmp_path / "a" / "config_of_run.json").exists()
    assert [path.parent.name for path in tmp_path.glob("a/*/results.json")] == ["20260101_000000"]


def test_on_another_machine_a_training_has_its_own_folder_whose_changes_are_sent(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(work, "POLL_S", 0.01)
    monkeypatch.setattr(work.sys, "path", ["", "/x", "/y"])
    reported = Reported()
    files = {"output.txt": b"earlier\n"}
    assert trained(item(tmp_path / "not here", away=True, files=files), reported) == 3
    assert not (tmp_path / "not here").exists()
    parts = {part.path: part.data for note in reported.notes for part in note.parts}
    said = parts["output.txt"].decode().splitlines()[-2]
    arguments, variables = json.loads(said)
    scratch = variables["IMITATE_SCRATCH"]
    assert variables["PYTHONPATH"] == os.pathsep.join(["/x", "/y"])
    assert arguments[-2:] == ["--output-dir", scratch] and not os.path.exists(scratch)
    assert os.path.basename(scratch).startswith("imitate-run-")


WRITES = """
import pathlib, sys, time
place = pathlib.Path(sys.argv[3]).parent
for number in range(3):
    time.sleep(0.15)
    (place / "metrics.jsonl").write_text("x" * (number + 1))
time.sleep(0.4)
"""


def test_only_a_file_that_changes_is_a_sign_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "POLL_S", 0.02)
    monkeypatch.setattr(work, "LOOK_S", 0.03)
    reported = Reported()
    assert trained(item(tmp_path, WRITES), reported) == 0
    # The files of the beginning, and three changes, each of which may be seen while it is made.
    assert 2 <= len(reported.beats) <= 7 and set(reported.beats) == {""} and not reported.notes


# ---- what a sweep makes of it ----------------------------------------------------------------------


class Crew:
    """Stands in for a crew: each training ends at once, as the script of its name says."""

    made = None

    def __init__(self, prepare, workers, *, limits, backend):
        self.given = {"prepare": prepare, "workers": workers, "limits": limits}
        Crew.made, self.items = self, []

    def __class_getitem__(cls, _):
        return cls

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def as_completed(self, items, **called):
        self.called = called
        for number, one in enumerate(items):
            self.items.append(one)
            yield Done(number, one, Crew.script(one))


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A sweep of the runs ``names``, of which ``script`` says how each ends; ``world.heard`` has its reports."""
    opened, heard, stop = [], [], threading.Event()
    demos = tmp_path / "x.hdf5"

    @contextlib.contextmanager
    def open_backend(on, **options):
        opened.append((on, options))
        yield SimpleNamespace(places=3)

    monkeypatch.setattr(work, "Crew", Crew)
    monkeypatch.setattr(work, "open_backend", open_backend)

    def run(names, script=lambda item: 0, resources=None, device="cpu"):
        config = load_config(config_dict(demos, train={"device": device}))
        Crew.script = staticmethod(script)
        values = {name: {"train.seed": number} for number, name in enumerate(names)}
        order = InTurn([SweepRun(name, values[name], "waiting", {}) for name in names])
        made = SweepWork(
            tmp_path / "runs",
            dict.fromkeys(names, config),
            values,
            order,
            heard.append,
            stop,
        )
        return made.run(resources or Resources())

    return SimpleNamespace(run=run, heard=heard, stop=stop, opened=opened, folder=tmp_path / "runs")


def result(world, name, status, **more):
    run = world.folder / name / "1"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "results.json").write_text(json.dumps({"status": status, **more}))


def test_resources_of_a_sweep_by_default():
    assert Resources() == Resources(on=LOCAL, workers=1, cpus=None, gpus=0, hang_s=3600.0)


@pytest.mark.parametrize(
    ("resources", "workers", "cpus"),
    [
        (Resources(), 1, 1),
        (Resources(workers=None, cpus=4), 3, 4),  # as many as there are places
        (Resources(workers=9), 5, 1),  # one for each run
    ],
)
def test_workers_of_a_sweep(world, resources, workers, cpus):
    world.run("abcde", resources=resources)
    assert Crew.made.given == {
        "prepare": prepare,
        "workers": workers,
        "limits": Limits(quiet_s=3600.0),
    }
    assert world.opened == [("local", {"cpus": cpus, "gpus": 0, "name": "imitate-sweep"})]


def test_items_of_a_sweep(world, monkeypatch):
    monkeypatch.setenv(VISIBLE, "4,7")
    resources = Resources(cpus=2, gpus=1)
    world.run("ab", resources=resources, device="cuda")
    for one, name in zip(Crew.made.items, "ab", strict=True):
        config = load_config(json.loads(one.config))
        assert (one.name, config.experiment.name) == (name, name)
        assert one.output_dir == config.train.output_dir == str(world.folder.resolve())
        assert (one.until_epoch, one.away, one.files) == (None, False, {})
        threads = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
        # The first run has given its GPU back before the second one begins.
        assert one.variables == {**threads, **trust_given(), VISIBLE: "4"}
        assert one.program == work.PROGRAM
    world.run("a")
    assert Crew.made.items[0].variables == trust_given()
    assert Crew.made.called["stopped"]() is False


def test_the_end_of_each_run_is_what_its_results_say(world):
    codes = {"good": 0, "cut": 130, "bad": 1, "silent": 2, "lost": Lost("it hangs"), "failed": 1}
    result(world, "good", "finished", loss=2.0)
    result(world, "failed", "failed: no loss")
    result(world, "cut", "interrupted")
    result(world, "lost", "interrupted")
    (world.folder / "bad").mkdir()
    (world.folder / "bad" / "output.txt").write_text("error: one\nerror: two\nmore\n")
    failures = world.run(list(codes), lambda item: codes[item.name])

    def see(name):
        return f"see {world.folder / name / 'output.txt'}"

    ends = {
        "good": "finished",
        "cut": "interrupted",
        "bad": f"failed: two; {see('bad')}",
        "silent": f"failed: {see('silent')}",
        "lost": f"failed: it hangs; {see('lost')}",
        "failed": "failed: no loss",
    }
    assert [(run.name, run.status) for run in world.heard] == [
        pair for name, end in ends.items() for pair in ((name, "running"), (name, end))
    ]
    assert failures == {name: end for name, end in ends.items() if end.startswith("failed")}
    assert [run.values["train.seed"] for run in world.heard[::2]] == [0, 1, 2, 3, 4, 5]
    shown = {run.name: run.results for run in world.heard[1::2]}
    assert shown["good"]["loss"] == 2.0 and shown["lost"] == {}


def test_files_of_a_run_go_to_another_machine_and_come_back(world):
    result(world, "a", "interrupted")
    (world.folder / "a" / "1" / "x.partial").touch()
    world.run("a", resources=Resources(on="ray"))
    (one,) = Crew.made.items
    assert one.away and "1/config.json" in one.files and one.variables == trust_given()
    (world.folder / "a" / "1" / "metrics.jsonl").write_text("new")
    assert Crew.made.called["on_loss"](one, Lost("gone")) is True
    assert one.files["1/metrics.jsonl"] == b"new"
    world.stop.set()
    assert Crew.made.called["on_loss"](one, Lost("gone")) is False
    assert Crew.made.called["stopped"]() is True


def test_files_that_cannot_be_written_end_the_sweep_and_say_how_it_goes_on(world, monkeypatch):
    world.run("a", resources=Resources(on="ray"))

    def full(changes, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(work, "received", full)
    note, (one,) = Crew.made.called["on_note"], Crew.made.items
    words = "/a: cannot be written (No space left on device); make room, then resume with the same"
    with refused(words, error=TrainingError):
        note(one, FolderChanges("/there", (Part("x"),)))


def test_a_stopped_sweep_waits_for_its_trainings_and_says_where_they_are(world, monkeypatch):
    result(world, "b", "interrupted")
    locks = [True, True, False]
    monkeypatch.setattr(RunFolder, "is_locked", lambda folder: locks.pop(0))
    monkeypatch.setattr(work, "POLL_S", 0.01)

    def stopped(item):
        if item.name == "b":
            raise CancelledError
        return 0

    failures = world.run("abc", stopped)
    assert not locks and failures == {}
    assert [(run.name, run.status) for run in world.heard[2:]] == [
        ("b", "running"),
        ("b", "interrupted"),
    ]


def test_a_signal_lets_the_trainings_save_and_a_second_one_interrupts(world):
    def signalled(item):
        os.kill(os.getpid(), signal.SIGTERM)
        assert world.stop.is_set() and Crew.made.called["stopped"]()
        raise CancelledError

    world.run("ab", signalled)
    assert [run.status for run in world.heard] == ["running", "waiting"]

    def again(item):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        world.run("ab", again)
