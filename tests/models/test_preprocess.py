"""Preprocess: layout, normalization by hand, errors, saving, property round trips."""

import io
import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from imitate.errors import ConfigError, UserError
from imitate.models.layout import processed_shape, raw_shape_of
from imitate.models.preprocess import Preprocess


class Stats(NamedTuple):
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray


def stats(mean, std, low, high):
    return Stats(*(np.asarray(x, dtype=np.float64) for x in (mean, std, low, high)))


RAW_SHAPES = {"pos": (3,), "gripper": (1,), "camera": (4, 6, 3), "lidar": (5, 2), "pose": (2, 2)}
MODALITIES = dict.fromkeys(RAW_SHAPES, "low_dim") | {"camera": "rgb", "lidar": "scan"}
STATISTICS = {
    "obs": {
        "pos": stats([1, 2, 3], [2, 0.001, 4], [-1, 2, 0], [3, 2, 10]),
        "gripper": stats([0.5], [0.25], [0], [1]),
        "camera": stats([0.5, 0.25, 0], [0.5, 0.25, 1], [0, 0, 0], [1, 0.5, 0]),
        "lidar": stats(np.zeros((2, 5)), np.full((2, 5), 2.0), np.zeros((2, 5)), np.ones((2, 5))),
        "pose": stats([[1, 0], [0, 1]], np.full((2, 2), 2.0), -np.ones((2, 2)), np.ones((2, 2))),
    },
    "actions": {
        "arm": stats([1, 0], [2, 1e-7], [-1, 0], [3, 0]),
        "hand": stats([0.5], [0.5], [0], [1]),
    },
}
ACTION_DIMS = {"hand": 1, "arm": 2}


def raw_obs(*batch):
    rng = np.random.default_rng(0)
    return {
        "pos": rng.normal(size=(*batch, 3)),
        "gripper": rng.normal(size=(*batch, 1)).astype(np.float32),
        "camera": rng.integers(0, 256, size=(*batch, 4, 6, 3), dtype=np.uint8),
        "lidar": rng.normal(size=(*batch, 5, 2)),
        "pose": rng.normal(size=(*batch, 2, 2)),
    }


def fitted(obs_normalization=None, obs_clip=None, **action_modes):
    modes = {key: {"normalization": mode} for key, mode in action_modes.items()}
    layout = (RAW_SHAPES, MODALITIES, ACTION_DIMS, STATISTICS)
    return Preprocess.from_statistics(*layout, obs_normalization, modes, obs_clip=obs_clip)


def unfitted():
    return Preprocess(RAW_SHAPES, MODALITIES, ACTION_DIMS)


def of_camera(shape):
    return Preprocess({"camera": shape}, {"camera": "rgb"}, {})


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_layout(batch):
    raw = raw_obs(*batch)
    obs = unfitted().prepare_obs(raw)
    assert {key: tuple(value.shape) for key, value in obs.items()} == {
        "pos": (*batch, 3),
        "gripper": (*batch, 1),
        "camera": (*batch, 3, 4, 6),
        "lidar": (*batch, 2, 5),
        "pose": (*batch, 2, 2),
    }
    assert {value.dtype for value in obs.values()} == {torch.float32}
    np.testing.assert_array_equal(obs["pos"], raw["pos"].astype(np.float32))
    lidar = np.swapaxes(raw["lidar"], -1, -2).astype(np.float32)
    np.testing.assert_array_equal(obs["lidar"], lidar)
    camera = np.moveaxis(raw["camera"], -1, -3).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(obs["camera"], camera)


def test_prepared_observations_return_to_the_units_of_the_data():
    raw = raw_obs(2, 3)
    plain = unfitted().prepare_obs(raw)
    preprocess = fitted("mean_std")
    for key, value in preprocess.prepare_obs(raw).items():
        back = preprocess.unnormalize_obs(key, value)
        torch.testing.assert_close(back, plain[key], atol=1e-5, rtol=1e-5)


