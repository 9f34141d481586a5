import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from imitate.algo.base import allocation
from imitate.cli.main import app
from imitate.config import algorithms
from imitate.errors import CheckpointError, ConfigError
from imitate.policy.checkpoint import acting_only, algo_from_checkpoint, load_checkpoint
from imitate.policy.loading import policy_from_checkpoint
from imitate.system.run_folder import RunFolder
from imitate.train.trainer import train
from tests.tiny import tiny_algo, tiny_checkpoint, tiny_run

WITHOUT_CRITICS = {"sac": 6, "td3_bc": 4, "dqn": 4, "residual": 5}

WITH_GOALS = {"gl", "crl"}
"""Algorithms whose tiny configuration has no goals, without which they cannot act or be built."""
NAMES = [
    name
    for name in algorithms.available()
    if name not in WITH_GOALS and algorithms.find(name).to_class.__module__.startswith("imitate.")
]
"""The package's own algorithms; other tests may have registered more."""


def actions(ckpt):
    policy, _ = policy_from_checkpoint(device="cpu", ckpt_dict=ckpt)
    policy.start_episode()
    torch.manual_seed(3)
    obs = {
        k: np.full(shape, 0.3, np.float32) for k, shape in policy.algo.preprocess.raw_shapes.items()
    }
    return np.stack([policy(obs) for _ in range(3)])


@pytest.mark.parametrize("name", NAMES)
def test_it_acts_as_the_whole_checkpoint_does(tmp_path, name):
    ckpt = load_checkpoint(tiny_checkpoint(tmp_path / "whole.pth", name))
    part = acting_only(ckpt)
    assert np.array_equal(actions(part), actions(ckpt))
    if name in WITHOUT_CRITICS:
        assert len(part["model"]["nets"]) == WITHOUT_CRITICS[name] < len(ckpt["model"]["nets"])
        nets = algo_from_checkpoint(part).nets
        assert not any("critic_target" in net for net in nets)


def test_the_average_of_the_weights_acts(tmp_path):
    path = tiny_checkpoint(tmp_path / "a.pth", "bc", "algo.ema.enabled=true")
    ckpt = load_checkpoint(path)
    for value in ckpt["model"]["ema"].values():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value += 0.5
    part = acting_only(ckpt)
    assert "ema" not in part["model"] and np.array_equal(actions(part), actions(ckpt))


def test_a_file_cannot_ask_for_more_than_a_multiple_of_its_weights(tmp_path, monkeypatch):
    wide = {"critic": {"layer_dims": [300]}, "actor": {"layer_dims": [300]}}
    part = acting_only(load_checkpoint(tiny_checkpoint(tmp_path / "a.pth", "sac", algo=wide)))
    monkeypatch.setattr(allocation, "ROOM", 0)
    assert len(actions(part)) == 3
    config = json.loads(part["config"])
    config["algo"]["critic"]["layer_dims"] = [3000, 3000]
    part["model"]["omitted"] = 10**12
    with pytest.raises(CheckpointError, match="requires a tensor"):
        algo_from_checkpoint({**part, "config": json.dumps(config)})


def test_it_can_be_the_frozen_policy_of_another(tmp_path):
    part = acting_only(load_checkpoint(tiny_checkpoint(tmp_path / "a.pth", "sac")))
    outer = tiny_algo("residual")
    outer.base.adopt(part, outer.preprocess)
    again = tiny_algo("residual", seed=5)
    again.deserialize(outer.serialize())
    obs = {"s": torch.full((2, 3), 0.3)}
    first, second = (algo.act(obs, algo.initial_state(2)).action for algo in (outer, again))
    assert torch.equal(first, second) and first.abs().min() > 0


def test_the_command_and_what_cannot_be_done_with_the_copy(tmp_path):
    run = RunFolder(tiny_run(tmp_path, "td3_bc", experiment={"save": {"enabled": True}}))
    copy = tmp_path / "acting.pth"
    words = ["convert-checkpoint", str(run.last), str(copy), "--to", "imitate", "--acting-only"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0 and "acting networks alone: it cannot be resumed" in said.output
    assert copy.stat().st_size < run.last.stat().st_size / 2
    assert "only those that act" in CliRunner().invoke(app, ["info", str(copy)]).output
    with pytest.raises(CheckpointError, match="take the checkpoint from which it was made, or"):
        train(run.config, quiet=True, overrides=[f"experiment.ckpt_path={copy}"])
    copy.rename(run.last)
    with pytest.raises(
        (CheckpointError, ConfigError), match="cannot be resumed, because it contains"
    ):
        train(resume=run.path, quiet=True)
