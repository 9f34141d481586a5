"""Reading never writes, and what is written follows no link."""

import ast
import itertools
import logging
import os
import re
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.file.journal import JournaledFile, changing, journal_of
from imitate.errors import ConfigError, DatasetError
from imitate.system import plain_files
from imitate.system.run_folder import RunFolder
from imitate.train.console import Console
from imitate.train.interactive.dagger import RoundFiles
from imitate.train.metrics import MetricsFile

ROOT = Path(__file__).parents[2]


def demos(path, steps=4, seed=0):
    random = np.random.default_rng(seed)
    with DatasetWriter(path, {"env_name": "arm", "type": 4}) as writer:
        obs, ends = {"a": random.normal(size=(steps, 3))}, np.arange(steps) == steps - 1
        actions = random.normal(size=(steps, 2))
        writer.append_episode(Episode(obs, actions, np.zeros(steps), ends, np.zeros(steps, bool)))
    return path


def cut(path):
    """Interrupt a change of a file in a process of its own."""
    process = os.fork()
    if process == 0:
        with changing(path) as file:
            file.seek(3000)
            file.write(b"changed" * 40)
            os.kill(os.getpid(), 9)
    os.waitpid(process, 0)
    assert journal_of(path).exists()
    return path


def recovered(path):
    return CliRunner().invoke(app, ["dataset", "recover", str(path)])


def snapshot(folder):
    return {
        p.name: (p.lstat().st_mtime_ns, p.is_file() and p.read_bytes()) for p in folder.iterdir()
    }


def test_a_reader_names_the_interrupted_change_and_the_verb_takes_it_back(tmp_path):
    path = demos(tmp_path / "a.hdf5")
    before = path.read_bytes()
    left = snapshot(cut(path).parent)
    for _ in range(2):
        with pytest.raises(DatasetError, match="change: run `imitate dataset recover .*a.hdf5'?"):
            DatasetFile(path)
        with pytest.raises(DatasetError, match="an interrupted change"), changing(path):
            pass
    assert snapshot(tmp_path) == left
    done = recovered(path)
    assert (done.exit_code, "as it was before" in done.output) == (0, True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.hdf5"]
    assert "nothing to recover" in recovered(path).output


@pytest.mark.parametrize("other", [
    {"steps": 9}, {"seed": 1}, pytest.param({"steps": 4000, "seed": 1}, id="same size, other numbers"),
])  # fmt: skip
@pytest.mark.parametrize("how", ["over it", "in its place"])
def test_the_journal_of_another_file_is_read_past_and_moved_aside(tmp_path, caplog, other, how):
    path = cut(demos(tmp_path / "a.hdf5", steps=other.get("steps", 4) if "seed" in other else 4))
    copy = demos(tmp_path / "b.hdf5", **other)
    shutil.copyfile(copy, path) if how == "over it" else os.replace(
        shutil.copy(copy, tmp_path / "c"), path
    )
    left = snapshot(tmp_path)
    with DatasetFile(path) as file:
        assert file.demos() == ["demo_0"]
    assert snapshot(tmp_path) == left
    with caplog.at_level(logging.WARNING), changing(path):
        pass
    assert "belongs to another file" in caplog.text
    assert path.read_bytes() == copy.read_bytes()
    assert (tmp_path / "a.hdf5.journal.stale").exists()
    assert recovered(path).exit_code == 0


def test_a_journal_without_an_owner_is_never_put_back(tmp_path, caplog):
    path, evil = demos(tmp_path / "a.hdf5"), b"evil"
    before = path.read_bytes()
    journal_of(path).write_bytes(struct.pack("<QQI", 0, len(evil), zlib.crc32(evil)) + evil)
    with caplog.at_level(logging.WARNING):
        assert recovered(path).exit_code == 0
    assert "does not say which file" in caplog.text
    assert path.read_bytes() == before


def test_a_journal_leads_through_no_link(tmp_path):
    victim = demos(tmp_path / "victim.hdf5")
    cut(victim)
    got = tmp_path / "got"
    got.mkdir()
    (got / "a.hdf5").symlink_to(victim)
    shutil.move(journal_of(victim), got / "a.hdf5.journal")
    left = victim.read_bytes()
    done = recovered(got / "a.hdf5")
    assert (done.exit_code, "is a link" in done.output) == (2, True), done.output
    assert victim.read_bytes() == left


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_episodes_and_rounds_are_appended_through_no_link(tmp_path, make):
    precious, got = demos(tmp_path / "precious.hdf5"), tmp_path / "got"
    left = precious.read_bytes()
    (got / "elsewhere").mkdir(parents=True)
    make(got / "demos.hdf5", precious)
    (got / "round_1").symlink_to(got / "elsewhere")
    files = RoundFiles(got, None, {"env_name": "arm", "type": 4}, {}, labels_all=True)
    with pytest.raises(
        DatasetError, match="demos.hdf5: cannot be written .it (is a link|has a second name)"
    ):
        files.appended()
    assert (precious.read_bytes(), (got / "demos.hdf5").exists()) == (left, True)
    with pytest.raises(OSError, match="it is a link"):
        files.round_folder(1)


def planted(tmp_path, name):
    """A link of this name to a file of the user, and that file."""
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(precious)
    return RunFolder(tmp_path / "run"), precious


REFUSED = {
    ".lock": lambda run: run.locked().__enter__(),
    "log.txt": lambda run: Console(quiet=True, log=run.log).say("a line"),
    "metrics.jsonl": lambda run: MetricsFile(run.metrics).append({"epoch": 1}),
    "a.journal": lambda run: JournaledFile(run.path / "a"),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(REFUSED, ("link", "dangling", "pipe")),
        *(
            (name, "second name") for name in REFUSED if name != ".lock"
        ),  # nothing is written to a lock
    ],
)
def test_a_log_or_lock_is_opened_through_no_link(tmp_path, name, kind):
    run, precious = planted(tmp_path, name)
    if kind == "dangling":
        precious.unlink()
    elif kind != "link":
        (run.path / name).unlink()
        os.mkfifo(run.path / name) if kind == "pipe" else os.link(precious, run.path / name)
    with pytest.raises((OSError, ConfigError), match="a link|not a regular file|second name"):
        REFUSED[name](run)
    assert precious.read_text() == "mine\n" if kind != "dangling" else not precious.exists()
    assert not run.is_locked()