def test_float_images_are_taken_as_they_are():
    preprocess = Preprocess({"d": (2, 2, 1)}, {"d": "depth"}, {})
    depth = np.array([[[0.5], [1.0]], [[0.25], [3.0]]], dtype=np.float32)
    assert preprocess.prepare_obs({"d": depth})["d"].tolist() == [[[0.5, 1.0], [0.25, 3.0]]]


def test_tensors_and_arrays_give_the_same():
    preprocess, raw = fitted("mean_std"), raw_obs(2, 3)
    from_arrays = preprocess.prepare_obs(raw)
    from_tensors = preprocess.prepare_obs({k: torch.as_tensor(v) for k, v in raw.items()})
    mixed = preprocess.prepare_obs({**raw, "pos": torch.as_tensor(raw["pos"])})
    for key, value in from_arrays.items():
        torch.testing.assert_close(from_tensors[key], value, atol=1e-6, rtol=0)
        torch.testing.assert_close(mixed[key], value, atol=1e-6, rtol=0)


def vectors_alone():
    known = {"a": stats([1.0, 2.0], [2.0, 4.0], [0.0, 0.0], [9.0, 9.0])}
    known["b"] = stats([0.5], [0.1], [0.0], [1.0])
    kinds = {"a": "low_dim", "b": "low_dim"}
    layout = {"a": (2,), "b": (1,)}, kinds, {"actions": 1}
    return Preprocess.from_statistics(*layout, {"obs": known, "actions": {}}, "mean_std")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ">f4"])
def test_one_observation_of_vectors_is_prepared_as_any_other(dtype):
    prepare, names = vectors_alone(), {"a": "arm", "b": "b"}
    arm, b = np.array([3.0, -2.0], dtype=dtype)[::-1], np.array([0.7], dtype=dtype)
    found = prepare.plan(("b", "a")).of_vectors({"arm": arm, "b": b, "more": None}, names)
    wanted = prepare.prepare_obs({"a": arm.astype(np.float32)[None], "b": b[None]}, ("b", "a"))
    assert list(found) == ["a", "b"] and found["a"].tolist() == [[-1.5, 0.25]]
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


@pytest.mark.parametrize(
    "value",
    [[1.0, 2.0], np.ones(3), np.ones((1, 2)), np.array([1.0, np.nan]), np.array([1e39, 0.0]), None]
    + [np.array([np.inf, 0.0]), np.array([1, 1j]), torch.ones(2)],
)
def test_other_observations_are_looked_at_one_by_one(value):
    names = {"a": "a", "b": "b"}
    assert vectors_alone().plan(None).of_vectors({"a": value, "b": np.ones(1)}, names) is None
    assert fitted().plan(None).of_vectors(raw_obs(), {}) is None  # it has images


def test_raw_values_are_not_changed():
    raw = {"gripper": torch.ones(4, 1)}
    fitted("mean_std").prepare_obs(raw, ["gripper"])["gripper"].add_(5.0)
    assert raw["gripper"].tolist() == [[1.0]] * 4


def test_statistics_of_a_scan_move_with_its_axes():
    """Beams (L) of two channels (C): the mean of beam 1, channel 0 is 2 wherever the axes go."""
    mean = np.arange(6.0).reshape(3, 2)
    known = {"obs": {"lidar": stats(mean, np.ones((3, 2)), mean - 1, mean + 1)}}
    layout = {"lidar": (3, 2)}, {"lidar": "scan"}, {}
    preprocess = Preprocess.from_statistics(*layout, known, "mean_std")
    raw = mean.astype(np.float32)[None]
    assert preprocess.prepare_obs({"lidar": raw})["lidar"].abs().max() == 0


def test_mean_std_by_hand():
    raw = raw_obs(1)
    raw["pos"] = np.array([[5.0, 2.02, -1.0]])
    raw["camera"][:] = 255
    obs = fitted("mean_std").prepare_obs(raw)
    # (5 - 1) / 2; (2.02 - 2) / 0.01, the floor, not 0.001; (-1 - 3) / 4.
    torch.testing.assert_close(obs["pos"], torch.tensor([[2.0, 2.0, -1.0]]), atol=1e-4, rtol=0)
    # Channels: (1 - 0.5) / 0.5, (1 - 0.25) / 0.25, (1 - 0) / 1.
    assert obs["camera"][0, :, 3, 5].tolist() == [1.0, 3.0, 1.0]
    np.testing.assert_allclose(obs["lidar"], np.swapaxes(raw["lidar"], -1, -2) / 2, atol=1e-6)
    np.testing.assert_allclose(obs["pose"], (raw["pose"] - np.eye(2)) / 2, atol=1e-6)


