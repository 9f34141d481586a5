"""Training and evaluation of several agents: the two that carry a table."""

import json

import numpy as np
import pytest

from imitate import policy_from_checkpoint
from imitate.envs.make import make_env
from imitate.envs.trust import trust, trust_env
from imitate.errors import EnvError
from imitate.evaluation.evaluate import evaluate
from imitate.train.trainer import train

CARRY = "pettingzoo:imitate.envs.team_tasks"
META = {"env_name": CARRY, "type": 2, "env_kwargs": {}}


def tree(name="ppo", keys=("own", "other"), env=CARRY, **online):
    return {
        "algo_name": name,
        "experiment": {
            "name": "carry",
            "epoch_every_n_steps": 256,
            "validate": False,
            "render_video": False,
            "logging": {"log_tb": False},
            "rollout": {"enabled": False, "horizon": 40},
        },
        "train": {
            "num_epochs": 2,
            "batch_size": 32,
            "num_threads": 1,
            "cuda": False,
            "online": {
                "env": env,
                "num_envs": 4,
                "collect_steps": 16,
                "warmup_steps": 64,
                "update_ratio": 0.1,
                **online,
            },
        },
        "observation": {"modalities": {"obs": {"low_dim": list(keys)}}},
    }


def last_epoch(result):
    text = (result.run_dir / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["kind"] == "epoch"][-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tree(), output_dir=tmp_path_factory.mktemp("team"), quiet=True)


def test_returns_are_logged_of_each_agent_and_summed(run):
    numbers = last_epoch(run)
    each = [numbers[f"Metrics/AverageEnvInfo[return_{side}]"] for side in ("left", "right")]
    assert numbers["Metrics/AverageEnvInfo[team_return]"] == pytest.approx(sum(each))


def test_a_run_is_resumed(run):
    resumed = train(None, resume=run.run_dir, overrides=["train.num_epochs=3"], quiet=True)
    assert last_epoch(resumed)["epoch"] == 3


def test_an_evaluation_tells_of_each_agent(run):
    result = evaluate(run.run_dir / "checkpoints/last.pth", episodes=3, seed=5)
    told = result.to_dict()
    assert set(told["agents"]) == {"left", "right"}
    for episode in told["per_episode"]:
        agents = episode["agents"].values()
        assert episode["episode_return"] == pytest.approx(sum(a["return"] for a in agents))
        assert episode["success"] == all(a["success"] for a in agents)
    again = evaluate(run.run_dir / "checkpoints/last.pth", episodes=3, seed=5)
    assert again.to_dict()["per_episode"] == told["per_episode"]
    with pytest.raises(EnvError, match="has several agents: leave --mode vector"):
        evaluate(run.run_dir / "checkpoints/last.pth", episodes=1, mode="vector")


def test_a_policy_acts_for_all_agents_at_once(run):
    policy, _ = policy_from_checkpoint(ckpt_path=str(run.run_dir / "checkpoints/last.pth"))
    env = make_env(META, team=True)
    seen, _ = env.reset(seed=0)
    batch = {key: np.stack([obs[key] for obs in seen]) for key in policy.obs_keys}
    assert policy(batch, batched_ob=True).shape == (2, 2)


def test_a_replaying_algorithm_learns_from_workers_with_agent_ids(tmp_path):
    config = tree("dqn", ("own", "other", "agent_id"), num_workers=1, num_envs=2)
    result = train(config, output_dir=tmp_path, quiet=True)
    assert result.status == "finished"


def test_an_opponent_is_no_lane_and_is_played_from_its_checkpoint(run, tmp_path):
    path = str(run.run_dir / "checkpoints/last.pth")
    for policy in (path, "random"):
        meta = {**META, "env_kwargs": {"opponents": {"ri.*": policy}}}
        trust(path)
        env = make_env(meta, team=True)
        assert env.agents == ("left",)
        env.reset(seed=0)
        outcomes = [env.step(np.array([[1.0, 0.0]])) for _ in range(2)]
        assert all(len(outcome) == 1 for outcome in outcomes)
    result = train(tree(env=meta), output_dir=tmp_path, quiet=True)
    assert "Metrics/AverageEnvInfo[return_right]" not in last_epoch(result)


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        (CARRY, {"opponents": {"nobody": "random"}}, "'nobody', which matches none of the agents"),
        (CARRY, {"opponents": {".*": "random"}}, "match all agents"),
        (CARRY, {"opponents": {"left": "/no/such.pth"}}, "there is no checkpoint"),
        (CARRY, {"wheels": 4}, "refuses its env_kwargs"),
        (f"{CARRY}:absent", {}, "wanted|name is pettingzoo:MODULE"),
        ("pettingzoo:imitate.envs.absent", {}, "cannot be imported"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(name, kwargs, words):
    trust_env({"env_name": name, "env_kwargs": kwargs})
    with pytest.raises(EnvError, match=words):
        make_env({"env_name": name, "type": 2, "env_kwargs": kwargs}, team=True)


def test_who_can_handle_one_agent_only_is_told(tmp_path):
    with pytest.raises(EnvError, match="has several agents, which online training"):
        make_env(META)


def test_the_checks_take_several_agents():
    from imitate.checks.env import check_env

    findings = {f.name: f for f in check_env(lambda: make_env(META, team=True), META)}
    assert {f.verdict for f in findings.values()} == {"ok"}
    assert "left, right" in findings["agents"].words
