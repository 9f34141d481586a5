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


def start(tmp_path, tree, *arguments):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tree))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        *("-m", "imitate", "train", "--config", str(path), *arguments),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def start_nodes(tmp_path, tree):
    """Start two torchruns, as on two machines, with a process each."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tree))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint),
        *("-m", "imitate", "train", "--config", str(path)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        for _ in range(2)
    ]


def kill_node(node):
    """End torchrun and its processes, which are in sessions of their own, as when a machine loses power."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
        for number in (node.pid, *map(int, children)):
            os.kill(number, signal.SIGKILL)


def wait_for_epochs(runs, number):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        metrics = list(runs.glob("shared/*/metrics.jsonl"))
        if metrics and len(metrics[0].read_text().splitlines()) >= number:
            return
        time.sleep(0.2)
    raise AssertionError(f"fewer than {number} epochs in 120 s")


def weights(run):
    return load_checkpoint(run / "checkpoints" / "last.pth")["model"]["nets"]


def test_two_processes_learn_what_one_learns(tmp_path, data):
    tree = config(data, tmp_path / "two")
    process = start(tmp_path, tree)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert out.count("training time") == 1, "only one rank reports"
    (two,) = (tmp_path / "two" / "shared").iterdir()
    one = train(config(data, tmp_path / "one"), quiet=True)
    for key, value in weights(one.run_dir).items():
        torch.testing.assert_close(weights(two)[key], value, rtol=1e-5, atol=1e-6)
    shared = [json.loads(line) for line in (two / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in shared] == [1, 2, 3]


def test_two_processes_learn_from_windows_of_shards_what_one_learns(tmp_path, data):
    shard_files([data], tmp_path / "shards", 1)
    keys = {"shard_window": 2, "compile": False}
    shared = start(tmp_path, config(tmp_path / "shards", tmp_path / "two", **keys))
    _, errors = shared.communicate(timeout=300)
    assert shared.returncode == 0, errors
    alone = train(config(tmp_path / "shards", tmp_path / "one", **keys), quiet=True)

    (together,) = (tmp_path / "two" / "shared").iterdir()
    for key, value in weights(alone.run_dir).items():
        torch.testing.assert_close(weights(together)[key], value, rtol=1e-5, atol=1e-6)


def test_a_signal_stops_all_and_the_run_goes_on(tmp_path, data):
    tree = config(data, tmp_path / "runs", num_epochs=100000)
    process = start(tmp_path, tree)
    wait_for_epochs(tmp_path / "runs", 3)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    (run,) = (tmp_path / "runs" / "shared").iterdir()
    stopped = load_checkpoint(run / "checkpoints" / "last.pth")["train_state"]
    epochs = stopped["epoch"] + 2
    resumed = train(resume=run, overrides=[f"train.num_epochs={epochs}"], quiet=True)
    assert resumed.status == "finished"
    assert resumed.results["step"] == epochs * 8


def test_two_nodes_learn_what_one_process_learns(tmp_path, data):
    nodes = start_nodes(tmp_path, config(data, tmp_path / "two"))
    errors = [node.communicate(timeout=180)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], errors
    (two,) = (tmp_path / "two" / "shared").iterdir()
    one = train(config(data, tmp_path / "one"), quiet=True)
    for key, value in weights(one.run_dir).items():
        torch.testing.assert_close(weights(two)[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.alone
def test_when_a_node_is_killed_the_other_ends_and_the_run_can_be_resumed(tmp_path, data):
    first, second = start_nodes(tmp_path, config(data, tmp_path / "runs", num_epochs=100000))
    try:
        wait_for_epochs(tmp_path / "runs", 3)
        kill_node(second)
        killed = time.monotonic()
        _, err = first.communicate(timeout=120)
        assert time.monotonic() - killed < 60
    finally:
        for node in (first, second):
            kill_node(node)
            node.communicate()
    assert first.returncode == 1
    (line,) = [line for line in err.splitlines() if "error: " in line and "rank" not in line[:3]]
    assert "another process of this training is gone" in line
    (run,) = (tmp_path / "runs" / "shared").iterdir()
    # Rank 0 may have been on either node; where it was killed, last.pth is of the latest save.
    epochs = load_checkpoint(run / "checkpoints" / "last.pth")["train_state"]["epoch"] + 2
    resumed = train(resume=run, overrides=[f"train.num_epochs={epochs}"], quiet=True)
    assert resumed.results["step"] == epochs * 8


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


def test_going_back_after_a_bad_loss_is_for_one_process(tmp_path, data):
    tree = load_config(config(data, tmp_path, on_bad_loss="rollback"))
    algo = algo_factory("bc", tree, {"state": (3,)}, 1)
    with pytest.raises(ConfigError, match="set it to 'stop'"):
        _join(algo, Ranks(0, 2))


def test_stages_of_an_environment_are_for_one_process(tmp_path, data):
    stages = {"curriculum": {"stages": [{"until": {"min_steps": 10}}, {"env_kwargs": {}}]}}
    tree = load_config(config(data, tmp_path, online=stages))
    algo = algo_factory("bc", tree, {"state": (3,)}, 1)
    with pytest.raises(ConfigError, match="train.online.curriculum: .* start one process"):
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
