"""Tokens of observations: which there are, in which order, where they stand."""

import pytest
import torch
from torch import nn

from imitate.config import load_config
from imitate.models.detr import sinusoidal_positions_2d
from imitate.models.observation import ObservationEncoder
from imitate.models.tokens import ObservationTokens

MAP = {"pool_class": None, "feature_dimension": None, "flatten": False}
SHAPES = {"cam": (3, 40, 64), "joints": (4,), "speed": (2,)}
MODALITIES = {"cam": "rgb", "left": "rgb", "right": "rgb", "joints": "low_dim", "speed": "low_dim"}


def encoder(shapes=SHAPES, share=False, **core_kwargs):
    tree = {
        "algo_name": "bc",
        "observation": {"encoder": {"rgb": {"core_kwargs": core_kwargs, "share": share}}},
    }
    config = load_config(tree).observation.encoder
    return ObservationEncoder(shapes, {key: MODALITIES[key] for key in shapes}, config)


def observation(shapes=SHAPES, lead=(2,)):
    generator = torch.Generator().manual_seed(0)
    return {key: torch.randn(*lead, *shape, generator=generator) for key, shape in shapes.items()}


class Maps:
    """In place of an encoder: a map with 2 channels and 2 x 3 cells, counted from 0, and a vector."""

    feature_dims = {"map": 12, "vector": 1}
    encoded_shapes = {"map": (2, 2, 3)}

    def features(self, obs):
        return {"map": torch.arange(12.0).expand(1, 1, 12), "vector": torch.full((1, 1, 1), 7.0)}


def test_a_map_gives_its_cells_row_by_row_after_the_vectors():
    tokens = ObservationTokens(Maps(), 4)
    with torch.no_grad():
        tokens.state.weight.fill_(1.0)
        tokens.state.bias.zero_()
        tokens.maps[0].weight.copy_(torch.tensor([[1.0, 0], [0, 1], [0, 0], [0, 0]]))
        tokens.maps[0].bias.zero_()
        tokens.places.copy_(torch.tensor([10.0, 20.0]).view(1, 2, 1).expand(1, 2, 4))
        made, positions = tokens(tokens.features({}))
    assert made[0, 0].tolist() == [7, 7, 7, 7]
    # Channel 0 holds 0 .. 5, channel 1 holds 6 .. 11.
    assert made[0, 1:, :2].tolist() == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]
    expected = torch.cat([torch.full((1, 4), 10.0), 20.0 + sinusoidal_positions_2d(2, 3, 4)])
    torch.testing.assert_close(positions[0], expected)


def test_a_trunk_without_pooling_gives_a_token_per_cell():
    tokens = ObservationTokens(encoder(**MAP), 8)
    made, positions = tokens(tokens.features(observation()))
    # ResNet18: 40 x 64 pixels to 2 x 2 cells; and one token of joints and speed.
    assert made.shape == (2, 1 + 4, 8)
    assert positions.shape == (1, 5, 8)


def test_pooled_features_are_one_token():
    tokens = ObservationTokens(encoder(), 8)
    made, positions = tokens(tokens.features(observation()))
    assert made.shape == (2, 2, 8)
    assert positions.shape == (1, 2, 8)


def test_images_alone_have_no_token_of_vectors():
    shapes = {"cam": SHAPES["cam"]}
    tokens = ObservationTokens(encoder(shapes), 8)
    features = tokens.features(observation(shapes))
    assert tokens.state is None
    assert tokens(features)[0].shape == (2, 1, 8)


def test_frames_are_told_apart_by_their_positions():
    shapes = {"joints": (4,), "speed": (2,)}
    tokens = ObservationTokens(encoder(shapes), 8, frames=3)
    obs = observation(shapes, lead=(2, 3))
    features = tokens.features(obs)
    made, positions = tokens(features)
    assert made.shape == (2, 3, 8)
    joined = torch.cat([obs["joints"], obs["speed"]], dim=-1)
    torch.testing.assert_close(
        made[:, 1], nn.functional.linear(joined[:, 1], *tokens.state.parameters())
    )
    assert len(positions[0].unique(dim=0)) == 3


@pytest.mark.parametrize("core_kwargs", [MAP, {}])
def test_features_of_keys_joined_are_the_encoders_output(core_kwargs):
    net = encoder(**core_kwargs).eval()
    obs = observation()
    features = net.features(obs)
    assert {key: value.shape[-1] for key, value in features.items()} == net.feature_dims
    assert torch.equal(net(obs), torch.cat([features[key] for key in sorted(SHAPES)], dim=-1))


def test_each_vector_makes_a_token_of_its_own():
    shapes = {"joints": (4,), "speed": (2,)}
    tokens = ObservationTokens(encoder(shapes), 8, separate_vectors=True)
    obs = observation(shapes)
    made, positions = tokens(tokens.features(obs))
    assert made.shape == positions.expand_as(made).shape == (2, 2, 8)
    for number, key in enumerate(shapes):
        wanted = nn.functional.linear(obs[key], *tokens.vector_maps[number].parameters())
        torch.testing.assert_close(made[:, number], wanted)


def test_cameras_with_one_network_share_the_map_to_tokens_and_have_no_place():
    shapes = {"left": SHAPES["cam"], "right": SHAPES["cam"], "joints": (4,)}
    options = {"shared_maps": True, "learned_camera_positions": False}
    tokens = ObservationTokens(encoder(shapes, share=True, **MAP), 8, **options)
    assert tokens.maps[0] is tokens.maps[1]
    obs = observation(shapes)
    obs["right"] = obs["left"]
    made, positions = tokens(tokens.features(obs))
    vector, left, right = 0, slice(1, made.shape[1] // 2 + 1), slice(made.shape[1] // 2 + 1, None)
    torch.testing.assert_close(made[:, left], made[:, right])
    assert torch.equal(positions[:, left], positions[:, right])
    assert positions[:, vector].abs().sum() > 0
    made.sum().backward()
    positions.sum().backward()
    assert (tokens.places.grad[0, 1:] == 0).all()
    assert (tokens.places.grad[0, 0] == 1).all()