def test_min_max_by_hand():
    raw = raw_obs(1)
    raw["pos"] = np.array([[3.0, 2.5, 0.0]])
    obs = fitted("min_max").prepare_obs(raw)
    # Ends are +-1; the second dimension is constant: shifted by 2, not scaled.
    assert obs["pos"].tolist() == [[1.0, 0.5, -1.0]]


def test_actions_by_hand():
    preprocess = fitted(arm="min_max", hand="gaussian")
    assert preprocess.action_dim == 3
    # hand: (1 - 0.5) / 0.5. arm: 3 is the end, 0.999999; the other is constant, shifted by 0.
    normalized = preprocess.normalize_actions(torch.tensor([[1.0, 3.0, 0.7]], dtype=torch.float64))
    assert normalized.dtype == torch.float32
    torch.testing.assert_close(normalized, torch.tensor([[1.0, 0.999999, 0.7]]), atol=1e-7, rtol=0)
    raw = preprocess.unnormalize_actions(torch.tensor([[-1.0, -0.999999, 0.2]]))
    torch.testing.assert_close(raw, torch.tensor([[0.0, -1.0, 0.2]]), atol=1e-6, rtol=0)
    normalized = fitted(arm="gaussian").normalize_actions(torch.tensor([9.0, 5.0, 0.3]))
    torch.testing.assert_close(normalized, torch.tensor([9.0, 2.0, 0.3]))  # no spread: only shifted


def test_actions_without_normalization_are_themselves():
    preprocess, actions = fitted(), torch.randn(2, 3)
    assert preprocess.normalize_actions(actions) is actions
    assert preprocess.unnormalize_actions(actions) is actions


@pytest.mark.parametrize("obs_normalization", [None, "mean_std"])
def test_clipped_are_numbers_after_their_normalization_and_no_images(obs_normalization):
    clipped, raw = fitted(obs_normalization, obs_clip=0.5), raw_obs(2, 3)
    plain, obs = fitted(obs_normalization).prepare_obs(raw), clipped.prepare_obs(raw)
    for key, value in plain.items():
        wanted = value.clamp(-0.5, 0.5) if MODALITIES[key] == "low_dim" else value
        torch.testing.assert_close(obs[key], wanted, atol=0, rtol=0)
    assert (plain["pos"].abs() > 0.5).any() and (plain["pose"].abs() > 0.5).any()
    units = unfitted().prepare_obs(raw)
    for key, value in units.items():
        found = clipped.normalize_obs(key, value)
        torch.testing.assert_close(found, obs[key], atol=1e-6, rtol=1e-6)
    again = Preprocess.from_dict(clipped.to_dict()).prepare_obs(raw)
    torch.testing.assert_close(again, obs, atol=0, rtol=0)


def test_checkpoints_of_before_clipping_load():
    saved = fitted("mean_std").to_dict()
    del saved["obs_clip"]
    assert Preprocess.from_dict(saved).obs_clip is None


def test_a_choice_of_keys():
    preprocess, raw = fitted("mean_std"), raw_obs(2)
    everything = preprocess.prepare_obs({**raw, "noise": np.zeros(3)})
    assert set(everything) == set(RAW_SHAPES)
    keys = ["pos", "camera"]
    for chosen in (keys, (key for key in keys)):
        found = preprocess.prepare_obs({key: raw[key] for key in keys}, chosen)
        torch.testing.assert_close(found, {key: everything[key] for key in keys}, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("key", "shape"), [("pos", (2, 4)), ("camera", (2, 3, 4, 6)), ("pose", (2, 4)), ("pos", ())]
)
def test_a_wrong_shape_is_named(key, shape):
    with pytest.raises(UserError, match=f"observation '{key}' has shape .*{MODALITIES[key]}"):
        fitted().prepare_obs({**raw_obs(2), key: np.zeros(shape)})


