"""imitate info: HDF5 files, checkpoints, run folders, and everything else."""

import json
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate.data import KeyStats
from imitate.data.edit.shard import shard_files
from imitate.data.formats.convert import convert
from imitate.models.preprocess import Preprocess
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from tests.calling import call
from tests.demo_files import episode, features, write_demos
from tests.loading import load
from tests.tiny import tiny_algo

ROBOMIMIC = Path(__file__).parents[1] / "policy" / "fixtures" / "robomimic"
KWARGS = {"robots": ["Panda"], "control_freq": 20}
ENV = {"env_name": "Lift", "env_version": "1.5.2", "type": 1, "env_kwargs": KWARGS}


def info(path):
    return call("info", path)


def report_of(path):
    return call.json("info", path)


def assert_has(report, **wanted):
    """The report has these values."""
    assert {key: report[key] for key in wanted} == wanted


def assert_lines(text, *wanted):
    """Each of these is in the text."""
    assert [words for words in wanted if words not in text] == []


@pytest.fixture
def dataset(tmp_path):
    def demo(steps, success, action):
        obs = {"object": np.zeros((steps, 10)), "robot0_eef_pos": np.zeros((steps, 3))}
        return episode(steps, obs, np.full((steps, 7), action), attrs={"success": success})

    demos = [demo(4, True, 0.5), demo(6, True, -0.25), demo(11, False, 0.0)]
    return write_demos(tmp_path / "demos.hdf5", demos, ENV, filter_keys={"train": [0, 1]})


# ---- demonstrations ------------------------------------------------------------------------------


def test_dataset_numbers(dataset):
    report = report_of(dataset)
    assert_has(report, kind="dataset", demos=3, steps=21, filter_keys={"train": 2})
    assert_has(report, length={"mean": 7.0, "min": 4, "max": 11}, control_freq=20)
    assert_has(report, success={"demos": 2, "of": 3, "by": "success"})
    assert_has(report, env_name="Lift", env_version="1.5.2")
    assert_has(report, actions={"low": [-0.25] * 7, "high": [0.5] * 7, "within_1": True})
    keys = {entry["key"]: entry for entry in report["keys"]}
    assert_has(keys["obs/object"], shape=[10], demos=3)
    assert_has(keys["actions"], shape=[7])


def test_dataset_for_a_person(dataset):
    text = info(dataset).stdout
    assert_lines(text, "3, 21 steps", "7.0 (4 - 11)", "2 of 3 (67 %), by success")
    assert_lines(text, "Lift (robosuite 1.5.2 Panda)", "20 Hz", "train (2)")
    assert any(line.split()[:2] == ["obs/object", "10"] for line in text.splitlines())


def test_names_of_numbers_and_values_of_a_whole_demo(dataset, tmp_path):
    with h5py.File(dataset, "r+") as file:
        file["data"].attrs["features"] = features(actions=list("abcdefg"))
        for demo in file["data"].values():
            demo["initial_state/pose"] = np.zeros((1, 7))
    text = info(dataset).stdout
    assert_lines(text, "\n6 (g) ", "initial_state/pose  7, one value per demo  float64  3\n")
    page = tmp_path / "page.html"
    call("dataset report", dataset, "--out", page)
    assert_lines(page.read_text(), "dimension 6 (g)", "<td>5 (f)")
    assert "&#34;feature&#34;" not in page.read_text()  # no JSON in the head


def test_next_observations_get_lines_of_their_own_only_where_they_differ(dataset):
    with h5py.File(dataset, "a") as file:
        for name, demo in file["data"].items():
            demo["next_obs/object"] = demo["obs/object"][()]
            if name != "demo_1":
                demo["next_obs/robot0_eef_pos"] = demo["obs/robot0_eef_pos"][()]
    lines = info(dataset).stdout.splitlines()
    assert "next_obs/...   as obs/..." in lines
    (line,) = [line for line in lines if line.startswith("next_obs/r")]
    assert line.split() == ["next_obs/robot0_eef_pos", "3", "float64", "2"]


def test_a_key_that_some_demos_lack_or_shape_otherwise_shows_in_the_counts(dataset):
    with h5py.File(dataset, "a") as file:
        del file["data/demo_2/obs/object"]
        del file["data/demo_1/obs/robot0_eef_pos"]
        file["data/demo_1/obs/robot0_eef_pos"] = np.zeros((6, 4), dtype=np.float32)
    keys = report_of(dataset)["keys"]
    rows = [tuple(entry[name] for name in ("key", "shape", "demos")) for entry in keys]
    for row in (("object", [10], 2), ("robot0_eef_pos", [3], 2), ("robot0_eef_pos", [4], 1)):
        assert (f"obs/{row[0]}", *row[1:]) in rows


