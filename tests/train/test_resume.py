"""kill -9 at random moments, then resume: the weights end bit-equal to those of a run that was left alone."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from imitate.errors import CheckpointError
from imitate.policy.checkpoint import load_checkpoint
from imitate.train.metrics import MetricsFile
from imitate.train.resume import last_state
from imitate.train.run_folder import RunFolder
from imitate.train.trainer import train

from .conftest import config_dict

KILLS = 5
EPOCHS = 60

COMMAND = """
import sys
from imitate.train.trainer import train
resume, config, output_dir = sys.argv[1:]
train(config, output_dir=output_dir if resume == "no" else None, resume=None if resume == "no" else resume)
"""


def sections():
    """Everything that has a state: sampled latents, a schedule, validation, early stopping, dropped last batches."""
    return {
        "experiment": {
            "validate": True,
            "early_stopping": {"enabled": True, "metric": "valid_loss", "patience": 1000},
        },
        "train": {
            "num_epochs": EPOCHS,
            "hdf5_filter_key": "train",
            "hdf5_validation_filter_key": "valid",
        },
        "algo": {
            "vae": {"enabled": True},
            "optim_params": {
                "policy": {"learning_rate": {"scheduler_type": "cosine", "warmup_steps": 10}}
            },
        },
    }


def tree_of(algo_name, demos):
    """BC with a VAE; CQL with two learned weights, targets and a warm start that ends on the way; IQL; TD3+BC."""
    tree = config_dict(demos, **sections())
    if algo_name == "cql":
        tree["algo_name"] = "cql"
        tree["algo"] = {
            "actor": {"layer_dims": [16], "bc_start_steps": 500},
            "critic": {"layer_dims": [16], "num_random_actions": 2},
        }
    elif algo_name != "bc":
        tree["algo_name"] = algo_name
        tree["algo"] = {"actor": {"layer_dims": [16]}, "critic": {"layer_dims": [16]}}
    return tree


def start(config, output_dir, resume):
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(resume or "no"), str(config), str(output_dir)],
        stderr=subprocess.PIPE,
    )


def lines(run_dir):
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def wait_for_progress(process, output_dir, before):
    """Until the run has logged an epoch more than before; its folder."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        folders = list(output_dir.glob("point/*"))
        if folders and lines(folders[0]) != before:
            return folders[0]
        time.sleep(0.005)
    raise AssertionError(process.stderr.read().decode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo_name", "network"),
    [("bc", "policy"), ("cql", "critic"), ("iql", "vf"), ("td3_bc", "actor")],
)
def test_five_kills_and_the_weights_are_those_of_an_undisturbed_run(
    demos, tmp_path, algo_name, network
):
    tree = tree_of(algo_name, demos)
    whole = train(tree, output_dir=tmp_path / "whole", quiet=True)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tree))

    moments = random.Random(7)
    run_dir, kills = None, 0
    while kills < KILLS:
        before = 0 if run_dir is None else lines(run_dir)
        process = start(config, tmp_path / "killed", run_dir)
        run_dir = wait_for_progress(process, tmp_path / "killed", before)
        time.sleep(moments.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (
            "it ended before it was killed: make the run longer"
        )
        process.stderr.close()
        kills += 1
    progress = load_checkpoint(run_dir / "checkpoints" / "last.pth")["train_state"]["epoch"]
    assert 0 < progress < EPOCHS
    resumed = train(resume=run_dir, quiet=True)

    first, second = load_checkpoint(whole.checkpoint), load_checkpoint(resumed.checkpoint)
    assert first["train_state"]["step"] == second["train_state"]["step"] == 20 * EPOCHS
    for name, weight in first["model"]["nets"].items():
        assert torch.equal(weight, second["model"]["nets"][name]), name
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
