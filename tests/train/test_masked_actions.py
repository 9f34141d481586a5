"""Masks of actions in whole runs: rooms with doors, of which most are closed."""

import json

import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.errors import ConfigError
from imitate.evaluation.evaluate import evaluate
from imitate.train.trainer import train

DOORS = "imitate.envs.masked_tasks:Doors-v0"


def tree(name, mask="info", **online):
    key = "observation" if mask == "observation" else "flat"
    env = {"type": 2, "env_name": DOORS, "env_kwargs": {"mask": mask}}
    return {
        "algo_name": name,
        "experiment": {
            "name": "doors",
            "epoch_every_n_steps": 128,
            "validate": False,
            "render_video": False,
            "logging": {"log_tb": False},
            "rollout": {"enabled": False, "horizon": 20},
        },
        "train": {
            "num_epochs": 2,
            "batch_size": 32,
            "num_threads": 1,
            "cuda": False,
            "obs_normalization": "mean_std",
            "online": {
                "env": env,
                "num_envs": 4,
                "collect_steps": 16,
                "warmup_steps": 64,
                "update_ratio": 0.25,
                **online,
            },
        },
        "observation": {"modalities": {"obs": {"low_dim": [key]}}},
    }


def last_epoch(result):
    lines = [
        json.loads(line)
        for line in (result.run_dir / "metrics.jsonl").read_text().split("\n")
        if line
    ]
    return [line for line in lines if line["kind"] == "epoch"][-1]


@pytest.mark.parametrize(
    ("name", "mask", "online"),
    [
        pytest.param("ppo", "info", {}, marks=pytest.mark.nightly),
        pytest.param("a2c", "observation", {}, marks=pytest.mark.nightly),
        pytest.param("dqn", "info", {"num_workers": 1}, marks=pytest.mark.nightly),
        ("sac", "observation", {}),
    ],
)
def test_no_closed_door_is_tried_in_warmup_training_and_evaluation(tmp_path, name, mask, online):
    result = train(tree(name, mask, **online), output_dir=tmp_path, quiet=True)
    assert last_epoch(result)["Metrics/AverageEnvInfo[success]"] == 1.0
    config = json.loads((result.run_dir / "config.json").read_text())
    assert config["observation"]["modalities"]["obs"]["mask"] == ["action_mask"]
    mode = "vector" if name == "ppo" else "processes"
    played = evaluate(result.run_dir / "checkpoints/last.pth", episodes=4, horizon=20, mode=mode)
    assert played.success_rate == 1.0
    if name != "sac":
        return
    resumed = train(None, resume=result.run_dir, overrides=["train.num_epochs=3"], quiet=True)
    assert last_epoch(resumed)["Metrics/AverageEnvInfo[success]"] == 1.0


def test_without_the_mask_closed_doors_end_the_episodes(tmp_path):
    result = train(tree("ppo", "none"), output_dir=tmp_path, quiet=True)
    assert last_epoch(result)["Metrics/AverageEnvInfo[success]"] == 0.0


def test_a_policy_asks_for_the_mask_and_the_mask_is_not_normalized(tmp_path):
    result = train(tree("ppo"), output_dir=tmp_path, quiet=True)
    policy, _ = policy_from_checkpoint(ckpt_path=str(result.run_dir / "checkpoints/last.pth"))
    assert set(policy.obs_keys) == {"flat", "action_mask"}
    preprocess = policy.algo.preprocess
    assert preprocess.normalization.obs_affine("action_mask")[0].tolist() == [0.0] * 6
    assert not torch.equal(preprocess.normalization.obs_affine("flat")[0], torch.zeros(8))
    last = result.run_dir / "checkpoints/last.pth"
    assert evaluate(last, episodes=4, horizon=20, mode="vector").success_rate == 1.0


def test_a_mask_of_another_size_than_the_choices_is_refused(tmp_path):
    config = tree("ppo")
    config["observation"] = {"modalities": {"obs": {"low_dim": [], "mask": ["flat"]}}}
    with pytest.raises(ConfigError, match=r"has shape \(8,\), wanted one number for each of its 6"):
        train(config, output_dir=tmp_path, quiet=True)