def of_shape(modality, *shape):
    return lambda: Preprocess({"x": shape}, {"x": modality}, {})


def rotations():
    rotation = {"format": "rot_6d", "convert_at_runtime": "rot_euler", "normalization": "min_max"}
    Preprocess.from_statistics({}, {}, {"arm": 3}, STATISTICS, None, {"arm": rotation})


def short_statistics():
    Preprocess({"pos": (3,)}, {"pos": "low_dim"}, {}, {"pos": (torch.zeros(2), torch.ones(2))})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: fitted().prepare_obs(raw_obs(2), ["poss"]), UserError, "unknown .* 'poss'; did you mean 'pos'"),
        (lambda: fitted().prepare_obs({"pos": 0, "gripper": 0}), UserError, "'camera' is missing.*got pos, gripper"),
        (of_shape("rgb", 84, 84), ConfigError, "needs 3 dimensions"),
        (of_shape("scan", 32), ConfigError, "needs 2 dimensions"),
        (of_shape("rbg", 84, 84, 3), ConfigError, "did you mean 'rgb'"),
        (lambda: fitted("min_mx"), ConfigError, "train.obs_normalization.*did you mean 'min_max'"),
        (lambda: fitted(arm="gausian"), ConfigError, "action_config.arm.normalization.*did you mean 'gaussian'"),
        (rotations, ConfigError, "train.action_config.arm.normalization is 'min_max'"),
        (short_statistics, UserError, "'pos' has 2 values; expected 3"),
    ],
)  # fmt: skip
def test_refusals(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_shapes_of_networks_and_of_files():
    assert processed_shape((84, 96, 3), "rgb") == (3, 84, 96)
    assert processed_shape((32, 2), "scan") == (2, 32)
    assert processed_shape((7,), "low_dim") == (7,)
    assert raw_shape_of((3, 84, 96), "rgb") == (84, 96, 3)
    assert raw_shape_of((2, 32), "scan") == (32, 2)
    shapes = {"camera": (3, 4, 6), "pos": (3,)}
    preprocess = Preprocess.layout_only_from_processed(shapes, MODALITIES, {})
    assert preprocess.raw_shapes == {"camera": (4, 6, 3), "pos": (3,)}
    assert preprocess.obs_shapes == shapes


@pytest.mark.parametrize("obs_normalization", [None, "mean_std", "min_max"])
def test_saved_and_loaded_with_and_without_pickle(obs_normalization):
    preprocess, raw, actions = (
        fitted(obs_normalization, 2.0, arm="min_max"),
        raw_obs(2),
        torch.randn(2, 3),
    )
    prepared, file = preprocess.prepare_obs(raw), io.BytesIO()  # in use
    torch.save(preprocess.to_dict(), file)
    file.seek(0)
    loaded = Preprocess.from_dict(torch.load(file, weights_only=True))
    for again in (loaded, pickle.loads(pickle.dumps(preprocess))):
        torch.testing.assert_close(again.prepare_obs(raw), prepared, atol=0, rtol=0)
        assert torch.equal(again.normalize_actions(actions), preprocess.normalize_actions(actions))
        assert list(again.actions.keys) == ["hand", "arm"]
        assert again.raw_shapes == preprocess.raw_shapes
        assert again.modalities == preprocess.modalities


def test_state_dict_replaces_the_normalization():
    plain, normalizing, raw = fitted(), fitted("mean_std", arm="min_max"), raw_obs(2)
    plain.prepare_obs(raw)
    plain.load_state_dict(normalizing.state_dict())
    found, wanted = plain.prepare_obs(raw), normalizing.prepare_obs(raw)
    torch.testing.assert_close(found, wanted, atol=0, rtol=0)
    assert plain.normalizes_actions


def vectors(elements):
    shapes = st.tuples(st.integers(1, 20), st.integers(1, 6))
    return hnp.arrays(np.float64, shapes, elements=elements)


# Quarters and their midpoints are exact in float32, so that bounds hold without a tolerance.
quarters = st.integers(-400, 400).map(lambda i: i / 4)
anything = st.floats(-100, 100, width=32)


def statistics_of(data):
    return Stats(data.mean(0), data.std(0), data.min(0), data.max(0))


def action_preprocess(data, mode):
    known, dims = {"obs": {}, "actions": {"a": statistics_of(data)}}, {"a": data.shape[1]}
    return Preprocess.from_statistics({}, {}, dims, known, None, {"a": {"normalization": mode}})


@settings(max_examples=40, deadline=None)
@given(vectors(anything), vectors(quarters), st.sampled_from(["min_max", "gaussian", None]))
def test_normalized_actions_come_back_and_stay_inside_the_limits(data, exact, mode):
    preprocess = action_preprocess(data, mode)
    normalized = preprocess.normalize_actions(torch.from_numpy(data))
    assert torch.isfinite(normalized).all()
    np.testing.assert_allclose(preprocess.unnormalize_actions(normalized), data, atol=1e-4)
    normalized = action_preprocess(exact, "min_max").normalize_actions(torch.from_numpy(exact))
    assert normalized.abs().max() < 1.0


@settings(max_examples=40, deadline=None)
@given(vectors(quarters), st.sampled_from(["mean_std", "min_max"]))
def test_normalized_observations_are_bounded_and_ordered(data, mode):
    layout, known = (
        ({"x": data.shape[1:]}, {"x": "low_dim"}, {}),
        {"obs": {"x": statistics_of(data)}},
    )
    preprocess = Preprocess.from_statistics(*layout, known, mode)
    x = preprocess.prepare_obs({"x": data})["x"]
    if mode == "min_max":
        assert x.abs().max() <= 1.0
    order = np.argsort(data, axis=0, kind="stable")
    assert (np.diff(np.take_along_axis(x.numpy(), order, 0), axis=0) >= 0).all()


def test_images_are_changed_in_a_copy_with_their_channels_last_in_memory():
    camera = stats([0.5] * 3, [0.25] * 3, [0] * 3, [1] * 3)
    layout = {"camera": (4, 6, 3)}, {"camera": "rgb"}, {"actions": 1}
    known = {"obs": {"camera": camera}, "actions": {}}
    preprocess = Preprocess.from_statistics(*layout, known, obs_normalization="mean_std")
    for raw in (torch.full((2, 4, 6, 3), 255, dtype=torch.uint8), torch.ones(2, 4, 6, 3)):
        before = raw.clone()
        prepared = preprocess.prepare_obs({"camera": raw})["camera"]
        assert torch.equal(raw, before)
        assert prepared.shape == (2, 3, 4, 6)
        assert (prepared == 2.0).all()  # (1 - 0.5) / 0.25
        assert prepared.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("pixels", "dtype", "fits"),
    [
        ([0.0, 1.0], "float32", True),
        ([-0.05, 1.05], "float32", True),  # an interpolation overshoots a little
        ([-0.1, 1.1], "float64", True),  # the furthest that is taken
        ([0.0, 1.11], "float32", False),
        ([-0.11, 1.0], "float32", False),
        ([0.0, 200.0], "float32", False),
        ([-0.5, 0.5], "float32", False),
        ([0, 255], "int32", True),
        ([0, 256], "int32", False),
        ([-1, 255], "int32", False),
    ],
)
def test_pixels_that_are_no_shares_of_white_are_refused(pixels, dtype, fits, array):
    preprocess = of_camera((1, 2, 1))
    image = array(np.array(pixels, dtype).reshape(1, 2, 1))
    if fits:
        assert preprocess.prepare_obs({"camera": image})["camera"].shape == (1, 1, 2)
    else:
        with pytest.raises(UserError, match="image 'camera' has"):
            preprocess.prepare_obs({"camera": image})


