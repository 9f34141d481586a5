"""Every further variant of robomimic's classes acts here as there, or is refused by name."""

import json

import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.errors import CheckpointError

REFUSED = {"bc_vae_image": "the VAE has an encoder for images"}
PLANNERS = ("gl", "gl_vae")


@pytest.mark.slow("a hundred steps of denoising from images for each action")
def test_actions(other, recorded):
    found = recorded(other)
    if other in REFUSED:
        with pytest.raises(CheckpointError, match=REFUSED[other]):
            found.checkpoint()
        return
    if other in PLANNERS:
        return  # they do not act: see below
    policy, _ = policy_from_checkpoint(device="cpu", ckpt_dict=found.checkpoint())
    obs, goal = found.group("seq/obs/"), found.group("seq/goal/")
    torch.manual_seed(0)
    policy.start_episode()
    actions = [
        policy(
            {key: value[t] for key, value in obs.items()},
            {key: value[t] for key, value in goal.items()} or None,
        )
        for t in range(12)
    ]
    # Denoising from images adds rounding up, which differs between processors: 1.7e-5 was seen, 4e-6 between kernels.
    atol = 5e-5 if other == "diffusion_resnet" else 1e-5
    np.testing.assert_allclose(actions, found["seq/actions"], atol=atol, rtol=0)


@pytest.mark.parametrize("name", PLANNERS)
@torch.no_grad()
def test_subgoals_of_a_planner(name, recorded):
    found = recorded(name)
    algo = found.algo()
    torch.manual_seed(0)
    named = algo.sample_subgoals(found.prepared(algo), None, 1)
    for key, expected in found.group("seq/subgoal/").items():
        np.testing.assert_allclose(named[key][:, 0].numpy(), expected, atol=1e-5, rtol=0)


def test_actors_of_hierarchical_policies_see_no_subgoal_there(recorded):
    for name in ("hbc", "iris"):
        algo = recorded(name).algo()
        assert algo.actor.goal_shapes == {}
        width = algo.nets["actor"]["policy"].rnn.nets.weight_ih_l0.shape[1]
        assert width == 10 + 3 + 4


@pytest.mark.parametrize(
    "name",
    [
        *("diffusion_ddim", "diffusion_ddpm", "diffusion_no_average"),
        pytest.param("diffusion_resnet", marks=pytest.mark.nightly),
    ],
)
def test_loss_of_a_diffusion_policy(name, recorded):
    found = recorded(name)
    algo = found.algo()
    algo.ema = None  # robomimic measures the weights that learn, we the averaged ones
    batch = algo.process_batch_for_training(found.batch())
    torch.manual_seed(0)
    info = algo.train_on_batch(batch, epoch=1, validate=True)
    expected = float(found["loss_eval/action_loss"])
    assert float(info["Loss"]) == pytest.approx(expected, abs=1e-5, rel=1e-6)


def test_the_averaged_weights_act(recorded):
    found = recorded("diffusion_ddim")
    raw = found.raw()
    name = "policy.noise_pred_net.final_conv.1.bias"
    assert not torch.equal(raw["model"]["nets"][name], raw["model"]["ema"][name])
    algo = found.algo()
    ours = algo.ema.module["policy"].network.final_conv[1].bias
    assert torch.equal(ours, raw["model"]["ema"][name])


def test_a_unet_has_the_sizes_of_its_weights(recorded):
    found = recorded("diffusion_ddim")
    assert json.loads(found.raw()["config"])["algo"]["unet"]["down_dims"] == [256, 512, 1024]
    ckpt = found.checkpoint()
    shapes = {key: tuple(value.shape) for key, value in ckpt["model"]["nets"].items()}
    assert shapes["policy.network.down_modules.0.0.blocks.0.block.0.weight"] == (8, 7, 3)


class Foreign:
    """Not a number."""


def test_numbers_of_numpy_are_let_in_and_nothing_else(recorded, tmp_path):
    raw = recorded("bc_gru").raw()
    assert isinstance(raw["variable_state"]["best_return"]["Lift"], np.float64)
    path = tmp_path / "foreign.pth"
    torch.save({"model": Foreign()}, path)
    with pytest.raises(
        CheckpointError, match=r"foreign\.pth: .* contains Python objects .*Foreign"
    ):
        policy_from_checkpoint(ckpt_path=path)
