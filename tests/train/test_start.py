"""Trainings that start from a checkpoint, also from one of robomimic."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.errors import CheckpointError
from imitate.policy.checkpoint import load_checkpoint
from imitate.train.trainer import train

THEIRS = Path(__file__).parents[1] / "policy" / "fixtures" / "robomimic"
QUIET = [
    "train.num_epochs=1",
    "train.cuda=false",
    "train.batch_size=8",
    "experiment.epoch_every_n_steps=2",
    "experiment.rollout.enabled=false",
    "experiment.validate=false",
    "experiment.logging.log_tb=false",
    "experiment.render_video=false",
]


def go_on(name, data, tmp_path, *overrides):
    """Two updates on our data, from robomimic's checkpoint of that name."""
    path = THEIRS / f"{name}.pth"
    result = train(
        load_checkpoint(path)["config"],
        dataset=data,
        output_dir=tmp_path / "runs",
        overrides=[*QUIET, f"experiment.ckpt_path={path}", *overrides],
        quiet=True,
    )
    return load_checkpoint(path), load_checkpoint(result.checkpoint)


@pytest.mark.parametrize(
    "name", ["bc_normobs", "bc_minmax", "bc_rnn_gmm", "iql", "td3_bc", "bc_gmm_v030"]
)
def test_weights_and_normalization_are_taken_over(name, demo_file, tmp_path):
    data = demo_file()
    rates = {
        "iql": ("actor", "critic", "vf"),
        "td3_bc": ("actor", "critic"),
    }.get(name, ("policy",))
    still = [f"algo.optim_params.{net}.learning_rate.initial=1e-12" for net in rates]
    before, after = go_on(name, data, tmp_path, *still)
    for key, tensor in before["model"]["nets"].items():
        if "target" not in key:
            assert torch.allclose(tensor, after["model"]["nets"][key], atol=1e-6), key
    for group in ("obs", "actions"):
        for key, entry in before["preprocess"][group].items():
            for part in ("offset", "scale"):
                assert torch.equal(entry[part], after["preprocess"][group][key][part])


def test_moments_go_on(demo_file, tmp_path):
    before, after = go_on("iql", demo_file(), tmp_path, "experiment.ckpt_optimizers=true")
    for net in ("actor", "critic", "vf"):
        old, new = (c["model"]["optimizers"][net]["state"] for c in (before, after))
        assert set(old) == set(new)
        for number, state in old.items():
            assert float(new[number]["step"]) == float(state["step"]) + 2
            # Adam forgets little in two updates: 0.9^2 of the first moment, 0.999^2 of the second.
            kept = 0.999**2 * state["exp_avg_sq"]
            assert bool((new[number]["exp_avg_sq"] >= kept * (1 - 1e-5)).all())


def test_releases_without_moments_say_so(demo_file, tmp_path):
    with pytest.raises(CheckpointError, match="has no moments of policy"):
        go_on("bc_gmm_v030", demo_file(), tmp_path, "experiment.ckpt_optimizers=true")


def test_other_observations_are_refused(demo_file, tmp_path):
    data = demo_file(
        obs_dims={"object": 4, "robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
    )
    with pytest.raises(
        CheckpointError, match=r"bc\.pth do not fit this configuration: .*'object': \(10,\)"
    ):
        go_on("bc", data, tmp_path)


def test_init_on_the_command_line(demo_file, tmp_path):
    sets = [part for override in QUIET for part in ("--set", override)]
    args = ["train", "--init", str(THEIRS / "bc.pth"), "--dataset", str(demo_file())]
    done = CliRunner().invoke(
        app, [*args, "--output-dir", str(tmp_path / "runs"), "--quiet", "--json", *sets]
    )
    assert done.exit_code == 0, done.output
    (config,) = (tmp_path / "runs").glob("*/*/config.json")
    tree = json.loads(config.read_text())
    assert tree["algo"]["actor_layer_dims"] == [32, 48]
    assert tree["experiment"]["ckpt_path"].endswith("bc.pth")
