"""A run that pauses after an epoch: evaluated there, resumed as if there had been no pause."""

import pytest
import torch

from imitate.errors import ConfigError
from imitate.policy.checkpoint import load_checkpoint
from imitate.train.metrics import MetricsFile
from imitate.train.trainer import train

from .conftest import config_dict

pytestmark = pytest.mark.usefixtures("importable_env")
SECTIONS = {
    "experiment": {"rollout": {"enabled": True, "n": 2, "rate": 3, "num_workers": 0}},
    "algo": {
        "vae": {"enabled": True},
        "optim_params": {"policy": {"learning_rate": {"scheduler_type": "cosine"}}},
    },
}


def records(result, kind):
    return [r for r in MetricsFile(result.run_dir / "metrics.jsonl").read() if r["kind"] == kind]


def test_a_pause_is_evaluated_and_leaves_no_trace_in_the_weights(demos, tmp_path):
    config = config_dict(demos, **SECTIONS)
    whole = train(config, output_dir=tmp_path, quiet=True)
    paused = train(config, output_dir=tmp_path, until_epoch=1, quiet=True)
    assert (paused.status, paused.exit_code) == ("paused at epoch 1 of 3", 0)
    assert paused.results["status"] == paused.status and paused.results["epoch"] == 1
    assert [r["epoch"] for r in records(paused, "rollout")] == [1]  # which was not due
    # At a rung that it has passed already it pauses at once.
    again = train(resume=paused.run_dir, until_epoch=1, quiet=True)
    assert again.results["epoch"] == 1 and len(records(again, "epoch")) == 1
    resumed = train(resume=paused.run_dir, until_epoch=3, quiet=True)
    assert resumed.status == "finished"
    losses = [[r["Train/Loss"] for r in records(run, "epoch")] for run in (whole, resumed)]
    assert losses[0] == losses[1]
    nets = [
        load_checkpoint(run.run_dir / "checkpoints/last.pth")["model"]["nets"]
        for run in (whole, resumed)
    ]
    assert all(torch.equal(nets[0][key], nets[1][key]) for key in nets[0])


def test_a_pause_needs_a_checkpoint(demos, tmp_path):
    config = config_dict(demos, experiment={"save": {"enabled": False}})
    with pytest.raises(ConfigError, match="a pause needs a checkpoint"):
        train(config, output_dir=tmp_path, until_epoch=1, quiet=True)
