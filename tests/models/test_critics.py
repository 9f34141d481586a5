"""Critics, values over a policy's encoder, discriminators."""

import math

import pytest
import torch
from torch import nn

from imitate.algo.base.adversarial import Discriminator, gradient_penalty
from imitate.config.observation import EncodersConfig
from imitate.models.actor import GroupEncoder, PolicyAndValue
from imitate.models.critics import CriticEnsemble, polyak_update_, target_of
from imitate.models.observation import ObservationEncoder
from imitate.models.rnn import RNN


def encoder(dim=4):
    return GroupEncoder(ObservationEncoder({"x": (dim,)}, {"x": "low_dim"}, {}))


def single(critic, member, layer_norm=False):
    """The same member as a plain network of torch, its weights copied by the documented names."""
    modules = []
    for i, layer in enumerate(critic.layers):
        linear = nn.Linear(*layer.weight.shape[1:])
        linear.load_state_dict({"weight": layer.weight[member].T, "bias": layer.bias[member]})
        modules += [linear, nn.ReLU()]
        if layer_norm:
            norm = nn.LayerNorm(layer.weight.shape[2])
            scale = critic.norms[i]
            norm.load_state_dict({"weight": scale.weight[member], "bias": scale.bias[member]})
            modules.append(norm)
    head = nn.Linear(*critic.head.weight.shape[1:])
    head.load_state_dict({"weight": critic.head.weight[member].T, "bias": critic.head.bias[member]})
    return nn.Sequential(*modules, head)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_it_equals_separate_networks(layer_norm):
    torch.manual_seed(0)
    critic = CriticEnsemble(encoder(), 2, (8, 6), size=3, layer_norm=layer_norm)
    for norm in critic.norms:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    x, actions = torch.randn(5, 4), torch.randn(5, 2)
    values = critic({"x": x}, actions)
    assert values.shape == (3, 5)
    for member in range(3):
        expected = single(critic, member, layer_norm)(torch.cat([x, actions], -1))[:, 0]
        torch.testing.assert_close(values[member], expected)


def test_gradients_equal_those_of_separate_networks():
    torch.manual_seed(0)
    critic = CriticEnsemble(encoder(), 2, (8,), size=2)
    x, actions = torch.randn(5, 4), torch.randn(5, 2)
    critic({"x": x}, actions).square().mean(-1).sum().backward()
    for member in range(2):
        alone = single(critic, member)
        alone(torch.cat([x, actions], -1)).square().mean().backward()
        torch.testing.assert_close(critic.layers[0].weight.grad[member].T, alone[0].weight.grad)
        torch.testing.assert_close(critic.head.weight.grad[member].T, alone[2].weight.grad)
        torch.testing.assert_close(critic.head.bias.grad[member], alone[2].bias.grad)


def test_members_are_initialised_apart_and_within_torchs_bounds():
    torch.manual_seed(0)
    first, second = CriticEnsemble(encoder(100), 0, (64,), size=2).layers[0].weight
    assert not torch.equal(first, second)
    assert 0.09 < float(first.detach().abs().max()) <= 0.1  # 1 / sqrt(100)
    assert float(first.detach().std()) == pytest.approx(0.1 / 3**0.5, rel=0.05)


def test_values_of_states():
    critic = CriticEnsemble(encoder(), 0, (8,), size=1)
    assert critic({"x": torch.randn(5, 4)}).shape == (1, 5)


def test_several_actions_in_each_state():
    critic = CriticEnsemble(encoder(), 2, (8,), size=3)
    x, actions = torch.randn(5, 4), torch.randn(5, 7, 2)
    values = critic({"x": x}, actions)
    assert values.shape == (3, 5, 7)
    torch.testing.assert_close(values[:, :, 4], critic({"x": x}, actions[:, 4]))


def test_atoms():
    critic = CriticEnsemble(encoder(), 2, (8,), size=3, num_atoms=11)
    assert critic({"x": torch.randn(5, 4)}, torch.randn(5, 2)).shape == (3, 5, 11)
    assert critic({"x": torch.randn(5, 4)}, torch.randn(5, 6, 2)).shape == (3, 5, 6, 11)


