"""kill -9 at random moments, then resume: the weights end bit-equal to those of a run that was left alone."""

import json
import os
import random
import shutil
import signal
import threading
import time

import pytest
import torch

from imitate.errors import CheckpointError
from imitate.policy.checkpoint import load_checkpoint
from imitate.system.run_folder import RunFolder
from imitate.train.metrics import MetricsFile
from imitate.train.resume import last_state
from imitate.train.trainer import train
from tests import fork_server
from tests.tiny import tiny_tree

from .conftest import config_dict, env_meta, write_demos

KILLS = 2
EPOCHS = 20


ALGO = {
    "bc": {
        "vae": {"enabled": True},
        "ema": {"enabled": True},
        "optim_params": {
            "policy": {"learning_rate": {"scheduler_type": "cosine", "warmup_steps": 10}}
        },
    },
    "cql": {"actor": {"bc_start_steps": 75}},  # a warm start that ends on the way
    "hbc": {"actor_use_random_subgoals": True, "actor": {"ema": {"enabled": True}}},
}


def tree_of(algo_name, demos):
    """Everything that has a state: latents, a schedule, averages, validation, early stopping, dropped last batches."""
    return tiny_tree(
        algo_name,
        obs={"pos": 2} if algo_name == "iris" else {"goal": 2, "pos": 2},
        goal=("pos",) if algo_name in ("hbc", "iris") else (),
        data=demos,
        experiment={
            **{"name": "point", "epoch_every_n_steps": 5, "validation_epoch_every_n_steps": 2},
            **{"validate": True, "save": {"every_n_seconds": 0.01}},
            "early_stopping": {"enabled": True, "metric": "valid_loss", "patience": 1000},
        },
        train={
            **{"num_epochs": EPOCHS, "hdf5_filter_key": "train"},
            "hdf5_validation_filter_key": "valid",
        },
        algo=ALGO.get(algo_name, {}),
    )


def lines(run_dir):
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def train_until_killed(arguments, output_dir, epochs, pause_s):
    """Train in this process, which kills itself once so many epochs are logged, and a checkpoint is there.

    Not from outside, where a busy machine might let the training come to its end first.
    """

    def kill():
        while True:
            for run_dir in output_dir.glob("point/*"):
                is_saved = (run_dir / "checkpoints" / "last.pth").is_file()
                if is_saved and lines(run_dir) >= epochs:
                    time.sleep(pause_s)
                    os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.005)

    threading.Thread(target=kill, daemon=True).start()
    train(**arguments, quiet=True)


def assert_equal_trees(first, second):
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert_equal_trees(value, second[key])
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    else:
        assert first == second


@pytest.mark.slow("a training that is started three times, beside one that is left alone")
@pytest.mark.parametrize(
    ("algo_name", "network"),
    [
        ("bc", "policy"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                *(("cql", "critic"), ("iql", "vf"), ("td3_bc", "actor")),
                ("diffusion_policy", "policy"),
                *(("hbc", "planner/goal_network"), ("iris", "value/critic")),
            )
        ),
    ],
)
def test_kills_and_the_weights_are_those_of_an_undisturbed_run(demos, tmp_path, algo_name, network):
    tree = tree_of(algo_name, demos)
    whole = train(tree, output_dir=tmp_path / "whole", quiet=True)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tree))

    moments, folder = random.Random(7), tmp_path / "killed"
    arguments, run_dir = {"config": config, "output_dir": folder}, None
    for _ in range(KILLS):
        epochs = (lines(run_dir) if run_dir else 0) + moments.randrange(1, 5)
        process = fork_server.context().Process(
            target=train_until_killed, args=(arguments, folder, epochs, moments.uniform(0, 0.02))
        )
        process.start()
        process.join(600)
        assert process.exitcode == -signal.SIGKILL
        (run_dir,) = folder.glob("point/*")
        arguments = {"resume": run_dir}
    progress = load_checkpoint(run_dir / "checkpoints" / "last.pth")["train_state"]["epoch"]
    assert 0 < progress < EPOCHS
    resumed = train(resume=run_dir, quiet=True)

    steps = EPOCHS * tree["experiment"]["epoch_every_n_steps"]
    first, second = load_checkpoint(whole.checkpoint), load_checkpoint(resumed.checkpoint)
    assert first["train_state"]["step"] == second["train_state"]["step"] == steps
    for name, weight in first["model"]["nets"].items():
        assert torch.equal(weight, second["model"]["nets"][name]), name
    for name in ("ema", "emas"):
        assert_equal_trees(first["model"].get(name), second["model"].get(name))
    for name, optimizer in first["model"]["optimizers"].items():
        other = second["model"]["optimizers"][name]["state"]
        for key, state in optimizer["state"].items():
            assert torch.equal(state["exp_avg_sq"], other[key]["exp_avg_sq"]), name
    records = [MetricsFile(result.run_dir / "metrics.jsonl").read() for result in (whole, resumed)]
    numbers = [
        [
            (r["epoch"], r["Train/Loss"], r["Valid/Loss"], r[f"Train/Optimizer/{network}_lr"])
            for r in run
        ]
        for run in records
    ]
    assert numbers[0] == numbers[1]
    assert [epoch for epoch, *_ in numbers[1]] == list(range(1, EPOCHS + 1))
    leftovers = [
        path.name for path in (run_dir / "checkpoints").iterdir() if "partial" in path.name
    ]
    assert leftovers == []


def test_a_damaged_last_checkpoint_falls_back_to_a_periodic_one(demos, tmp_path):
    tree = config_dict(demos, experiment={"save": {"every_n_epochs": 2}})
    folder = RunFolder(train(tree, output_dir=tmp_path, quiet=True).run_dir)
    data = folder.last.read_bytes()
    folder.last.unlink()
    folder.last.write_bytes(data[: len(data) // 2])
    assert last_state(folder)["train_state"]["epoch"] == 2
    (folder.checkpoints / "epoch_2.pth").unlink()
    with pytest.raises(CheckpointError, match="last.pth"):
        last_state(folder)
    folder.last.unlink()
    assert last_state(folder) is None


def test_a_copy_without_checkpoints_and_empty_folders_is_resumed_and_no_line_is_twice(
    demos, tmp_path
):
    """As of a run that was killed before its first checkpoint."""
    tree = config_dict(demos, train={"num_epochs": 2})
    folder = RunFolder(train(tree, output_dir=tmp_path, quiet=True).run_dir)
    shutil.rmtree(folder.checkpoints)
    folder.videos.rmdir()
    train(resume=folder.path, quiet=True)
    assert [record["epoch"] for record in MetricsFile(folder.metrics).read()] == [1, 2]
    assert folder.last.is_file()


def test_a_run_with_returns_that_are_not_finite_is_resumed(tmp_path, importable_env):
    data = write_demos(tmp_path / "demos.hdf5", meta=env_meta(nan_reward=True))
    rollout = {"enabled": True, "n": 1, "horizon": 3, "num_workers": 0}
    tree = config_dict(data, experiment={"rollout": rollout}, train={"num_epochs": 1})
    part = train(tree, output_dir=tmp_path, quiet=True)
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=2"], quiet=True)
    rollouts = [
        r for r in MetricsFile(RunFolder(part.run_dir).metrics).read() if r["kind"] == "rollout"
    ]
    assert resumed.exit_code == 0 and [r["Rollout/Return"] for r in rollouts] == [None, None]
    assert any("return not finite" in line for line in resumed.summary)
