"""How algorithms build image encoders: normalization layers, learning rates, pretrained weights."""

import pytest
import torch
from torch import nn

from imitate import policy_from_checkpoint
from imitate.models.resnet import ResNet18Conv
from imitate.policy.checkpoint import checkpoint_dict
from tests.tiny import tiny_algo

SHAPES = {"camera": (3, 40, 40)}


def make_algo(name, **backbone):
    core = {"core_kwargs": {"backbone_class": "ResNet18Conv", "backbone_kwargs": backbone}}
    observation = {"encoder": {"rgb": core}}
    return tiny_algo(name, obs=SHAPES, action=2, observation=observation)


@pytest.mark.parametrize(
    ("name", "kept", "replaced"),
    [("bc", nn.BatchNorm2d, nn.GroupNorm), ("flow_policy", nn.GroupNorm, nn.BatchNorm2d)],
)
def test_a_moving_average_of_the_weights_wants_group_norm(name, kept, replaced):
    algo = make_algo(name)
    assert (algo.ema is not None) == (name == "flow_policy")
    kinds = [type(module) for module in algo.nets.modules()]
    # One before the blocks, two in each of eight, three shortcuts.
    assert sum(issubclass(kind, kept) for kind in kinds) == 20
    assert not any(issubclass(kind, replaced) for kind in kinds)


def test_a_trunk_learns_at_its_multiple_of_the_learning_rate():
    algo = make_algo("bc", lr_scale=0.25)
    rates = sorted(group["lr"] for group in algo.optimizers["policy"].param_groups)
    assert rates == [pytest.approx(0.25e-4), pytest.approx(1e-4)]


def test_a_checkpoint_needs_no_file_of_pretrained_weights(tmp_path):
    torch.manual_seed(0)
    weights = tmp_path / "resnet18.pth"
    torch.save(ResNet18Conv().state_dict(), weights)
    algo = make_algo("bc", pretrained=str(weights))
    obs = {"camera": torch.rand(1, 3, 40, 40)}
    algo.set_eval()
    action = algo.get_action(obs)
    shapes = {"raw_shapes": {"camera": [40, 40, 3]}, "action_dims": {"actions": 2}}
    ckpt = checkpoint_dict(algo, env_metadata={}, shape_metadata=shapes, train_state={})
    weights.unlink()
    policy, _ = policy_from_checkpoint("cpu", ckpt_dict=ckpt)
    assert torch.equal(policy.algo.get_action(obs), action)
