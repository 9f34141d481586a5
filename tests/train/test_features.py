"""Training on features of frozen encoders: as on images, computed once, and only where that is right."""

import io

import numpy as np
import pytest
import torch

from imitate.models.vit import VC1
from imitate.policy.loading import policy_from_checkpoint
from imitate.train.features import features_folder
from imitate.train.trainer import train
from tests.demo_files import episode, write_demos
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