def test_rewards_tell_where_no_demo_says_so(dataset):
    with h5py.File(dataset, "a") as file:
        for demo in file["data"].values():
            del demo.attrs["success"]
    assert report_of(dataset)["success"] is None  # all are zero
    assert_lines(info(dataset).stdout, "success        not said")
    with h5py.File(dataset, "a") as file:
        file["data/demo_0/rewards"][-1] = 1.0
    assert report_of(dataset)["success"] == {"demos": 1, "of": 3, "by": "rewards"}
    with h5py.File(dataset, "a") as file:
        file["data/demo_0/rewards"][0] = 0.25
    assert report_of(dataset)["success"] is None, "rewards of each step say how good it is"


def test_actions_outside_the_unit_box_are_said(tmp_path):
    path = tmp_path / "wide.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/actions"] = np.array([[0.0, 3.0], [-2.0, 1.0]])
    report = report_of(path)
    assert report["actions"] == {"low": [-2.0, 1.0], "high": [0.0, 3.0], "within_1": False}
    assert "actions leave [-1, 1]" in info(path).stdout
    assert report["env_name"] is None


def test_a_file_without_demos(tmp_path):
    path = tmp_path / "empty.hdf5"
    with h5py.File(path, "w") as file:
        file.create_group("data")
    report = report_of(path)
    assert (report["demos"], report["length"], report["success"]) == (0, None, None)
    assert "0, 0 steps" in info(path).stdout


# ---- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    gaussian = "algo.gaussian.enabled=true"
    size = {"obs": {"object": 10}, "action": 7, "hidden": (8,)}
    algo = tiny_algo("bc", gaussian, "train.batch_size=7", **size)
    statistics = {
        "obs": {"object": KeyStats(np.ones(10), np.ones(10), np.zeros(10), np.full(10, 2.0))},
        "actions": {"actions": KeyStats(np.zeros(7), np.ones(7), -np.ones(7), np.ones(7))},
    }
    layout = {"object": (10,)}, {"object": "low_dim"}, {"actions": 7}
    algo.preprocess = Preprocess.from_statistics(*layout, statistics, obs_normalization="mean_std")
    meta = {"env_metadata": ENV, "train_state": {"epoch": 3, "step": 300}}
    meta["shape_metadata"] = {"action_low": [-1.0] * 7, "action_high": [1.0] * 7}
    datasets = [{"path": "a.hdf5", "num_demos": 2, "num_steps": 10}]
    ckpt = checkpoint_dict(algo, **meta, provenance={"datasets": datasets})
    path = tmp_path / "model.pth"
    save_checkpoint(ckpt, path)
    return path


def test_checkpoint_numbers(checkpoint):
    report = report_of(checkpoint)
    assert_has(report, kind="checkpoint", algo="bc", variant="bc_gaussian", epoch=3, step=300)
    # 10 -> 8 hidden, then mean and std of 7 actions: 8 * 11 + 2 * 7 * 9.
    assert not any(key.startswith("algo.gmm") for key in report["changed_settings"])  # is off
    assert_has(report, parameters=88 + 126, obs_shapes={"object": [10]}, action_dim=7)
    assert_has(report, normalizes_obs=True, normalizes_actions=False)
    changed = report["changed_settings"]
    settings = {"train.batch_size": 7, "algo.gaussian.enabled": True, "algo.actor_layer_dims": [8]}
    assert settings.items() <= changed.items()
    assert not {"train.hdf5_use_swmr", "train.output_dir", "algo_name"} & set(changed)


def test_checkpoint_for_a_person(checkpoint):
    text = info(checkpoint).stdout
    assert_lines(text, "algorithm      bc_gaussian", "epoch 3, 300 updates", "clipped to [-1, 1]")
    assert_lines(text, "a.hdf5: 2 demos, 10 steps")
    assert any(line.split() == ["normalizes", "obs"] for line in text.splitlines())
    assert any(line.split() == ["train.batch_size", "7"] for line in text.splitlines())


@pytest.mark.parametrize(
    ("name", "trained"),
    [("bc", "epoch 2, 400 updates"), ("bc_gmm_v030", "the file does not contain the progress")],
)
def test_a_checkpoint_of_robomimic_is_not_said_to_be_ours(name, trained):
    text = info(ROBOMIMIC / f"{name}.pth").stdout
    assert f"trained        {trained}\n" in text
    assert "format         robomimic's" in text and "read by        imitate" in text
    assert "versions" not in text and "None" not in text
    assert "actor_layer_dims" in text and "observation.encoder" not in text, "it sees vectors alone"


# ---- runs ----------------------------------------------------------------------------------------


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "20260101000000"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "last.pth").write_bytes(b"")
    config = {
        "algo_name": "bc",
        "experiment": {"name": "lift_bc"},
        "train": {"num_epochs": 40, "data": None},
    }
    (folder / "config.json").write_text(json.dumps(config))
    lines = []
    for epoch in range(1, 21):
        lines.append({"kind": "epoch", "epoch": epoch, "step": epoch, "Train/Loss": 1 / epoch})
        if epoch in (7, 19):
            rate = 0.5 if epoch == 7 else 0.25
            lines.append({"kind": "rollout", "epoch": epoch, "Rollout/Success_Rate": rate})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_an_unfinished_run(run_folder):
    report = report_of(run_folder)
    assert_has(report, kind="run", status="unfinished", epoch=20, num_epochs=40)
    assert_has(report, checkpoints=["last.pth"])
    assert_has(report["best"], epoch=7, success_rate=0.5)
    # Every second epoch of 20, the last one, and those with an evaluation.
    assert [p["epoch"] for p in report["curve"]] == [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 20]
    assert (report["curve"][3]["success_rate"], report["curve"][-1]["loss"]) == (0.5, 0.05)


