"""DETR's layers: against torch's own layers where positions are zero, by hand where not; masks."""

import math

import pytest
import torch
from torch import nn

from imitate.errors import ConfigError
from imitate.models.detr import Decoder, DETREncoder, sinusoidal_positions_2d

SIZES = {"dim": 16, "num_layers": 2, "num_heads": 4, "feedforward_dim": 24}


def encoder(**kwargs):
    torch.manual_seed(0)
    return _moved(DETREncoder(**{**SIZES, **kwargs}).eval())


def decoder(**kwargs):
    torch.manual_seed(1)
    return _moved(Decoder(**{**SIZES, **kwargs}).eval())


def _moved(net):
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


def tokens(steps=5, batch=3):
    return torch.randn(batch, steps, 16, generator=torch.Generator().manual_seed(2))


NOWHERE = torch.zeros(1, 1, 16)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_encoder_equals_torchs_without_positions(pre_norm):
    net = encoder(pre_norm=pre_norm)
    layer = nn.TransformerEncoderLayer(16, 4, 24, 0.0, batch_first=True, norm_first=pre_norm)
    norm = nn.LayerNorm(16) if pre_norm else None
    reference = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
    reference.load_state_dict(net.state_dict())
    torch.testing.assert_close(net(tokens(), NOWHERE), reference(tokens()), rtol=1e-5, atol=1e-5)
    real = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 1, 0, 1]]).bool()
    found = net(tokens(), NOWHERE, real)
    expected = reference(tokens(), src_key_padding_mask=~real)
    torch.testing.assert_close(found[real], expected[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_first_tokens_alone_are_those_of_all(pre_norm):
    net, places = encoder(pre_norm=pre_norm), tokens(batch=1) / 2
    real = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 1, 0, 1]]).bool()
    for count in (1, 3):
        found = net(tokens(), places, real, count)
        expected = net(tokens(), places, real)[:, :count]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_decoder_equals_torchs_without_queries_positions(pre_norm):
    net = decoder(pre_norm=pre_norm)
    layer = nn.TransformerDecoderLayer(16, 4, 24, 0.0, batch_first=True, norm_first=pre_norm)
    reference = nn.TransformerDecoder(layer, 2, nn.LayerNorm(16))
    reference.load_state_dict(net.state_dict())
    real = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 1, 0, 1]]).bool()
    found = net(torch.zeros(4, 16), tokens(), NOWHERE, real)
    expected = reference(torch.zeros(3, 4, 16), tokens(), memory_key_padding_mask=~real)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_decoder_acts_as_it_trains(pre_norm):
    net = decoder(pre_norm=pre_norm, dropout=0.0)
    queries, places = torch.randn(4, 16), torch.randn(1, 5, 16)
    acted = net(queries, tokens(), places)
    trained = net.train()(queries, tokens(), places)
    torch.testing.assert_close(acted, trained, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(acted[:, 0], acted[:, 1], atol=1e-2)


def attention(w, name, query, key, value):
    """Multi-head attention of one sequence from the weights."""
    matrices = w[f"{name}.in_proj_weight"].chunk(3)
    biases = w[f"{name}.in_proj_bias"].chunk(3)
    q, k, v = (x @ m.T + b for x, m, b in zip((query, key, value), matrices, biases, strict=True))
    heads = [slice(i, i + 4) for i in range(0, 16, 4)]
    mixed = [torch.softmax(q[:, h] @ k[:, h].T / 2.0, -1) @ v[:, h] for h in heads]
    return torch.cat(mixed, -1) @ w[f"{name}.out_proj.weight"].T + w[f"{name}.out_proj.bias"]


def norm(w, name, x):
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def mlp(w, x):
    hidden = torch.relu(x @ w["linear1.weight"].T + w["linear1.bias"])
    return hidden @ w["linear2.weight"].T + w["linear2.bias"]


def test_positions_enter_queries_and_keys_only():
    net = encoder(num_layers=1)
    w, x, place = net.layers[0].state_dict(), tokens()[0], torch.randn(5, 16)
    y = norm(w, "norm1", x + attention(w, "self_attn", x + place, x + place, x))
    expected = norm(w, "norm2", y + mlp(w, y))
    torch.testing.assert_close(net(x[None], place[None])[0], expected, rtol=1e-5, atol=1e-5)


def test_decoder_layer_by_hand():
    net = decoder(num_layers=1)
    w, memory = net.layers[0].state_dict(), tokens()[0]
    place, queries = torch.randn(5, 16), torch.randn(4, 16)
    x = torch.zeros(4, 16)
    x = norm(w, "norm1", x + attention(w, "self_attn", x + queries, x + queries, x))
    read = attention(w, "multihead_attn", x + queries, memory + place, memory)
    x = norm(w, "norm2", x + read)
    x = norm(w, "norm3", x + mlp(w, x))
    expected = norm(net.state_dict(), "norm", x)
    found = net(queries, memory[None], place[None])[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_padded_tokens_change_nothing():
    net, reader, x = encoder(), decoder(), tokens()
    real = torch.tensor([True, True, False, True, False]).expand(3, 5)
    changed = torch.where(real.unsqueeze(-1), x, 50.0)
    place, queries = torch.randn(1, 5, 16), torch.randn(2, 16)
    torch.testing.assert_close(net(changed, place, real)[real], net(x, place, real)[real])
    torch.testing.assert_close(
        reader(queries, changed, place, real), reader(queries, x, place, real)
    )


def test_first_layer_only_repeats_the_mistake_of_the_original():
    queries, place = torch.randn(4, 16), torch.randn(1, 5, 16)
    whole, wrong, single = decoder(), decoder(first_layer_only=True), decoder(num_layers=1)
    state = {k: v for k, v in whole.state_dict().items() if "layers.1" not in k}
    single.load_state_dict(state)
    wrong.load_state_dict(whole.state_dict())
    found = wrong(queries, tokens(), place)
    assert torch.equal(found, single(queries, tokens(), place))
    assert not torch.allclose(found, whole(queries, tokens(), place), atol=1e-2)


def test_every_weight_gets_a_gradient():
    net, reader = encoder().train(), decoder().train()
    queries = nn.Parameter(torch.randn(4, 16))
    place = torch.randn(1, 5, 16)
    reader(queries, net(tokens(), place), place).square().sum().backward()
    for name, p in (*net.named_parameters(), *reader.named_parameters(), ("queries", queries)):
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name


def test_map_positions_by_hand():
    # 8 features on 2 x 4 cells: frequencies 1 and 0.01; row 1 of 2 is at pi, column 3 of 4 at 1.5 pi.
    found = sinusoidal_positions_2d(2, 4, 8)
    assert found.shape == (8, 8)
    row, column = math.pi, 1.5 * math.pi
    expected = [f(p * s) for p in (row, column) for s in (1, 0.01) for f in (math.sin, math.cos)]
    assert found[2].tolist() == pytest.approx(expected, abs=1e-5)


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="3 heads do not divide 16"):
        encoder(num_heads=3)
    with pytest.raises(ConfigError, match="6 features; expected a multiple of 4"):
        sinusoidal_positions_2d(2, 2, 6)
