"""Online RL with two learner ranks."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate import load_config
from imitate.data import DatasetWriter, Episode
from imitate.errors import ConfigError, DatasetError
from imitate.online.normalization import ObsNormalizer, RunningMoments, merge_all
from imitate.online.prioritized import PrioritizedReplay
from imitate.online.steps import Step
from imitate.policy.checkpoint import load_checkpoint
from imitate.ranks import Ranks
from imitate.train.online_parts import make_collector, make_learner
from imitate.train.online_setup import build_online
from imitate.train.trainer import train
from tests.rank_processes import run_ranks

PROGRAM = Path(__file__).parent / "rank_programs" / "online.py"


def tree(name, online, data=None, **train_keys):
    """Training in Pendulum, which is over in seconds; an epoch is an episode of each of two environments."""
    small = {"layer_dims": [16]}
    return {
        "algo_name": name,
        "experiment": {
            "name": "ranks",
            "epoch_every_n_steps": 400,
            "logging": {"log_tb": False},
            "rollout": {"enabled": False, "horizon": 200},
            "save": {"every_n_epochs": None},
        },
        "train": {
            "data": data,
            "cuda": False,
            "batch_size": 16,
            "num_epochs": 2,
            "num_threads": 1,
            "seed": 3,
            "online": {"env": "Pendulum-v1", "num_envs": 2, **online},
            **train_keys,
        },
        "algo": {"actor": small, "critic": small} if name == "sac" else {"rollout_epochs": 2},
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }


def on_two_ranks(tmp_path, **arguments):
    """Train on two ranks; return what the program found on each, and the run folder."""
    given, found = tmp_path / "arguments.json", tmp_path / "found.json"
    given.write_text(json.dumps({"output_dir": str(tmp_path / "runs"), **arguments}))
    assert run_ranks(PROGRAM, given, found) == [0, 0]
    (run,) = (tmp_path / "runs" / "ranks").iterdir()
    return json.loads(found.read_text()), run


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def demos(tmp_path):
    path = tmp_path / "demos.hdf5"
    random = np.random.default_rng(0)
    with DatasetWriter(path, {"env_name": "Pendulum-v1", "type": 3, "env_kwargs": {}}) as writer:
        for length in (10, 20, 30):
            last = np.arange(length) == length - 1
            seen = random.normal(size=(length + 1, 3)).astype(np.float32)
            writer.append_episode(
                Episode(
                    obs={"flat": seen[:-1]},
                    next_obs={"flat": seen[1:]},
                    actions=random.uniform(-1, 1, (length, 1)).astype(np.float32),
                    rewards=np.zeros(length, np.float32),
                    terminals=last,
                    timeouts=np.zeros(length, dtype=bool),
                )
            )
    return path


def test_a_pause_keeps_the_parts_of_all_ranks(tmp_path):
    config = tree("sac", {"warmup_steps": 400, "buffer_size": 1000, "collect_steps": 200})
    config["experiment"]["save"]["every_n_seconds"] = (
        1e6  # no checkpoint is due but that of the pause
    )
    _, run = on_two_ranks(tmp_path, config=config, until_epoch=1)
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"last.pth", "memory_400.pt", "rank1_400.pt"}


def test_replay_is_shared_and_the_run_resumes_with_all_parts(tmp_path, demos):
    online = {
        **{"warmup_steps": 200, "update_ratio": 0.1, "buffer_size": 1000, "demo_ratio": 0.25},
        "collect_steps": 10,
        "prioritized": {"enabled": True},
    }
    config = tree("sac", online, str(demos), obs_normalization="mean_std")
    (first, second), run = on_two_ranks(tmp_path, config=config)
    assert first["weights"] == second["weights"]
    assert first["observations"] == second["observations"] != [0.0] * 3 + [1.0] * 3
    assert first["draw"] != second["draw"]
    assert (first["lanes"], second["lanes"]) == ([0], [1])
    assert (first["stored"], second["stored"]) == (400, 400)
    assert (first["demonstrations"], second["demonstrations"]) == ([10, 30], [20])
    assert first["step"] == second["step"] == 800
    assert first["updates"] == second["updates"] == 60  # (800 - 200) * 0.1
    last = records(run)[-1]
    assert last["Metrics/EnvironmentSteps"] == 800
    assert last["Metrics/NumberOfEpisodes"] == 4
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"last.pth", "memory_400.pt", "memory_800.pt", "rank1_400.pt", "rank1_800.pt"}
    with pytest.raises(ConfigError, match="2 processes began the run.*but 1 resume it: start 2"):
        train(resume=run, overrides=["train.num_epochs=3"], quiet=True)
    (first, second), run = on_two_ranks(
        tmp_path, resume=str(run), output_dir=None, overrides=["train.num_epochs=3"]
    )
    assert first["weights"] == second["weights"]
    # 500 rows of each: two episodes of 200 steps with their ends were kept, and part of the first gave way.
    assert first["stored"] == second["stored"] > 490
    assert records(run)[-1]["Metrics/NumberOfEpisodes"] == 6


def test_rollouts_are_shared(tmp_path):
    config = tree(
        "ppo",
        {"collect_steps": 50},
        obs_normalization="mean_std",
        reward={"normalization": "running"},
    )
    config["algo"]["target_kl"] = 0.02
    (first, second), run = on_two_ranks(tmp_path, config=config)
    assert first["weights"] == second["weights"]
    assert first["observations"] == second["observations"]
    assert first["seen"] == second["seen"] == 800
    assert first["updates"] == second["updates"] > 0
    assert records(run)[-1]["Metrics/NumberOfEpisodes"] == 4
    assert load_checkpoint(run / "checkpoints" / "last.pth")["train_state"]["step"] == 800


# ---- parts, with ranks that answer from a list ------------------------------------------------------


class Scripted(Ranks):
    """Rank 0 of 2; what the other rank says is given beforehand."""

    def say(self, *answers):
        object.__setattr__(self, "answers", list(answers))
        return self

    def table(self, values):
        own = np.atleast_1d(np.asarray(values, dtype=np.float64))
        return np.stack([own, np.atleast_1d(self.answers.pop(0))])


def test_moments_of_all_ranks_are_those_of_all_rows():
    rows = np.random.default_rng(0).normal(size=(10, 3))
    own, other, together = RunningMoments((3,)), RunningMoments((3,)), RunningMoments((3,))
    own.add(rows[:4])
    other.add(rows[4:])
    merge_all([together], [own], Scripted(0, 2).say(other.flat()))
    assert together.count == 10
    np.testing.assert_allclose(together.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(together.std, rows.std(0), rtol=1e-12)


def test_a_rank_without_steps_adds_none():
    ranks = Scripted(0, 2).say(RunningMoments((1,)).flat())
    normalizer = ObsNormalizer({"s": (1,)}, ranks=ranks)
    normalizer.add({"s": np.array([[1.0], [3.0]])})
    assert normalizer.count == 2
    assert normalizer.state_dict()["moments"]["s"]["mean"] == [2.0]


def test_priorities_weigh_alike_on_all_ranks():
    def filled(ranks, errors):
        memory = PrioritizedReplay({"s": (1,)}, 1, 8, alpha=1.0, beta=1.0, ranks=ranks)
        for number in range(len(errors)):
            obs = {"s": np.full((1, 1), float(number), np.float32)}
            one, none = np.zeros((1, 1), np.float32), np.zeros(1, dtype=bool)
            memory.add(Step(obs, one, one[0], none, none, obs))
        memory.update_priorities(np.arange(len(errors)), np.array(errors, np.float32))
        return memory

    # Priorities 1 and 3 here: P = 1/4 and 3/4. The other rank has 4 rows, the least likely with P = 1/10.
    ranks = Scripted(0, 2).say(4.0, (6 * 1 / 10) ** -1.0)
    batch = filled(ranks, [1.0, 3.0]).sample(4)  # one of each quarter, the first is row 0
    assert batch["index"].tolist() == [0, 1, 1, 1]
    weight = batch["weight"][:2, 0]
    torch.testing.assert_close(weight, torch.tensor([0.1 / 0.25, 0.1 / 0.75]), rtol=1e-4, atol=0)


def test_mean_and_standard_deviation_over_ranks():
    values = torch.tensor([1.0, 2.0, 6.0, 7.0])
    own, other = values[:1], values[1:].double()
    ranks = Scripted(0, 2).say([3.0, float(other.sum()), float(other.square().sum())])
    mean, std = ranks.mean_and_std(own)
    torch.testing.assert_close(mean, values.mean())
    torch.testing.assert_close(std, values.std())


@pytest.mark.parametrize(
    ("online", "train_keys", "words"),
    [
        ({"num_envs": 3}, {}, "train.online.num_envs is 3, which 2 processes cannot share equally"),
        ({}, {"batch_size": 15}, "train.batch_size is 15, .*set it to a multiple of 2"),
        ({"num_workers": 1}, {}, "train.online.num_workers is 1, .*set it to a multiple of 2"),
    ],
)
def test_parts_that_cannot_be_shared_are_refused(online, train_keys, words):
    setup = build_online(load_config(tree("sac", online, **train_keys)), torch.device("cpu"))
    setup.algo.ranks = Ranks(1, 2)
    with pytest.raises(ConfigError, match=words):
        make_learner(setup)
        make_collector(setup)


def test_each_rank_needs_a_demonstration(demos):
    config = load_config(tree("sac", {"demo_ratio": 0.5, "num_envs": 4}, str(demos), batch_size=16))
    setup = build_online(config, torch.device("cpu"))
    setup.algo.ranks = Ranks(3, 4)
    with pytest.raises(DatasetError, match="3 demonstrations for 4 processes"):
        make_learner(setup)
