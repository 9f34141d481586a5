"""Many runs from one configuration: those that fail, hang or are killed; curves of several; a GPU for each."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from imitate.errors import ConfigError, EnvError, UserError
from imitate.system.run_folder import RunFolder
from imitate.train.sweep import work
from imitate.train.sweep.curves import read_curves
from imitate.train.sweep.sweep import Resources, Sweep, table_rows
from imitate.train.sweep.work import VISIBLE, GpuShares, visible_gpus
from tests.forked import Forked
from tests.refusals import refused
from tests.tiny import tiny_demos, tiny_tree

from .conftest import PENDULUM, records

FOREVER = ["--set", "train.num_epochs=100000"]


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path)


@pytest.fixture(scope="module")
def swept(tmp_path_factory, forked_trainings):
    """A sweep that has been run: its configuration, the result, and every change that was heard of."""
    config, heard = write_config(tmp_path_factory.mktemp("swept")), []
    return config, Sweep(config).run(workers=2, on_change=heard.append), heard


def write_config(tmp_path):
    """A sweep over two seeds, on a file beside it."""
    words = {"num_demos": 1, "length": 16, "actions_from_obs": True, "env_meta": PENDULUM}
    tiny_demos(tmp_path / "data.hdf5", {"state": 3}, **words)
    keys = {"seed": [1, 2], "output_dir": str(tmp_path / "runs"), "batch_size": 8, "num_epochs": 2}
    short = {"name": "two", "epoch_every_n_steps": 4}
    tree = tiny_tree(obs={"state": 3}, data="data.hdf5", experiment=short, train=keys)
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(tree))
    return path


def tree_of(config, **train_keys):
    """The configuration in a file, as it is meant anywhere, with changes."""
    tree = json.loads(config.read_text())
    tree["train"] |= {"data": str(config.with_name("data.hdf5")), **train_keys}
    return tree


@contextlib.contextmanager
def started(*command, **options):
    """A process whose output is read; it is killed at the end."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, *map(str, command)], **pipes, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_run_per_value_then_nothing_left_to_do(swept):
    config, result, heard = swept
    assert result.exit_code == 0
    assert [run.values for run in result.runs] == [{"train.seed": 1}, {"train.seed": 2}]
    assert [run.results["step"] for run in result.runs] == [8, 8]
    assert result.picture.stat().st_size > 5000
    assert sorted(run.status for run in heard) == ["finished", "finished", "running", "running"]
    header, rows = table_rows(result.runs)
    assert header[0] == "train.seed"
    assert [row[0] for row in rows] == ["1", "2"]
    assert all(row[-1] == "finished" for row in rows)
    (setting,) = result.settings
    assert (setting.label, setting.seeds, setting.wanted) == ("two", (1, 2), 2)
    (entry,) = json.loads((result.folder / "settings.json").read_text())
    assert entry["measures"]["train_loss"]["n"] == 2
    assert (result.folder / "curves.pdf").read_bytes()[:4] == b"%PDF"
    forms = {path.suffix for path in result.folder.glob("settings.*")}
    assert forms == {".json", ".csv", ".md", ".tex"}

    heard_again = []
    again = Sweep(config).run(on_change=heard_again.append)
    assert again.exit_code == 0
    assert "running" not in [run.status for run in heard_again], "a process was started"
    assert len(list(result.folder.glob("*/*/config.json"))) == 2

    # Another set of values is another sweep.
    with refused("choose another --name", error=ConfigError):
        Sweep(config, ["train.batch_size=[4,8]"])


@pytest.mark.parametrize("part", ["", "20260101000000"])
def test_a_sweep_trains_in_no_folder_behind_a_link(config, tmp_path, part):
    sweep = Sweep(config)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "config.json").write_text("{}")
    place = sweep.folder / sweep.runs[0] / part
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(elsewhere)
    with refused("is a link, and runs are not written through links", error=ConfigError):
        sweep.run()
    assert [path.name for path in elsewhere.iterdir()] == ["config.json"]


SHELL = pytest.param(signal.SIG_DFL, id="shell", marks=pytest.mark.nightly)
BACKGROUND = pytest.param(signal.SIG_IGN, id="background")


