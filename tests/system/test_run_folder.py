import json
import os
import re
import signal

import pytest

from imitate.errors import CheckpointError, ConfigError
from imitate.system.run_folder import (
    RunFolder,
    create_run_folder,
    find_checkpoint,
    newest_run_folder,
    open_run_folder,
    runs_in,
    to_json,
    write_text,
)
from tests.forked import Forked
from tests.refusals import refused


def test_folders_are_new_each_time_and_the_newest_is_found(tmp_path):
    folders = [create_run_folder(tmp_path, "lift") for _ in range(12)]
    assert len({folder.path for folder in folders}) == 12
    assert re.fullmatch(r"\d{14}", folders[0].path.name)
    with pytest.raises(CheckpointError, match="no run to resume"):
        newest_run_folder(tmp_path, "lift")
    for folder in folders:
        folder.config.write_text("{}")
    # _11 comes after _9, although not in the alphabet.
    assert newest_run_folder(tmp_path, "lift") == folders[-1]
    assert open_run_folder(folders[3].path) == folders[3]


def test_checkpoints_in_order_of_preference(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    words = "looked for best.pth, best_return.pth, last.pth, best_valid.pth"
    with refused(words, error=CheckpointError):
        find_checkpoint(folder.path)
    for name in ("best_valid.pth", "last.pth", "best_return.pth", "best.pth"):
        (folder.checkpoints / name).touch()
        assert find_checkpoint(folder.path).name == name
        assert find_checkpoint(folder.checkpoints).name == name
    assert find_checkpoint(folder.checkpoints / "last.pth").name == "last.pth"


def test_a_folder_of_runs_stands_for_the_newest_with_a_checkpoint(tmp_path):
    first, second, third = (create_run_folder(tmp_path, "lift") for _ in range(3))
    for folder in (first, second, third):
        folder.config.write_text("{}")
    for folder in (first, second):
        folder.last.touch()
    assert find_checkpoint(tmp_path / "lift") == second.last
    assert runs_in(tmp_path / "lift") == [first.path, second.path, third.path]
    assert find_checkpoint(tmp_path) == second.last
    with refused(f"the run {third.path} has no checkpoint", error=CheckpointError):
        second.last.unlink()
        first.last.unlink()
        find_checkpoint(tmp_path / "lift")


def test_a_run_is_named_by_its_folder_its_name_below_runs_or_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (create_run_folder("runs", "lift") for _ in range(2))
    for folder in (first, second):
        folder.config.write_text("{}")
        folder.last.touch()
    for named in ("runs", "runs/lift", "lift", second.path, second.last):
        assert open_run_folder(named) == second
        assert find_checkpoint(named) == second.last
    with refused("no such run|did you mean 'runs/lift'?", error=CheckpointError):
        open_run_folder("runs/lfit")


def test_runs_of_several_names_are_listed_instead_of_guessing(tmp_path):
    for name in ("lift", "can"):
        create_run_folder(tmp_path, name).config.write_text("{}")
    with pytest.raises(CheckpointError, match=r"give one of them: .*/can, .*/lift"):
        find_checkpoint(tmp_path)


def test_text_is_replaced_in_one_go(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")
    os.chmod(tmp_path, 0o700)
    write_text(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_json_has_no_nan():
    text = to_json({"a": float("nan"), "b": [1, float("inf")], "c": {"d": 0.5}})
    assert json.loads(text) == {"a": None, "b": [1, None], "c": {"d": 0.5}}


def test_leftovers_of_a_kill_go_and_nothing_else(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    (folder.checkpoints / ".last.pth.abc.partial").touch()
    (folder.checkpoints / ".best.pth.abc.partial").touch()
    (folder.path / ".metrics.jsonl.123").touch()
    (folder.checkpoints / "last.pth").touch()
    folder.metrics.touch()
    folder.clear_leftovers()
    left = sorted(path.name for path in folder.path.rglob("*") if path.is_file())
    assert left == ["last.pth", "metrics.jsonl"]


def test_a_lock_is_for_one_process_and_ends_with_it(tmp_path):
    def hold(say):
        with RunFolder(tmp_path).locked():
            say("held")
            signal.pause()

    with Forked(hold) as holder:
        assert holder.line() == "held"
        with (
            refused("another process is training", error=ConfigError),
            RunFolder(tmp_path).locked(),
        ):
            pass
    with RunFolder(tmp_path).locked():
        pass


def test_a_folder_whose_attempt_is_no_number_comes_first(tmp_path):
    for name in ("20260101000000_2", "20260101000000_\xb2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert [path.name[-1] for path in runs_in(tmp_path)] == ["\xb2", "2"]
