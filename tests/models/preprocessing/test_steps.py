"""Steps of the pipeline: values by hand, inverses, saving, errors."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imitate.errors import ConfigError, UserError
from imitate.models.fitting import MeasuredStats
from imitate.models.key_encoder import TokenCore
from imitate.models.preprocess import Preprocess
from imitate.models.preprocessing.measuring import Sample
from imitate.models.preprocessing.step import PreprocessStep
from imitate.models.preprocessing.steps import STEPS

SHAPES = {"pos": (3,), "grip": (2,), "camera": (4, 6, 3), "text": (8,)}
MODALITIES = {"pos": "low_dim", "grip": "low_dim", "camera": "rgb", "text": "low_dim"}
AFFINE = {"pos": (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 4.0]))}
ACTION = {"arm": (torch.full((3,), 0.5), torch.full((3,), 2.0))}


def pipeline(*steps, obs_clip=None):
    dims = {"arm": 3, "hand": 1}
    return Preprocess(SHAPES, MODALITIES, dims, AFFINE, ACTION, obs_clip, steps=steps)


RELATIVE = {"step": "relative_actions", "action": "arm", "observation": "pos"}
INVERTIBLE = [
    [RELATIVE],
    [{**RELATIVE, "dims": [2, 0], "observation_dims": [0, 1]}],
    [{**RELATIVE, "action": "hand", "dims": [0], "observation_dims": [2]}],
    [{"step": "pad", "dim": 6}, {"step": "pad", "dim": 5, "observation": "pos"}],
    [RELATIVE, {"step": "normalize"}, {"step": "pad", "dim": 9}],
]
numbers = st.floats(-10, 10, width=32)


@pytest.mark.parametrize("steps", INVERTIBLE, ids=str)
@given(pos=st.lists(numbers, min_size=3, max_size=3), seed=st.integers(0, 99))
def test_actions_and_observations_come_back(steps, pos, seed):
    chosen = pipeline(*steps)
    obs = chosen.prepare_obs({"pos": np.array([pos])}, ["pos"])
    actions = torch.rand(1, 5, 4, generator=torch.Generator().manual_seed(seed))
    learned = chosen.normalize_actions(actions, obs)
    assert learned.shape == (1, 5, chosen.action_dim)
    again = chosen.unnormalize_actions(learned, obs)
    torch.testing.assert_close(again, actions, atol=1e-4, rtol=1e-4)
    back = chosen.unnormalize_obs("pos", obs["pos"])
    torch.testing.assert_close(back, torch.tensor([pos]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(chosen.normalize_obs("pos", back), obs["pos"], atol=1e-4, rtol=1e-4)


def test_relative_actions_by_hand():
    chosen = pipeline({**RELATIVE, "dims": [2, 0], "observation_dims": [0, 1]})
    obs = chosen.prepare_obs({"pos": np.array([10.0, 20.0, 30.0])}, ["pos"])
    learned = chosen.normalize_actions(torch.tensor([[21.5, 7.0, 12.5, 4.0]]), obs)
    # (21.5 - 20 - 0.5) / 2, (7 - 0.5) / 2, (12.5 - 10 - 0.5) / 2; the hand is as it was
    assert learned.tolist() == [[0.5, 3.25, 1.0, 4.0]]
    other = chosen.prepare_obs({"pos": np.array([12.0, 16.0, 30.0])}, ["pos"])
    assert chosen.rebase_actions(learned, obs, other).tolist() == [[2.5, 3.25, 0.0, 4.0]]
    with pytest.raises(UserError, match="'relative_actions': actions are relative to .*'pos'"):
        chosen.normalize_actions(torch.zeros(1, 4))


def test_resized_images_by_hand():
    image = np.zeros((2, 4, 6, 3), np.uint8)
    image[:, :2], image[:, 2:] = 255, 51
    small = pipeline({"step": "resize", "size": [2, 3]})
    assert small.obs_shapes["camera"] == (3, 2, 3)
    prepared = small.prepare_obs({"camera": image}, ["camera"])["camera"]
    assert prepared.shape == (2, 3, 2, 3)
    # Weights of a triangle over the rows, cut at the edge: 1 and 0.2 in the parts 6/7 and 1/7.
    rows = prepared[0, 0, :, 0]
    torch.testing.assert_close(rows, torch.tensor([6.2 / 7, 2.2 / 7]), atol=1e-3, rtol=0)
    plain = pipeline({"step": "resize", "size": [2, 3], "antialias": False})
    rows = plain.prepare_obs({"camera": image}, ["camera"])["camera"][0, 0, :, 0]
    torch.testing.assert_close(rows, torch.tensor([1.0, 0.2]))


def test_padding_is_zero_behind_the_normalized_numbers():
    chosen = pipeline({"step": "pad", "dim": 5, "observation": "pos"})
    prepared = chosen.prepare_obs({"pos": np.array([3.0, 2.0, 7.0])}, ["pos"])["pos"]
    assert prepared.tolist() == [1.0, 0.0, 1.0, 0.0, 0.0]


def test_limits():
    chosen = pipeline({"step": "normalize"}, {"step": "clip", "limit": 1, "actions": True})
    obs = chosen.prepare_obs(
        {"pos": np.array([9.0, 2.0, -9.0]), "grip": np.array([7.0, 0.5])}, ["pos", "grip"]
    )
    assert (obs["pos"].tolist(), obs["grip"].tolist()) == ([1.0, 0.0, -1.0], [1.0, 0.5])
    learned = chosen.normalize_actions(torch.tensor([[9.0, 0.5, 0.5, -4.0]]))
    sent = chosen.unnormalize_actions(torch.tensor([[2.0, 0, 0, 3.0]]))
    assert (learned.tolist(), sent.tolist()) == ([[1, 0, 0, -1]], [[4.5, 0.5, 0.5, 3]])


def test_tokens_are_neither_normalized_nor_clipped():
    chosen = pipeline({"step": "tokenize", "observation": "text", "length": 3}, obs_clip=1.0)
    raw = np.frombuffer(b"Up, up!\0", np.uint8).copy()
    tokens = chosen.prepare_obs({"text": np.stack([raw, 0 * raw])}, ["text"])["text"]
    assert tokens[0, 0] == tokens[0, 1] > 1  # a word has one token
    assert (tokens[0, 2], tokens[1].tolist()) == (0, [0, 0, 0])


def test_padded_tokens_do_not_count():
    core = TokenCore((4,), vocabulary=8, dim=3)
    vectors = core.vectors.weight
    mean = core(torch.tensor([[5.0, 2.0, 0.0, 0.0], [5.0, 0.0, 0.0, 0.0]]))
    torch.testing.assert_close(mean[0], (vectors[5] + vectors[2]) / 2)
    torch.testing.assert_close(mean[1], vectors[5])


@pytest.mark.parametrize("steps", [*INVERTIBLE, [{"step": "resize", "size": [2, 3]}]], ids=str)
def test_saved_and_loaded_it_is_the_same(steps):
    first = pipeline(*steps)
    saved = first.to_dict()
    assert saved["version"] == 2
    json.dumps(saved["steps"])
    second = Preprocess.from_dict(saved)
    raw = {key: np.random.default_rng(0).uniform(0, 1, (2, *SHAPES[key])) for key in SHAPES}
    obs = first.prepare_obs(raw)
    for key, value in second.prepare_obs(raw).items():
        assert torch.equal(value, obs[key])
    actions = torch.rand(2, 4)
    learned = (each.normalize_actions(actions, obs) for each in (first, second))
    assert torch.equal(*learned)


def test_a_later_version_is_refused():
    with pytest.raises(
        UserError, match="saved in version 3, but this imitate reads versions up to 2"
    ):
        Preprocess.from_dict({**pipeline().to_dict(), "version": 3})


NORMALIZE, PAD = {"step": "normalize"}, {"step": "pad"}
RESIZE, CLIP = {"step": "resize"}, {"step": "clip"}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"step": "resiz", "size": [2, 2]}], "preprocess.0.step: unknown 'resiz'; did you mean 'resize'"),
        ([PAD | {"dims": 3}], "preprocess.0.dims: step 'pad' has no such key; did you mean 'dim'"),
        ([RESIZE], "step 'resize' cannot be made.*size"),
        ([RESIZE | {"size": [2]}], r"resize: size is \[2\]; expected \[height, width\]"),
        ([RESIZE | {"size": [2, 2], "observations": ["pos"]}], "'pos' is low_dim; expected one of rgb"),
        ([PAD | {"dim": 2, "observation": "pos"}], "pad: dim is 2, but observation 'pos' has 3"),
        ([PAD | {"dim": 9}, NORMALIZE], "move it after the entry 'normalize'"),
        ([NORMALIZE, RELATIVE], "move it before the entry 'normalize'"),
        ([NORMALIZE, NORMALIZE], "expected .* once"),
        ([RELATIVE | {"observation": "poz"}], "there is no observation 'poz'; did you mean 'pos'"),
        ([RELATIVE | {"action": "arms"}], "action is 'arms'; expected a key of train.action_keys"),
        ([RELATIVE | {"dims": [0, 3]}], r"dims is \[0, 3\], but action 'arm' has 3 numbers"),
        ([RELATIVE, CLIP | {"limit": 1}], "'clip' does not keep its values"),
        ([CLIP | {"limit": 0}], "clip: limit is 0; expected more than 0"),
        ([{"step": "tokenize", "observation": "camera"}], "'camera' is rgb of shape"),
    ],
)  # fmt: skip
def test_errors_name_step_key_and_values(steps, message):
    with pytest.raises(ConfigError, match=message):
        pipeline(*steps)


def test_scans_that_a_step_has_changed_are_normalized_in_their_own_layout(monkeypatch):
    class Double(PreprocessStep):
        def acts_on(self, key):
            return key == "lidar"

        def forward_obs(self, key, value):
            return 2 * value

    monkeypatch.setitem(STEPS, "double", Double)
    scans = torch.tensor([[[0.0, 10.0], [1.0, 20.0], [2.0, 30.0]]]).repeat(4, 1, 1)  # (L, C)
    scans[::2] += 4.0
    sample = Sample({"lidar": scans[:, None]}, torch.zeros(4, 1, 1), {}, torch.ones(4, 1).bool())
    layout, known = ({"lidar": (3, 2)}, {"lidar": "scan"}, {"arm": 1}), MeasuredStats.of(scans)
    more = {"steps": [{"step": "double"}], "samples": lambda keys: [sample]}
    prepare = Preprocess.from_statistics(*layout, {"obs": {"lidar": known}}, "mean_std", **more)
    # Each number of the doubled scans is its mean +- 4.
    wanted = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None, None].expand(4, 2, 3)
    torch.testing.assert_close(prepare.prepare_obs({"lidar": scans})["lidar"], wanted)


# ---- observations without jumps ------------------------------------------------------------------


def continuous():
    """A quaternion, and a vector of a height and two angles."""
    steps = [
        {"step": "observed_rotation_6d", "observation": "quat"},
        {"step": "sin_cos", "observation": "arm", "dims": [1, 2]},
    ]
    modalities = {"quat": "low_dim", "arm": "low_dim"}
    return Preprocess({"quat": (4,), "arm": (3,)}, modalities, {"actions": 2}, steps=steps)


def test_a_rotation_and_angles_are_seen_without_jumps_and_saved():
    made = continuous()
    assert made.obs_shapes == {"quat": (6,), "arm": (5,)}
    saved = Preprocess.from_dict(made.to_dict())
    half = np.sqrt(0.5)
    raw = {
        "quat": np.array([[0, 0, half, half], [0, 0, -half, -half]], dtype=np.float32),
        "arm": np.array([[0.3, np.pi - 0.01, 0.5], [0.3, 0.01 - np.pi, 0.5]], dtype=np.float32),
    }
    for pipeline_ in (made, saved):
        seen = pipeline_.prepare_obs(raw)
        quarter = [0, -1, 0, 1, 0, 0]  # the first two rows of a quarter turn about z
        np.testing.assert_allclose(seen["quat"], [quarter, quarter], atol=1e-6)
        sines = [0.3, 0.01, np.sin(0.5), -1, np.cos(0.5)]
        np.testing.assert_allclose(seen["arm"], [sines, [0.3, -0.01, *sines[2:]]], atol=1e-4)
        back = pipeline_.unnormalize_obs("arm", seen["arm"])
        np.testing.assert_allclose(back, raw["arm"], atol=1e-5)
        np.testing.assert_allclose(
            pipeline_.unnormalize_obs("quat", seen["quat"]), raw["quat"][[0, 0]], atol=1e-6
        )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"step": "observed_rotation_6d", "observation": "arm"}, "expected the 4 of the form"),
        ({"step": "observed_rotation_6d", "observation": "quat", "form": "x"}, "form is 'x'"),
        ({"step": "sin_cos", "observation": "arm", "dims": [0, 2]}, "consecutive indices"),
        ({"step": "sin_cos", "observation": "arm", "dims": [3]}, "consecutive indices of the 3"),
        ({"step": "sin_cos", "observation": "leg"}, "'leg'"),
    ],
)
def test_dims_that_an_observation_does_not_have(step, words):
    modalities = {"quat": "low_dim", "arm": "low_dim"}
    with pytest.raises(ConfigError, match=words):
        Preprocess({"quat": (4,), "arm": (3,)}, modalities, {"actions": 2}, steps=[step])