@pytest.mark.slow("a sweep and its training import torch, as users' do")
@pytest.mark.parametrize("before", [SHELL, BACKGROUND])
def test_an_interrupted_sweep_goes_on(config, tmp_path, before):
    command = ["-m", "imitate", "sweep", config, "--workers", "1", *FOREVER]
    with started(*command, preexec_fn=lambda: signal.signal(signal.SIGINT, before)) as process:
        wait_until(lambda: any((tmp_path / "runs").glob("two/*/*/metrics.jsonl")))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "the same command resumes" in out
    (run,) = (tmp_path / "runs").glob("two/*/*/config.json")
    assert (run.parent / "checkpoints" / "last.pth").is_file()
    states = [Sweep(config).state(name).status for name in Sweep(config).runs]
    assert states == ["interrupted", "waiting"]


@pytest.mark.nightly
def test_a_killed_sweep_leaves_no_training_and_the_same_call_resumes_it(config, tmp_path):
    command = ["-m", "imitate", "sweep", config, "--workers", "2", *FOREVER]
    with started(*command):
        wait_until(lambda: len(logs_with(tmp_path, "torch threads")) == 2)
    with started(*command) as again:
        wait_until(lambda: len(logs_with(tmp_path, "resumed at epoch")) == 2)
        again.send_signal(signal.SIGINT)
        out, err = again.communicate(timeout=600)
    assert again.returncode == 130 and "failed" not in out, out + err
    assert len(logs_with(tmp_path, "")) == 2
    wait_until(lambda: not processes_with(str(tmp_path)))


def wait_until(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def logs_with(tmp_path, words):
    logs = (tmp_path / "runs").glob("two/*/*/log.txt")
    return [log for log in logs if words in log.read_text()]


def processes_with(words):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] if words.encode() in path.read_bytes() else []
    return found


def test_a_run_that_fails_is_told_and_the_others_go_on(config, forked_trainings):
    tree = tree_of(config, seed=1)
    tree["algo"]["optim_params"] = {"policy": {"learning_rate": {"initial": [0.001, 1e30]}}}
    result = Sweep(tree).run()
    assert result.exit_code == 1
    assert [run.is_over for run in result.runs] == [True, False]
    assert result.runs[1].status.startswith("failed")


def test_what_files_name_is_refused_before_the_first_process(config, tmp_path):
    env_meta = {"env_name": "unknown_sea:Boat-v0", "type": 2, "env_kwargs": {}}
    tiny_demos(tmp_path / "boat.hdf5", {"state": 3}, num_demos=1, env_meta=env_meta)
    tree = tree_of(config, data=str(tmp_path / "boat.hdf5"))
    tree["experiment"]["rollout"] = {"enabled": True}
    with refused("add --trust unknown_sea", error=EnvError):
        Sweep(tree)


def test_a_run_that_cannot_begin_says_why(config, forked_trainings):
    sweep = Sweep(tree_of(config, seed=[1]))
    config.with_name("data.hdf5").write_bytes(b"cut short")
    (run,) = sweep.run().runs
    assert re.match(r"failed: .*data.hdf5: .+; see .*output.txt", run.status), run.status


def test_curves_of_runs(swept):
    _, result, _ = swept
    curves = read_curves([result.folder])
    assert [curve.label for curve in curves] == ["seed=1", "seed=2"]
    assert [record["step"] for record in curves[0].epochs] == [4, 8]
    record = curves[0].epochs[-1]
    assert curves[0].place(record, "epoch") == 2
    assert curves[0].place(record, "cpu") >= 0


def test_what_cannot_be_swept_is_refused(config, tmp_path):
    with refused("there is no such run", error=UserError):
        read_curves([tmp_path / "nothing"])
    with refused("no list of values to try", error=ConfigError):
        Sweep(tree_of(config, seed=1))
    tree = {"algo_name": "bc", "train": {"seed": [1, 2]}}
    with refused("--set trian.seed=2: trian: unknown key, did you mean 'train'", error=ConfigError):
        Sweep(tree, overrides=["trian.seed=2"], output_dir=tmp_path)


def test_a_sweep_that_another_process_runs_is_refused(config):
    sweep = Sweep(config)
    sweep.folder.mkdir(parents=True)

    def holds(say):
        with RunFolder(sweep.folder).locked():
            say("locked")
            signal.pause()

    with Forked(holds) as other:
        assert other.line() == "locked"
        with refused("another process is training in this", error=ConfigError):
            sweep.run()
    assert not list(sweep.folder.glob("*/"))


