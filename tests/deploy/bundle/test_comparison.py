"""Comparison of bundle and policy: observations in the range of the data, and both acting the same steps."""

import types

import h5py
import numpy as np
import pytest
import torch

from imitate.deploy.bundle.exporting import (
    SameNoise,
    compare,
    demonstrated_observations,
    random_observations,
)
from imitate.deploy.bundle.network import TOLERANCE, NoiseSource
from imitate.deploy.bundle.spec import Noise
from imitate.errors import BundleError, DatasetError
from tests.refusals import refused
from tests.tiny import tiny_demos

OFFSET, SCALE = np.array([5.0, -3.0]), np.array([0.1, 0.2])


def policy(shapes, goals=(), instructions=None):
    """A policy with these raw shapes, whose kinds are in their names."""
    modalities = {key: {"image": "rgb", "deep": "depth"}.get(key, "low_dim") for key in shapes}
    statistics = {key: {"offset": OFFSET, "scale": SCALE} for key in shapes}
    preprocess = types.SimpleNamespace(
        raw_shapes=shapes, modalities=modalities, to_dict=lambda: {"obs": statistics}
    )
    algo = types.SimpleNamespace(
        preprocess=preprocess, obs_shapes=shapes, goal_shapes={key: shapes[key] for key in goals}
    )
    return types.SimpleNamespace(
        algo=algo, instructions=instructions, goal_keys=goals, obs_keys=tuple(shapes)
    )


LANG = types.SimpleNamespace(names=("lift", "place"), vectors=np.array([[1.0, 2.0], [3.0, 4.0]]))
SHAPES = {"image": (4, 5, 3), "deep": (4, 5, 1), "pose": (2,), "more": (3,), "lang_emb": (2,)}


def test_random_observations_in_the_range_of_the_data():
    found = random_observations(policy(SHAPES, ("pose",), LANG), 300, seed=3)
    assert len(found) == 300 and found[0]["goal"].keys() == {"pose"}
    seen = {key: np.array([each["obs"][key] for each in found]) for key in SHAPES}
    assert seen["image"].dtype == np.uint8 and seen["deep"].dtype == np.float32
    assert (seen["image"].min(), seen["image"].max()) == (0, 255)
    assert 0.0 <= seen["deep"].min() < 0.01 and 0.99 < seen["deep"].max() < 1.0
    np.testing.assert_allclose(seen["pose"].mean(0), OFFSET, atol=0.05)
    np.testing.assert_allclose(seen["pose"].std(0), SCALE, rtol=0.15)
    np.testing.assert_allclose(seen["more"].std(0), 1.0, rtol=0.15)  # other statistics
    assert (seen["lang_emb"] == [1.0, 2.0]).all()
    again, other = (random_observations(policy(SHAPES), 1, seed)[0]["obs"] for seed in (3, 4))
    np.testing.assert_array_equal(again["image"], found[0]["obs"]["image"])
    assert not np.array_equal(again["image"], other["image"])
    assert not (again["lang_emb"] == [1.0, 2.0]).all()  # without instructions an observation


def test_demonstrated_observations_have_types_of_bundles(tmp_path):
    path = tiny_demos(tmp_path / "a.hdf5", {"pose": 2}, num_demos=2, length=9)
    kinds = {"bytes": np.uint8, "ints": np.int16, "flags": bool, "floats": np.float64}
    with h5py.File(path, "a") as file:
        for key, kind in kinds.items():
            file[f"data/demo_0/obs/{key}"] = np.arange(18).reshape(9, 2).astype(kind)
    shapes = dict.fromkeys(kinds, (2,))
    found = demonstrated_observations(policy(shapes, instructions=LANG), path, 3)
    assert [each["obs"]["ints"].tolist() for each in found] == [[0, 1], [8, 9], [16, 17]]
    assert {key: str(found[0]["obs"][key].dtype) for key in kinds} == {
        "bytes": "uint8",
        "ints": "int64",
        "flags": "int64",
        "floats": "float32",
    }
    assert [each["goal"] for each in found] == [{}] * 3
    assert all(each["obs"]["lang_emb"].tolist() == [1.0, 2.0] for each in found)
    with refused("the policy needs goals|omit --dataset", error=BundleError):
        demonstrated_observations(policy(shapes, ("ints",)), path, 3)
    empty = tiny_demos(tmp_path / "b.hdf5", {"pose": 2}, num_demos=1, length=9)
    with h5py.File(empty, "a") as file:
        del file["data/demo_0"]
    with refused("the demos have no steps", error=DatasetError):
        demonstrated_observations(policy({"pose": (2,)}), empty, 3)


class Actor:
    """Acts by its noise, and notes its calls."""

    def __init__(self, error=0.0, bias_from=None):
        self.calls, self.obs, self.error, self.bias_from = [], [], error, bias_from
        self.algo = policy({"pose": (2,)}).algo
        self.obs_keys, self.goal_keys, self.instructions = ("pose",), (), LANG

    def seed(self, seed):
        self.calls.append(("seed", seed))

    def start_episode(self, lang):
        self.calls.append(("start", lang))

    def cut_plan(self):
        self.calls.append(("cut", len(self.obs)))

    def __call__(self, obs, goal):
        assert goal is None and list(obs) == ["pose"]
        self.obs.append(obs["pose"])
        late = self.bias_from is not None and len(self.obs) > self.bias_from
        return np.array([0.1, 4.0]) + [0.0, self.error if self.bias_from is None or late else 0.0]


SPEC = types.SimpleNamespace(execution=None, noise=Noise(normal=0, exponential=0))


@pytest.mark.parametrize(("execute", "steps"), [(None, 24), (8, 24), (10, 24), (11, 26)])
def test_both_act_in_two_episodes(execute, steps):
    execution = None if execute is None else types.SimpleNamespace(execute=execute)
    spec = types.SimpleNamespace(execution=execution, noise=SPEC.noise)
    own, bundle = Actor(), Actor(error=2e-5)
    found, largest = compare(own, bundle, spec)
    assert found == 2 * steps == len(own.obs)
    assert largest == pytest.approx(2e-5 / 4)  # relative to 4, and absolute below 1
    cuts = [("cut", steps * episode + 2 * steps // 3 + 1) for episode in (0, 1)]
    wanted = [("start", "place"), cuts[0], ("start", "lift"), cuts[1]]
    assert own.calls == wanted and bundle.calls == [("seed", 7), *wanted]
    np.testing.assert_array_equal(own.obs, bundle.obs)
    first, second = (random_observations(own, steps, seed)[0]["obs"]["pose"] for seed in (2, 3))
    np.testing.assert_array_equal(own.obs[0], first)
    np.testing.assert_array_equal(own.obs[steps], second)


@pytest.mark.parametrize("error", [4.0 * TOLERANCE * 1.01, np.nan])
def test_a_difference_is_refused(error):
    compare(Actor(), Actor(error=4.0 * TOLERANCE * 0.99), SPEC)
    with refused("acts differently from the policy in step 5 of an episode", error=BundleError):
        compare(Actor(), Actor(error=error, bias_from=5), SPEC)


def test_the_policy_draws_the_noise_of_the_bundle():
    noise = SameNoise(Noise(normal=3, exponential=2), 7)
    first = [noise("normal", (3,)), noise("exponential", (2,))]
    second = [noise("normal", (3,)), noise("exponential", (2,))]
    drawn = NoiseSource(Noise(normal=3, exponential=2), 7)
    for found in (first, second):
        wanted = [torch.from_numpy(value) for value in drawn.draw().values()]
        for mine, theirs in zip(found, wanted, strict=True):
            assert torch.equal(mine, theirs)
