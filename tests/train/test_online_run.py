"""Whole trainings in an environment, small ones."""

import io
import json
import os
import signal

import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.algo.sac import SAC
from imitate.data.dataset_file import DatasetFile
from imitate.errors import ConfigError
from imitate.evaluation.evaluate import evaluate
from imitate.online.demonstrations import write_demonstrations
from imitate.online.replay import ReplayBuffer
from imitate.policy.checkpoint import load_checkpoint
from imitate.train.trainer import train


def tree(name="sac", env="Pendulum-v1", **sections):
    """A training that is over in seconds; an epoch is an episode of Pendulum."""
    tree = {
        "algo_name": name,
        "experiment": {
            "name": "online",
            "epoch_every_n_steps": 200,
            "logging": {"log_tb": False},
            "render_video": False,
            "rollout": {"enabled": False, "n": 2, "horizon": 200, "rate": 1, "num_workers": 0},
            "save": {"every_n_epochs": None, "on_best_rollout_return": True},
        },
        "train": {
            "cuda": False,
            "batch_size": 16,
            "num_epochs": 3,
            "num_threads": 1,
            "seed": 3,
            "online": {
                "env": env,
                "warmup_steps": 200,
                "update_ratio": 0.2,
                "buffer_size": 1000,
            },
        },
        "algo": {},
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    if name in ("sac", "td3"):
        tree["algo"] = {"actor": {"layer_dims": [16]}, "critic": {"layer_dims": [16]}}
    for section, values in sections.items():
        for key, value in values.items():
            old = tree[section].get(key)
            tree[section][key] = {**old, **value} if isinstance(old, dict) else value
    return tree


def central(**online):
    return {"train": {"online": {"acting": "central", **online}}}


def run(tmp_path, *args, **kwargs):
    return train(tree(*args, **kwargs), output_dir=tmp_path, quiet=True)


def records(result, kind="epoch"):
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["kind"] == kind]


def newest_memory(result):
    last = load_checkpoint(result.run_dir / "checkpoints/last.pth")
    return result.run_dir / "checkpoints" / last["train_state"]["online"]["memory"]


def test_a_run_leaves_what_every_run_leaves(tmp_path):
    result = run(tmp_path, experiment={"rollout": {"enabled": True}})
    assert result.exit_code == 0
    last = records(result)[-1]
    assert last["Metrics/EnvironmentSteps"] == 600 and last["Metrics/NumberOfEpisodes"] == 3
    assert last["Train/Updates"] == 80 and last["Metrics/AverageEpisodeLength"] == 200
    assert last["Metrics/AverageReturn"] == pytest.approx(200 * last["Metrics/AverageReward"])
    assert len(records(result, "rollout")) == 3
    policy, ckpt = policy_from_checkpoint(
        device="cpu", ckpt_path=result.run_dir / "checkpoints/last.pth"
    )
    assert ckpt["env_metadata"]["env_name"] == "Pendulum-v1"
    assert ckpt["shape_metadata"]["action_high"] == [2.0]
    policy.start_episode()
    assert abs(policy({"flat": np.array([1.0, 0.0, 0.0])})[0]) <= 2.0
    evaluated = evaluate(result.run_dir / "checkpoints/last.pth", episodes=2, seed=100000)
    assert evaluated.mean_return == pytest.approx(records(result, "rollout")[-1]["Rollout/Return"])


