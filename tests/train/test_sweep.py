"""Many runs from one configuration; curves of several runs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from imitate.data import DatasetWriter, Episode
from imitate.errors import ConfigError, UserError
from imitate.train.plot import draw, read_curves
from imitate.train.sweep import Sweep, table_rows

NO_ENV = {"type": 2, "env_name": "Pendulum-v1", "env_kwargs": {}}


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path)


@pytest.fixture(scope="module")
def swept(tmp_path_factory, forked_trainings):
    """A sweep that has been run: its configuration, the result, and every change that was heard of."""
    config, heard = write_config(tmp_path_factory.mktemp("swept")), []
    return config, Sweep(config).run(workers=2, on_change=heard.append), heard


def write_config(tmp_path):
    rng = np.random.default_rng(0)
    data = tmp_path / "data.hdf5"
    with DatasetWriter(data, NO_ENV) as writer:
        ends = np.zeros(16, dtype=bool)
        obs = rng.normal(size=(16, 3)).astype(np.float32)
        writer.append_episode(
            Episode({"state": obs}, obs[:, :1] / 9, np.zeros(16, np.float32), ends, ends)
        )
    path = tmp_path / "sweep.json"
    path.write_text(
        json.dumps(
            {
                "algo_name": "bc",
                "algo": {"actor_layer_dims": [8]},
                "experiment": {
                    "name": "two",
                    "epoch_every_n_steps": 4,
                    "rollout": {"enabled": False},
                    "logging": {"log_tb": False},
                },
                "train": {
                    "data": "data.hdf5",
                    "seed": [1, 2],
                    "output_dir": str(tmp_path / "runs"),
                    "batch_size": 8,
                    "num_epochs": 2,
                    "cuda": False,
                },
                "observation": {"modalities": {"obs": {"low_dim": ["state"]}}},
            }
        )
    )
    return path


def test_a_run_per_value_then_nothing_left_to_do(swept):
    config, result, heard = swept
    assert result.exit_code == 0
    assert [run.values for run in result.runs] == [{"train.seed": 1}, {"train.seed": 2}]
    assert [run.results["step"] for run in result.runs] == [8, 8]
    assert result.picture.stat().st_size > 5000
    assert sorted(run.status for run in heard) == ["finished", "finished", "running", "running"]
    header, rows = table_rows(Sweep(config).axes, result.runs)
    assert header[0] == "train.seed"
    assert [row[0] for row in rows] == ["1", "2"]
    assert all(row[-1] == "finished" for row in rows)
    (setting,) = result.settings
    assert (setting.label, setting.seeds, setting.wanted) == ("two", (1, 2), 2)
    (entry,) = json.loads((result.folder / "settings.json").read_text())
    assert entry["measures"]["train_loss"]["n"] == 2
    assert (result.folder / "curves.pdf").read_bytes()[:4] == b"%PDF"
    assert {path.suffix for path in result.folder.glob("settings.*")} == {
        ".json",
        ".csv",
        ".md",
        ".tex",
    }

    heard_again = []
    again = Sweep(config).run(on_change=heard_again.append)
    assert again.exit_code == 0
    assert "running" not in [run.status for run in heard_again], "a process was started"
    assert len(list(result.folder.glob("*/*/config.json"))) == 2

    # Another set of values is another sweep.
    with pytest.raises(ConfigError, match="choose another --name"):
        Sweep(config, ["train.batch_size=[4,8]"])


@pytest.mark.slow("a sweep and its training import torch, as users' do")
@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN], ids=["shell", "background"])
def test_an_interrupted_sweep_goes_on(config, tmp_path, before):
    command = [
        *(sys.executable, "-m", "imitate", "sweep", str(config), "--workers", "1"),
        *("--set", "train.num_epochs=100000"),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        preexec_fn=lambda: signal.signal(signal.SIGINT, before),
    )
    try:
        deadline = time.monotonic() + 240
        while not any((tmp_path / "runs").glob("two/*/*/metrics.jsonl")):
            assert time.monotonic() < deadline, "no run has begun"
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "the same command resumes" in out
    (run,) = (tmp_path / "runs").glob("two/*/*/config.json")
    assert (run.parent / "checkpoints" / "last.pth").is_file()
    states = [Sweep(config).state(name).status for name in Sweep(config).runs]
    assert states == ["interrupted", "waiting"]


@pytest.mark.nightly
def test_a_killed_sweep_leaves_no_training_and_the_same_call_resumes_it(config, tmp_path):
    command = [sys.executable, "-m", "imitate", "sweep", str(config), "--workers", "2"]
    command += ["--set", "train.num_epochs=100000"]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(logs_with(tmp_path, "torch threads")) == 2)
    finally:
        killed.kill()
        killed.wait()
    again = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(logs_with(tmp_path, "resumed at epoch")) == 2)
        again.send_signal(signal.SIGINT)
        out, err = again.communicate(timeout=240)
    finally:
        again.kill()
    assert again.returncode == 130 and "failed" not in out, out + err
    assert len(logs_with(tmp_path, "")) == 2
    wait_until(lambda: not processes_with(str(tmp_path)))


def wait_until(condition):
    deadline = time.monotonic() + 240
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
    tree = json.loads(config.read_text())
    tree["train"]["data"] = str(config.parent / "data.hdf5")
    tree["algo"]["optim_params"] = {"policy": {"learning_rate": {"initial": [0.001, 1e30]}}}
    tree["train"]["seed"] = 1
    result = Sweep(tree).run()
    assert result.exit_code == 1
    assert [run.is_over for run in result.runs] == [True, False]
    assert result.runs[1].status.startswith("failed")


def test_curves_of_runs(swept, tmp_path):
    _, result, _ = swept
    curves = read_curves([result.folder])
    assert [curve.label for curve in curves] == ["seed=1", "seed=2"]
    assert [record["step"] for record in curves[0].epochs] == [4, 8]
    record = curves[0].epochs[-1]
    assert curves[0].place(record, "epoch") == 2
    assert curves[0].place(record, "cpu") >= 0
    assert draw(curves, tmp_path / "curves.svg", "cpu").read_text().count("<svg") == 1
    with pytest.raises(UserError, match="neither a run folder"):
        read_curves([tmp_path / "nothing"])


def test_a_configuration_without_alternatives_is_no_sweep(config):
    tree = json.loads(config.read_text())
    tree["train"]["seed"] = 1
    with pytest.raises(ConfigError, match="no list of values to try"):
        Sweep(tree)


def test_a_wrong_override_is_blamed_on_set(tmp_path):
    tree = {"algo_name": "bc", "train": {"seed": [1, 2]}}
    with pytest.raises(
        ConfigError, match="^--set trian.seed=2: trian: unknown key, did you mean 'train'"
    ):
        Sweep(tree, overrides=["trian.seed=2"], output_dir=tmp_path)


def test_a_sweep_that_another_process_runs_is_refused(config):
    sweep = Sweep(config)
    code = (
        "import sys; from imitate.run_folder import RunFolder; from pathlib import Path\n"
        "with RunFolder(Path(sys.argv[1])).locked(): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(sweep.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match="another process is training in this"):
            sweep.run()
        other.stdin.close()
    assert not list(sweep.folder.glob("*/"))