def test_bounds():
    critic = CriticEnsemble(encoder(), 0, (8,), size=2, value_bounds=(-1.0, 3.0))
    nn.init.zeros_(critic.head.weight)
    critic.head.bias.data = torch.tensor([[0.0], [50.0]])
    torch.testing.assert_close(critic({"x": torch.randn(1, 4)}), torch.tensor([[1.0], [3.0]]))


def test_an_encoder_for_each_member():
    class Scaled(GroupEncoder):
        def __init__(self, scale):
            super().__init__(encoder().obs)
            self.scale = scale

        def forward(self, obs, goal=None):
            return super().forward(obs, goal) * self.scale

    critic = CriticEnsemble([Scaled(1.0), Scaled(2.0)], 0, (8,), size=2)
    x = torch.randn(5, 4)
    values = critic({"x": x})
    torch.testing.assert_close(values[0], single(critic, 0)(x)[:, 0])
    torch.testing.assert_close(values[1], single(critic, 1)(2 * x)[:, 0])
    with pytest.raises(ValueError, match="2 encoders for 3 critics"):
        CriticEnsemble([Scaled(1.0), Scaled(2.0)], 0, (8,), size=3)


def test_targets_follow():
    online = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    target = target_of(online)
    nn.init.constant_(target[0].weight, 1.0)
    nn.init.constant_(online[0].weight, 3.0)
    online[1].running_mean.fill_(5.0)
    polyak_update_(target, online, 0.25)
    assert (float(target[0].weight), float(target[1].running_mean)) == (1.5, 5.0)
    assert not any(p.requires_grad for p in target.parameters())
    assert float(online[0].weight) == 3.0


def test_rows_in_pieces_give_the_same_values_and_gradients(monkeypatch):
    critic = CriticEnsemble(encoder(), 2, (8, 6), size=3, layer_norm=True).double()
    obs, actions = {"x": torch.randn(4, 4).double()}, torch.randn(4, 5, 2).double()
    results = []
    for rows in (1000, 3):
        monkeypatch.setattr("imitate.models.critics.PIECE_ROWS", rows)
        critic.zero_grad()
        values = critic(obs, actions)
        values.square().sum().backward()
        results.append([values.detach(), *(p.grad.clone() for p in critic.parameters())])
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(whole, pieces)


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
    assert not torch.equal(
        make().decide(torch.ones(1, 3), {})[1], make(activation="relu")(x)[1][:1]
    )
    assert make(activation="relu").policy(torch.randn(50, 3)).min() >= 0


def test_with_a_memory_policy_and_value_read_its_output():
    net = make(memory=RNN(3, 5, 1, "GRU"))
    policy, values = net.decide(torch.randn(4, 5), {})
    assert policy.mean.shape == (4, 2) and values.shape == (4,)
    weight = net.memory.nets.weight_hh_l0
    torch.testing.assert_close(weight.T @ weight, torch.eye(5), rtol=0, atol=1e-5)
    assert (net.memory.nets.bias_hh_l0 == 0).all()


def make_discriminator(ac_dim=2, layer_dims=()):
    torch.manual_seed(0)
    encoder = ObservationEncoder({"x": (1,)}, {"x": "low_dim"}, EncodersConfig())
    return Discriminator(GroupEncoder(encoder), ac_dim, layer_dims)


def test_the_absorbing_state_is_unlike_any_other():
    net = make_discriminator()
    inputs = net.inputs({"x": torch.full((1, 1), 3.0)}, torch.tensor([[0.0, 1.0]]))
    assert inputs.tolist() == [[3, 0, 1, 0]]
    assert net.absorbing().tolist() == [[0, 0, 0, 1]]


def test_logits_by_hand():
    net = make_discriminator()
    net.last.weight.data = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    net.last.bias.data = torch.tensor([0.5])
    inputs = net.inputs({"x": torch.full((1, 1), 3.0)}, torch.tensor([[0.0, 1.0]]))
    assert net(inputs).tolist() == [6.5]
    assert net.at_absorbing().item() == 4.5 and net.at_absorbing().shape == ()


def test_without_actions_it_sees_states_alone():
    net = make_discriminator(ac_dim=0, layer_dims=(8,))
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
