"""Observation encoder."""

from importlib import import_module
from importlib.metadata import EntryPoint

import pytest
import torch

from imitate.config import load_config
from imitate.errors import ConfigError
from imitate.models.layout import JoinedVectors
from imitate.models.observation import ObservationEncoder

SHAPES = {"z_pos": (3,), "camera": (3, 12, 14), "lidar": (1, 40), "pose": (2, 2)}
MODALITIES = {"z_pos": "low_dim", "camera": "rgb", "lidar": "scan", "pose": "low_dim"}


def sections(**encoder):
    tree = {"algo_name": "bc", "observation": {"encoder": encoder}}
    return load_config(tree).observation.encoder


def shallow(**rgb):
    core = {"backbone_class": "ShallowConv", "pool_kwargs": {"num_kp": 4}, "feature_dimension": 5}
    return sections(rgb={"core_class": "VisualCore", "core_kwargs": core, **rgb})


def crop(size=(8, 10), **options):
    sides = dict(zip(("crop_height", "crop_width"), size, strict=True))
    return {"obs_randomizer_class": "CropRandomizer", "obs_randomizer_kwargs": sides | options}


def of_images(shapes, config, **options):
    return ObservationEncoder(shapes, dict.fromkeys(shapes, "rgb"), config, **options)


CAMERA, PAIR = {"camera": (3, 12, 14)}, {"left": (3, 12, 14), "right": (3, 12, 14)}


def observations(*batch):
    torch.manual_seed(0)
    return {key: torch.randn(*batch, *shape) for key, shape in SHAPES.items()}


def test_vectors_that_are_columns_of_one_tensor_are_not_concatenated_again():
    shapes = {"b": (1,), "a": (2,)}
    encoder = ObservationEncoder(shapes, dict.fromkeys(shapes, "low_dim"), sections())
    joined = torch.tensor([[1.0, 2.0, 3.0]])
    obs = JoinedVectors(joined, ("a", "b"), (2, 1))
    assert obs["a"].tolist() == [[1.0, 2.0]] and obs["b"].tolist() == [[3.0]]
    assert encoder(obs).data_ptr() == joined.data_ptr()
    in_file_order = JoinedVectors(torch.tensor([[3.0, 1.0, 2.0]]), ("b", "a"), (1, 2))
    assert encoder(in_file_order).tolist() == [[1.0, 2.0, 3.0]]
    with_more = JoinedVectors(torch.tensor([[1.0, 2.0, 3.0, 9.0]]), ("a", "b", "c"), (2, 1, 1))
    assert encoder(with_more).tolist() == [[1.0, 2.0, 3.0]]
    obs["b"] = torch.tensor([[7.0]])
    assert encoder(obs).tolist() == encoder({**obs}).tolist() == [[1.0, 2.0, 7.0]]


def test_low_dim_keys_are_concatenated_in_alphabetical_order():
    shapes = {"b": (2,), "a": (1,), "c": (1, 2)}
    encoder = ObservationEncoder(shapes, dict.fromkeys("abc", "low_dim"), sections())
    given = {"c": [[[4.0, 5.0]]], "a": [[1.0]], "b": [[2.0, -3.0]], "other": [0.0] * 7}
    obs = {key: torch.tensor(values) for key, values in given.items()}
    assert (encoder(obs).tolist(), encoder.output_dim) == ([[1.0, 2.0, -3.0, 4.0, 5.0]], 5)
    assert list(encoder.parameters()) == []
    plain = ObservationEncoder({"a": (2,)}, {"a": "low_dim"}, {})
    assert plain({"a": torch.ones(4, 2)}).shape == (4, 2)


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
    encoder = of_images(CAMERA, shallow(**crop(num_crops=3)))
    obs = {"camera": torch.rand(4, 3, 12, 14)}
    assert encoder(obs).shape == (4, 5)
    assert not torch.equal(encoder(obs), encoder(obs))
    encoder.eval()
    expected = encoder.nets["camera"].core(obs["camera"][:, :, 2:10, 2:12]).relu()
    torch.testing.assert_close(encoder(obs), expected)