@pytest.mark.parametrize(
    ("offset", "fits"),
    [([0.5, 0.5], False), ([1.0, 1.0], False), ([0.5, 1.5], True), ([128.0, 128.0], True)],
)
def test_a_normalization_of_pixels_up_to_255_takes_such_pixels(offset, fits):
    """Brighter means than white, in any channel, come from data that were not in [0, 1]."""
    affine = {"camera": (torch.tensor(offset), torch.tensor([2.0, 4.0]))}
    preprocess = Preprocess({"camera": (1, 1, 2)}, {"camera": "rgb"}, {}, affine)
    image = np.array([[[200.0, 100.0]]], np.float32)
    if fits:
        wanted = [(200.0 - offset[0]) / 2, (100.0 - offset[1]) / 4]
        assert preprocess.prepare_obs({"camera": image})["camera"].flatten().tolist() == wanted
    else:
        with pytest.raises(UserError, match="values from 100 to 200"):
            preprocess.prepare_obs({"camera": image})


def test_no_images_at_all_are_no_wrong_images():
    preprocess = of_camera((1, 2, 3))
    obs = preprocess.prepare_obs({"camera": np.zeros((0, 1, 2, 3), np.float32)})
    assert obs["camera"].shape == (0, 3, 1, 2)


def test_another_normalization_of_one_key_holds_at_once():
    kinds = {"a": "low_dim", "b": "low_dim"}
    preprocess = Preprocess({"a": (2,), "b": (1,)}, kinds, {})
    raw = {"a": np.array([[5.0, 9.0]]), "b": np.array([[7.0]])}
    assert preprocess.prepare_obs(raw)["a"].tolist() == [[5.0, 9.0]]
    preprocess.set_obs_normalization("a", torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0]))
    obs = preprocess.prepare_obs(raw)
    # (5 - 1) / 2 and (9 - 3) / 4; the other key stays as it was.
    assert obs["a"].tolist() == [[2.0, 1.5]] and obs["b"].tolist() == [[7.0]]
    assert preprocess.unnormalize_obs("a", obs["a"]).tolist() == [[5.0, 9.0]]


