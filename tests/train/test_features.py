"""Training on features of frozen encoders: as on images, computed once, and only where that is right."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imitate.models.vit import VC1
from imitate.policy.loading import policy_from_checkpoint
from imitate.train import features as module
from imitate.train.features import NoRoomError, StoppedError, features_folder, features_once
from imitate.train.trainer import train
from tests.demo_files import episode, write_demos
from tests.refusals import refused
from tests.tiny import tiny_tree

from .conftest import env_meta, last

SIDE, STEPS, DEMOS = 24, 8, 5
TRUNK = {"width": 24, "depth": 1, "heads": 2, "patch": 8, "image_size": 16}


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    random = np.random.default_rng(0)

    def demonstration():
        images = random.integers(0, 255, (STEPS, SIDE, SIDE, 3)).astype(np.uint8)
        obs = {"pos": random.uniform(-1, 1, (STEPS, 2)), "camera": images}
        return episode(STEPS, obs, random.uniform(-1, 1, (STEPS, 2)), "timeout")

    made = [demonstration() for _ in range(DEMOS)]
    masks = {"train": range(DEMOS - 1), "valid": [DEMOS - 1]}
    return write_demos(tmp_path_factory.mktemp("demos") / "a.hdf5", made, env_meta(), masks)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("weights") / "w.pth"
    torch.save(VC1(**TRUNK).state_dict(), path)
    return path


def trunk_of(weights, **more):
    return {**TRUNK, "pretrained": str(weights), "freeze": True, **more}


def run(
    demos, weights, folder, name="bc", *, core=None, trunk=None, encoder=(), goal=(), **settings
):
    """Train three steps; return the networks' weights, the run's lines and its result."""
    kwargs = {
        "backbone_class": "VC1",
        "backbone_kwargs": trunk_of(weights, **(trunk or {})),
        "pool_class": "SpatialMeanPool",
        "feature_dimension": 8,
        **(core or {}),
    }
    rgb = {"core_class": "VisualCore", "core_kwargs": kwargs, **dict(encoder)}
    modalities = {"goal": {"rgb": list(goal)}} if goal else {}
    tree = tiny_tree(
        name,
        obs={"pos": 2, "camera": (3, SIDE, SIDE)},
        data=demos,
        experiment={"epoch_every_n_steps": 3, "validate": True},
        train={
            **{"num_epochs": 1, "batch_size": 4, "hdf5_validation_filter_key": "valid"},
            **settings,
        },
        observation={"modalities": modalities, "encoder": {"rgb": rgb}},
    )
    stream = io.StringIO()
    result = train(tree, output_dir=folder, stream=stream)
    assert result.exit_code == 0
    return last(result)["model"]["nets"], stream.getvalue().splitlines(), result


def count(said, words):
    return sum(words in line for line in said)


QUERIES = pytest.param("QueryPool", marks=pytest.mark.nightly)


@pytest.mark.parametrize("pool", ["SpatialMeanPool", None, QUERIES])
def test_weights_are_those_of_training_on_images(pool, demos, weights, tmp_path):
    core = {"pool_class": pool}
    nets, said, on_images = run(demos, weights, tmp_path / "a", core=core, cache_features=False)
    assert count(said, "features") == 0
    cached, said, on_features = run(demos, weights, tmp_path / "b", core=core)
    assert count(said, "obs/camera: features were computed once into") == 1
    for name in ("train_loss", "valid_loss"):
        expected = on_images.results[name]
        assert on_features.results[name] == pytest.approx(expected, rel=1e-3)
    if pool == "SpatialMeanPool":  # Adam makes large steps of the rounding of gradients that are 0
        torch.testing.assert_close(nets, cached, atol=2e-4, rtol=1e-3)
    (file,) = features_folder().glob("*.features")
    cells = 1 if pool == "SpatialMeanPool" else 4
    assert file.stat().st_size == 4 * STEPS * 2 * 24 * cells


def test_a_second_training_reads_them_and_other_weights_make_others(demos, weights, tmp_path):
    first, _, result = run(demos, weights, tmp_path / "a")
    files = {file: file.stat().st_ino for file in features_folder().glob("*.features")}
    again, said, _ = run(demos, weights, tmp_path / "b")
    assert count(said, "obs/camera: features are read from") == 1
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert {file: file.stat().st_ino for file in features_folder().glob("*.features")} == files
    other = tmp_path / "other.pth"
    torch.save({n: v + 0.1 for n, v in VC1(**TRUNK).state_dict().items()}, other)
    _, said, _ = run(demos, other, tmp_path / "c")
    assert count(said, "features were computed once") == 1
    policy = policy_from_checkpoint(ckpt_path=result.checkpoint)[0]
    policy.start_episode()
    image = np.zeros((SIDE, SIDE, 3), np.uint8)
    assert np.isfinite(policy({"pos": np.zeros(2), "camera": image})).all()


def test_resuming_needs_neither_the_file_nor_new_features(demos, weights, tmp_path):
    file = tmp_path / "w.pth"
    file.write_bytes(weights.read_bytes())
    _, _, result = run(demos, file, tmp_path / "a")
    file.unlink()
    stream = io.StringIO()
    train(resume=result.run_dir, overrides=["train.num_epochs=2"], stream=stream)
    assert "obs/camera: features are read from" in stream.getvalue()


def test_a_frozen_trunk_with_batch_norm_keeps_statistics(demos, weights, tmp_path):
    core = {"backbone_class": "ResNet18Conv", "backbone_kwargs": {"freeze": True}}
    with pytest.warns(UserWarning, match="they stay random"):
        nets, said, _ = run(demos, weights, tmp_path / "a", core=core)
    assert count(said, "features were computed once")
    counts = [value for name, value in nets.items() if name.endswith("num_batches_tracked")]
    assert counts
    assert all(int(count) == 0 for count in counts)


CROPS = {
    "obs_randomizer_class": "CropRandomizer",
    "obs_randomizer_kwargs": {"crop_height": 20, "crop_width": 20},
}


@pytest.mark.parametrize(
    ("encoder", "trunk", "words"),
    [(CROPS, {}, ["obs_randomizer_class changes images at random"]), ({}, {"freeze": False}, [])],
)
def test_images_stay_where_features_would_be_wrong(encoder, trunk, words, demos, weights, tmp_path):
    _, said, _ = run(demos, weights, tmp_path / "a", encoder=encoder, trunk=trunk)
    lines = [line for line in said if "camera: features" in line]
    assert not features_folder().exists()
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_networks_with_different_frozen_weights_see_images(demos, weights, tmp_path):
    trunk = {"pretrained": False}
    with pytest.warns(UserWarning, match="they stay random"):
        _, said, _ = run(demos, weights, tmp_path / "a", "iql", trunk=trunk, obs_clip=None)
    assert count(said, "its networks have different frozen weights")


RARELY = [pytest.param(name, marks=pytest.mark.nightly) for name in ("diffusion_policy", "act")]


@pytest.mark.parametrize("algo", ["iql", *RARELY])
def test_other_algorithms_learn_from_features(algo, demos, weights, tmp_path):
    nets, said, _ = run(demos, weights, tmp_path / "a", algo)
    assert count(said, "features were computed once")
    assert all(torch.isfinite(value.float()).all() for value in nets.values())


def test_goals_are_features_too(demos, weights, tmp_path):
    def loss(name, cached):
        words = {"core": {"pool_class": None}, "goal": ["camera"], "goal_mode": "last"}
        _, said, result = run(demos, weights, tmp_path / name, cache_features=cached, **words)
        assert bool(count(said, "features were computed once")) == cached
        return result.results["train_loss"]

    assert loss("a", True) == pytest.approx(loss("b", False), rel=1e-3)


# ---- the file of features ------------------------------------------------------------------------


class Rows:
    """Computes (n, 2n) for row n, and remembers how many rows it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, rows):
        self.asked.append((int(rows[0]), len(rows)))
        return np.stack([rows, 2 * rows], 1).astype(np.float32)