def test_a_list_of_randomizers():
    names = ["CropRandomizer", "GaussianNoiseRandomizer"]
    noise = {"noise_std": 0.1, "num_samples": 3}
    words = [crop(num_crops=2)["obs_randomizer_kwargs"], noise]
    config = shallow(obs_randomizer_class=names, obs_randomizer_kwargs=words)
    encoder = of_images(CAMERA, config)
    assert encoder({"camera": torch.rand(4, 3, 12, 14)}).shape == (4, 5)
    assert encoder.nets["camera"].randomizers[1].output_shape == (3, 8, 10)


def test_a_randomizer_without_a_core():
    noise = {"obs_randomizer_class": "GaussianNoiseRandomizer"}
    noise["obs_randomizer_kwargs"] = {"noise_std": 0.1}
    encoder = ObservationEncoder({"a": (2,)}, {"a": "low_dim"}, sections(low_dim=noise))
    x = torch.full((3, 2), -1.0)
    assert 0 < (encoder({"a": x}) - x).abs().max() < 1.0
    assert torch.equal(encoder.eval()({"a": x}), x)


def test_images_without_a_core_are_flattened():
    encoder = of_images({"camera": (3, 2, 2)}, sections(rgb={"core_class": None}))
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(encoder({"camera": x}), x.flatten(1))


def test_two_cameras_have_their_own_weights():
    encoder = of_images(PAIR, shallow()).eval()
    x = torch.rand(2, 3, 12, 14)
    features = encoder({"left": x, "right": x})
    assert not torch.allclose(features[:, :5], features[:, 5:])


def test_keys_with_dots():
    encoder = of_images({"cam.left": (3, 12, 14)}, shallow())
    assert encoder({"cam.left": torch.rand(2, 3, 12, 14)}).shape == (2, 5)


RGB = "observation.encoder.rgb .'camera'.*"
OWN = {"core_class": "MeanColour", "core_kwargs": {"scal": 2.0}}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("rgb", "message"),
    [
        ({"core_class": "VisualCor"}, RGB + "core_class: unknown 'VisualCor'; did you mean 'VisualCore'"),
        ({"core_kwargs": {"feature_dim": 3}}, RGB + "unknown key 'feature_dim'; did you mean"),
        ({"obs_randomizer_class": "CropRandomiser"}, RGB + "did you mean 'CropRandomizer'"),
        (crop(crop_heigt=3), RGB + "did you mean 'crop_height'"),
        ({"obs_randomizer_class": "CropRandomizer"}, RGB + "does not fit an image of 12 x 14"),
        (None, "observation.encoder.rgb is missing, but observation 'camera'"),
        ({"core_class": "VisualCoreLanguageConditioned"}, "'camera'.*it needs an observation 'lang_emb'"),
        ({"core_class": "MeanColor"}, "unknown 'MeanColor'; did you mean 'MeanColour'.*: VisualCore.*TokenCore, MeanC"),
        (OWN, "did you mean 'scale'"),
        ({"core_class": "Gone"}, "'Gone' is no_such_module:Core, which cannot be loaded"),
        ({"core_class": "Version"}, "'Version' is json:__version__, which cannot be loaded .it is neither a class nor"),
    ],
)  # fmt: skip
def test_refusals_name_the_section_and_the_key(rgb, message):
    config = {} if rgb is None else sections(rgb={"core_class": "VisualCore", **rgb})
    with pytest.raises(ConfigError, match=message):
        of_images(CAMERA, config)


TWO = {"left": (3, 12, 14), "right": (3, 12, 14), "top": (3, 16, 16)}


def two_cameras(*batch):
    torch.manual_seed(0)
    return {key: torch.rand(*batch, *shape) for key, shape in TWO.items()}