@pytest.mark.parametrize("name", ["checkpoints", "videos", "tb", "wandb", "metrics.jsonl"])
def test_no_training_in_a_folder_whose_parts_lie_elsewhere(tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path)
    with (
        pytest.raises(ConfigError, match=f"{name}: this run folder cannot be .* link"),
        RunFolder(tmp_path / "run").locked(),
    ):
        pass


@pytest.mark.parametrize("make", [
    lambda path: plain_files.write_text(path, "new"),
    lambda path: plain_files.fresh(path, "w").write("new"),
    lambda path: plain_files.cleared(path).write_text("new"),
], ids=["write_text", "fresh", "cleared"])  # fmt: skip
def test_what_is_made_anew_takes_the_place_of_a_link(tmp_path, make):
    run, precious = planted(tmp_path, "new")
    make(run.path / "new")
    assert (run.path / "new").read_text() in ("new", "")
    assert not (run.path / "new").is_symlink()
    assert precious.read_text() == "mine\n"
    assert len(list(run.path.iterdir())) == 1


WRITES = re.compile(
    r"\.open\(\s*\"[wax]|\.open\(\s*\"r\+|\.write_text\(|\.write_bytes\("
    r"|(?<!\.)\bopen\(.*\"[wax]|File\([\w.]+, \"w\""
)


def test_the_source_opens_no_file_for_writing_by_another_way():
    """New files at a place that nobody else can have prepared, and files through JournaledFile, are the exceptions."""
    known = {
        "checks/algo.py", "deploy/bundle/archive.py", "data/edit/merge.py", "data/edit/rewrite.py",
        "data/quality/report/page.py", "data/formats/sidecar.py", "collect/render.py",
        "crew/ray_cluster.py", "evaluate/video.py", "data/formats/d4rl.py",
    }  # fmt: skip
    found = set()
    for path in (ROOT / "imitate").rglob("*.py"):
        text = path.read_text()
        if (
            not re.search(r"open\(|write_(text|bytes)\(|File\(", text)
            or path.name == "plain_files.py"
        ):
            continue  # parsing all takes seconds
        if WRITES.search(ast.unparse(ast.parse(text)).replace("'", '"')):
            found.add(str(path.relative_to(ROOT / "imitate")))
    assert found <= known


@pytest.mark.parametrize(("ways", "known"), [
    (r"fcntl\.(flock|lockf)", {"system/plain_files.py"}),
    (r"os\.(replace|rename)\(|journal\.rename\(", {"system/plain_files.py"}),
    (r"signal\.signal\(", {
        "system/processes.py", "crew/serving.py", "cli/main.py", "deploy/robot/watchdog.py",
        "cli/robot/serve.py",
    }),
], ids=["locks", "renames", "signals"])  # fmt: skip
def test_the_source_has_one_way_each(ways, known):
    files = {
        str(path.relative_to(ROOT / "imitate")): path.read_text()
        for path in (ROOT / "imitate").rglob("*.py")
    }
    assert {name for name, text in files.items() if re.search(ways, text)} == known