def test_moving_the_module_moves_what_is_kept_beside_its_buffers():
    preprocess, raw = fitted("mean_std"), {"gripper": np.array([[1.0]])}
    assert preprocess.prepare_obs(raw, ["gripper"])["gripper"].item() == 2.0  # (1 - 0.5) / 0.25
    # As .to() does with every buffer; doubled, so that it shows: (1 - 1) / 0.5.
    assert preprocess._apply(lambda buffer: buffer * 2) is preprocess
    assert preprocess.prepare_obs(raw, ["gripper"])["gripper"].item() == 0.0
    assert preprocess.to("cpu") is preprocess


def test_one_number_that_is_scaled_is_enough_for_a_normalization():
    scaled = (torch.zeros(2), torch.tensor([1.0, 4.0]))
    preprocess = Preprocess({"a": (2,)}, {"a": "low_dim"}, {"u": 2}, {"a": scaled}, {"u": scaled})
    assert preprocess.prepare_obs({"a": np.array([2.0, 8.0])})["a"].tolist() == [2.0, 2.0]
    assert preprocess.normalize_actions(torch.tensor([2.0, 8.0])).tolist() == [2.0, 2.0]


def test_without_keys_there_is_nothing_to_normalize():
    preprocess = Preprocess({}, {}, {})
    assert [preprocess.offset.numel(), preprocess.action_scale.numel()] == [0, 0]
    assert preprocess.prepare_obs({"a": np.ones(3)}) == {}


@pytest.mark.parametrize("others", [torch.ones(1, 2), np.ones((1, 2))], ids=["tensor", "array"])
def test_gradients_reach_raw_tensors(others):
    modalities = {"a": "low_dim", "b": "low_dim"}
    scale = {"a": (torch.zeros(1), torch.tensor([4.0]))}
    preprocess = Preprocess({"a": (1,), "b": (2,)}, modalities, {}, scale)
    a = torch.ones(1, 1, requires_grad=True)
    preprocess.prepare_obs({"a": a, "b": others})["a"].sum().backward()
    assert a.grad.tolist() == [[0.25]]