@pytest.mark.parametrize("batch", [(4,), (2, 3), ()])
def test_a_shared_network_for_keys_of_equal_shape(batch):
    encoder = of_images(TWO, shallow(share=True)).eval()
    assert list(encoder.nets) == ["left+right", "top"]
    obs = two_cameras(*batch)
    features = encoder(obs)
    assert features.shape == (*batch, 15)
    core = encoder.nets["left+right"].core
    for i, key in enumerate(("left", "right")):
        alone = core(obs[key].reshape(-1, 3, 12, 14)).relu().reshape(*batch, 5)
        torch.testing.assert_close(features[..., 5 * i : 5 * i + 5], alone, atol=1e-5, rtol=1e-5)


def test_shared_networks_learn_from_both_keys_and_crop_each_by_itself():
    encoder = of_images(PAIR, shallow(share=True, **crop((6, 6), num_crops=2)))
    x = torch.rand(4, 3, 12, 14)
    features = encoder({"left": x, "right": x})
    assert features.shape == (4, 10)
    assert not torch.allclose(features[:, :5], features[:, 5:])
    features[:, 5:].sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())


def test_crops_shared_over_the_window_of_each_camera():
    crops = crop((6, 6), shared_over_time=True)
    encoder = of_images(PAIR, sections(rgb={"core_class": None, "share": True, **crops}))
    x = torch.rand(5, 1, 3, 12, 14).expand(-1, 4, -1, -1, -1)  # windows of 4 equal steps
    features = encoder({"left": x, "right": x})
    assert torch.equal(features, features[:, :1].expand(-1, 4, -1))
    assert not torch.equal(features[..., :108], features[..., 108:])


def test_a_key_with_an_encoder_of_its_own():
    core = {"backbone_class": "ShallowConv", "pool_kwargs": {"num_kp": 4}, "feature_dimension": 7}
    encoders = {
        "rgb": {"core_kwargs": {"backbone_class": "ShallowConv", "feature_dimension": 5}},
        "wrist": {"core_class": "VisualCore", "core_kwargs": core},
    }
    seen = {"modalities": {"obs": {"rgb": ["left", "wrist"]}}, "encoder": encoders}
    config = load_config({"algo_name": "bc", "observation": seen}).observation.encoder
    encoder = of_images({"left": (3, 12, 14), "wrist": (3, 12, 14)}, config)
    assert (encoder.output_dim, encoder.nets["wrist"].core.pool.num_kp) == (12, 4)


def test_language_conditions_the_images_and_is_not_among_the_features():
    shapes = {"camera": (3, 40, 40), "lang_emb": (6,), "pos": (3,)}
    kinds = {"camera": "rgb", "lang_emb": "low_dim", "pos": "low_dim"}
    section = {"core_class": "VisualCoreLanguageConditioned", **crop((36, 36), num_crops=2)}
    encoder = ObservationEncoder(shapes, kinds, sections(rgb=section))
    assert encoder.output_dim == 64 + 3
    for film in encoder.nets["camera"].core.backbone.film:
        torch.nn.init.normal_(film.lang_proj.weight, std=0.2)
    torch.manual_seed(0)
    obs = {key: torch.rand(2, 3, *shape) for key, shape in shapes.items()}
    assert encoder(obs).shape == (2, 3, 67)
    encoder.eval()
    features = encoder(obs)
    one = {key: value[1, 2] for key, value in obs.items()}
    torch.testing.assert_close(encoder(one), features[1, 2], atol=1e-5, rtol=1e-5)
    other = encoder({**obs, "lang_emb": obs["lang_emb"].flip(0)})
    assert not torch.allclose(other[..., :64], features[..., :64])
    assert torch.equal(other[..., 64:], features[..., 64:])
    alone = ObservationEncoder({"lang_emb": (6,)}, {"lang_emb": "low_dim"}, sections())
    assert alone.output_dim == 6  # where no core uses it


