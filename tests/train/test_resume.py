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
from imitate.run_folder import RunFolder
from imitate.train.metrics import MetricsFile
from imitate.train.resume import last_state
from imitate.train.trainer import train
from tests import fork_server

from .conftest import config_dict, env_meta, write_demos

KILLS = 3
EPOCHS = 30


def sections():
    """Everything that has a state: latents, a schedule, averages, validation, early stopping, dropped last batches."""
    return {
        "experiment": {
            "validate": True,
            "early_stopping": {"enabled": True, "metric": "valid_loss", "patience": 1000},
            "save": {"every_n_seconds": 0.01},
            "epoch_every_n_steps": 5,
        },
        "train": {
            "num_epochs": EPOCHS,
            "hdf5_filter_key": "train",
            "hdf5_validation_filter_key": "valid",
        },
        "algo": {
            "vae": {"enabled": True},
            "ema": {"enabled": True},
            "optim_params": {
                "policy": {"learning_rate": {"scheduler_type": "cosine", "warmup_steps": 10}}
            },
        },
    }


ONE_LAYER = {"layer_dims": [16]}
VAE = {"vae": {"encoder_layer_dims": [16], "decoder_layer_dims": [16]}}
RECURRENT = {"rnn": {"hidden_dim": 8, "num_layers": 1}, "actor_layer_dims": []}
ALGO = {
    # Two learned weights, targets, and a warm start that ends on the way.
    "cql": {
        "actor": {"layer_dims": [16], "bc_start_steps": 75},
        "critic": {"layer_dims": [16], "num_random_actions": 2},
    },
    "iql": {"actor": ONE_LAYER, "critic": ONE_LAYER},
    "td3_bc": {"actor": ONE_LAYER, "critic": ONE_LAYER},
    # Averaged weights.
    "diffusion_policy": {
        "horizon": {"prediction_horizon": 8, "action_horizon": 4},
        "ddpm": {"num_train_timesteps": 5, "num_inference_timesteps": 5},
        "unet": {"down_dims": [8, 16], "diffusion_step_embed_dim": 8, "n_groups": 4},
    },
    # Several parts: random subgoals and the average of one part; targets of another.
    "hbc": {
        "actor_use_random_subgoals": True,
        "planner": VAE,
        "actor": {**RECURRENT, "ema": {"enabled": True}},
    },
    "iris": {
        "value_planner": {
            "planner": VAE,
            "value": {"critic": {**ONE_LAYER, "num_action_samples": 2}, "action_sampler": VAE},
            "num_samples": 3,
        },
        "actor": RECURRENT,
    },
}


def tree_of(algo_name, demos):
    """BC has a VAE; the others are above."""
    tree = config_dict(demos, **sections())
    if algo_name == "bc":
        return tree
    actor = tree["observation"]
    planner = {"modalities": {**actor["modalities"], "subgoal": {"low_dim": ["pos"]}}}
    value = {"modalities": {"obs": {"low_dim": ["pos"]}}}
    if algo_name == "hbc":
        tree["observation"] = {"planner": planner, "actor": actor}
    elif algo_name == "iris":
        parts = {"planner": planner, "value": value}
        tree["observation"] = {"value_planner": parts, "actor": actor}
    elif algo_name == "diffusion_policy":
        tree["train"] |= {"seq_length": 8, "frame_stack": 2}
        tree["experiment"]["validation_epoch_every_n_steps"] = 2  # each samples chunks
    return {**tree, "algo_name": algo_name, "algo": ALGO[algo_name]}


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


@pytest.mark.slow("a training that is started four times, beside one that is left alone")
@pytest.mark.parametrize(
    ("algo_name", "network"),
    [
        ("bc", "policy"),
        pytest.param("cql", "critic", marks=pytest.mark.nightly),
        pytest.param("iql", "vf", marks=pytest.mark.nightly),
        pytest.param("td3_bc", "actor", marks=pytest.mark.nightly),
        pytest.param("diffusion_policy", "policy", marks=pytest.mark.nightly),
        ("hbc", "planner/goal_network"),
        pytest.param("iris", "value/critic", marks=pytest.mark.nightly),
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
            target=train_until_killed,
            args=(arguments, folder, epochs, moments.uniform(0, 0.02)),
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


def test_a_run_that_was_killed_before_its_first_checkpoint_writes_no_line_twice(demos, tmp_path):
    folder = RunFolder(train(config_dict(demos), output_dir=tmp_path, quiet=True).run_dir)
    folder.last.unlink()
    train(resume=folder.path, quiet=True)
    assert [record["epoch"] for record in MetricsFile(folder.metrics).read()] == [1, 2, 3]


def test_a_copy_of_a_run_without_its_empty_folders_is_resumed(demos, tmp_path):
    folder = RunFolder(train(config_dict(demos), output_dir=tmp_path, quiet=True).run_dir)
    shutil.rmtree(folder.checkpoints)
    folder.videos.rmdir()
    train(resume=folder.path, quiet=True)
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
