"""Whole trainings towards goals, small ones."""

import json

import numpy as np
import pytest
import torch

from imitate.config import load_config
from imitate.envs import make_env
from imitate.errors import ConfigError, EnvError
from imitate.policy.checkpoint import load_checkpoint
from imitate.train.online_parts import make_learner
from imitate.train.online_setup import build_online
from imitate.train.trainer import train
from tests.train.conftest import ENV_FOLDER

SMALL = {"actor": {"layer_dims": [16]}, "critic": {"layer_dims": [16]}}


@pytest.fixture(autouse=True)
def world(monkeypatch):
    monkeypatch.syspath_prepend(str(ENV_FOLDER))
    monkeypatch.setenv("PYTHONPATH", str(ENV_FOLDER))


def tree(name="sac", seen=("observation", "desired_goal"), algo=SMALL, online=(), **train_section):
    return {
        "algo_name": name,
        "experiment": {
            "name": "goals",
            "epoch_every_n_steps": 100,
            "logging": {"log_tb": False},
            "render_video": False,
            "rollout": {"enabled": False, "n": 2, "horizon": 10, "num_workers": 0},
            "save": {"every_n_epochs": None},
        },
        "train": {
            "cuda": False,
            "batch_size": 16,
            "num_epochs": 2,
            "num_threads": 1,
            "seed": 3,
            **train_section,
            "online": {
                "env": "goals:Goals-v0",
                "warmup_steps": 50,
                "update_ratio": 0.2,
                "buffer_size": 120,
                "hindsight": {"enabled": True},
                **dict(online),
            },
        },
        "algo": dict(algo),
        "observation": {"modalities": {"obs": {"low_dim": list(seen)}}},
    }


def faulty(fault):
    meta = {"env_name": "goals:Goals-v0", "type": 2, "env_kwargs": {"fault": fault}}
    return tree(online={"env": meta})


def saved(run_dir):
    last = load_checkpoint(run_dir / "checkpoints/last.pth")
    name = last["train_state"]["online"]["memory"]
    return last, torch.load(run_dir / "checkpoints" / name, weights_only=True)


@pytest.mark.parametrize(
    ("name", "algo", "online"),
    [
        ("sac", SMALL, {"prioritized": {"enabled": True}}),
        ("td3", SMALL, {"num_envs": 2}),
        ("rlpd", SMALL, {"demo_ratio": 0.0}),
        ("ddpg", SMALL, {"num_envs": 2, "num_workers": 1, "collect_steps": 5}),
    ],
)
def test_every_algorithm_that_replays_may_look_back(tmp_path, name, algo, online):
    config = tree(name, algo=algo, online=online, obs_normalization="mean_std")
    result = train(config, output_dir=tmp_path, quiet=True)
    assert result.exit_code == 0
    last, memory = saved(result.run_dir)
    # Achieved goals are remembered, and no input of the policy.
    assert list(last["shape_metadata"]["raw_shapes"]) == ["desired_goal", "observation"]
    assert memory["layout"]["columns"]["achieved_goal"] == [0, 2]
    records = [json.loads(x) for x in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(v) for r in records for v in r.values() if isinstance(v, float))


def test_a_resumed_run_ends_bit_equal(tmp_path):
    config = tree(obs_normalization="mean_std", num_epochs=3)
    whole = train(config, output_dir=tmp_path, quiet=True)
    part = train(config, output_dir=tmp_path, quiet=True, overrides=["train.num_epochs=1"])
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=3"], quiet=True)
    (first, _), (second, _) = saved(whole.run_dir), saved(resumed.run_dir)
    for key, value in first["model"]["nets"].items():
        assert torch.equal(value, second["model"]["nets"][key]), key


def test_goals_share_their_statistics_whether_desired_or_achieved():
    learner = make_learner(build_online(load_config(tree(obs_normalization="mean_std")), "cpu"))
    seen = {
        "observation": np.zeros((2, 2), np.float32),
        "achieved_goal": np.array([[1, 0], [3, 0]], np.float32),
        "desired_goal": np.array([[5, 0], [7, 0]], np.float32),
    }
    learner.obs_normalizer.add(seen)
    learner.obs_normalizer.apply(learner.algo.preprocess)
    # 1, 3, 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5.
    prepared = learner.algo.preprocess.prepare_obs(seen)["desired_goal"][:, 0]
    assert prepared.tolist() == pytest.approx([1 / 5**0.5, 3 / 5**0.5])


@pytest.mark.parametrize(
    ("end_at_success", "given", "ends"),
    [(True, None, True), (True, False, False), (False, None, False)],
)
def test_where_success_ends_episodes_goals_do(end_at_success, given, ends):
    online = {
        "end_at_success": end_at_success,
        "hindsight": {"enabled": True, "ends_at_goal": given, "share": 0.5, "strategy": "final"},
    }
    memory = make_learner(build_online(load_config(tree(online=online)), "cpu")).memory
    chosen = memory.hindsight
    assert (chosen.ends_at_goal, chosen.share, chosen.strategy) == (ends, 0.5, "final")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (tree("ppo", algo={}), "ppo does not replay"),
        (tree(algo={**SMALL, "n_step": 3}), "set algo.n_step to 1"),
        (tree(seen=("observation",)), "is to see 'desired_goal', a vector, but does not see it"),
        (tree("sqil"), "does not learn from the environment's rewards"),
        (tree("cal_ql", algo={}), "needs returns of whole episodes"),
    ],
)
def test_what_cannot_look_back_is_refused_in_one_line(config, words):
    with pytest.raises(ConfigError, match=words) as caught:
        build_online(load_config(config), "cpu")
    assert "\n" not in str(caught.value)


def test_goals_that_are_images_are_refused():
    config = faulty("pixels")
    config["observation"]["modalities"]["obs"] = {
        "low_dim": ["observation"],
        "rgb": ["desired_goal"],
    }
    with pytest.raises(ConfigError, match="a vector, but has it under rgb"):
        build_online(load_config(config), "cpu")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("one", r"an array of shape \(\) for 4 goals, expected \(4,\)"),
        ("first", "for 4 goals, but .* for one after another"),
        ("effort", "steps gave the rewards .*, compute_reward says"),
    ],
)
def test_rewards_that_goals_do_not_tell_are_refused(fault, words):
    setup = build_online(load_config(faulty(fault)), "cpu")
    with pytest.raises(EnvError, match=words) as caught:
        make_learner(setup)
    assert "\n" not in str(caught.value)


def test_an_environment_without_goals_is_refused():
    env = make_env({"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}})
    with pytest.raises(EnvError, match="it has no goals"):
        env.goal_rewards(np.zeros((2, 3)), np.zeros((2, 3)))
    env.close()


def test_rewards_of_many_goals():
    env = make_env({"env_name": "goals:Goals-v0", "type": 2, "env_kwargs": {}})
    achieved = np.array([[0, 0], [0, 0], [1, 1]], np.float32)
    desired = np.array([[0, 0.05], [0, 0.2], [1, 1]], np.float32)
    assert env.goal_rewards(achieved, desired).tolist() == [0, -1, 0]
    env.close()
