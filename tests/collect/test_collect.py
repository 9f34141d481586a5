"""Collection in the real simulator; whatever needs none is in test_back_ends.py."""

import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from imitate.collect.collect import collect
from imitate.collect.demonstrate import Plan
from imitate.data import DatasetFile, check_dataset
from imitate.envs.experts import QUALITIES, Habits
from imitate.errors import EnvError
from tests.collect.conftest import LIFT, content

pytestmark = pytest.mark.robosuite


def test_file_is_complete_and_sound(lift_file):
    path, report = lift_file
    check_dataset(path)
    with DatasetFile(path) as file:
        assert (file.demos(), file.env_meta["env_name"]) == (["demo_0", "demo_1"], "Lift")
        keys = file.filter_keys()
        assert sorted(keys["train"] + keys["valid"]) == file.demos()
        assert len(keys["valid"]) == 1
        assert file.read("demo_0", "timeouts").sum() == 0
        terminals = file.read("demo_0", "terminals")
        assert terminals[-1] == 1 and terminals.sum() == 9
        assert file.attrs("demo_0")["success"]
        speeds = np.abs(file.read("demo_0", "next_obs/robot0_joint_vel")).max(1)
        np.testing.assert_allclose(file.read("demo_0", "signals/joint_speed"), speeds, rtol=1e-6)
    assert (report.demos, report.solved, report.attempts) == (2, 2, 2)
    assert (report.success_rate, report.quality) == (1.0, {"better": 2})
    assert 30 < report.mean_steps < 60
    assert report.size_mb == pytest.approx(path.stat().st_size / 1e6)


@pytest.mark.nightly
def test_content_does_not_depend_on_workers_or_crashes(lift_file, tmp_path):
    path, killed = tmp_path / "again.hdf5", []

    def kill_a_worker(report):
        if not killed:
            killed.extend(multiprocessing.active_children())
            killed[0].kill()

    report = collect(
        path,
        Plan(env_meta=LIFT, seed=1, signals=("joint_speed",)),
        num=4,
        workers=2,
        on_demo=kill_a_worker,
    )
    assert killed
    assert any("its process died" in problem for problem in report.problems)
    (arrays, attrs, _), (wanted, wanted_attrs, _) = content(path), content(lift_file[0])
    assert {key: arrays[key] for key in wanted} == wanted
    assert {demo: attrs[demo] for demo in wanted_attrs} == wanted_attrs


@pytest.mark.nightly
def test_mixed_quality_and_failures(tmp_path):
    path = tmp_path / "mixed.hdf5"
    plan = Plan(env_meta=LIFT, qualities=QUALITIES, keep_failures=True, horizon=60)
    report = collect(path, plan, num=8, workers=1)
    assert report.quality == {"better": 2, "okay": 2, "worse": 2, "noise": 2}
    with DatasetFile(path) as file:
        assert file.attrs("demo_0")["success"]
        # nobody of the second level lifts the cube in 60 steps
        assert not file.attrs("demo_1")["success"]
        assert file.read("demo_1", "timeouts").tolist() == [0] * 59 + [1]
        assert file.read("demo_1", "rewards").sum() == 0
    assert report.solved < 8


def test_an_argument_that_the_simulator_does_not_know_comes_before_work(tmp_path):
    meta = {**LIFT, "env_kwargs": {"no_such_argument": 1}}
    with pytest.raises(EnvError, match="no_such_argument"):
        collect(tmp_path / "x.hdf5", Plan(env_meta=meta), num=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_a_persons_demonstrations_do_not_depend_on_workers(tmp_path):
    plan = Plan(env_meta=LIFT, seed=2, habits=Habits())
    paths = [tmp_path / f"{workers}.hdf5" for workers in (1, 2)]
    for workers, path in enumerate(paths, start=1):
        assert collect(path, plan, num=3, workers=workers).solved == 3
    assert content(paths[0]) == content(paths[1])


@pytest.mark.nightly
def test_a_killed_collection_leaves_no_process(tmp_path):
    command = [sys.executable, "-m", "imitate", "collect", "--env", "Lift", "--num", "500"]
    command += ["--workers", "2", "--out", str(tmp_path / "lift.hdf5")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() or (tmp_path / "lift.hdf5.partial").exists())
        workers = children_of(process.pid)
    finally:
        process.kill()
        process.wait()
    assert len(workers) >= 2
    wait_until(lambda: not any(is_running(pid) for pid in workers))


def wait_until(condition):
    while not condition():
        time.sleep(0.1)


def children_of(pid):
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/stat")
        if path.read_text().rpartition(")")[2].split()[1] == str(pid)
    ]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