MODEL = {"dynamics": {"members": 2, "layer_dims": [8]}}
PLANNER = {"horizon": 3, "population": 8, "elites": 2, "iterations": 2}
ON_POLICY = {
    "train": {
        "obs_normalization": "mean_std",
        "obs_clip": 1.5,
        "reward": {"normalization": "running"},
        "online": {"collect_steps": 200, "num_envs": 2, "warmup_steps": 0},
    },
    "experiment": {"epoch_every_n_steps": 400},
    "algo": {"rollout_epochs": 2},
}
NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        pytest.param("sac", {}, marks=NIGHTLY),
        ("sac", {"algo": {**MODEL, "imagination": {"start_updates": 10}}}),
        pytest.param("mbrl", {"algo": {**MODEL, "planner": PLANNER}}, marks=NIGHTLY),
        pytest.param("td3", {"train": {"obs_normalization": "mean_std"}}, marks=NIGHTLY),
        ("ppo", ON_POLICY),
    ],
)
def test_a_resumed_run_ends_bit_equal(tmp_path, name, sections):
    whole = run(tmp_path, name, **sections)
    part = run(
        tmp_path, name, **{**sections, "train": {**sections.get("train", {}), "num_epochs": 2}}
    )
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=3"], quiet=True)
    first, second = (load_checkpoint(r.run_dir / "checkpoints/last.pth") for r in (whole, resumed))
    assert first["train_state"]["step"] == second["train_state"]["step"]
    for key, value in first["model"]["nets"].items():
        assert torch.equal(value, second["model"]["nets"][key]), key
    for key, value in first["preprocess"]["obs"]["flat"].items():
        assert not isinstance(value, torch.Tensor) or torch.equal(
            value, second["preprocess"]["obs"]["flat"][key]
        )
    clip = sections.get("train", {}).get("obs_clip")
    assert first["preprocess"]["obs_clip"] == second["preprocess"]["obs_clip"] == clip
    same = ("Metrics/AverageReturn", "Train/Updates", "Train/Loss")
    assert [records(whole)[-1][k] for k in same] == [records(resumed)[-1][k] for k in same]


def test_in_the_middle_of_an_episode_nothing_that_was_remembered_is_lost(tmp_path):
    sections = {"experiment": {"epoch_every_n_steps": 150}}
    part = run(tmp_path, **sections, train={"num_epochs": 2})
    memory = newest_memory(part)
    saved = torch.load(memory, weights_only=True)
    assert int(saved["rows"]["live"].sum()) == 300
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=3"], quiet=True)
    after = torch.load(newest_memory(resumed), weights_only=True)
    assert int(after["rows"]["live"].sum()) == 450
    assert torch.equal(after["rows"]["vectors"][:200], saved["rows"]["vectors"][:200])


def test_a_clock_that_jumps_loses_no_replay_buffer(tmp_path):
    part = run(tmp_path, train={"num_epochs": 2})
    for file in (part.run_dir / "checkpoints").glob("memory_*.pt"):
        os.utime(file, (4e9, 4e9))  # written before the clock was set back
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=3"], quiet=True)
    assert int(torch.load(newest_memory(resumed), weights_only=True)["rows"]["live"].sum()) == 600
    names = {file.name for file in (part.run_dir / "checkpoints").glob("memory_*.pt")}
    assert names == {"memory_400.pt", "memory_600.pt"}


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda file: file.unlink(), "is gone"),
        (lambda file: file.write_bytes(file.read_bytes()[:5000]), "is damaged"),
        (lambda file: file.write_bytes(flipped(file.read_bytes())), "is damaged"),
    ],
)
def test_a_replay_buffer_that_cannot_be_read_is_told_and_fills_anew(tmp_path, harm, words):
    part = run(tmp_path, train={"num_epochs": 2})
    harm(newest_memory(part))
    said = io.StringIO()
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=3"], quiet=True, stream=said)
    lines = [line for line in said.getvalue().splitlines() if "memory_400.pt" in line]
    assert len(lines) == 1 and words in lines[0] and "empty replay buffer" in lines[0]
    assert int(torch.load(newest_memory(resumed), weights_only=True)["rows"]["live"].sum()) == 200
    assert records(resumed)[-1]["Train/Updates"] == 80