# ---- trainings that hang, die or lose their worker -----------------------------------------------

BEGINS = """
import os, pathlib, signal, sys, time
from imitate.system.processes import end_with_stdin
end_with_stdin(1.0)
place = pathlib.Path({0!r})
is_first = "seed=1" in "".join(sys.argv)
count = len(list(place.glob("try-*")))
(place / f"try-{{os.getpid()}}-{{is_first}}").touch()
"""
HANGS = f"{BEGINS}\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile is_first: time.sleep(60)"
LOSES_ITS_WORKER = f"{BEGINS}\nif is_first: os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"


@pytest.fixture
def swept_by(tmp_path, monkeypatch):
    """Runs a sweep over two seeds with a program in place of the training."""

    def run(program, **resources):
        monkeypatch.setattr(work, "PROGRAM", program.format(str(tmp_path)))
        return Sweep(write_config(tmp_path)).run(resources=Resources(**resources))

    return run


def tries(tmp_path):
    return sorted(path.name.rpartition("-")[2] for path in tmp_path.glob("try-*"))


def test_a_training_that_hangs_is_tried_again_then_named_and_the_next_one_runs(swept_by, tmp_path):
    result = swept_by(HANGS, workers=1, hang_s=8.0)
    assert tries(tmp_path) == ["False", "True", "True"]
    first, second = result.runs
    assert "reported nothing for 8 s, in 2 tries" in first.status and "output.txt" in first.status
    assert second.status == "waiting"  # the program wrote no run, but it came to its end
    assert result.exit_code == 1
    wait_until(lambda: not processes_with(str(tmp_path)))


def test_a_run_that_loses_its_worker_twice_is_named_and_the_others_go_on(swept_by, tmp_path):
    result = swept_by(LOSES_ITS_WORKER, workers=2)
    assert tries(tmp_path) == ["False", "True", "True"]
    assert "its process died (exit code -9), in 2 tries" in result.runs[0].status
    assert not result.runs[1].status.startswith("failed")
    wait_until(lambda: not processes_with(str(tmp_path)))


DIES_LATER = """
import os, pathlib, signal, subprocess, sys, time
from imitate.system.processes import end_with_stdin
command, first = [{0!r}, *sys.argv[1:]], pathlib.Path({1!r})
if not first.exists():
    first.touch()
    subprocess.run([*command, "--until-epoch", "2"])
    end_with_stdin(1.0)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
os.execv(command[0], command)
"""


def test_a_training_whose_worker_is_killed_is_resumed(
    config, tmp_path, preloaded_commands, monkeypatch
):
    """Nothing twice, nothing left out; the worker dies after the second epoch."""
    program = DIES_LATER.format(str(preloaded_commands / "imitate"), str(tmp_path / "first"))
    monkeypatch.setattr(work, "PROGRAM", program)
    sweep = Sweep(config, ["train.seed=[1]"], overrides=["train.num_epochs=4"])
    (run,) = sweep.run().runs
    assert run.status == "finished"
    (log,) = sweep.folder.glob("*/*/log.txt")
    assert [record["epoch"] for record in records(log.parent)] == [1, 2, 3, 4]
    assert "resumed at epoch 2" in log.read_text()


def stat_of(pid):
    """State, parent and more of a process; [None] where it is gone. Z: it has ended, nobody asked for its code."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [None]


ENDS_WITH_STDIN = """
import os, signal, subprocess, sys, time
from imitate.system.processes import end_with_stdin
end_with_stdin({patience}, {scratch!r})
signal.signal(signal.SIGTERM, signal.SIG_IGN if {patience} == 0.5 else signal.SIG_DFL)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print(child.pid, flush=True)
while True: time.sleep(100)
"""


@pytest.mark.parametrize("patience", [0.0, 0.5, 60.0])
def test_a_session_ends_when_stdin_is_closed_and_its_folder_is_removed(tmp_path, patience):
    """At once, after the patience with a process that does not heed SIGTERM, or as soon as it has ended."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "file").touch()
    program = ENDS_WITH_STDIN.format(patience=patience, scratch=str(scratch))
    with started("-c", program, stdin=subprocess.PIPE, start_new_session=True) as process:
        child = int(process.stdout.readline())
        assert process.poll() is None and scratch.exists()
        process.stdin.close()
        process.stdin = None
        assert process.wait(timeout=600) < 0
        wait_until(lambda: not scratch.exists())
        wait_until(lambda: stat_of(child)[0] in ("Z", None))


