"""A tiny environment, demonstrations in it, and checkpoints that do not need training."""

from pathlib import Path

import numpy as np
import pytest
import torch

from imitate.algo.base.factory import algo_factory
from imitate.config import load_config
from imitate.policy.checkpoint import checkpoint_dict, load_checkpoint, save_checkpoint
from imitate.train.metrics import MetricsFile
from imitate.train.trainer import train
from tests import demo_files
from tests.cli.conftest import call as call
from tests.tiny import merged, tiny_tree

ENV_FOLDER = Path(__file__).parent / "point_mass_env"
PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}


def env_meta(**kwargs):
    return {"env_name": "point_mass:PointMass-v0", "type": 2, "env_kwargs": kwargs}


def config_dict(data=None, **sections):
    """A small BC configuration; sections are laid over it."""
    rollout = {"n": 4, "horizon": 30, "rate": 1, "num_workers": 1}
    tree = tiny_tree(
        obs={"goal": 2, "pos": 2},
        data=data,
        experiment={"name": "point", "epoch_every_n_steps": 20, "rollout": rollout},
        algo={"optim_params": {"policy": {"learning_rate": {"initial": 0.003}}}},
    )
    return merged(tree, sections)


def online_tree(name="sac", env="Pendulum-v1", obs=("flat",), online=(), **sections):
    """A small configuration of online RL; its epochs are episodes of Pendulum."""
    small = {"env": env, "warmup_steps": 200, "update_ratio": 0.2, "buffer_size": 1000}
    tree = tiny_tree(
        name,
        obs=dict.fromkeys(obs, 1),
        experiment={
            "name": "online",
            "epoch_every_n_steps": 200,
            "rollout": {"horizon": 200, "rate": 1},
        },
        train={"online": {**small, **dict(online)}},
    )
    return merged(tree, sections)


def resume(run, epochs, **arguments):
    """Resume a run, up to so many epochs."""
    overrides = [f"train.num_epochs={epochs}"]
    folder = getattr(run, "run_dir", run)
    return train(resume=folder, overrides=overrides, **{"quiet": True, **arguments})


def records(run, kind="epoch"):
    """Lines of a kind in the metrics file of a run, or of its folder."""
    folder = getattr(run, "run_dir", run)
    return [r for r in MetricsFile(folder / "metrics.jsonl").read() if r["kind"] == kind]


def last(run):
    """The last checkpoint of a run, or of its folder."""
    return load_checkpoint(getattr(run, "run_dir", run) / "checkpoints" / "last.pth")


def assert_same_nets(one, two, **tolerance):
    """Assert that two runs ended with the same weights, bit by bit unless a tolerance is given."""
    nets = [last(run)["model"]["nets"] for run in (one, two)]
    torch.testing.assert_close(*nets, **{"rtol": 0, "atol": 0, **tolerance})


def stored_steps(run):
    """The newest replay buffer of a run."""
    folder = getattr(run, "run_dir", run) / "checkpoints"
    return torch.load(folder / last(run)["train_state"]["online"]["memory"], weights_only=True)


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

    def demonstration():
        (pos, goal), seen, actions = rng.uniform(-0.5, 0.5, (2, 2)), [], []
        for _ in range(length):
            seen.append(pos)
            actions.append(np.clip(4 * (sign * goal - pos), -1, 1))
            pos = pos + 0.1 * actions[-1]
        obs = {"pos": np.array(seen), "goal": np.tile(goal, (length, 1))}
        values = {"rewards": np.eye(length)[-1], "attrs": attrs}
        return demo_files.episode(length, obs, np.array(actions), "terminal", **values)

    keys = {"train": range(num - 2), "valid": range(num - 2, num)} if filter_keys else None
    return demo_files.write_demos(
        path, (demonstration() for _ in range(num)), meta or env_meta(), keys
    )


@pytest.fixture
def demos(tmp_path):
    return write_demos(tmp_path / "demos.hdf5")


def write_expert(path, meta=None, gain=4.0, noise=None, keys=("goal", "pos")):
    """A checkpoint whose action is tanh(gain * (goal - pos)), without any training; with noise a Gaussian policy.

    ``keys``: its names of goal and pos, in alphabetical order.
    """
    tree = config_dict(algo={"actor_layer_dims": []})
    if noise is not None:
        fixed = {"enabled": True, "fixed_std": True, "low_noise_eval": False}
        tree["algo"]["gaussian"] = {**fixed, "init_std": noise}
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
        patch.setattr("imitate.train.sweep.work.PROGRAM", program)
        yield
