import pytest
import torch
from torch import nn

from imitate.models.actor import GroupEncoder
from imitate.models.critics import CriticEnsemble, polyak_update_, target_of
from imitate.models.observation import ObservationEncoder


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
    critic = CriticEnsemble(encoder(100), 0, (64,), size=2)
    first, second = critic.layers[0].weight
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
    assert float(target[0].weight) == 1.5
    assert float(target[1].running_mean) == 5.0
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
