"""How algorithms build image encoders: which normalization layers they have."""

import pytest
from torch import nn

from tests.tiny import tiny_algo

SHAPES = {"camera": (3, 40, 40)}


def make_algo(name, **backbone):
    core = {"core_kwargs": {"backbone_class": "ResNet18Conv", "backbone_kwargs": backbone}}
    return tiny_algo(name, obs=SHAPES, action=2, observation={"encoder": {"rgb": core}})


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
