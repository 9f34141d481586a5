"""Copies of run folders: what changes is sent, in an order that a kill cannot spoil."""

import json
import os
import shutil

import pytest

from imitate.errors import TrainingError
from imitate.train.sweep.work import (
    FolderChanges,
    Part,
    Sender,
    TrainingItem,
    content_to_resume,
    lay_out,
    prepare,
    received,
)
from tests.refusals import refused


@pytest.fixture
def there(tmp_path):
    run = tmp_path / "there" / "a" / "1"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"output_dir": str(tmp_path / "there")}))
    return tmp_path / "there" / "a"


def content(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def replaced(path, data):
    new = path.with_name("new")
    new.write_bytes(data)
    new.replace(path)


def test_a_copy_follows_its_original(there, tmp_path):
    here = tmp_path / "here" / "a"
    lay_out(here, content(there))
    sender, run = Sender(there), there / "1"
    assert sender.changes().parts == ()
    (run / "metrics.jsonl").write_text("one\n")
    (run / "checkpoints" / "last.pth").write_bytes(b"1" * 100)
    os.link(run / "checkpoints" / "last.pth", run / "checkpoints" / "epoch_1.pth")
    (run / ".metrics.jsonl.123").write_text("half")
    changes = sender.changes()
    assert [(part.path, part.data is not None) for part in changes.parts] == [
        ("1/metrics.jsonl", True),
        ("1/checkpoints/epoch_1.pth", True),
        ("1/checkpoints/last.pth", False),  # it has the same content
    ]
    received(changes, here)
    assert content(here) == content(there)

    with (run / "metrics.jsonl").open("a") as file:
        file.write("two\n")
    replaced(run / "checkpoints" / "last.pth", b"2" * 100)
    (run / "checkpoints" / "epoch_1.pth").unlink()
    changes = sender.changes()
    assert Part("1/metrics.jsonl", 4, b"two\n") in changes.parts
    received(changes, here)
    assert content(here) == content(there)
    assert sender.changes().parts == ()


def test_json_files_name_the_receivers_folders(there, tmp_path):
    here = tmp_path / "here" / "b"
    sender = Sender(there)
    results = {"run": str(there / "1"), "other": "/somewhere/else", "no_path": str(there)[1:]}
    (there / "1" / "results.json").write_text(json.dumps(results))
    received(sender.changes(), here)
    found = json.loads((here / "1" / "results.json").read_text())
    assert found == {**results, "run": str(here / "1")}


def test_only_what_was_appended_is_sent(there):
    log, table = there / "1" / "metrics.jsonl", there / "1" / "table.csv"
    log.write_text("12")
    table.write_text("12")
    sender = Sender(there)
    for path in (log, table):
        with path.open("a") as file:
            file.write("34")
    sent = {part.path: part for part in sender.changes().parts}
    assert sent["1/metrics.jsonl"] == Part("1/metrics.jsonl", 2, b"34")
    assert sent["1/table.csv"] == Part("1/table.csv", 0, b"1234")
    os.utime(log, (1, 1))
    assert sender.changes().parts == (Part("1/metrics.jsonl", 4, b""),)
    os.truncate(log, 3)
    assert sender.changes().parts == (Part("1/metrics.jsonl", 0, b"123"),)
    replaced(log, b"12345")
    assert sender.changes().parts == (Part("1/metrics.jsonl", 0, b"12345"),)


def test_what_is_needed_to_resume(there, tmp_path):
    run = there / "1"
    for name in ("metrics.jsonl", "checkpoints/last.pth", "videos/a.mp4", ".lock"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(name)
    shutil.copytree(run, there / "0")
    (there / "output.txt").write_text("of the first try")
    names = ["1/checkpoints/last.pth", "1/config.json", "1/metrics.jsonl", "output.txt"]
    assert list(content_to_resume(there)) == names
    assert content_to_resume(tmp_path / "nothing") == {}


@pytest.mark.parametrize("path", ["../out.txt", "/out.txt", "a/../../out.txt", ""])
def test_nothing_is_written_outside(tmp_path, path):
    for part in (Part(path, 0, b"x"), Part("a.pth", same_as=path), Part(path)):
        with refused("not a path inside", error=TrainingError):
            received(FolderChanges("/there", (part,)), tmp_path / "here")
    assert not (tmp_path / "out.txt").exists()


def test_an_end_without_its_beginning_is_refused(tmp_path):
    (tmp_path / "log.txt").write_text("12")
    with refused("received the bytes from 3 on without", error=TrainingError):
        received(FolderChanges("/there", (Part("log.txt", 3, b"4"),)), tmp_path)
    received(FolderChanges("/there", (Part("log.txt", 1, b"3"),)), tmp_path)
    assert (tmp_path / "log.txt").read_text() == "13"


# ---- a training away from the sweep's folder: all that it has written arrives --------------------

FILES = 400
PROGRAM = f"""
import os, pathlib
from imitate.system.processes import end_with_stdin
end_with_stdin(0.0, os.environ["IMITATE_SCRATCH"])
folder = pathlib.Path(os.environ["IMITATE_SCRATCH"], "run")
for number in range({FILES}):
    (folder / f"{{number}}.txt").write_text(str(number))
"""


class Notes:
    """Reports of a worker that write what is sent into a folder."""

    def __init__(self, folder):
        self._folder = folder

    def __call__(self, call):
        pass

    def note(self, value):
        received(value, self._folder)


@pytest.mark.slow("three trainings of which each is a new interpreter")
def test_what_is_written_last_arrives_before_the_scratch_folder_is_removed(tmp_path):
    """The process that removes it, where a node is lost, looks for the end of the training now and then only."""
    for attempt in range(3):
        place = tmp_path / str(attempt)
        item = TrainingItem("run", "{}", str(tmp_path), away=True, program=PROGRAM)
        assert prepare(Notes(place))(item) == 0
        assert {f"{number}.txt" for number in range(FILES)} <= {p.name for p in place.iterdir()}
