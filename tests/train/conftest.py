"""A tiny environment, demonstrations in it, and checkpoints that do not need training."""

from pathlib import Path

import numpy as np
import pytest
import torch

from imitate.algo.factory import algo_factory
from imitate.config import load_config
from imitate.data.file.writer import DatasetWriter, Episode
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint

ENV_FOLDER = Path(__file__).parent / "point_mass_env"


def env_meta(**kwargs):
    return {"env_name": "point_mass:PointMass-v0", "type": 2, "env_kwargs": kwargs}


def config_dict(data=None, **sections):
    """A small BC configuration; sections are laid over it, two levels deep."""
    tree = {
        "algo_name": "bc",
        "experiment": {
            "name": "point",
            "epoch_every_n_steps": 20,
            "logging": {"log_tb": False},
            "rollout": {"enabled": False, "n": 4, "horizon": 30, "rate": 1, "num_workers": 1},
            "render_video": False,
            "save": {"every_n_epochs": None},
        },
        "train": {
            "data": None if data is None else str(data),
            "cuda": False,
            "batch_size": 16,
            "num_epochs": 3,
            "num_threads": 1,
            "seed": 3,
        },
        "algo": {
            "actor_layer_dims": [16],
            "optim_params": {"policy": {"learning_rate": {"initial": 0.003}}},
        },
        "observation": {"modalities": {"obs": {"low_dim": ["goal", "pos"]}}},
    }
    for name, section in sections.items():
        for key, value in section.items():
            old = tree[name].get(key)
            tree[name][key] = {**old, **value} if isinstance(old, dict) else value
    return tree


@pytest.fixture(scope="module")
def importable_env():
    """Worker processes inherit sys.path, subprocesses PYTHONPATH."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ENV_FOLDER))
        patch.setenv("PYTHONPATH", str(ENV_FOLDER))
        yield


def write_demos(path, num=12, length=15, seed=0, meta=None, filter_keys=True, sign=1.0, **attrs):
    """Demonstrations of action = clip(4 (sign * goal - pos), -1, 1)."""
    rng = np.random.default_rng(seed)
    with DatasetWriter(path, meta or env_meta()) as writer:
        names = []
        for _ in range(num):
            pos, goal = rng.uniform(-0.5, 0.5, (2, 2))
            obs, actions = {"pos": [], "goal": []}, []
            for _ in range(length):
                action = np.clip(4 * (sign * goal - pos), -1, 1)
                obs["pos"].append(pos.copy())
                obs["goal"].append(goal)
                actions.append(action)
                pos = pos + 0.1 * action
            ends = np.zeros(length)
            ends[-1] = 1
            names.append(
                writer.append_episode(
                    Episode(
                        obs={key: np.array(value) for key, value in obs.items()},
                        actions=np.array(actions),
                        rewards=ends,
                        terminals=ends,
                        timeouts=np.zeros(length),
                        attrs=attrs,
                    )
                )
            )
        if filter_keys:
            writer.add_filter_key("train", names[:-2])
            writer.add_filter_key("valid", names[-2:])
    return path


@pytest.fixture
def demos(tmp_path):
    return write_demos(tmp_path / "demos.hdf5")


def write_expert(path, meta=None, gain=4.0, noise=None, keys=("goal", "pos")):
    """A checkpoint whose action is tanh(gain * (goal - pos)), without any training; with noise a Gaussian policy.

    ``keys``: its names of goal and pos, in alphabetical order.
    """
    tree = config_dict(algo={"actor_layer_dims": []})
    if noise is not None:
        tree["algo"]["gaussian"] = {
            "enabled": True,
            "fixed_std": True,
            "init_std": noise,
            "low_noise_eval": False,
        }
    tree["observation"]["modalities"]["obs"]["low_dim"] = list(keys)
    config = load_config(tree)
    algo = algo_factory("bc", config, dict.fromkeys(keys, (2,)), 2, "cpu")
    with torch.no_grad():
        for parameter in algo.nets.parameters():
            if parameter.shape == (2, 4):
                parameter.copy_(gain * torch.tensor([[1.0, 0, -1, 0], [0, 1, 0, -1]]))
            elif parameter.shape == (2,) and noise is None:
                parameter.zero_()
    ckpt = checkpoint_dict(
        algo,
        env_metadata=meta or env_meta(),
        shape_metadata={"action_low": [-1.0, -1.0], "action_high": [1.0, 1.0]},
    )
    save_checkpoint(ckpt, path)
    return path


@pytest.fixture(scope="module")
def forked_trainings(preloaded_commands):
    """Runs of sweeps are commands of `preloaded_commands`; they do not end with the sweep that is killed."""
    command = str(preloaded_commands / "imitate")
    program = f"import os, sys; os.execv({command!r}, [{command!r}, *sys.argv[1:]])"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("imitate.train.sweep_work.PROGRAM", program)
        yield
