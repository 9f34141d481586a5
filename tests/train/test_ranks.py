"""Several processes train together as one would."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config
from imitate.config.schedule import Schedule
from imitate.data import ShuffledBatches
from imitate.data.edit.shard import shard_files
from imitate.errors import ConfigError, DatasetError
from imitate.system.ranks import Ranks
from imitate.train.online.batches import OnlineBatches, RankFiles
from imitate.train.online.normalization import ObsNormalizer, RunningMoments, merge_all
from imitate.train.online.parts import make_collector, make_learner
from imitate.train.online.replay import PrioritizedReplay
from imitate.train.online.setup import build_online
from imitate.train.online.steps import Step
from imitate.train.ranks import GradientAverage
from imitate.train.trainer import _device_of_rank, _join, train
from tests.rank_processes import ended, run_ranks, started_ranks
from tests.refusals import refused
from tests.tiny import tiny_algo, tiny_demos, tiny_tree

from .conftest import PENDULUM, assert_same_nets, last, online_tree, records

PROGRAMS = Path(__file__).parent / "rank_programs"


@pytest.fixture
def data(tmp_path):
    words = {"length": 16, "actions_from_obs": True, "env_meta": PENDULUM}
    return tiny_demos(tmp_path / "data.hdf5", {"state": 3}, **words)


def config(data, output_dir, **train_keys):
    experiment = {"name": "shared", "epoch_every_n_steps": 8}
    keys = {"output_dir": str(output_dir), **train_keys}
    return tiny_tree(obs={"state": 3}, data=data, experiment=experiment, train=keys)


def torchrun(path, *options):
    """Start a training by torchrun, as on one of several machines."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", *options),
            *("-m", "imitate", "train", "--config", str(path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def start_nodes(path):
    """Start two torchruns, as on two machines, with a process each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint)
    return [torchrun(path, "--nnodes", "2", "--nproc-per-node", "1", *meeting) for _ in range(2)]


def wait_for_epochs(runs, number, is_alive):
    """Until the run of a folder has so many epochs; the run."""
    while is_alive():
        metrics = list(runs.glob("shared/*/metrics.jsonl"))
        if metrics and len(metrics[0].read_text().splitlines()) >= number:
            return metrics[0].parent
        time.sleep(0.05)
    raise AssertionError(f"it ended before {number} epochs")


def assert_resumes(run):
    """It goes on for two epochs after those of its last checkpoint."""
    epochs = last(run)["train_state"]["epoch"] + 2
    resumed = train(resume=run, overrides=[f"train.num_epochs={epochs}"], quiet=True)
    assert (resumed.status, resumed.results["step"]) == ("finished", epochs * 8)


@pytest.fixture
def write(tmp_path, data):
    """Writes a configuration of a training in the folder 'runs'; its path."""

    def write(data=data, **train_keys):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config(data, tmp_path / "runs", **train_keys)))
        return path

    return write


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["one node", "two nodes"])
def test_processes_of_torchrun_learn_what_one_learns(tmp_path, data, write, place):
    if place == "one node":
        nodes = [torchrun(write(), "--standalone", "--nproc_per_node", "2")]
    else:
        nodes = start_nodes(write())
    said = [node.communicate(timeout=600) for node in nodes]
    assert {node.returncode for node in nodes} == {0}, said
    check_two(tmp_path, data, "".join(out for out, _ in said))


@pytest.mark.slow("two ranks learn, and one alone")
@pytest.mark.parametrize("window", [None, 2], ids=["whole", "windows of shards"])
def test_two_processes_learn_what_one_learns(tmp_path, data, write, capfd, window):
    keys = {"num_epochs": 2}
    if window:
        keys |= {"shard_window": window, "compile": False}
        shard_files([data], tmp_path / "shards", 1)
        data = tmp_path / "shards"
    assert run_ranks("imitate", "train", "--config", write(data, **keys)) == [0, 0]
    check_two(tmp_path, data, capfd.readouterr().out, **keys)


def check_two(tmp_path, data, said, **keys):
    """One rank has reported, and both have learned what one alone learns."""
    assert said.count("training time") == 1
    (two,) = (tmp_path / "runs" / "shared").iterdir()
    one = train(config(data, tmp_path / "one", **keys), quiet=True)
    assert_same_nets(two, one, rtol=1e-5, atol=1e-6)
    assert [record["epoch"] for record in records(two)] == [1, 2, 3][: keys.get("num_epochs", 3)]


def test_a_signal_stops_all_and_the_run_goes_on(tmp_path, write):
    path = write(num_epochs=100000)
    with started_ranks("imitate", "train", "--config", path) as ranks:
        run = wait_for_epochs(tmp_path / "runs", 3, ranks[0].is_alive)
        for rank in ranks:
            rank.terminate()
        assert ended(ranks) == [128 + signal.SIGTERM] * 2
    assert_resumes(run)


def test_when_a_rank_is_killed_the_other_ends_and_the_run_can_be_resumed(tmp_path, write, capfd):
    path = write(num_epochs=100000)
    with started_ranks("imitate", "train", "--config", path) as ranks:
        run = wait_for_epochs(tmp_path / "runs", 3, ranks[0].is_alive)
        ranks[1].kill()
        assert ended(ranks) == [1, -signal.SIGKILL]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "error: " in line]
    assert "another process of this training is gone" in line
    assert_resumes(run)


def test_ranks_share_each_batch():
    whole = iter(ShuffledBatches(20, 6, seed=0, drop_last=True))
    parts = [
        iter(ShuffledBatches(20, 6, seed=0, drop_last=True, part=Ranks(rank, 2).part_of(6)))
        for rank in (0, 1)
    ]
    for _ in range(7):
        shares = [next(part) for part in parts]
        assert [len(share) for share in shares] == [3, 3]
        assert sorted(np.concatenate(shares)) == sorted(next(whole))


STAGES = {"stages": [{"until": {"min_steps": 10}}, {"env_kwargs": {}}]}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"on_bad_loss": "rollback"}, "on_bad_loss"),
        ({"online": {"curriculum": STAGES}}, "train.online.curriculum"),
    ],
)
def test_what_is_for_one_process_is_refused_to_several(tmp_path, data, keys, named):
    algo = algo_factory("bc", load_config(config(data, tmp_path, **keys)), {"state": (3,)}, 1)
    with refused(named, error=ConfigError):
        _join(algo, Ranks(0, 2))


def test_each_part_of_a_hierarchy_shares_its_weights_averages_and_gradients(monkeypatch):
    parts = {"actor": {"rnn": {"enabled": False}, "ema": {"enabled": True}}}
    algo = tiny_algo("hbc", obs={"state": 3}, algo=parts)
    ranks, shared = Ranks(0, 2), []
    monkeypatch.setattr(Ranks, "share", lambda self, net: shared.append(net))
    _join(algo, ranks)
    actor, planned = algo.parts["actor"], algo.parts["planner"]
    assert {id(net) for net in shared} == {
        id(net) for net in (planned.nets, actor.nets, actor.ema.module)
    }
    averages = {part.optimization.share_gradients for part in algo.parts.values()}
    assert [type(average) for average in averages] == [GradientAverage]


def test_weights_are_sent_in_a_layout_that_nccl_takes(monkeypatch):
    """Kernels of a U-Net have their input channels innermost in memory, which is none of torch's formats."""

    def broadcast(tensor, src):
        assert tensor.is_contiguous()
        tensor.fill_(5.0)

    monkeypatch.setattr(torch.distributed, "broadcast", broadcast)
    net = torch.nn.Conv1d(2, 3, 5)
    net.weight.data = net.weight.data.transpose(1, 2).contiguous().transpose(1, 2)
    strides = net.weight.stride()
    Ranks(1, 2, 1).share(net)
    assert net.weight.eq(5.0).all() and net.bias.eq(5.0).all()
    assert net.weight.stride() == strides


def test_what_cannot_be_shared_is_refused(monkeypatch):
    with refused("set it to a multiple of 3", error=ConfigError):
        Ranks(0, 3).part_of(16)
    with refused("2 processes cannot share a Mac's GPU", error=ConfigError):
        _device_of_rank(torch.device("mps"), Ranks(0, 2, 0))
    assert _device_of_rank(torch.device("mps"), Ranks()) == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert _device_of_rank(torch.device("cuda"), Ranks(3, 4, 1)) == torch.device("cuda", 1)
    with refused("3 processes need a GPU each, but torch sees 2", error=ConfigError):
        _device_of_rank(torch.device("cuda"), Ranks(2, 4, 2))
    assert _device_of_rank(torch.device("cpu"), Ranks(2, 4, 2)) == torch.device("cpu")


# ---- gradients averaged over two ranks -------------------------------------------------------------


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    found = tmp_path_factory.mktemp("gradients") / "found.json"
    assert run_ranks(PROGRAMS / "gradients.py", found) == [0, 0]
    return json.loads(found.read_text())


@pytest.mark.parametrize(
    "name", ["bc", "bc_accumulated", "bc_bf16", "bc_rnn_gmm", "act", "diffusion_policy", "sac"]
)
def test_ranks_with_different_data_have_equal_weights(findings, name):
    found = findings[name]
    assert found["moved"]
    assert found["apart without"], "without the average they would differ"
    assert found["same"]
    assert found["as reference"], "bit by bit those of an average by weight"


def test_named_rewards_of_two_ranks_are_learned_as_those_of_one_process(findings):
    found = findings["named rewards"]
    assert found == {"risen": True, "same": True, "as one process": True}


def test_a_latent_model_learns_on_two_ranks_as_on_the_joined_batch(findings):
    assert findings["windows"] < 1e-5


def test_weights_without_a_gradient_on_some_or_all_ranks(findings):
    # Rank 0: 3 + 1; rank 1: 6 + 2. The second weight is used on rank 1 alone.
    assert findings["unused"] == [[[6.0] * 3, [4.0] * 3, None]] * 2


# ---- online RL with two learner ranks ------------------------------------------------------------


def online(name, settings, data=None, algo=(), **train_keys):
    """Training in Pendulum; an epoch is an episode of each of two environments."""
    short = {"epoch_every_n_steps": 80, "rollout": {"horizon": 40}}
    return online_tree(
        name,
        online={"num_envs": 2, "warmup_steps": 40, **settings},
        experiment={"name": "ranks", **short},
        train={"num_epochs": 2, "data": data, **train_keys},
        algo=dict(algo),
    )


def on_two_ranks(tmp_path, **arguments):
    """Train on two ranks; return what the program found on each, and the run folder."""
    given, found = tmp_path / "arguments.json", tmp_path / "found.json"
    given.write_text(json.dumps({"output_dir": str(tmp_path / "runs"), **arguments}))
    assert run_ranks(PROGRAMS / "online.py", given, found) == [0, 0]
    (run,) = (tmp_path / "runs" / "ranks").iterdir()
    return json.loads(found.read_text()), run


@pytest.fixture
def demos(tmp_path):
    return tiny_demos(tmp_path / "demos.hdf5", {"flat": 3}, num_demos=3, length=[10, 20, 30])


def test_a_pause_keeps_the_parts_of_all_ranks(tmp_path):
    config = online("sac", {"warmup_steps": 80, "buffer_size": 200, "collect_steps": 40})
    # No checkpoint is due but that of the pause.
    config["experiment"]["save"]["every_n_seconds"] = 1e6
    _, run = on_two_ranks(tmp_path, config=config, until_epoch=1)
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"last.pth", "memory_80.pt", "rank1_80.pt"}


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: os.truncate(path, 50)])
def test_the_file_of_a_rank_that_is_gone_or_damaged_is_a_warning(tmp_path, damage):
    parts, warned = RankFiles(tmp_path, rank=1), []
    parts.save({"memory": None, "learner": {}, "collector": {}}, 5)
    damage(parts.path(5))
    batches = SimpleNamespace(_parts=parts, _metrics=SimpleNamespace(steps=5))
    batches._begin_empty = lambda path, error, learner: warned.append((path.name, learner))
    OnlineBatches._load_part(batches, {"temperature": 1.0})
    assert warned == [("rank1_5.pt", {"temperature": 1.0})]


