"""Training on features of frozen encoders: as on images, computed once, and only where that is right."""

import io

import numpy as np
import pytest
import torch

from imitate.data import DatasetWriter, Episode
from imitate.data.batches.feature_cache import features_folder
from imitate.models.vit import VC1
from imitate.policy.checkpoint import load_checkpoint
from imitate.policy.loading import policy_from_checkpoint
from imitate.train import measured
from imitate.train.trainer import train

from .conftest import config_dict, env_meta

SIDE, STEPS, DEMOS = 24, 8, 5
TRUNK = {"width": 24, "depth": 1, "heads": 2, "patch": 8, "image_size": 16}


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    path = tmp_path_factory.mktemp("demos") / "a.hdf5"
    random = np.random.default_rng(0)
    with DatasetWriter(path, env_meta()) as writer:
        for _ in range(DEMOS):
            images = random.integers(0, 255, (STEPS, SIDE, SIDE, 3))
            writer.append_episode(
                Episode(
                    obs={
                        "pos": random.uniform(-1, 1, (STEPS, 2)),
                        "camera": images.astype(np.uint8),
                    },
                    actions=random.uniform(-1, 1, (STEPS, 2)),
                    rewards=np.zeros(STEPS),
                    terminals=np.zeros(STEPS),
                    timeouts=np.arange(STEPS) == STEPS - 1,
                )
            )
        writer.add_filter_key("train", [f"demo_{n}" for n in range(DEMOS - 1)])
        writer.add_filter_key("valid", [f"demo_{DEMOS - 1}"])
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("weights") / "w.pth"
    torch.save(VC1(**TRUNK).state_dict(), path)
    return path


def run(demos, weights, folder, *, encoder=None, trunk=None, tree=None, **settings):
    """Train three steps; return the networks' weights, the run's lines and its result."""
    chosen = config_dict(
        demos,
        train={
            "num_epochs": 1,
            "batch_size": 4,
            "hdf5_validation_filter_key": "valid",
            **settings,
        },
        experiment={"epoch_every_n_steps": 3, "validate": True},
    )
    core = {
        "backbone_class": "VC1",
        "backbone_kwargs": {**TRUNK, "pretrained": str(weights), "freeze": True, **(trunk or {})},
        "pool_class": "SpatialMeanPool",
        "feature_dimension": 8,
    }
    chosen["observation"] = {
        "modalities": {"obs": {"low_dim": ["pos"], "rgb": ["camera"]}},
        "encoder": {"rgb": {"core_class": "VisualCore", "core_kwargs": core, **(encoder or {})}},
    }
    chosen.update(tree or {})
    stream = io.StringIO()
    result = train(chosen, output_dir=folder, stream=stream)
    assert result.exit_code == 0
    nets = load_checkpoint(result.checkpoint)["model"]["nets"]
    return nets, stream.getvalue().splitlines(), result


def close(first, second):
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=2e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize("pool", ["SpatialMeanPool", "QueryPool", None])
def test_weights_are_those_of_training_on_images(pool, demos, weights, tmp_path):
    encoder = {
        "core_kwargs": {
            "backbone_class": "VC1",
            "backbone_kwargs": {**TRUNK, "pretrained": str(weights), "freeze": True},
            "pool_class": pool,
            "feature_dimension": 8,
        }
    }
    nets, said, on_images = run(
        demos, weights, tmp_path / "a", encoder=encoder, cache_features=False
    )
    assert not any("features" in line for line in said)
    cached, said, on_features = run(demos, weights, tmp_path / "b", encoder=encoder)
    assert sum("obs/camera: features were computed once into" in line for line in said) == 1
    for name in ("train_loss", "valid_loss"):
        expected = on_images.results[name]
        assert on_features.results[name] == pytest.approx(expected, rel=1e-3)
    if pool == "SpatialMeanPool":  # Adam makes large steps of the rounding of gradients that are 0
        close(nets, cached)
    (file,) = features_folder().glob("*.features")
    cells = 1 if pool == "SpatialMeanPool" else 4
    assert file.stat().st_size == 4 * STEPS * 2 * 24 * cells


