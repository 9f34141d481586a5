"""Policy and value over one encoder: what they share, and how they begin."""

import math

import pytest
import torch

from imitate.config.observation import EncodersConfig
from imitate.models.actor import GroupEncoder
from imitate.models.observation import ObservationEncoder
from imitate.models.policy_and_value import PolicyAndValue
from imitate.models.rnn import RNN


def make(num_choices=0, memory=None, **settings):
    torch.manual_seed(0)
    encoder = ObservationEncoder({"x": (3,)}, {"x": "low_dim"}, EncodersConfig())
    return PolicyAndValue(
        GroupEncoder(encoder), 2, num_choices, memory, layer_dims=(8, 8), **settings
    )


@pytest.mark.parametrize("num_choices", [0, 2])
def test_weights_begin_orthogonal_with_a_small_last_layer_of_the_policy(num_choices):
    net = make(num_choices)
    last = net.head.logits if num_choices else net.head.mean
    for layer, gain in ((net.policy.layers[1], math.sqrt(2)), (last, 0.01), (net.value_head, 1.0)):
        singular = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(singular, torch.full_like(singular, gain))
        assert (layer.bias == 0).all()


def test_another_start_and_standard_deviation_are_options():
    net = make(orthogonal_init=False, init_std=0.5)
    singular = torch.linalg.svdvals(net.head.mean.weight)
    assert singular[0] - singular[-1] > 0.01
    stds = net.actor({"x": torch.randn(4, 3)}).stds
    torch.testing.assert_close(stds, torch.full((4, 2), 0.5))


def test_the_activation_is_an_option():
    x = {"x": torch.randn(4, 3)}
    assert not torch.equal(make().decide(torch.ones(1, 3))[1], make(activation="relu")(x)[1][:1])
    assert make(activation="relu").policy(torch.randn(50, 3)).min() >= 0


def test_with_a_memory_policy_and_value_read_its_output():
    net = make(memory=RNN(3, 5, 1, "GRU"))
    policy, values = net.decide(torch.randn(4, 5))
    assert policy.mean.shape == (4, 2) and values.shape == (4,)
    weight = net.memory.nets.weight_hh_l0
    torch.testing.assert_close(weight.T @ weight, torch.eye(5), rtol=0, atol=1e-5)
    assert (net.memory.nets.bias_hh_l0 == 0).all()