@pytest.mark.slow("two ranks learn, twice")
def test_replay_is_shared_and_the_run_resumes_with_all_parts(tmp_path, demos):
    settings = {"buffer_size": 200, "demo_ratio": 0.25, "prioritized": {"enabled": True}}
    settings |= {"update_ratio": 0.25, "collect_steps": 10}
    algo = {"rewards": {"upright": {"source": "reward", "at_least": -1.0}}}
    config = online("sac", settings, str(demos), algo, obs_normalization="mean_std")
    (first, second), run = on_two_ranks(tmp_path, config=config)
    assert first["weights"] == second["weights"]
    assert first["observations"] == second["observations"] != [0.0] * 3 + [1.0] * 3
    assert first["draw"] != second["draw"]
    assert (first["lanes"], second["lanes"]) == ([0], [1])
    assert (first["stored"], second["stored"]) == (80, 80)
    assert (first["demonstrations"], second["demonstrations"]) == ([10, 30], [20])
    assert first["step"] == second["step"] == 160
    assert first["updates"] == second["updates"] == 30  # (160 - 40) * 0.25
    assert records(run)[-1]["Metrics/EnvironmentSteps"] == 160
    assert records(run)[-1]["Metrics/NumberOfEpisodes"] == 4
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"last.pth", "memory_80.pt", "memory_160.pt", "rank1_80.pt", "rank1_160.pt"}
    three = {"overrides": ["train.num_epochs=3"]}
    with refused("the run was begun by 2 processes|but 1 resume it: start 2", error=ConfigError):
        train(resume=run, quiet=True, **three)
    (first, second), run = on_two_ranks(tmp_path, resume=str(run), output_dir=None, **three)
    assert first["weights"] == second["weights"]
    # 100 rows of each: two episodes of 40 steps with their ends were kept, and part of the first gave way.
    assert first["stored"] == second["stored"] > 90
    assert records(run)[-1]["Metrics/NumberOfEpisodes"] == 6