def test_keypoints_in_pixels_of_the_image():
    encoder = ObservationEncoder(SHAPES, MODALITIES, shallow(**crop())).eval()
    obs = observations(2, 3)
    places = encoder.keypoints(obs)
    assert list(places) == ["camera"]
    assert places["camera"].shape == (2, 3, 4, 2)
    # The crop is in rows 2 .. 9 and columns 2 .. 11; -1 and 1 are its outermost pixels.
    core = encoder.nets["camera"].core
    inside = core.keypoints(obs["camera"][1, 2, :, 2:10, 2:12][None])[0]
    expected = torch.stack([2 + (inside[:, 0] + 1) * 4.5, 2 + (inside[:, 1] + 1) * 3.5], -1)
    torch.testing.assert_close(places["camera"][1, 2], expected, atol=1e-4, rtol=1e-4)


def test_what_the_algorithm_wants_reaches_the_trunk(tmp_path):
    trunk = {"core_kwargs": {"backbone_kwargs": {"pretrained": str(tmp_path / "gone.pth")}}}
    shapes = {"camera": (3, 40, 40)}
    for rgb, norm in (({"rgb": trunk}, "FrozenBatchNorm2d"), ({}, "ChannelGroupNorm")):
        options = {"default_norm": "group", "load_pretrained": not rgb}
        encoder = of_images(shapes, sections(**rgb), **options)
        assert type(encoder.nets["camera"].core.backbone.bn1).__name__ == norm
    with pytest.raises(ConfigError, match="there is no file .*gone.pth"):
        of_images(shapes, sections(rgb=trunk))


class MeanColour(torch.nn.Module):
    """An encoder as another package may offer it."""

    def __init__(self, input_shape, scale=1.0, default_norm="?"):
        super().__init__()
        self.output_shape = (input_shape[0],)
        self.scale = scale
        self.default_norm = default_norm

    def forward(self, x):
        return x.mean((2, 3)) * self.scale


@pytest.fixture
def installed(monkeypatch):
    """Entry points: a core, and one whose module is gone."""

    def installed_points(group):
        assert group == "imitate.encoders"
        good = EntryPoint("MeanColour", f"{__name__}:MeanColour", group)
        monkeypatch.setattr(EntryPoint, "load", load)
        gone = EntryPoint("Gone", "no_such_module:Core", group)
        return [good, gone, EntryPoint("Version", "json:__version__", group)]

    def load(point):
        if point.name == "MeanColour":
            return MeanColour
        module = import_module(point.module)
        return getattr(module, point.attr)

    monkeypatch.setattr("imitate.models.options.installed_points", installed_points)


@pytest.mark.usefixtures("installed")
def test_a_core_of_another_package():
    config = sections(rgb={"core_class": "MeanColour", "core_kwargs": {"scale": 2.0}})
    encoder = of_images({"camera": (3, 4, 4)}, config, default_norm="group")
    x = torch.rand(5, 3, 4, 4)
    torch.testing.assert_close(encoder({"camera": x}), 2 * x.mean((2, 3)))
    assert encoder.nets["camera"].core.default_norm == "group"


def test_features_of_a_frozen_trunk_stand_in_for_images():
    core = {
        "backbone_class": "VC1",
        "backbone_kwargs": {"width": 16, "depth": 1, "heads": 2, "image_size": 32, "freeze": True},
        "pool_class": "SpatialMeanPool",
        "feature_dimension": 5,
    }
    section = {"core_class": "VisualCore", "core_kwargs": core, "share": True}
    shapes = {"a": (3, 24, 24), "b": (3, 24, 24)}
    encoder = of_images(shapes, sections(rgb=section), load_pretrained=False)
    obs = {key: torch.rand(2, 4, *shape) for key, shape in shapes.items()}
    net = encoder.networks_of_keys()["b"]
    assert net.frozen_shape == (16, 1, 1)
    frozen = {key: net.frozen_features(images.flatten(0, 1)) for key, images in obs.items()}
    features = {key: values.unflatten(0, (2, 4)) for key, values in frozen.items()}
    torch.testing.assert_close(encoder(features), encoder(obs))
    assert encoder(features).requires_grad  # the linear map learns
    assert not torch.allclose(encoder(features)[..., :5], encoder(features)[..., 5:])