def test_features_are_computed_in_parts_and_then_read():
    compute = Rows()
    values, words = features_once("obs-a-1", 130, (2,), compute)
    path = features_folder() / "obs-a-1.features"
    assert compute.asked == [(0, 64), (64, 64), (128, 2)] and path.stat().st_size == 130 * 2 * 2
    assert values.dtype == torch.float16 and values[129].tolist() == [129.0, 258.0]
    assert words.startswith(f"features were computed once into {path} (")
    again, words = features_once("obs-a-1", 130, (2,), None)
    assert torch.equal(again, values) and words.startswith(f"features are read from {path} (")
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_computation_that_was_stopped_goes_on_at_whole_rows():
    compute, asks = Rows(), iter([False, False, True])
    with pytest.raises(StoppedError):
        features_once("obs-a-1", 130, (2,), compute, lambda: next(asks))
    partial = features_folder() / "obs-a-1.partial"
    assert partial.stat().st_size == 128 * 4
    with partial.open("ab") as file:
        file.write(b"abc")
    values, _ = features_once("obs-a-1", 130, (2,), compute)
    assert compute.asked[2:] == [(128, 2)]
    assert values[:, 1].tolist() == [2.0 * row for row in range(130)]


@pytest.mark.parametrize(
    ("largest", "fits"), [(65504.0, True), (-65504.0, True), (65520.0, False), (np.nan, False)]
)
def test_features_beyond_float16(largest, fits):
    def compute(rows):
        return np.full((len(rows), 1), largest, np.float32)

    if fits:
        assert features_once("obs-a-1", 2, (1,), compute)[0].flatten().tolist() == [largest] * 2
    else:
        with refused("features of obs-a: values up to|float16 holds up to 65504"):
            features_once("obs-a-1", 2, (1,), compute)


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
@pytest.mark.parametrize("what", ["limit", "disk"])
def test_there_must_be_room(monkeypatch, what, spare, fits):
    """130 rows of 4 bytes; 64 rows are there already."""
    asks = iter([False, True])
    with pytest.raises(StoppedError):
        features_once("obs-a-1", 130, (2,), Rows(), lambda: next(asks))
    old = features_folder() / "obs-b-1.features"
    old.write_bytes(b"1234")
    limit, free = (520 + spare, 10**12) if what == "limit" else (10**6, 10**9 + 66 * 4 + spare)
    monkeypatch.setattr(module, "limit_bytes", lambda: limit)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    if fits:
        features_once("obs-a-1", 130, (2,), Rows())
        assert old.exists() == (what == "disk")  # the least recently used one makes room
    else:
        words = "exceed the cache's limit" if what == "limit" else "are needed, but"
        with pytest.raises(NoRoomError, match=words):
            features_once("obs-a-1", 130, (2,), Rows())


