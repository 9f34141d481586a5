"""A training on a LeRobot folder: its path stays, and it resumes whatever became of the conversion; names travel."""

import json
import shutil
from pathlib import Path

import h5py
import pytest

from imitate import policy_from_checkpoint
from imitate.data.file.cache import cache_folder
from imitate.data.formats.convert import convert
from imitate.train.trainer import train


@pytest.fixture
def lerobot(demo_file, tmp_path):
    convert(demo_file(num_demos=3, length=6), tmp_path / "lr", to_format="lerobot")
    return tmp_path / "lr"


def config_of(tmp_path):
    return {
        "algo_name": "bc",
        "experiment": {
            "name": "lr",
            "epoch_every_n_steps": 2,
            "rollout": {"enabled": False},
            "logging": {"log_tb": False},
        },
        "train": {"num_epochs": 1, "batch_size": 4, "output_dir": str(tmp_path / "runs")},
        "observation": {"modalities": {"obs": {"low_dim": ["object"]}}},
    }


def test_a_run_keeps_the_folder_and_resumes_without_the_conversion(lerobot, tmp_path):
    config = config_of(tmp_path)
    first = train(config, dataset=lerobot, quiet=True)
    (run,) = Path(tmp_path / "runs" / "lr").iterdir()
    assert first.exit_code == 0
    saved = json.loads((run / "config.json").read_text())
    assert [entry["path"] for entry in saved["train"]["data"]] == [str(lerobot)]
    shutil.rmtree(cache_folder("datasets"))
    second = train(resume=run, overrides=["train.num_epochs=2"], quiet=True)
    assert second.exit_code == 0
    assert json.loads((run / "results.json").read_text())["status"] == "finished"
    assert len(list(cache_folder("datasets").glob("*.hdf5"))) == 1


def named(path, **names):
    """Give the arrays of a file names for their numbers, as a conversion from LeRobot does."""
    with h5py.File(path, "a") as file:
        demo = next(iter(file["data"].values()))
        entries = {
            key: {"feature": key, "names": found, "shape": list(demo[key].shape[1:])}
            for key, found in (("obs/object", names["state"]), ("actions", names["actions"]))
        }
        file["data"].attrs["features"] = json.dumps(entries)
        return [f"j{number}" for number in range(demo["actions"].shape[1])]


def test_names_of_numbers_go_into_the_checkpoint_where_all_files_agree(demo_file, tmp_path):
    paths = [demo_file(f"{seed}.hdf5", num_demos=2, length=6, seed=seed) for seed in (1, 2)]
    joints = named(paths[0], state=["a"], actions=None)
    with h5py.File(paths[0]) as file:
        width = file["data/demo_0/obs/object"].shape[1]
    numbers = [f"n{number}" for number in range(width)]
    named(paths[0], state=numbers, actions=joints)
    named(paths[1], state=numbers[::-1], actions=joints)
    config = config_of(tmp_path)
    config["train"]["data"] = [{"path": str(path)} for path in paths]
    assert train(config, quiet=True).exit_code == 0
    (run,) = Path(tmp_path / "runs" / "lr").iterdir()
    policy, _ = policy_from_checkpoint(ckpt_path=run / "checkpoints/last.pth", device="cpu")
    assert policy.number_names == {"actions": tuple(joints)}
