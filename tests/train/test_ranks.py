"""Several processes train together as one would."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config
from imitate.data import DatasetWriter, Episode, ShuffledBatches
from imitate.data.curate.shard import shard_files
from imitate.errors import ConfigError
from imitate.policy.checkpoint import load_checkpoint
from imitate.ranks import Ranks
from imitate.train.gradients import GradientAverage
from imitate.train.trainer import _device_of_rank, _join, train
from tests.rank_processes import ended, run_ranks, started_ranks

NO_ENV = {"type": 2, "env_name": "Pendulum-v1", "env_kwargs": {}}


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "data.hdf5"
    with DatasetWriter(path, NO_ENV) as writer:
        for _ in range(4):
            obs = rng.normal(size=(16, 3)).astype(np.float32)
            ends = np.zeros(16, dtype=bool)
            actions = np.tanh(obs[:, :1]).astype(np.float32)
            writer.append_episode(
                Episode({"state": obs}, actions, np.zeros(16, np.float32), ends, ends)
            )
    return path


def config(data, output_dir, **train_keys):
    return {
        "algo_name": "bc",
        "algo": {"actor_layer_dims": [16]},
        "experiment": {
            "name": "shared",
            "epoch_every_n_steps": 8,
            "rollout": {"enabled": False},
            "logging": {"log_tb": False},
        },
        "train": {
            "data": str(data),
            "output_dir": str(output_dir),
            "batch_size": 16,
            "num_epochs": 3,
            "cuda": False,
            **train_keys,
        },
        "observation": {"modalities": {"obs": {"low_dim": ["state"]}}},
    }


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


def kill_node(node):
    """End torchrun and its processes, which are in sessions of their own, as when a machine loses power."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
        for number in (node.pid, *map(int, children)):
            os.kill(number, signal.SIGKILL)


def wait_for_epochs(runs, number, is_alive):
    """Until the run of a folder has so many epochs; the run."""
    while is_alive():
        metrics = list(runs.glob("shared/*/metrics.jsonl"))
        if metrics and len(metrics[0].read_text().splitlines()) >= number:
            return metrics[0].parent
        time.sleep(0.05)
    raise AssertionError(f"it ended before {number} epochs")


def weights(run):
    return load_checkpoint(run / "checkpoints" / "last.pth")["model"]["nets"]


def assert_learned_alike(two, one):
    for key, value in weights(one).items():
        torch.testing.assert_close(weights(two)[key], value, rtol=1e-5, atol=1e-6)


def assert_resumes(run):
    """It goes on for two epochs after those of its last checkpoint."""
    epochs = load_checkpoint(run / "checkpoints" / "last.pth")["train_state"]["epoch"] + 2
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


NODES = pytest.param("two nodes", marks=pytest.mark.nightly)


@pytest.mark.slow("torchrun and both of its processes import torch")
@pytest.mark.parametrize("place", ["one node", NODES])
def test_processes_of_torchrun_learn_what_one_learns(tmp_path, data, write, place):
    if place == "one node":
        nodes = [torchrun(write(), "--standalone", "--nproc_per_node", "2")]
    else:
        nodes = start_nodes(write())
    said = [node.communicate(timeout=600) for node in nodes]
    assert {node.returncode for node in nodes} == {0}, said
    assert "".join(out for out, _ in said).count("training time") == 1, "only one rank reports"
    (two,) = (tmp_path / "runs" / "shared").iterdir()
    assert_learned_alike(two, train(config(data, tmp_path / "one"), quiet=True).run_dir)
    records = [json.loads(line) for line in (two / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3]


def test_two_processes_learn_from_windows_of_shards_what_one_learns(tmp_path, data, write):
    shards, keys = tmp_path / "shards", {"shard_window": 2, "compile": False}
    shard_files([data], shards, 1)
    assert run_ranks("imitate", "train", "--config", write(shards, **keys)) == [0, 0]
    (two,) = (tmp_path / "runs" / "shared").iterdir()
    assert_learned_alike(two, train(config(shards, tmp_path / "one", **keys), quiet=True).run_dir)


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


@pytest.mark.nightly
def test_when_a_node_is_killed_the_other_ends_and_the_run_can_be_resumed(tmp_path, write):
    first, second = start_nodes(write(num_epochs=100000))
    try:
        run = wait_for_epochs(tmp_path / "runs", 3, lambda: first.poll() is None)
        kill_node(second)
        _, err = first.communicate(timeout=600)
    finally:
        for node in (first, second):
            kill_node(node)
            node.communicate()
    assert first.returncode == 1
    (line,) = [line for line in err.splitlines() if "error: " in line and "rank" not in line[:3]]
    assert "another process of this training is gone" in line
    # Rank 0 may have been on either node; where it was killed, last.pth is of the latest save.
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


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(ConfigError, match="set it to a multiple of 3"):
        Ranks(0, 3).part_of(16)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"on_bad_loss": "rollback"}, "on_bad_loss"),
        (
            {
                "online": {
                    "curriculum": {"stages": [{"until": {"min_steps": 10}}, {"env_kwargs": {}}]}
                }
            },
            "train.online.curriculum",
        ),
    ],
)
def test_what_is_for_one_process_is_refused_to_several(tmp_path, data, keys, named):
    algo = algo_factory("bc", load_config(config(data, tmp_path, **keys)), {"state": (3,)}, 1)
    with pytest.raises(ConfigError, match=named):
        _join(algo, Ranks(0, 2))


def test_each_part_of_a_hierarchy_shares_its_weights_averages_and_gradients(
    tmp_path, data, monkeypatch
):
    tree = config(data, tmp_path)
    seen = {"modalities": {"obs": {"low_dim": ["state"]}}}
    planner = {"modalities": {**seen["modalities"], "subgoal": {"low_dim": ["state"]}}}
    tree |= {
        "algo_name": "hbc",
        "algo": {"actor": {"rnn": {"enabled": False}, "ema": {"enabled": True}}},
        "observation": {"planner": planner, "actor": seen},
    }
    algo = algo_factory("hbc", load_config(tree), {"state": (3,)}, 1)
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


def test_several_processes_do_not_share_a_macs_gpu():
    with pytest.raises(ConfigError, match="2 processes cannot share a Mac's GPU"):
        _device_of_rank(torch.device("mps"), Ranks(0, 2, 0))
    assert _device_of_rank(torch.device("mps"), Ranks()) == torch.device("mps")