def test_blank_features_have_the_shape_of_the_images_but_their_last_three_axes(monkeypatch):
    nets = {
        "far": [SimpleNamespace(frozen_shape=(4, 2))],
        "near": [SimpleNamespace(frozen_shape=(5,))],
        "open": [SimpleNamespace(frozen_shape=None)],
    }
    monkeypatch.setattr(module, "frozen_networks", lambda algo: nets)
    monkeypatch.setattr(
        module, "obstacle", lambda algo, key, nets, data: "no" if key == "near" else None
    )
    algo = SimpleNamespace(preprocess=SimpleNamespace(feature_shapes={}))
    images = torch.ones(3, 6, 8, 9, 1)
    raw = {
        "obs": {"far": images, "near": images, "open": images},
        "next_obs": None,
        "goal_obs": {"far": images[:, 0]},
    }
    module.put_blank_features(algo, None, raw)
    assert algo.preprocess.feature_shapes == {"far": (4, 2)}
    assert raw["obs"]["near"] is images and raw["obs"]["open"] is images
    for group, shape in (("obs", (3, 6, 4, 2)), ("goal_obs", (3, 4, 2))):
        blank = raw[group]["far"]
        assert (blank.shape, blank.dtype, bool(blank.any())) == (shape, torch.float16, False)
    assert raw["next_obs"] is None