@pytest.mark.slow("two ranks with two workers each learn")
def test_ranks_with_workers_learn_the_same_from_named_rewards_and_an_auxiliary(tmp_path):
    settings = {"num_envs": 4, "num_workers": 2, "update_ratio": 0.25, "collect_steps": 10}
    task = {"task": {"source": "reward"}}
    cost = {"upright": {"source": "reward", "weight": 0.0, "at_least": 1.0}}  # is never met
    algo = {"rewards": {**task, **cost}, "auxiliary": {"novelty": {"type": "rnd"}}}
    (first, second), _ = on_two_ranks(tmp_path, config=online("sac", settings, algo=algo))
    assert first["weights"] == second["weights"]
    assert first["draw"] != second["draw"]
    assert (first["environments"], second["environments"]) == (2, 2)
    assert first["stored"] == second["stored"] > 0
    assert first["updates"] == second["updates"] > 0
    assert first["multipliers"] == second["multipliers"]
    assert first["multipliers"][0] > 1.0, "the multiplier grows while the constraint is not met"


@pytest.mark.slow("two ranks learn")
def test_rollouts_are_shared(tmp_path):
    keys = {"obs_normalization": "mean_std", "reward": {"normalization": "running"}}
    algo = {"rollout_epochs": 2, "target_kl": 0.02}
    config = online("ppo", {"collect_steps": 10, "warmup_steps": 0}, algo=algo, **keys)
    (first, second), run = on_two_ranks(tmp_path, config=config)
    assert first["weights"] == second["weights"]
    assert first["observations"] == second["observations"]
    assert first["seen"] == second["seen"] == 160
    assert first["updates"] == second["updates"] > 0
    assert records(run)[-1]["Metrics/NumberOfEpisodes"] == 4
    assert last(run)["train_state"]["step"] == 160


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
    one = Schedule(((0.0, 1.0),))

    def filled(ranks, errors):
        memory = PrioritizedReplay({"s": (1,)}, 1, 8, alpha=one, beta=one, ranks=ranks)
        for number in range(len(errors)):
            obs = {"s": np.full((1, 1), float(number), np.float32)}
            zero, none = np.zeros((1, 1), np.float32), np.zeros(1, dtype=bool)
            memory.add(Step(obs, zero, zero[0], none, none, obs))
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
    ("settings", "train_keys", "words"),
    [
        ({"num_envs": 3}, {}, "train.online.num_envs is 3, which 2 processes cannot share equally"),
        ({}, {"batch_size": 15}, "train.batch_size is 15, |set it to a multiple of 2"),
        ({"num_workers": 1}, {}, "train.online.num_workers is 1, |set it to a multiple of 2"),
    ],
)
def test_parts_that_cannot_be_shared_are_refused(settings, train_keys, words):
    setup = build_online(load_config(online("sac", settings, **train_keys)), torch.device("cpu"))
    setup.algo.ranks = Ranks(1, 2)
    with refused(words, error=ConfigError):
        make_learner(setup)
        make_collector(setup)


def test_each_rank_needs_a_demonstration(demos):
    config = load_config(online("sac", {"demo_ratio": 0.5, "num_envs": 4}, str(demos)))
    setup = build_online(config, torch.device("cpu"))
    setup.algo.ranks = Ranks(3, 4)
    with refused("3 demonstrations for 4 processes", error=DatasetError):
        make_learner(setup)
