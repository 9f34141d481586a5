"""From a checkpoint of offline learning to online RL: nothing is forgotten on the way, and learning goes on."""

import json

import numpy as np
import pytest
import torch

from imitate import load_config, policy_from_checkpoint
from imitate.data.file.episode import Episode
from imitate.data.file.writer import DatasetWriter
from imitate.policy.checkpoint import load_checkpoint
from imitate.train.online_parts import make_learner
from imitate.train.online_setup import build_online
from imitate.train.trainer import train

ONLINE = [
    "train.online.enabled=true",
    "train.online.warmup_steps=20",
    "train.online.warmup_policy=policy",
    "train.online.update_ratio=0.5",
    "train.num_epochs=1",
    "experiment.epoch_every_n_steps=60",
    "experiment.rollout.horizon=25",
]


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Aimless swings of a pendulum whose velocity is mostly 5."""
    path = tmp_path_factory.mktemp("data") / "demos.hdf5"
    rng = np.random.default_rng(0)
    meta = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
    with DatasetWriter(path, meta) as writer:
        for _ in range(4):
            angle, speed = rng.uniform(-3, 3, 16), rng.normal(5, 2, 16)
            flat = np.column_stack([np.cos(angle), np.sin(angle), speed]).astype(np.float32)
            ends = np.arange(15) == 14
            writer.append_episode(
                Episode(
                    obs={"flat": flat[:-1]},
                    next_obs={"flat": flat[1:]},
                    actions=rng.uniform(-1, 1, (15, 1)).astype(np.float32),
                    rewards=-np.abs(angle[:-1]).astype(np.float32),
                    terminals=np.zeros(15, dtype=bool),
                    timeouts=ends,
                )
            )
    return path


def offline(name, demos, folder):
    """The checkpoint of a short training from the demonstrations alone."""
    nets = {"layer_dims": [16]}
    tree = {
        "algo_name": name,
        "experiment": {
            "name": name,
            "epoch_every_n_steps": 5,
            "logging": {"log_tb": False},
            "render_video": False,
            "rollout": {"enabled": False},
        },
        "train": {
            "cuda": False,
            "batch_size": 8,
            "num_epochs": 1,
            "num_threads": 1,
            "obs_normalization": "mean_std",
        },
        "algo": {"actor": nets, "critic": nets},
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    result = train(tree, dataset=demos, output_dir=folder, quiet=True)
    return result.run_dir / "checkpoints/last.pth"


@pytest.mark.parametrize(("name", "demo_ratio"), [("iql", 0), ("cal_ql", 0.5), ("td3_bc", 0)])
def test_a_checkpoint_learns_online_from_where_it_stands(tmp_path, demos, name, demo_ratio):
    path = offline(name, demos, tmp_path)
    ckpt = load_checkpoint(path)
    overrides = [*ONLINE, f"train.online.demo_ratio={demo_ratio}", f"experiment.ckpt_path={path}"]

    # As it begins, after everything that online RL prepares, it acts as the checkpoint does.
    setup = build_online(load_config(ckpt["config"], overrides), torch.device("cpu"))
    make_learner(setup)
    algo, (policy, _) = setup.algo, policy_from_checkpoint(device="cpu", ckpt_path=path)
    algo.set_eval()
    for velocity in (-3.0, 5.0):
        obs = {"flat": np.array([0.6, 0.8, velocity])}
        prepared = algo.preprocess.prepare_obs({"flat": obs["flat"][None]})
        algo.reset()
        action = algo.preprocess.unnormalize_actions(algo.get_action(prepared))
        np.testing.assert_allclose(action[0], policy(obs), atol=1e-6)

    result = train(ckpt["config"], output_dir=tmp_path, overrides=overrides, quiet=True)
    last = load_checkpoint(result.run_dir / "checkpoints/last.pth")
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    numbers = next(r for r in map(json.loads, lines) if r["kind"] == "epoch")
    assert numbers["Metrics/EnvironmentSteps"] == 60 and numbers["Train/Updates"] == 20
    assert np.isfinite(numbers["Train/Loss"])
    moved = [
        not torch.equal(value, last["model"]["nets"][key])
        for key, value in ckpt["model"]["nets"].items()
    ]
    assert all(moved)
    for key in ("offset", "scale"):
        was, now = (c["preprocess"]["obs"]["flat"][key] for c in (ckpt, last))
        assert torch.equal(was, now) and not torch.equal(was, torch.zeros(3))
