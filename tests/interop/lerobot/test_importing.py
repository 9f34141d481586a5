"""LeRobot's policies act here as they did there."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from imitate.errors import CheckpointError
from imitate.interop.lerobot.importing import from_lerobot
from tests.calling import call

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
    (algo.set_train if policy.config["type"] == "act" else algo.set_eval)()
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


def config(**values):
    return lambda policy: policy.change(**values)


def edited(name, change):
    """A JSON file of the policy's folder with a change."""

    def edit(policy):
        tree = json.loads((policy.folder / name).read_text())
        change(tree)
        (policy.folder / name).write_text(json.dumps(tree))

    return edit


def bytes_of_weights(count):
    return lambda policy: os.truncate(policy.folder / WEIGHTS, count)


def weights(change):
    def edit(policy):
        save_file(change(load_file(policy.folder / WEIGHTS)), policy.folder / WEIGHTS)

    return edit


def pipe_for(name):
    def edit(policy):
        (policy.folder / name).unlink()
        os.mkfifo(policy.folder / name)

    return edit


ACT, WEIGHTS, BIAS = "act_state_0.6.1", "model.safetensors", "model.action_head.bias"
TOKENIZER = {"registry_name": "tokenizer_processor", "config": {}}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
TORQUE = {"torque": {"type": "ACTION", "shape": [7]}}
REFUSED = [
    ("vqbet_0.6.1", lambda _: None, "type 'vqbet' cannot be read: its network differs from our vq_bet"),
    (ACT, config(type="smolvla"), "type 'smolvla' cannot be read: it needs pretrained networks"),
    (ACT, config(use_peft=True), "an adapter"),
    (ACT, config(n_heads=None), "its configuration cannot be used"),
    (ACT, config(normalization_mapping={"STATE": "LOG"}), "ing.STATE: 'LOG'; expected one of IDENTITY"),
    (ACT, config(input_features={}), "input_features is missing or empty"),
    (ACT, config(output_features=TORQUE), "torque; expected 'action' alone"),
    (ACT, config(dim_model=64), "expected .3, 64."),
    (ACT, config(n_encoder_layers=1), "tensors that no network of imitate has"),
    (ACT, config(n_encoder_layers=3), "the tensor 'model.encoder.layers.2"),
    (ACT, edited("config.json", lambda tree: tree.pop("latent_dim")), "config.json: 'latent_dim' is missing"),
    (
        "act_state_0.3.3",
        weights(lambda w: {k: v for k, v in w.items() if not k.endswith("observation_state.mean")}),
        "needs 'mean' for its normalization .* would use values that are not",
    ),
    (ACT, bytes_of_weights(1000), "missing, truncated or damaged"),
    (ACT, bytes_of_weights(0), "missing, truncated or damaged"),
    (ACT, lambda policy: (policy.folder / WEIGHTS).unlink(), "missing, truncated or damaged"),
    (ACT, lambda policy: (policy.folder / WEIGHTS).write_text(POINTER), "is a pointer of Git LFS"),
    (ACT, pipe_for("policy_preprocessor_step_3_normalizer_processor.safetensors"), "is not a regular file"),
    (
        ACT,
        edited(
            "policy_postprocessor.json",
            lambda tree: tree["steps"][0].update(state_file="../secret.safetensors"),
        ),
        "expected the name of a file",
    ),
    (
        ACT,
        edited("policy_preprocessor.json", lambda tree: tree["steps"].insert(0, TOKENIZER)),
        "step 'tokenizer_processor' has no counterpart",
    ),
    (ACT, weights(lambda w: {**w, BIAS: w[BIAS].fill_(torch.nan)}), "not finite"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "words"), REFUSED)
def test_refusals(name, change, words, recorded):
    policy = recorded(name)
    change(policy)
    with pytest.raises(CheckpointError, match=words) as caught:
        policy.error(policy.folder)
    assert "\n" not in str(caught.value)


def test_info_and_conversion_on_the_command_line(recorded, tmp_path):
    policy = recorded("diffusion_state_ddim_0.6.1")
    assert "diffusion_policy" in call("info", policy.folder).output
    target = tmp_path / "ours.pth"
    call("convert-checkpoint --to imitate", policy.folder, target)
    assert policy.error(target) < 1e-4
