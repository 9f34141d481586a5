"""Trainings on what others wrote: folders of LeRobot, and configurations of robomimic."""

import json
import shutil
from pathlib import Path

import h5py
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.config import load_config
from imitate.data.file.cache import cache_folder
from imitate.data.formats.convert import convert
from imitate.train.setup import build, resolve
from imitate.train.trainer import train
from tests.tiny import tiny_tree

from .conftest import resume


@pytest.fixture
def lerobot(demo_file, tmp_path):
    convert(demo_file(num_demos=3, length=6), tmp_path / "lr", to_format="lerobot")
    return tmp_path / "lr"


def config_of(tmp_path, data=None):
    keys = {"num_epochs": 1, "batch_size": 4, "output_dir": str(tmp_path / "runs")}
    short = {"name": "lr", "epoch_every_n_steps": 2}
    return tiny_tree(obs={"object": 10}, experiment=short, train={**keys, "data": data})


def test_a_run_keeps_the_folder_and_resumes_without_the_conversion(lerobot, tmp_path):
    """Its path stays, and it resumes whatever became of the conversion."""
    first = train(config_of(tmp_path), dataset=lerobot, quiet=True)
    assert first.exit_code == 0
    saved = json.loads((first.run_dir / "config.json").read_text())
    assert [entry["path"] for entry in saved["train"]["data"]] == [str(lerobot)]
    shutil.rmtree(cache_folder("datasets"))
    assert resume(first, 2).exit_code == 0
    assert json.loads((first.run_dir / "results.json").read_text())["status"] == "finished"
    assert len(list(cache_folder("datasets").glob("*.hdf5"))) == 1


def name_numbers(path, obs, actions):
    """Give the arrays of a file names for their numbers, as a conversion from LeRobot does."""
    with h5py.File(path, "a") as file:
        entries = {
            key: {"feature": key, "names": names, "shape": [len(names)]}
            for key, names in (("obs/object", obs), ("actions", actions))
        }
        file["data"].attrs["features"] = json.dumps(entries)


def test_names_of_numbers_go_into_the_checkpoint_where_all_files_agree(demo_file, tmp_path):
    paths = [demo_file(f"{seed}.hdf5", num_demos=2, length=6, seed=seed) for seed in (1, 2)]
    numbers, joints = [f"n{i}" for i in range(10)], [f"j{i}" for i in range(7)]
    name_numbers(paths[0], numbers, joints)
    name_numbers(paths[1], numbers[::-1], joints)
    result = train(config_of(tmp_path, [{"path": str(path)} for path in paths]), quiet=True)
    assert result.exit_code == 0
    policy, _ = policy_from_checkpoint(ckpt_path=result.checkpoint, device="cpu")
    assert policy.number_names == {"actions": tuple(joints)}


# ---- configurations as robomimic's classes write them (its templates) ----------------------------


# `config_factory(algo_name).dump()` of robomimic 0.5.0.
TEMPLATES = json.loads(
    (Path(__file__).parent / "fixtures" / "robomimic_0.5_configs.json").read_text()
)
SMALL = {"cql": ["train.batch_size=8"], "diffusion_policy": ["algo.unet.down_dims=[16,32]"]}


OFTEN = ("bc", "hbc", "iql", "td3_bc")


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.nightly) for name in TEMPLATES
    ]
)
def small(request, demo_file):
    """Name, data and overrides of one of them."""
    # That of td3_bc is for D4RL, whose observation is one vector.
    data = demo_file(length=30, obs_dims={"flat": 17} if request.param == "td3_bc" else None)
    overrides = [
        *("train.cuda=false", "train.num_epochs=1", "train.batch_size=4"),
        *("experiment.epoch_every_n_steps=2", "experiment.rollout.enabled=false"),
        "experiment.logging.log_tb=false",
        *SMALL.get(request.param, ()),
    ]
    return TEMPLATES[request.param], data, overrides


def test_its_algorithm_is_built_for_data(small):
    template, data, overrides = small
    setup = build(resolve(load_config(template, overrides), data, None), torch.device("cpu"))
    assert setup.algo.ac_dim == 7 and len(setup.train_set) > 0


@pytest.mark.nightly
def test_trains_an_epoch(small, tmp_path):
    template, data, overrides = small
    result = train(template, dataset=data, output_dir=tmp_path, overrides=overrides, quiet=True)
    assert result.exit_code == 0 and result.checkpoint.is_file()