# ---- GPUs: each run sees one, none is shared while another is free -------------------------------


def test_each_process_gets_the_gpu_with_the_fewest():
    gpus = GpuShares(["3", "5"])
    first, second, third = gpus.take(), gpus.take("cuda"), gpus.take()
    assert [taken[VISIBLE] for taken in (first, second, third)] == ["3", "5", "3"]
    gpus.give_back(first)
    gpus.give_back(third)
    assert gpus.take() == {VISIBLE: "3"}
    assert gpus.places is None


def test_gpus_of_ones_own_are_nobody_elses():
    gpus = GpuShares(["3", "5", "7", "GPU-1f", "9"], each=2)
    assert gpus.places == 2
    first, second = gpus.take(), gpus.take("cuda")
    assert (first, second) == ({VISIBLE: "3,5"}, {VISIBLE: "7,GPU-1f"})
    gpus.give_back(first)
    assert set(gpus.take()[VISIBLE].split(",")) < {"3", "5", "9"}
    assert GpuShares(["0"], each=1).take() == {VISIBLE: "0"}
    with refused("--gpus 2: this machine has 1 visible GPUs", error=ConfigError):
        _ = GpuShares(["0"], each=2).places


def test_processes_that_name_their_device_and_machines_with_one_gpu_are_left_alone():
    for device in ("cpu", "cuda:1", "mps"):
        assert GpuShares(["0", "1"]).take(device) == {}
    for names in ([], ["0"]):
        assert GpuShares(names).take() == {}


def test_the_gpus_that_may_be_used_are_those_that_are_visible():
    assert visible_gpus({VISIBLE: "2, GPU-1f"}) == ["2", "GPU-1f"]
    assert visible_gpus({VISIBLE: ""}) == []
    assert all(name.isdigit() for name in visible_gpus({}))


SEEN = """
import json, os, pathlib, time
here, began = pathlib.Path({0!r}), time.time()
(here / f"begun-{{os.getpid()}}").touch()
end = time.monotonic() + 60
while len(list(here.glob("begun-*"))) < 2 and time.monotonic() < end: time.sleep(0.05)
time.sleep(0.5)
entry = [os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"], began, time.time()]
(here / f"run-{{os.getpid()}}.json").write_text(json.dumps(entry))
"""
"""Training that writes which GPU it saw, and when; the first two wait for each other."""


def runs_seen(tmp_path, monkeypatch, program=SEEN):
    (tmp_path / "seen").mkdir()
    monkeypatch.setattr(work, "PROGRAM", program.format(str(tmp_path / "seen")))
    return Sweep(write_config(tmp_path), ["train.seed=[1,2,3]"])


def test_runs_of_a_sweep_see_one_gpu_each(tmp_path, monkeypatch):
    """Three runs on two GPUs: never two at a time on one."""
    monkeypatch.setenv(VISIBLE, "4,7")
    runs_seen(tmp_path, monkeypatch).run(resources=Resources(workers=3, cpus=1, gpus=1))
    check_gpus(tmp_path / "seen", {"4", "7"})


def check_gpus(folder, names):
    """Each run saw one number, none two at a time."""
    entries = [json.loads(path.read_text()) for path in folder.glob("run-*.json")]
    assert len(entries) == 3
    assert {gpu for gpu, *_ in entries} == names
    assert {threads for _, threads, *_ in entries} == {"1"}
    for gpu in names:
        spans = sorted((began, ended) for seen, _, began, ended in entries if seen == gpu)
        assert all(one[1] <= two[0] for one, two in zip(spans, spans[1:], strict=False))


def test_fewer_gpus_than_a_run_needs_are_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv(VISIBLE, "4")
    sweep = Sweep(write_config(tmp_path))
    with refused("--gpus 2", error=ConfigError):
        sweep.run(resources=Resources(gpus=2))
    assert set(os.listdir(sweep.folder)) <= {".lock", "sweep.json"}