def test_an_unfinished_run_for_a_person(run_folder):
    text = info(run_folder).stdout
    assert_lines(text, "unfinished, epoch 20 of 40", "50 % in epoch 7")
    assert_lines(text, f"imitate train --resume {shlex.quote(str(run_folder))}")


def test_a_finished_run(run_folder):
    results = {
        "algo": "bc",
        "status": "finished",
        "best": {"epoch": 7, "success_rate": 0.5},
        "times": {"train_wall_s": 12.0, "train_cpu_s": 11.0, "evaluation_wall_s": 30.0},
    }
    (run_folder / "results.json").write_text(json.dumps(results))
    text = info(run_folder).stdout
    assert "12 s (CPU 11 s), evaluation 30 s" in text
    assert "--resume" not in text


def test_a_run_that_was_resumed_and_killed_is_not_described_by_its_earlier_results(run_folder):
    results = {"algo": "bc", "status": "interrupted", "epoch": 18}
    kept = [{"name": "last.pth", "epoch": 18}]
    (run_folder / "results.json").write_text(json.dumps({**results, "checkpoints": kept}))
    report = report_of(run_folder)
    assert (report["status"], report["epoch"], report["kept"][0]["epoch"]) == (
        "unfinished",
        20,
        None,
    )
    (run_folder / "results.json").write_text(json.dumps({**results, "epoch": 20}))
    assert report_of(run_folder)["status"] == "interrupted"


def test_an_unfinished_run_of_ones_own_environment(run_folder):
    config = json.loads((run_folder / "config.json").read_text())
    config["train"]["online"] = {"enabled": True, "env": "my_sea:Boat-v0"}
    (run_folder / "config.json").write_text(json.dumps(config))
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    epochs = [line for line in lines if "rollout" not in line]
    (run_folder / "metrics.jsonl").write_text("\n".join(epochs) + "\n")
    text = info(run_folder).stdout
    assert_lines(text, f"imitate train --resume {shlex.quote(str(run_folder))} --trust my_sea")
    assert "success" not in text


# ---- datasets of other formats -------------------------------------------------------------------


def test_lerobot_folder_is_described_without_conversion(dataset, tmp_path, cache_folder):
    folder = tmp_path / "lr"
    convert(dataset, folder, to_format="lerobot")
    report = report_of(folder)
    assert_has(report, kind="lerobot", version="v3.0", demos=3, steps=21, control_freq=20)
    features = {feature["feature"]: feature for feature in report["features"]}
    assert_has(features["action"], shape=[7], key="actions")
    assert_has(features["observation.state"], key="obs/state")
    assert "timestamp" not in features
    lines = info(folder).stdout.splitlines()
    assert f"to convert     imitate dataset convert {folder} NEW.hdf5" in lines
    assert not cache_folder.exists()


def test_zarr_is_described_by_its_conversion(dataset, tmp_path):
    folder = tmp_path / "d.zarr"
    convert(dataset, folder)
    report = report_of(folder)
    assert (report["kind"], report["path"], report["demos"]) == ("dataset", str(folder), 3)


def test_a_folder_of_shards(dataset, tmp_path):
    shard_files([dataset], tmp_path / "shards", 2)

    report, of_file = report_of(tmp_path / "shards"), report_of(dataset)
    assert_has(report, kind="shards", shards=2)
    same = ("demos", "steps", "length", "env_name", "control_freq", "success")
    same += ("filter_keys", "keys")
    assert_has(report, **{key: of_file[key] for key in same})
    assert report["actions"]["low"] == of_file["actions"]["low"]
    lines = info(tmp_path / "shards" / "index.json").stdout
    assert "(2 shards, " in lines
    assert "success        2 of 3 (67 %)" in lines


def test_datasets_behind_a_url(dataset, tmp_path, file_server):
    shard_files([dataset], tmp_path / "shards", 2)
    with file_server() as server:
        server.put_folder(tmp_path / "shards", "/demos")
        shards = report_of(f"{server.url}/demos")
        file = report_of(f"{server.url}/demos/000.hdf5")
        stats = call.json(f"dataset stats {server.url}/demos")
    assert (shards["path"], shards["demos"]) == (f"{server.url}/demos", 3)
    assert (file["kind"], file["demos"]) == ("dataset", 2)
    assert stats["actions"]["max"] == [0.5] * 7


def test_a_zipped_zarr_is_no_checkpoint(tmp_path):
    path = load("tests/data/formats/samples.py").zipped(tmp_path / "d.zarr.zip")
    assert report_of(path)["demos"] == 2
