import dataclasses
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from imitate.data import DatasetFile, DatasetWriter, Episode, check_dataset
from imitate.envs.experts import QUALITIES, Habits
from imitate.errors import DatasetError, EnvError
from imitate.simulation.collect import collect
from imitate.simulation.collected_files import CollectedFiles, Piece
from imitate.simulation.demonstrate import Plan
from imitate.simulation.unfinished import PLAN, Recorded, recorded_so_far, settings_of

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": {}}

pytestmark = pytest.mark.robosuite


def content(path):
    with DatasetFile(path) as file:
        arrays = {
            (demo, key): file.read(demo, key) for demo in file.demos() for key in file.keys(demo)
        }
        return arrays, file.filter_keys()


def test_file_is_complete_and_sound(lift_file):
    path, report = lift_file
    check_dataset(path)
    with DatasetFile(path) as file:
        assert file.demos() == ["demo_0", "demo_1", "demo_2"]
        assert file.env_meta["env_name"] == "Lift"
        keys = file.filter_keys()
        assert sorted(keys["train"] + keys["valid"]) == file.demos()
        assert len(keys["valid"]) == 1
        assert file.read("demo_0", "timeouts").sum() == 0
        terminals = file.read("demo_0", "terminals")
        assert terminals[-1] == 1
        assert terminals.sum() == 9
        assert file.attrs("demo_0")["success"]
    assert (report.demos, report.solved, report.attempts) == (3, 3, 3)
    assert report.success_rate == 1.0
    assert report.quality == {"better": 3}
    assert 30 < report.mean_steps < 60
    assert report.size_mb == pytest.approx(path.stat().st_size / 1e6)


@pytest.mark.slow
def test_content_does_not_depend_on_workers_or_crashes(lift_file, tmp_path):
    path = tmp_path / "again.hdf5"
    killed = []

    def kill_a_worker(report):
        if not killed:
            killed.extend(multiprocessing.active_children())
            killed[0].kill()

    report = collect(path, Plan(env_meta=LIFT, seed=1), num=3, workers=1, on_demo=kill_a_worker)
    assert killed
    assert any("its process died" in problem for problem in report.problems)
    first, first_keys = content(lift_file[0])
    again, again_keys = content(path)
    assert first_keys == again_keys
    assert first.keys() == again.keys()
    for key, values in first.items():
        np.testing.assert_array_equal(values, again[key], err_msg=str(key))


@pytest.mark.slow
def test_interruption_leaves_no_file_under_the_final_name(tmp_path):
    path = tmp_path / "lift.hdf5"

    def interrupt(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(path, Plan(env_meta=LIFT), num=5, workers=1, on_demo=interrupt)
    assert not path.exists()
    assert multiprocessing.active_children() == []
    with DatasetFile(tmp_path / "lift.hdf5.partial") as file:
        assert file.demos() == ["demo_0"]


@pytest.mark.slow
def test_mixed_quality_and_failures(tmp_path):
    path = tmp_path / "mixed.hdf5"
    plan = Plan(env_meta=LIFT, qualities=QUALITIES, keep_failures=True, horizon=60)
    report = collect(path, plan, num=8, workers=1)
    assert report.quality == {"better": 2, "okay": 2, "worse": 2, "noise": 2}
    with DatasetFile(path) as file:
        keys = file.filter_keys()
        for number, level in enumerate(QUALITIES):
            assert keys[level] == [f"demo_{number}", f"demo_{number + 4}"]
            assert len(keys[f"{level}_train"]) == len(keys[f"{level}_valid"]) == 1
            assert sorted(keys[f"{level}_train"] + keys[f"{level}_valid"]) == keys[level]
            assert file.attrs(f"demo_{number}")["quality"] == level
        assert len(keys["train"]) == len(keys["valid"]) == 4
        assert file.attrs("demo_0")["success"]
        # nobody of the second level lifts the cube in 60 steps
        assert not file.attrs("demo_1")["success"]
        assert file.read("demo_1", "timeouts").tolist() == [0] * 59 + [1]
        assert file.read("demo_1", "rewards").sum() == 0
    assert report.solved < 8


def test_user_errors_come_before_work(lift_file, tmp_path):
    with pytest.raises(DatasetError, match="exists already"):
        collect(lift_file[0], Plan(env_meta=LIFT), num=1)
    meta = {"env_name": "Lift", "type": 1, "env_kwargs": {"no_such_argument": 1}}
    with pytest.raises(EnvError, match="no_such_argument"):
        collect(tmp_path / "x.hdf5", Plan(env_meta=meta), num=1)
    assert list(tmp_path.iterdir()) == []


def test_a_persons_demonstrations_do_not_depend_on_workers(tmp_path):
    plan = Plan(env_meta=LIFT, seed=2, habits=Habits())
    contents = []
    for workers in (1, 2):
        path = tmp_path / f"{workers}.hdf5"
        assert collect(path, plan, num=3, workers=workers).solved == 3
        contents.append(content(path))
    (one, one_keys), (two, two_keys) = contents
    assert one_keys == two_keys
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[key], two[key]) for key in one)