def test_a_second_training_reads_them_and_other_weights_make_others(demos, weights, tmp_path):
    first, _, result = run(demos, weights, tmp_path / "a")
    files = {file: file.stat().st_ino for file in features_folder().glob("*.features")}
    again, said, _ = run(demos, weights, tmp_path / "b")
    assert sum("obs/camera: features are read from" in line for line in said) == 1
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert {file: file.stat().st_ino for file in features_folder().glob("*.features")} == files
    other = tmp_path / "other.pth"
    torch.save({n: v + 0.1 for n, v in VC1(**TRUNK).state_dict().items()}, other)
    _, said, _ = run(demos, other, tmp_path / "c")
    assert sum("features were computed once" in line for line in said) == 1
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
    core = {
        "backbone_class": "ResNet18Conv",
        "backbone_kwargs": {"freeze": True},
        "pool_class": "SpatialSoftmax",
        "pool_kwargs": {"num_kp": 4},
    }
    with pytest.warns(UserWarning, match="they stay random"):
        nets, said, _ = run(demos, weights, tmp_path / "a", encoder={"core_kwargs": core})
    assert any("features were computed once" in line for line in said)
    counts = [value for name, value in nets.items() if name.endswith("num_batches_tracked")]
    assert counts
    assert all(int(count) == 0 for count in counts)


@pytest.mark.parametrize(
    ("encoder", "trunk", "words"),
    [
        (
            {
                "obs_randomizer_class": "CropRandomizer",
                "obs_randomizer_kwargs": {"crop_height": 20, "crop_width": 20},
            },
            {},
            "obs_randomizer_class changes images at random",
        ),
        ({}, {"freeze": False}, None),
    ],
)
def test_images_stay_where_features_would_be_wrong(encoder, trunk, words, demos, weights, tmp_path):
    _, said, _ = run(demos, weights, tmp_path / "a", encoder=encoder, trunk=trunk)
    lines = [line for line in said if "camera: features" in line]
    assert not features_folder().exists()
    assert (words is None) == (not lines)
    assert words is None or words in lines[0]


def test_networks_with_different_frozen_weights_see_images(demos, weights, tmp_path):
    tree = {"algo_name": "iql", "algo": {}}
    with pytest.warns(UserWarning, match="they stay random"):
        _, said, _ = run(
            demos, weights, tmp_path / "a", trunk={"pretrained": False}, tree=tree, obs_clip=None
        )
    assert any("its networks have different frozen weights" in line for line in said)


@pytest.mark.parametrize(
    ("algo", "section"),
    [
        ("iql", {}),
        (
            "diffusion_policy",
            {"unet": {"enabled": True, "down_dims": [8], "diffusion_step_embed_dim": 8}},
        ),
        (
            "act",
            {
                "transformer": {"embed_dim": 16, "num_heads": 2, "decoder_layers": 1},
                "chunk": {"size": 4, "execute": 4},
            },
        ),
    ],
)
def test_other_algorithms_learn_from_features(algo, section, demos, weights, tmp_path):
    tree = {"algo_name": algo, "algo": section}
    nets, said, _ = run(demos, weights, tmp_path / "a", tree=tree)
    assert any("features were computed once" in line for line in said)
    assert all(torch.isfinite(value.float()).all() for value in nets.values())


def test_goals_are_features_too(demos, weights, tmp_path):
    def loss(name, cached):
        camera = {"rgb": ["camera"]}
        core = {
            "backbone_class": "VC1",
            "backbone_kwargs": {**TRUNK, "pretrained": str(weights), "freeze": True},
            "pool_class": None,
        }
        observation = {
            "modalities": {"obs": {**camera, "low_dim": ["pos"]}, "goal": camera},
            "encoder": {"rgb": {"core_class": "VisualCore", "core_kwargs": core}},
        }
        _, said, result = run(
            demos,
            weights,
            tmp_path / name,
            tree={"observation": observation},
            goal_mode="last",
            cache_features=cached,
        )
        assert any("features were computed once" in line for line in said) == cached
        return result.results["train_loss"]

    assert loss("a", True) == pytest.approx(loss("b", False), rel=1e-3)


@pytest.mark.parametrize("cache_features", [True, False])
def test_measured_updates_see_features_where_those_of_the_run_do(
    demos, weights, tmp_path, monkeypatch, cache_features
):
    monkeypatch.setattr(measured, "has_fast_bf16", lambda device: True)
    seen = []

    def pretend(trial, batch, candidates, clock):
        seen.append(tuple(batch["obs"]["camera"].shape))
        trial.train_on_batch(batch, 1)
        return dict.fromkeys(candidates, 1.0)

    monkeypatch.setattr(measured, "update_seconds", pretend)
    run(demos, weights, tmp_path, precision="auto", cache_features=cache_features)
    image, features = (3, SIDE, SIDE), (TRUNK["width"], 1, 1)
    assert [shape[-3:] for shape in seen] == [features if cache_features else image]
