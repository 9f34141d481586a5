"""MLP: numbers worked out by hand."""

import pytest
import torch

from imitate.models.mlp import MLP, MultiHeadMLP


def test_relu_follows_the_last_layer_too():
    net = MLP(2, (2, 1))
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[1.0, 1.0], [-1.0, 0.0]]))
        net.layers[0].bias.copy_(torch.tensor([0.0, 1.0]))
        net.layers[1].weight.copy_(torch.tensor([[2.0, -3.0]]))
        net.layers[1].bias.copy_(torch.tensor([0.5]))
    # (1, 2): hidden (3, 0), out 6.5. (-4, 1): hidden (0, 5), out -14.5 before the ReLU.
    out = net(torch.tensor([[1.0, 2.0], [-4.0, 1.0]]))
    assert out.tolist() == [[6.5], [0.0]]
    assert net.output_dim == 1


def test_no_layers_is_the_identity():
    net = MLP(5, ())
    x = torch.randn(3, 2, 5)
    assert net(x) is x
    assert net.output_dim == 5
    assert list(net.parameters()) == []


def test_activation_can_be_chosen():
    net = MLP(1, (1,), activation=torch.tanh)
    with torch.no_grad():
        net.layers[0].weight.fill_(1.0)
        net.layers[0].bias.fill_(0.0)
    torch.testing.assert_close(net(torch.tensor([[-2.0]])), torch.tensor([[-2.0]]).tanh())


def test_heads_are_linear_maps_of_the_same_features():
    net = MultiHeadMLP(3, (4,), {"mean": 2, "scale": 5})
    x = torch.randn(7, 2, 3)
    out = net(x)
    assert {name: tuple(value.shape) for name, value in out.items()} == {
        "mean": (7, 2, 2),
        "scale": (7, 2, 5),
    }
    torch.testing.assert_close(out["scale"], net.heads["scale"](net.mlp(x)))


def test_dropout_acts_in_training_alone():
    torch.manual_seed(0)
    mlp = MLP(4, (1000,), dropout=0.25)
    x = torch.randn(1, 4)
    mlp.eval()
    kept = mlp(x)
    assert torch.equal(kept, mlp(x))
    mlp.train()
    dropped = mlp(x)
    alive = kept > 0
    assert float((dropped[alive] == 0).float().mean()) == pytest.approx(0.25, abs=0.05)
    survivors = alive & (dropped > 0)
    torch.testing.assert_close(dropped[survivors], kept[survivors] / 0.75)
