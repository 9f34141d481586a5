"""Observation encoder."""

import pytest
import torch

from imitate.config import load_config
from imitate.errors import ConfigError
from imitate.models.observation import ObservationEncoder

SHAPES = {"z_pos": (3,), "camera": (3, 12, 14), "lidar": (1, 40), "pose": (2, 2)}
MODALITIES = {"z_pos": "low_dim", "camera": "rgb", "lidar": "scan", "pose": "low_dim"}


def sections(**encoder):
    tree = {"algo_name": "bc", "observation": {"encoder": encoder}}
    return load_config(tree).observation.encoder


def shallow(**rgb):
    core = {"backbone_class": "ShallowConv", "pool_kwargs": {"num_kp": 4}, "feature_dimension": 5}
    return sections(rgb={"core_class": "VisualCore", "core_kwargs": core, **rgb})


def observations(*batch):
    torch.manual_seed(0)
    return {key: torch.randn(*batch, *shape) for key, shape in SHAPES.items()}


def test_low_dim_keys_are_concatenated_in_alphabetical_order():
    encoder = ObservationEncoder(
        {"b": (2,), "a": (1,), "c": (1, 2)}, dict.fromkeys("abc", "low_dim"), sections()
    )
    obs = {
        "c": torch.tensor([[[4.0, 5.0]]]),
        "a": torch.tensor([[1.0]]),
        "b": torch.tensor([[2.0, -3.0]]),
        "other": torch.zeros(7),
    }
    assert encoder(obs).tolist() == [[1.0, 2.0, -3.0, 4.0, 5.0]]
    assert encoder.output_dim == 5
    assert list(encoder.parameters()) == []


def test_a_plain_dictionary_will_do():
    encoder = ObservationEncoder({"a": (2,)}, {"a": "low_dim"}, {})
    assert encoder({"a": torch.ones(4, 2)}).shape == (4, 2)


@pytest.mark.parametrize("batch", [(4,), (2, 3), ()])
def test_all_modalities_with_any_leading_dimensions(batch):
    encoder = ObservationEncoder(SHAPES, MODALITIES, shallow()).eval()
    features = encoder(observations(*batch))
    # camera 5, lidar 64 channels of length 2 (9 -> 3 -> 2), pose 4, z_pos 3.
    assert encoder.output_dim == 5 + 128 + 4 + 3
    assert features.shape == (*batch, encoder.output_dim)


def test_leading_dimensions_do_not_mix():
    encoder, obs = ObservationEncoder(SHAPES, MODALITIES, shallow()).eval(), observations(2, 3)
    together = encoder(obs)
    alone = encoder({key: value[1, 2].unsqueeze(0) for key, value in obs.items()})
    torch.testing.assert_close(together[1, 2], alone[0], atol=1e-5, rtol=1e-5)


def test_relu_after_a_core_and_none_after_plain_keys():
    encoder, obs = ObservationEncoder(SHAPES, MODALITIES, shallow()).eval(), observations(50)
    features = encoder(obs)
    assert features[:, :5].min() == 0.0
    core = encoder.nets["camera"].core
    torch.testing.assert_close(features[:, :5], core(obs["camera"]).relu())
    torch.testing.assert_close(features[:, -3:], obs["z_pos"])
    torch.testing.assert_close(features[:, -7:-3], obs["pose"].flatten(1))


def test_crops_in_training_and_in_the_centre_in_evaluation():
    config = shallow(
        obs_randomizer_class="CropRandomizer",
        obs_randomizer_kwargs={"crop_height": 8, "crop_width": 10, "num_crops": 3},
    )
    encoder = ObservationEncoder({"camera": (3, 12, 14)}, MODALITIES, config)
    obs = {"camera": torch.rand(4, 3, 12, 14)}
    assert encoder(obs).shape == (4, 5)
    assert not torch.equal(encoder(obs), encoder(obs))
    encoder.eval()
    core = encoder.nets["camera"].core
    expected = core(obs["camera"][:, :, 2:10, 2:12]).relu()
    torch.testing.assert_close(encoder(obs), expected)


def test_a_list_of_randomizers():
    config = shallow(
        obs_randomizer_class=["CropRandomizer", "GaussianNoiseRandomizer"],
        obs_randomizer_kwargs=[
            {"crop_height": 8, "crop_width": 10, "num_crops": 2},
            {"noise_std": 0.1, "num_samples": 3},
        ],
    )
    encoder = ObservationEncoder({"camera": (3, 12, 14)}, MODALITIES, config)
    assert encoder({"camera": torch.rand(4, 3, 12, 14)}).shape == (4, 5)
    assert encoder.nets["camera"].randomizers[1].output_shape == (3, 8, 10)


def test_a_randomizer_without_a_core():
    config = sections(
        low_dim={
            "obs_randomizer_class": "GaussianNoiseRandomizer",
            "obs_randomizer_kwargs": {"noise_std": 0.1},
        }
    )
    encoder = ObservationEncoder({"a": (2,)}, {"a": "low_dim"}, config)
    x = torch.full((3, 2), -1.0)
    noisy = encoder({"a": x})
    assert 0 < (noisy - x).abs().max() < 1.0
    assert torch.equal(encoder.eval()({"a": x}), x)


def test_images_without_a_core_are_flattened():
    config = sections(rgb={"core_class": None})
    encoder = ObservationEncoder({"camera": (3, 2, 2)}, MODALITIES, config)
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(encoder({"camera": x}), x.flatten(1))


def test_two_cameras_have_their_own_weights():
    encoder = ObservationEncoder(
        {"left": (3, 12, 14), "right": (3, 12, 14)}, {"left": "rgb", "right": "rgb"}, shallow()
    ).eval()
    x = torch.rand(2, 3, 12, 14)
    features = encoder({"left": x, "right": x})
    assert not torch.allclose(features[:, :5], features[:, 5:])


def test_keys_with_dots():
    encoder = ObservationEncoder({"cam.left": (3, 12, 14)}, {"cam.left": "rgb"}, shallow())
    assert encoder({"cam.left": torch.rand(2, 3, 12, 14)}).shape == (2, 5)


@pytest.mark.parametrize(
    ("rgb", "message"),
    [
        ({"core_class": "VisualCor"}, "core_class: unknown 'VisualCor'; did you mean 'VisualCore'"),
        ({"core_kwargs": {"feature_dim": 3}}, "unknown key 'feature_dim'; did you mean"),
        ({"obs_randomizer_class": "CropRandomiser"}, "did you mean 'CropRandomizer'"),
        (
            {"obs_randomizer_class": "CropRandomizer", "obs_randomizer_kwargs": {"crop_heigt": 3}},
            "did you mean 'crop_height'",
        ),
        ({"obs_randomizer_class": "CropRandomizer"}, "does not fit an image of 12 x 14"),
    ],
)
def test_refusals_name_the_section_and_the_key(rgb, message):
    config = sections(rgb={"core_class": "VisualCore", **rgb})
    with pytest.raises(ConfigError, match=f"observation.encoder.rgb .'camera'.*{message}"):
        ObservationEncoder({"camera": (3, 12, 14)}, MODALITIES, config)


def test_an_image_without_a_section_is_refused():
    with pytest.raises(ConfigError, match="observation.encoder.rgb is missing, but 'camera'"):
        ObservationEncoder({"camera": (3, 12, 14)}, MODALITIES, {})