@pytest.mark.slow
def test_a_killed_collection_leaves_no_process(tmp_path):
    command = [sys.executable, "-m", "imitate", "collect", "--env", "Lift", "--num", "500"]
    command += ["--workers", "2", "--out", str(tmp_path / "lift.hdf5")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: (tmp_path / "lift.hdf5.partial").exists())
        workers = children_of(process.pid)
    finally:
        process.kill()
        process.wait()
    assert len(workers) >= 2
    wait_until(lambda: not any(is_running(pid) for pid in workers))


def wait_until(condition):
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
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


# ---- resuming ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_resumed_collection_is_the_one_that_was_not_interrupted(lift_file, tmp_path):
    path, plan = tmp_path / "lift.hdf5", Plan(env_meta=LIFT, seed=1)
    interrupted(path, plan)
    with pytest.raises(DatasetError, match="--resume continues it, --overwrite starts again"):
        collect(path, plan, num=3)
    other = dataclasses.replace(plan, seed=2)
    with pytest.raises(DatasetError, match="was started with seed = 1, now it is 2"):
        collect(path, other, num=3, resume=True)
    report = collect(path, plan, num=3, resume=True)
    assert (report.demos, report.resumed, report.solved, report.attempts) == (3, 1, 3, 3)
    assert report.steps == lift_file[1].steps
    (first, first_keys), (again, again_keys) = content(lift_file[0]), content(path)
    assert first_keys == again_keys and first.keys() == again.keys()
    for key, values in first.items():
        np.testing.assert_array_equal(values, again[key], err_msg=str(key))
    assert not (tmp_path / "lift.hdf5.partial").exists()


def test_a_finished_collection_is_only_reported(lift_file):
    path, report = lift_file
    plan, before = Plan(env_meta=LIFT, seed=1), path.read_bytes()
    again = collect(path, plan, num=3, resume=True)
    assert (again.demos, again.resumed, again.steps) == (3, 3, report.steps) and not again.lost
    for num, other in ((4, plan), (2, plan), (3, dataclasses.replace(plan, seed=2))):
        with pytest.raises(DatasetError, match="exists already"):
            collect(path, other, num=num, resume=True)
    assert path.read_bytes() == before


def interrupted(path, plan):
    def interrupt(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(path, plan, num=3, on_demo=interrupt)


def recorded(path, episodes, settings=None):
    """Write what a collection of these episodes leaves when it is killed."""
    attrs = {} if settings is None else {PLAN: settings}
    with pytest.raises(KeyboardInterrupt), DatasetWriter(path, LIFT, attrs=attrs) as writer:
        for number in episodes:
            steps, flat = np.zeros((4, 2)), np.zeros(4)
            own = {"episode": number, "quality": "better", "success": True, "attempts": 2}
            writer.append_episode(Episode({"x": steps}, steps, flat, flat, flat, attrs=own))
        raise KeyboardInterrupt


def test_episodes_lost_before_the_interruption_stay_lost(tmp_path):
    settings = settings_of(Plan(env_meta=LIFT))
    recorded(tmp_path / "a.hdf5", [0, 3], settings)
    found = recorded_so_far(tmp_path / "a.hdf5", settings)
    assert found == [
        Recorded("demo_0", 0, "better", True, 2, 4),
        Recorded("demo_1", 3, "better", True, 2, 4),
    ]
    files = CollectedFiles([Piece(tmp_path / "a.hdf5", range(6))], settings, dict, resume=True)
    assert (files.lost, files.missing, files.earlier) == ([1, 2], [4, 5], found)
    assert recorded_so_far(tmp_path / "none.hdf5", settings) == []


def test_a_collection_without_a_plan_is_not_resumed(tmp_path):
    recorded(tmp_path / "a.hdf5", [0])
    with pytest.raises(DatasetError, match="imitate dataset finish"):
        recorded_so_far(tmp_path / "a.hdf5", settings_of(Plan(env_meta=LIFT)))
    with pytest.raises(DatasetError, match="give one of them"):
        collect(tmp_path / "a.hdf5", Plan(env_meta=LIFT), num=1, resume=True, overwrite=True)
