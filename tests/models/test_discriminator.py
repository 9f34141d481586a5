"""Discriminators: inputs, the absorbing state, the gradient penalty."""

import pytest
import torch

from imitate.config.observation import EncodersConfig
from imitate.models.actor import GroupEncoder
from imitate.models.discriminator import Discriminator, gradient_penalty
from imitate.models.observation import ObservationEncoder


def make(ac_dim=2, layer_dims=()):
    torch.manual_seed(0)
    encoder = ObservationEncoder({"x": (1,)}, {"x": "low_dim"}, EncodersConfig())
    return Discriminator(GroupEncoder(encoder), ac_dim, layer_dims)


def test_the_absorbing_state_is_unlike_any_other():
    net = make()
    inputs = net.inputs({"x": torch.full((1, 1), 3.0)}, torch.tensor([[0.0, 1.0]]))
    assert inputs.tolist() == [[3, 0, 1, 0]]
    assert net.absorbing().tolist() == [[0, 0, 0, 1]]


def test_logits_by_hand():
    net = make()
    net.last.weight.data = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    net.last.bias.data = torch.tensor([0.5])
    inputs = net.inputs({"x": torch.full((1, 1), 3.0)}, torch.tensor([[0.0, 1.0]]))
    assert net(inputs).tolist() == [6.5]
    assert net.at_absorbing().item() == 4.5 and net.at_absorbing().shape == ()


def test_without_actions_it_sees_states_alone():
    net = make(ac_dim=0, layer_dims=(8,))
    x, actions = {"x": torch.rand(3, 1)}, torch.rand(3, 2)
    assert net.inputs(x, actions).shape == (3, 2)
    assert torch.equal(net(net.inputs(x, actions)), net(net.inputs(x, 1 - actions)))


class Linear(torch.nn.Module):
    def forward(self, inputs):
        return 3 * inputs[:, 0] + 4 * inputs[:, 1]


def test_gradient_penalty_of_a_linear_function():
    penalty = gradient_penalty(Linear(), torch.rand(5, 2), torch.rand(3, 2))
    assert float(penalty) == pytest.approx((5 - 1) ** 2)  # the gradient is (3, 4)


def test_the_penalty_is_of_places_between_the_inputs_and_teaches_the_network_alone():
    class Square(torch.nn.Module):
        def forward(self, inputs):
            seen.append(inputs)
            return 0.5 * inputs.square().sum(-1)

    seen = []
    first, second = torch.full((50, 1), 2.0, requires_grad=True), torch.full((50, 1), 4.0)
    penalty = gradient_penalty(Square(), first, second)
    assert 2 <= seen[0].min() < 2.5 < 3.5 < seen[0].max() <= 4
    assert penalty.item() == pytest.approx((seen[0] - 1).square().mean().item())  # the slope is x
    assert torch.autograd.grad(penalty, first, allow_unused=True) == (None,)
