"""Pooling, by hand and beside torch's attention."""

import math

import pytest
import torch
from torch import nn

from imitate.errors import ConfigError
from imitate.models.pools import AttentionPool, QueryPool, SpatialMeanPool, SpatialSoftmax


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_spatial_softmax_by_hand():
    pool = SpatialSoftmax((2, 2, 3), num_kp=None)
    maps = torch.zeros(1, 2, 2, 3)
    maps[0, 1, 1, 2] = 100.0  # all attention on the last row and column
    keypoints = pool(maps)
    assert pool.output_shape((2, 2, 3)) == keypoints.shape[1:] == (2, 2)
    torch.testing.assert_close(keypoints[0], torch.tensor([[0.0, 0.0], [1.0, 1.0]]))


def test_spatial_softmax_temperature_by_hand():
    # One row of two pixels at x = -1 and 1, maps 0 and 1: mean x = tanh(1 / (2 temperature)).
    pool = SpatialSoftmax((1, 1, 2), num_kp=None, temperature=0.5)
    x = pool(torch.tensor([[[[0.0, 1.0]]]]))[0, 0, 0]
    assert x.item() == pytest.approx(math.tanh(1.0), abs=1e-6)
    assert list(pool.parameters()) == []


def test_spatial_softmax_variances_by_hand():
    # Equal attention on the four corners: mean 0, variances 1, no covariance.
    pool = SpatialSoftmax((1, 2, 2), num_kp=None, output_variance=True)
    out = pool(torch.zeros(1, 1, 2, 2))
    assert pool.output_shape((1, 2, 2)) == (1, 5)
    torch.testing.assert_close(out[0, 0], torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0]))


def test_spatial_softmax_learns_its_temperature_and_adds_noise_in_training():
    pool = SpatialSoftmax((4, 3, 3), num_kp=6, learnable_temperature=True, noise_std=0.1)
    x = torch.randn(2, 4, 3, 3)
    assert not torch.equal(pool(x), pool(x))
    pool.eval()
    out = pool(x)
    assert torch.equal(out, pool(x))
    out[..., 0].square().sum().backward()
    assert pool.temperature.grad.abs().item() > 0


def test_mean_pool():
    x = torch.arange(12.0).view(1, 2, 2, 3)
    assert SpatialMeanPool((2, 2, 3))(x).tolist() == [[2.5, 8.5]]


def test_keypoints_have_no_noise():
    pool = SpatialSoftmax((2, 2, 3), num_kp=None, noise_std=1.0, output_variance=True)
    maps = torch.zeros(1, 2, 2, 3)
    maps[0, 1, 1, 2] = 100.0
    torch.testing.assert_close(pool.keypoints(maps)[0], torch.tensor([[0.0, 0.0], [1.0, 1.0]]))


def test_attention_is_torchs():
    pool = AttentionPool((16, 3, 4), num_heads=4)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([pool.query.weight, pool.key_value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([pool.query.bias, pool.key_value.bias]))
        theirs.out_proj.load_state_dict(pool.output.state_dict())
    x = torch.randn(5, 16, 3, 4)
    tokens = x.flatten(2).transpose(1, 2)
    tokens = torch.cat([x.mean((2, 3))[:, None], tokens], 1) + pool.places
    expected, _ = theirs(tokens[:, :1], tokens, tokens)
    assert pool.output_shape((16, 3, 4)) == (16,)
    torch.testing.assert_close(pool(x), expected[:, 0])


def test_heads_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(ConfigError, match="num_heads is 3, which does not divide the 16 channels"):
        AttentionPool((16, 3, 4), num_heads=3)


def test_query_pool_beside_torchs_attention():
    pool = QueryPool((12, 2, 3), num_queries=5, query_dim=8, num_heads=2)
    x = torch.randn(4, 12, 2, 3)
    assert pool.output_shape((12, 2, 3)) == pool(x).shape[1:] == (5, 8)
    key, value = pool.key_value(pool.norm(x.flatten(2).transpose(1, 2)) + pool.places).chunk(2, -1)
    attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    attention.in_proj_weight.data = torch.eye(8).repeat(3, 1)
    attention.out_proj.weight.data = pool.output.weight.data
    expected, _ = attention(pool.queries.expand(4, -1, -1), key, value)
    torch.testing.assert_close(pool(x), expected + pool.output.bias)


def test_query_pool_reads_places():
    pool = QueryPool((8, 2, 2), num_queries=2, query_dim=8, num_heads=2)
    x = torch.randn(1, 8, 2, 2)
    assert (pool(x) - pool(x.flip(-1))).abs().max() > 1e-4
    with pytest.raises(ConfigError, match="num_heads is 3, which does not divide query_dim, 8"):
        QueryPool((8, 2, 2), query_dim=8, num_heads=3)
