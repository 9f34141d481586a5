"""Collection and rendering wherever the workers run, with simulators that hang or die; collection into shards.

All but the last test have a stand-in for the simulator, so that they are quick.
"""

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate.collect import collect as collecting
from imitate.collect import render as rendering
from imitate.collect.collect import (
    CollectedFile,
    CollectedFiles,
    RecordedEpisode,
    collect,
    filter_keys,
    recorded_so_far,
    settings_of,
    shards_of,
)
from imitate.collect.demonstrate import DESCRIBE, Demonstration, Plan
from imitate.collect.recorded import Drawn
from imitate.collect.render import render
from imitate.crew import open_backend
from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.edit.selection import Selection
from imitate.data.shards.index import ShardIndex
from imitate.envs.cameras import Camera
from imitate.envs.experts import QUALITIES
from imitate.errors import DatasetError
from tests.collect.conftest import LIFT, content
from tests.ray_cluster import MOSTLY_LOCAL

ON_ONE_NODE = pytest.param("ray_node", marks=[pytest.mark.ray, pytest.mark.nightly])


def prepared(plan, reports):
    """Stand-in for a simulator with an expert: ``hang_at``, ``die_at`` are episodes."""
    faults = plan.env_meta["env_kwargs"]

    def work(item):
        if item == DESCRIBE:
            return LIFT
        reports("step()")
        if item in faults.get("hang_at", ()):
            time.sleep(1000)
        if item in faults.get("die_at", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        reports("")
        return demonstration(plan, item)

    return work


def demonstration(plan, number):
    steps = 4 + number % 3
    random = np.random.default_rng([plan.seed, number])
    obs = random.normal(size=(steps, 2))
    success = np.arange(steps) == steps - 1
    return Demonstration(
        obs={"x": obs},
        next_obs={"x": obs + 1},
        actions=random.uniform(-1, 1, (steps, 2)),
        rewards=success.astype(float),
        successes=success,
        terminals=success,
        states=obs * 2,
        executed=obs,
        signals={},
        attrs={
            "action_label": "executed",
            "episode": number,
            "quality": plan.quality(number),
            "success": True,
            "attempts": 1,
            "model_file": f"<scene {number}/>",
            "ep_meta": "{}",
        },
        quality=plan.quality(number),
    )


class Artist:
    """Stand-in for the renderer: hangs or dies at the first state of a demo with this number of steps."""

    def __init__(self, faults, drawing, reports):
        self.faults, self.reports = faults, reports

    def __call__(self, demo):
        self.reports("reset_to()")
        number = int(demo.scene["model"].split()[1].rstrip("/>"))
        if number in self.faults.get("hang_at", ()):
            time.sleep(1000)
        if number in self.faults.get("die_at", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        self.reports("")
        image = np.zeros((demo.length, 4, 4, 3), np.uint8) + number
        return Drawn({"agentview_image": image, "x": demo.states / 2}, None, {"agentview": {}})


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch, request):
    if "robosuite" not in request.keywords:
        monkeypatch.setattr(collecting, "prepare_demonstrations", prepared)
        monkeypatch.setattr(rendering, "Artist", partial(Artist, {}))


def plan_of(**faults):
    return Plan(env_meta={**LIFT, "env_kwargs": faults}, seed=3)


def shards(folder):
    return sorted(folder.glob("*.hdf5"))


# ---- places --------------------------------------------------------------------------------------


@pytest.mark.slow("on a cluster too")
@pytest.mark.parametrize("backend", [*MOSTLY_LOCAL, ON_ONE_NODE], indirect=True)
def test_the_same_file_and_the_same_images_wherever_the_workers_run(tmp_path, backend):
    here, there = tmp_path / "here.hdf5", tmp_path / "there.hdf5"
    collect(here, plan_of(), num=5)
    report = collect(there, plan_of(), num=5, workers=2, backend=backend)
    assert (report.demos, report.lost, report.files) == (5, {}, 1)
    assert content(there) == content(here)
    cameras = (Camera("agentview", 4, 4),)
    for source, place in ((here, None), (there, backend)):
        drawn = render(source, source.with_suffix(".h5"), cameras, workers=2, backend=place)
        assert (drawn.demos, drawn.lost) == (5, {})
        assert drawn.differences == {"x": 0.0}
    images = [content(path.with_suffix(".h5")) for path in (here, there)]
    assert images[0] == images[1]
    assert ("demo_4", "obs/agentview_image") in images[0][0]


@pytest.mark.parametrize("backend", MOSTLY_LOCAL, indirect=True)
def test_episodes_that_hang_or_die_are_named_and_left_out(tmp_path, backend):
    path, sound = tmp_path / "faults.hdf5", tmp_path / "sound.hdf5"
    plan = plan_of(hang_at=[5], die_at=[2])
    report = collect(path, plan, num=8, workers=2, backend=backend, step_timeout_s=8.0)
    collect(sound, plan_of(), num=8)
    assert sorted(report.lost) == ["episode 2", "episode 5"]
    assert "its process died in step() (exit code -9), in 2 tries" in report.lost["episode 2"]
    assert "step() did not return within 8 s, in 2 tries" in report.lost["episode 5"]
    found, whole = content(path)[1], content(sound)[1]
    assert [found[f"demo_{k}"]["episode"] for k in range(6)] == [0, 1, 3, 4, 6, 7]
    assert all(attrs in whole.values() for attrs in found.values())


@pytest.mark.parametrize("backend", MOSTLY_LOCAL, indirect=True)
def test_demos_that_hang_or_die_are_named_and_left_out(tmp_path, backend, monkeypatch):
    path, out = tmp_path / "demos.hdf5", tmp_path / "images.hdf5"
    collect(path, plan_of(), num=6)
    monkeypatch.setattr(rendering, "Artist", partial(Artist, {"hang_at": [4], "die_at": [1]}))
    cameras = (Camera("agentview", 4, 4),)
    report = render(path, out, cameras, workers=2, backend=backend, step_timeout_s=8.0)
    assert list(report.lost) == ["demo_1", "demo_4"]
    assert "its process died in reset_to()" in report.lost["demo_1"]
    assert "reset_to() did not return within 8 s" in report.lost["demo_4"]
    assert list(content(out)[1]) == ["demo_0", "demo_2", "demo_3", "demo_5"]


def test_a_finished_file_of_images_is_left_as_it_is(tmp_path):
    path, out, cameras = tmp_path / "demos.hdf5", tmp_path / "out.hdf5", (Camera("a", 4, 4),)
    collect(path, plan_of(), num=3)
    render(path, out, cameras, selection=Selection(first=2))
    before = out.read_bytes()
    again = render(path, out, cameras, selection=Selection(first=2), resume=True)
    assert (again.demos, again.resumed, again.steps, again.lost) == (2, 2, 0, {})
    more = render(path, out, cameras, resume=True)
    assert list(more.lost) == ["demo_2"] and "--overwrite" in more.lost["demo_2"]
    with pytest.raises(DatasetError, match="--overwrite"):
        render(path, out, (Camera("a", 5, 5),), resume=True)
    assert out.read_bytes() == before


def test_demos_without_states_are_named_and_where_none_is_drawn_nothing_is_left(tmp_path):
    path, out, cameras = tmp_path / "demos.hdf5", tmp_path / "out.hdf5", (Camera("a", 4, 4),)
    collect(path, plan_of(), num=3)
    with h5py.File(path, "r+") as file:
        del file["data/demo_1/states"]
    report = render(path, out, cameras, overwrite=True)
    assert (report.demos, list(report.lost)) == (2, ["demo_1"])
    assert report.lost["demo_1"].startswith("the demo has no 'states'")
    out.unlink()
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/states"], file["data/demo_2/states"]
    with pytest.raises(
        DatasetError, match="none of 3 demos could be rendered; demo 'demo_0': the demo has"
    ):
        render(path, out, cameras)
    assert [path.name for path in tmp_path.iterdir()] == ["demos.hdf5"]


# ---- shards --------------------------------------------------------------------------------------


def test_shards_hold_the_demos_of_the_single_file(tmp_path):
    collect(tmp_path / "one.hdf5", plan_of(), num=7)
    report = collect(tmp_path / "many", plan_of(), num=7, workers=2, shard_demos=3)
    files = shards(tmp_path / "many")
    assert [path.name for path in files] == ["000.hdf5", "001.hdf5", "002.hdf5"]
    assert (report.demos, report.files) == (7, 3)
    assert report.size_mb == pytest.approx(sum(path.stat().st_size for path in files) / 1e6)
    assert content(*files) == content(tmp_path / "one.hdf5")
    index = ShardIndex.parse((tmp_path / "many" / "index.json").read_bytes(), "index.json")
    parts = [range(3), range(3, 6), range(6, 7)]
    assert [shard.demos for shard in index.shards] == [[f"demo_{k}" for k in p] for p in parts]


def interrupted(path, plan, after, num=7, **settings):
    def interrupt(report):
        if report.demos == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(path, plan, num=num, on_demo=interrupt, **settings)


@pytest.mark.parametrize("after", [1, 3, 4, 6])
def test_an_interrupted_collection_into_shards_is_resumed(tmp_path, after):
    """A shard is under its name when it is complete, and the index when all are."""
    folder = tmp_path / "shards"
    interrupted(folder, plan_of(), after, shard_demos=3)
    whole = (after - 1) // 3  # the next episode closes a shard
    assert [path.name for path in shards(folder)] == [f"00{n}.hdf5" for n in range(whole)]
    assert not (folder / "index.json").exists()
    with pytest.raises(DatasetError, match="--resume"):
        collect(folder, plan_of(), num=7, shard_demos=3)
    with pytest.raises(DatasetError, match="was started with num = 7, but now num is 6"):
        collect(folder, plan_of(), num=6, shard_demos=3, resume=True)
    report = collect(folder, plan_of(), num=7, shard_demos=3, resume=True)
    assert (report.demos, report.resumed, report.solved) == (7, after, 7)
    collect(tmp_path / "one.hdf5", plan_of(), num=7)
    assert content(*shards(folder)) == content(tmp_path / "one.hdf5")
    names = [*(path.name for path in shards(folder)), "index.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    again = collect(folder, plan_of(), num=7, shard_demos=3, resume=True)
    assert (again.demos, again.resumed) == (7, 7)


def test_episodes_that_are_lost_leave_gaps_but_no_shard_without_a_demo(tmp_path):
    folder, plan = tmp_path / "shards", plan_of(die_at=[2, 3])
    report = collect(folder, plan, num=6, shard_demos=2)
    assert sorted(report.lost) == ["episode 2", "episode 3"] and report.files == 2
    assert [path.name for path in shards(folder)] == ["000.hdf5", "002.hdf5"]
    demos = content(*shards(folder))[1]
    assert [demos[f"demo_{k}"]["episode"] for k in range(4)] == [0, 1, 4, 5]


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    collect(tmp_path / "strange.hdf5", plan_of(), num=1)
    for more in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(
            DatasetError, match="contains strange.hdf5, which is none of the 2 shards"
        ):
            collect(tmp_path, plan_of(), num=4, shard_demos=2, **more)
    with pytest.raises(DatasetError, match="is a file: name a folder"):
        collect(tmp_path / "strange.hdf5", plan_of(), num=4, shard_demos=2)
    folder = tmp_path / "folder"
    collect(folder, plan_of(), num=4, shard_demos=2)
    other = replace(plan_of(), seed=4)
    collect(folder, other, num=4, shard_demos=2, overwrite=True)
    collect(tmp_path / "one.hdf5", other, num=4)
    assert content(*shards(folder)) == content(tmp_path / "one.hdf5")


def test_a_collection_that_was_killed_as_it_began_is_resumed(tmp_path):
    (tmp_path / "000.hdf5.partial").touch()
    report = collect(tmp_path, plan_of(), num=1, shard_demos=2, resume=True)
    assert (report.demos, report.resumed) == (1, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000.hdf5", "index.json"]


def test_names_of_shards_sort_as_their_numbers():
    pieces = shards_of(Path("d"), 2500, 2)
    names = [pieces[n].path.stem for n in (0, 999, 1000)]
    assert names == ["0000", "0999", "1000"]
    assert pieces[-1].episodes == range(2498, 2500)
    assert [piece.episodes for piece in shards_of(Path("d"), 3, 2)] == [range(2), range(2, 3)]


# ---- resuming ------------------------------------------------------------------------------------


def test_an_interrupted_collection_leaves_no_file_under_its_name_and_is_resumed(tmp_path):
    path, whole, plan = tmp_path / "a.hdf5", tmp_path / "whole.hdf5", plan_of()
    finished = collect(whole, plan, num=3)
    interrupted(path, plan, after=1, num=3)
    assert not path.exists() and multiprocessing.active_children() == []
    with DatasetFile(tmp_path / "a.hdf5.partial") as file:
        assert file.demos() == ["demo_0"]
    with pytest.raises(DatasetError, match="--resume continues it, --overwrite starts again"):
        collect(path, plan, num=3)
    with pytest.raises(DatasetError, match="was started with seed = 3, but now seed is 2"):
        collect(path, replace(plan, seed=2), num=3, resume=True)
    report = collect(path, plan, num=3, resume=True)
    assert (report.demos, report.resumed, report.solved, report.attempts) == (3, 1, 3, 3)
    assert report.steps == finished.steps
    assert content(path) == content(whole)
    assert not (tmp_path / "a.hdf5.partial").exists()


def test_a_finished_collection_is_only_reported(tmp_path):
    path, plan = tmp_path / "a.hdf5", plan_of()
    report, before = collect(path, plan, num=3), path.read_bytes()
    again = collect(path, plan, num=3, resume=True)
    assert (again.demos, again.resumed, again.steps) == (3, 3, report.steps) and not again.lost
    with pytest.raises(DatasetError, match="exists already"):
        collect(path, plan, num=3)
    for num, other in ((4, plan), (2, plan), (3, replace(plan, seed=2))):
        with pytest.raises(DatasetError, match="exists already"):
            collect(path, other, num=num, resume=True)
    assert path.read_bytes() == before
    with pytest.raises(DatasetError, match="give only one of them"):
        collect(path, plan, num=3, resume=True, overwrite=True)


def test_episodes_lost_before_an_interruption_are_not_tried_again(tmp_path):
    plan, path = plan_of(die_at=[1, 2]), tmp_path / "a.hdf5"
    interrupted(path, plan, after=2, num=6)
    settings, split = settings_of(plan), partial(filter_keys, seed=0)
    files = CollectedFiles([CollectedFile(path, range(6))], settings, split, resume=True)
    assert (files.lost, files.missing) == ([1, 2], [4, 5])
    assert files.earlier == [
        RecordedEpisode("demo_0", 0, "better", True, 1, 4),
        RecordedEpisode("demo_1", 3, "better", True, 1, 4),
    ]
    assert recorded_so_far(tmp_path / "none.hdf5", settings) == []


def test_a_collection_without_a_plan_is_not_resumed(tmp_path):
    with pytest.raises(KeyboardInterrupt), DatasetWriter(tmp_path / "a.hdf5", LIFT) as writer:
        steps, flat = np.zeros((4, 2)), np.zeros(4)
        writer.append_episode(Episode({"x": steps}, steps, flat, flat, flat))
        raise KeyboardInterrupt
    with pytest.raises(DatasetError, match="imitate dataset finish"):
        recorded_so_far(tmp_path / "a.hdf5", settings_of(plan_of()))


def test_levels_of_quality_take_turns_and_each_has_its_masks(tmp_path):
    path, plan = tmp_path / "mixed.hdf5", replace(plan_of(), qualities=QUALITIES)
    assert collect(path, plan, num=8).quality == dict.fromkeys(QUALITIES, 2)
    with DatasetFile(path) as file:
        keys = file.filter_keys()
        for number, level in enumerate(QUALITIES):
            assert keys[level] == [f"demo_{number}", f"demo_{number + 4}"]
            assert len(keys[f"{level}_train"]) == len(keys[f"{level}_valid"]) == 1
            assert sorted(keys[f"{level}_train"] + keys[f"{level}_valid"]) == keys[level]
            assert file.attrs(f"demo_{number}")["quality"] == level
        assert len(keys["train"]) == len(keys["valid"]) == 4


# ---- the real simulator --------------------------------------------------------------------------


@pytest.mark.robosuite
@pytest.mark.render
@pytest.mark.ray
@pytest.mark.nightly
def test_lift_on_a_cluster(tmp_path, lift_file, ray_nodes):
    path, plan = tmp_path / "lift.hdf5", Plan(env_meta=LIFT, seed=1, signals=("joint_speed",))
    cameras = (Camera("agentview", 16, 16),)
    with open_backend(ray_nodes.on) as backend:
        collect(path, plan, num=2, workers=2, backend=backend)
        render(path, tmp_path / "there.hdf5", cameras, workers=2, backend=backend)
    assert content(path) == content(lift_file[0])
    render(path, tmp_path / "here.hdf5", cameras)
    assert content(tmp_path / "there.hdf5") == content(tmp_path / "here.hdf5")