def flipped(content):
    """One bit of the longest entry of an archive, the stored steps."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_workers_collect(tmp_path):
    result = run(
        tmp_path,
        train={
            "num_epochs": 1,
            "online": {"num_envs": 2, "num_workers": 1, "collect_steps": 10, "max_staleness": 5},
        },
    )
    last = records(result)[-1]
    assert last["Metrics/EnvironmentSteps"] >= 200 and last["Metrics/Staleness"] <= 5


def test_policy_workers_act_and_a_run_resumes(tmp_path):
    online = {"num_envs": 2, "num_workers": 1, "ring": 2, "collect_steps": 10}
    result = run(tmp_path, train={"num_epochs": 1, "online": {"acting": "central", **online}})
    last = records(result)[-1]
    assert last["Metrics/EnvironmentSteps"] >= 200 and 1 <= last["Metrics/ActingBatch"] <= 2
    resumed = train(
        json.loads((result.run_dir / "config.json").read_text()),
        resume=result.run_dir,
        overrides=("train.num_epochs=2",),
    )
    assert records(resumed)[-1]["Metrics/EnvironmentSteps"] >= 400


def test_discrete_actions_are_found_out(tmp_path):
    result = run(
        tmp_path, "dqn", "CartPole-v1", train={"num_epochs": 1, "online": {"warmup_steps": 50}}
    )
    ckpt = load_checkpoint(result.run_dir / "checkpoints/last.pth")
    assert json.loads(ckpt["config"])["algo"]["num_choices"] == 2
    with pytest.raises(ConfigError, match="td3 is for continuous actions, but CartPole-v1"):
        run(tmp_path, "td3", "CartPole-v1")


@pytest.mark.parametrize(
    ("env", "choices", "continuous"),
    [("Pendulum-v1", 0, 1), ("CartPole-v1", 2, 0), ("tools:Tools-v0", 2, 1)],
)
def test_sac_takes_actions_of_every_kind(tmp_path, importable_env, env, choices, continuous):
    result = run(
        tmp_path,
        env=env,
        experiment={"rollout": {"enabled": True}},
        train={"num_epochs": 1, "online": {"warmup_steps": 50}},
    )
    last = result.run_dir / "checkpoints/last.pth"
    algo = json.loads(load_checkpoint(last)["config"])["algo"]
    assert (algo["num_choices"], algo["num_continuous"]) == (choices, continuous)
    evaluated = evaluate(last, episodes=2, seed=100000)
    assert evaluated.mean_return == pytest.approx(records(result, "rollout")[-1]["Rollout/Return"])


RATE = {"learning_rate": {"initial": 0.003}}
TOOLS = {
    "experiment": {"rollout": {"enabled": True, "n": 20}},
    "train": {"batch_size": 64, "online": {"warmup_steps": 100, "update_ratio": 1}},
    "algo": {
        "actor": {"layer_dims": [32]},
        "critic": {"layer_dims": [32]},
        "discount": 0.0,
        "temperature": {"initial": 0.05},
        "optim_params": {"actor": RATE, "critic": RATE},
    },
}


def test_a_choice_and_the_number_that_goes_with_it_are_learned(tmp_path, importable_env):
    """Of five steps a policy that chooses at random has 0 at best, one that always puts tools in the middle too."""
    result = run(tmp_path, env="tools:Tools-v0", **TOOLS)
    assert records(result, "rollout")[-1]["Rollout/Return"] > 3.5


def test_mixed_actions_resume_and_come_from_workers(tmp_path, importable_env):
    whole = run(tmp_path, env="tools:Tools-v0")
    part = run(tmp_path, env="tools:Tools-v0", train={"num_epochs": 2})
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=3"], quiet=True)
    first, second = (load_checkpoint(r.run_dir / "checkpoints/last.pth") for r in (whole, resumed))
    for key, value in first["model"]["nets"].items():
        assert torch.equal(value, second["model"]["nets"][key]), key
    online = {"num_envs": 2, "num_workers": 1, "collect_steps": 10}
    result = run(tmp_path, env="tools:Tools-v0", train={"num_epochs": 1, "online": online})
    assert records(result)[-1]["Metrics/NumberOfEpisodes"] >= 40


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dqn", "dqn is for actions of one kind, but tools:Tools-v0 takes one of 2 choices and 1"),
        ("td3", "td3 is for continuous actions, but tools:Tools-v0 takes one of 2 choices: take"),
    ],
)
def test_mixed_actions_are_refused_elsewhere(tmp_path, importable_env, name, words):
    with pytest.raises(ConfigError, match=words):
        run(tmp_path, name, "tools:Tools-v0")


@pytest.fixture
def demonstrations(tmp_path):
    """An episode of Pendulum as a file."""
    memory = ReplayBuffer({"flat": (3,)}, 1, 1000)
    first = run(tmp_path, train={"num_epochs": 1})
    memory.load_state_dict(torch.load(newest_memory(first), weights_only=True))
    meta = load_checkpoint(first.run_dir / "checkpoints/last.pth")["env_metadata"]
    write_demonstrations(memory, tmp_path / "demos.hdf5", meta)
    with DatasetFile(tmp_path / "demos.hdf5") as demos:
        assert demos.env_meta["env_name"] == "Pendulum-v1" and demos.length("demo_0") == 200
    return tmp_path / "demos.hdf5"


def on_demonstrations(num_epochs):
    online = {"env": None, "demo_ratio": 0.5, "pretrain_updates": 7}
    return tree(train={"num_epochs": num_epochs, "online": online})


def test_demonstrations_and_online_steps_share_a_batch(tmp_path, demonstrations):
    result = train(on_demonstrations(2), dataset=demonstrations, output_dir=tmp_path, quiet=True)
    assert records(result)[-1]["Train/Updates"] == 7 + 40


def test_a_run_that_is_interrupted_before_the_first_step_loses_no_update(
    tmp_path, demonstrations, monkeypatch
):
    whole = train(on_demonstrations(1), dataset=demonstrations, output_dir=tmp_path, quiet=True)
    updates, update = [], SAC.train_on_batch

    def interrupted(self, batch, epoch, validate=False):
        updates.append(epoch)
        if len(updates) == 3:
            signal.raise_signal(signal.SIGTERM)
        return update(self, batch, epoch, validate)

    monkeypatch.setattr(SAC, "train_on_batch", interrupted)
    cut = train(on_demonstrations(1), dataset=demonstrations, output_dir=tmp_path, quiet=True)
    assert cut.exit_code == 143 and len(updates) == 3
    train(resume=cut.run_dir, quiet=True)
    assert len(updates) == 7
    expected, found = (
        load_checkpoint(result.run_dir / "checkpoints/last.pth")["model"]["nets"]
        for result in (whole, cut)
    )
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"train": {"online": {"env": None}}}, "train.online.env: is null"),
        ({"train": {"online": {"demo_ratio": 0.5}}}, "need demonstrations"),
        ({"train": {"online": {"num_workers": 2}}}, "2 processes for 1 environments"),
        ({"train": {"online": {"max_staleness": 2}}}, "needs num_workers of 1 or more"),
        (
            {"train": {"online": {"num_workers": 1, "max_staleness": 0}}},
            "max_staleness: 0 allows no update",
        ),
        ({"train": {"online": {"acting": "central"}}}, "'central' needs environment workers"),
        ({"train": {"online": {"ring": 2}}}, "ring: 2 needs train.online.acting 'central'"),
        ({"train": {"online": {"policy_workers": 2}}}, "policy_workers: 2 needs train.online"),
        (central(num_envs=2, num_workers=1, policy_workers=2), "2 for 1 environment workers"),
        (central(num_envs=3, num_workers=2, ring=2), "need 4 environments, got .* 3"),
        ({"experiment": {"epoch_every_n_steps": None}}, "environment steps of an epoch"),
        ({"train": {"reward": {"normalization": "std"}}}, "cannot be: set it to null"),
        ({"observation": {"modalities": {"obs": {"low_dim": ["flaat"]}}}}, "flaat"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(tmp_path, sections, words):
    with pytest.raises(Exception, match=words) as caught:
        run(tmp_path, **sections)
    assert "\n" not in str(caught.value)
