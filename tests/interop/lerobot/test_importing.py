"""LeRobot's policies act here as they did there."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.errors import CheckpointError
from imitate.interop.lerobot.importing import from_lerobot
from imitate.policy.checkpoint import load_checkpoint

from .conftest import FIXTURES

NAMES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
READ = [name for name in NAMES if not name.startswith("vqbet")]


def test_there_are_fixtures_of_three_releases():
    assert len(READ) == 12
    assert {name.rpartition("_")[2] for name in READ} == {"0.3.3", "0.4.4", "0.6.1"}


@pytest.mark.parametrize("name", READ)
def test_actions_are_those_that_lerobot_took(name, recorded):
    policy = recorded(name)
    assert policy.error(policy.folder) < 1e-4


def test_a_blank_image_changes_the_actions(recorded):
    policy = recorded("act_images_0.6.1")
    policy.vectors["obs/observation.images.top"][:] = 0
    assert policy.error(policy.folder) > 1e-3


# ---- losses --------------------------------------------------------------------------------------


def losses(policy, monkeypatch):
    """Our losses on the recorded batch, with the recorded noise."""
    algo = from_lerobot(policy.folder).algo
    for module in algo.nets.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    batch = policy.batch()
    seen = algo.preprocess.prepare_obs(batch["obs"])
    actions = algo.preprocess.normalize_actions(batch["actions"])
    noise = [
        policy.vectors[key] for key in ("loss/vae_noise", "loss/noise") if key in policy.vectors
    ]
    if noise:
        monkeypatch.setattr(torch, "randn_like", lambda like: torch.as_tensor(noise[0]))
    if "loss/timesteps" in policy.vectors:
        steps = torch.as_tensor(policy.vectors["loss/timesteps"])
        monkeypatch.setattr(torch, "randint", lambda *_, **__: steps)
    if policy.config["type"] == "act":
        algo.set_train()
    else:
        algo.set_eval()
    batch = {"obs": seen, "goal_obs": None, "actions": actions, "pad_mask": batch["pad_mask"]}
    return algo._loss({**batch, "weight": None})[1]


@pytest.mark.parametrize("name", [name for name in READ if name.startswith("act")])
def test_losses_of_act(name, recorded, monkeypatch):
    policy = recorded(name)
    info = losses(policy, monkeypatch)
    valid = ~policy.vectors["loss/action_is_pad"]
    # Up to 0.4 the sum over valid steps is divided by the number of all of them.
    share = 1.0 if name.endswith("0.6.1") else valid.mean()
    np.testing.assert_allclose(
        info["L1_Loss"].item() * share, policy.vectors["loss/info/l1_loss"], rtol=1e-4
    )
    if "loss/info/kld_loss" in policy.vectors:
        np.testing.assert_allclose(
            info["KL_Loss"].item(), policy.vectors["loss/info/kld_loss"], rtol=1e-4
        )


@pytest.mark.parametrize("name", [name for name in READ if name.startswith("diffusion")])
def test_losses_of_diffusion(name, recorded, monkeypatch):
    policy = recorded(name)
    if not policy.config["do_mask_loss_for_padding"]:  # there, by default, padded steps count
        policy.vectors["loss/action_is_pad"][:] = False
    info = losses(policy, monkeypatch)
    np.testing.assert_allclose(info["Loss"].item(), policy.vectors["loss/value"], rtol=1e-4)


# ---- folders -------------------------------------------------------------------------------------


def test_each_way_to_name_a_policy(recorded, tmp_path):
    policy = recorded("act_state_0.6.1")
    training = tmp_path / "run" / "checkpoints" / "last" / "pretrained_model"
    shutil.copytree(policy.folder, training)
    for agent in (
        policy.folder,
        policy.folder / "config.json",
        policy.folder / "model.safetensors",
        tmp_path / "run",
        tmp_path / "run" / "checkpoints" / "last",
    ):
        assert policy.error(agent) < 1e-4


def test_the_number_of_a_statistics_file_is_not_relied_upon(recorded):
    policy = recorded("act_state_0.6.1")
    (old,) = policy.folder.glob("policy_preprocessor_step_*.safetensors")
    old.rename(policy.folder / "somewhere.safetensors")
    file = policy.folder / "policy_preprocessor.json"
    file.write_text(file.read_text().replace(old.name, "somewhere.safetensors"))
    assert policy.error(policy.folder) < 1e-4


def test_a_policy_of_vqbet_is_refused_by_name(recorded):
    with pytest.raises(
        CheckpointError, match="type 'vqbet' cannot be read: its network differs from vq_bet"
    ):
        load_checkpoint(recorded("vqbet_0.6.1").folder)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"type": "smolvla"}, "type 'smolvla' cannot be read: it needs pretrained networks"),
        ({"use_peft": True}, "an adapter"),
        ({"n_heads": None}, "its configuration does not fit"),
        (
            {"normalization_mapping": {"STATE": "LOG"}},
            "normalization_mapping.STATE: 'LOG'; expected one of IDENTITY",
        ),
        ({"input_features": {}}, "input_features is missing or empty"),
        (
            {"output_features": {"torque": {"type": "ACTION", "shape": [7]}}},
            "torque; expected 'action' alone",
        ),
        ({"dim_model": 64}, "expected .3, 64."),
        ({"n_encoder_layers": 1}, "tensors that there is no network for"),
        ({"n_encoder_layers": 3}, "lacks 'model.encoder.layers.2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refusals(values, words, recorded):
    policy = recorded("act_state_0.6.1")
    policy.change(**values)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_checkpoint(policy.folder)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named(recorded):
    policy = recorded("act_state_0.6.1")
    config = policy.config
    del config["latent_dim"]
    (policy.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="config.json: 'latent_dim' is missing"):
        load_checkpoint(policy.folder)


def test_statistics_that_are_not_there_are_not_passed_over(recorded):
    policy = recorded("act_state_0.3.3")
    file = policy.folder / "model.safetensors"
    tensors = load_file(file)
    save_file({k: v for k, v in tensors.items() if not k.endswith("observation_state.mean")}, file)
    with pytest.raises(
        CheckpointError, match="has no 'mean' of it: LeRobot would act on values that are not"
    ):
        load_checkpoint(policy.folder)


@pytest.mark.parametrize("kind", ["cut", "missing", "empty"])
def test_damaged_weights(kind, recorded):
    policy = recorded("act_state_0.6.1")
    file = policy.folder / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    if kind != "missing":
        file.write_bytes(content[:1000] if kind == "cut" else b"")
    with pytest.raises(CheckpointError, match="missing, cut short or damaged"):
        load_checkpoint(policy.folder)


def test_a_statistics_file_elsewhere_is_refused(recorded):
    policy = recorded("act_state_0.6.1")
    file = policy.folder / "policy_postprocessor.json"
    steps = json.loads(file.read_text())
    steps["steps"][0]["state_file"] = "../secret.safetensors"
    file.write_text(json.dumps(steps))
    with pytest.raises(CheckpointError, match="expected a file beside it"):
        load_checkpoint(policy.folder)


def test_an_unknown_step_of_a_processor_is_refused(recorded):
    policy = recorded("act_state_0.6.1")
    file = policy.folder / "policy_preprocessor.json"
    steps = json.loads(file.read_text())
    steps["steps"].insert(0, {"registry_name": "tokenizer_processor", "config": {}})
    file.write_text(json.dumps(steps))
    with pytest.raises(CheckpointError, match="step 'tokenizer_processor' has no counterpart"):
        load_checkpoint(policy.folder)


def test_weights_that_are_not_finite_are_refused(recorded):
    policy = recorded("act_state_0.6.1")
    file = policy.folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.action_head.bias"][0] = float("nan")
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match="not finite"):
        policy.error(policy.folder)


def test_info_and_conversion_on_the_command_line(recorded, tmp_path):
    policy = recorded("diffusion_state_ddim_0.6.1")
    shown = CliRunner().invoke(app, ["info", str(policy.folder)])
    assert shown.exit_code == 0
    assert "diffusion_policy" in shown.output
    target = tmp_path / "ours.pth"
    command = ["convert-checkpoint", str(policy.folder), str(target), "--to", "imitate"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert policy.error(target) < 1e-4
