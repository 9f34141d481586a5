"""Configurations made for a file: each choice follows from it, and the result trains."""

import numpy as np
import pytest

from imitate.config import load_config
from imitate.config.from_data import num_epochs
from imitate.config.readiness import check_trainable
from imitate.config.ready_configs import names
from imitate.data import DatasetWriter
from imitate.data.formats.convert import convert
from imitate.errors import ConfigError
from imitate.models.resnet import ResNet18Conv
from imitate.train import first_config as module
from imitate.train import forecast as time_of_training
from imitate.train.first_config import first_config
from imitate.train.forecast import forecast
from tests.demo_files import make_demo_file


def own(path, steps=6, demos=4, image=(64, 48), scale=1.5, masks=True, type_=4, second=None):
    """Demonstrations of an arm of three joints, with a camera or two."""
    random = np.random.default_rng(0)
    with DatasetWriter(
        path, {"env_name": "arm", "type": type_, "env_kwargs": {}}, control_freq=10
    ) as writer:
        for number in range(demos):
            writer.start_episode()
            for _ in range(steps):
                obs = {"joint_pos": random.normal(size=3), "goal": random.normal(size=2)}
                for key, size in (("front_image", image), ("wrist_image", second)):
                    if size is not None:
                        obs[key] = random.integers(0, 256, (*size, 3), dtype=np.uint8)
                writer.append(obs=obs, action=scale * random.uniform(-1, 1, 3))
            writer.finish_episode(success=number > 0)
        if masks:
            names = [f"demo_{number}" for number in range(demos)]
            writer.add_filter_key("train", names[1:-1])
            writer.add_filter_key("valid", names[-1:])
    return path


@pytest.fixture
def path(tmp_path):
    return own(tmp_path / "pick.hdf5")


def reasons(made):
    return dict(made.reasons)


@pytest.mark.parametrize(
    "algorithm", ["bc", "bc_rnn_gmm", "flow_policy", "act", "diffusion_policy", "iql"]
)
def test_the_configuration_is_good(path, algorithm):
    made = first_config(path, algorithm)
    config = load_config(made.tree)
    check_trainable(config)
    assert config.experiment.name == "pick"
    assert config.train.data[0].path == str(path)
    assert config.observation.modality_of("obs") == {
        "goal": "low_dim",
        "joint_pos": "low_dim",
        "front_image": "rgb",
    }
    assert not config.experiment.rollout.enabled
    assert "$schema" not in made.tree


@pytest.mark.parametrize("algorithm", ["bc", "act", "flow_policy"])
def test_the_template_is_the_general_one(path, algorithm):
    words = reasons(first_config(path, algorithm, images="none"))["algorithm"]
    assert words.split(";")[0] == f"{algorithm}/{algorithm}"


def test_no_two_templates_have_the_same_name():
    general = [name.rpartition("/")[2] for name in names() if not name.startswith(module.OTHERS)]
    assert len(set(general)) == len(general)


def test_masks_of_the_file_are_used(path, tmp_path):
    train = load_config(first_config(path).tree).train
    assert (train.hdf5_filter_key, train.hdf5_validation_filter_key) == ("train", "valid")
    assert reasons(first_config(path))["data"].startswith(
        "2 of 4 demos (filter key 'train'), 12 steps; validated"
    )
    made = first_config(own(tmp_path / "plain.hdf5", masks=False))
    config = load_config(made.tree)
    assert config.train.hdf5_filter_key is None and not config.experiment.validate
    assert not config.experiment.save.on_best_validation
    assert (
        "4 of 4 demos, 24 steps; 1 of them failed: `imitate dataset filter" in reasons(made)["data"]
    )
    assert "imitate dataset split" in reasons(made)["data"]


def test_a_folder_of_lerobot_is_not_to_be_changed_in_place(tmp_path, monkeypatch):
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "cache"))
    file = own(tmp_path / "own.hdf5", masks=False)
    assert "--success --in-place`" in reasons(first_config(file))["data"]
    convert(file, tmp_path / "lr", to_format="lerobot")
    words = reasons(first_config(tmp_path / "lr", images="none"))["data"]
    assert "1 of them failed" in words and "--success --out NEW.hdf5`" in words
    assert "--in-place" not in words


def test_no_filter_is_proposed_where_every_demo_failed(tmp_path):
    made = first_config(own(tmp_path / "failed.hdf5", demos=1, masks=False))
    assert "none of them is marked as solved" in reasons(made)["data"]
    assert "dataset filter" not in reasons(made)["data"]


def test_actions_beyond_their_range_are_scaled(path, tmp_path):
    assert "scaled to [-1, 1]" in reasons(first_config(path))["actions"]
    within = own(tmp_path / "within.hdf5", scale=1.0)
    assert "taken as they are" in reasons(first_config(within))["actions"]
    assert load_config(first_config(path).tree).train.action_config.actions.normalization == "auto"


@pytest.mark.parametrize(
    ("gpu", "size", "backbone", "crop"),
    [
        (False, (64, 48), "ShallowConv", (58, 44)),
        (True, (96, 96), "ResNet18Conv", (86, 86)),
        (False, (32, 32), "ShallowConv", None),
    ],
)
def test_the_encoder_fits_image_and_hardware(tmp_path, monkeypatch, gpu, size, backbone, crop):
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: gpu)
    made = first_config(own(tmp_path / "a.hdf5", image=size))
    section = load_config(made.tree).observation.encoder.rgb
    assert section.core_kwargs.backbone_class == backbone
    kwargs = section.obs_randomizer_kwargs
    assert (crop is None) == (section.obs_randomizer_class is None)
    if crop is not None:
        assert (kwargs.crop_height, kwargs.crop_width) == crop
    assert backbone in reasons(made)["encoder"]


def test_cameras_of_two_sizes_have_two_encoders(tmp_path):
    encoder = load_config(
        first_config(own(tmp_path / "a.hdf5", second=(96, 96))).tree
    ).observation.encoder
    assert encoder["front_image"].obs_randomizer_kwargs.crop_height == 58
    assert encoder["wrist_image"].obs_randomizer_kwargs.crop_height == 86


def test_cameras_may_be_chosen(tmp_path):
    path = own(tmp_path / "a.hdf5", second=(96, 96))
    assert load_config(first_config(path, images="none").tree).observation.modalities.obs.rgb == ()
    made = first_config(path, images="wrist_image")
    assert load_config(made.tree).observation.modalities.obs.rgb == ("wrist_image",)
    assert "without front_image" in reasons(made)["images"]
    with pytest.raises(ConfigError, match="no colour images 'wrist', did you mean 'wrist_image'"):
        first_config(path, images="wrist")


def test_updates_follow_from_the_data(tmp_path):
    """Null where the template leaves them to the data; else at least what the template has."""
    path = own(tmp_path / "a.hdf5", image=None)
    made = first_config(path)
    train = load_config(made.tree).train
    assert (train.num_epochs, train.batch_size) == (None, 64)
    epochs = num_epochs(12, 64, module.EPOCH_STEPS)
    assert reasons(made)["updates"].startswith(f"{100 * epochs:,} of 64 samples, ")
    assert made.tree["experiment"]["save"]["every_n_epochs"] == epochs // 4
    assert load_config(first_config(path, "bc").tree).train.num_epochs == 40


def test_many_steps_have_more_updates_than_the_template(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "num_epochs", lambda samples, batch, steps: samples * batch)
    made = first_config(own(tmp_path / "a.hdf5", image=None), "bc")
    assert made.tree["train"]["num_epochs"] == 12 * 64


def test_rollouts_where_there_is_a_simulator(tmp_path, monkeypatch):
    path = own(tmp_path / "a.hdf5", type_=2, image=None)
    assert load_config(first_config(path).tree).experiment.rollout.enabled
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    made = first_config(path)
    assert not load_config(made.tree).experiment.rollout.enabled
    assert "'gymnasium' is not installed" in reasons(made)["rollouts"]


def test_robosuites_usual_observations(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    usual = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, "object": 10}
    path = make_demo_file(
        tmp_path / "lift.hdf5", obs_dims={**usual, "robot0_joint_vel": 7}, image=True
    )
    made = first_config(path, images="none")
    assert set(load_config(made.tree).observation.modalities.obs.low_dim) == set(usual)
    assert "without robot0_joint_vel" in reasons(made)["vectors"]
    assert "object" not in load_config(first_config(path).tree).observation.modalities.obs.low_dim


def test_an_algorithm_is_named_as_the_template_or_its_end(path):
    assert first_config(path, "bc/bc_rnn_gmm").tree == first_config(path, "bc_rnn_gmm").tree
    with pytest.raises(ConfigError, match="no algorithm 'act/bc_rnn_gmm' "):
        first_config(path, "act/bc_rnn_gmm")


def test_rate_and_unknown_algorithm(path):
    assert reasons(first_config(path))["control rate"].startswith("10 Hz")
    with pytest.raises(
        ConfigError, match="--algo: no algorithm 'flow_polcy' .*did you mean 'flow_policy'"
    ):
        first_config(path, "flow_polcy")
    with pytest.raises(ConfigError, match="hbc: has several lists of observations"):
        first_config(path, "hbc")


def test_the_forecast_computes_features_of_a_frozen_encoder_once(path, monkeypatch):
    tree = first_config(path, "bc").tree
    tree["train"] |= {"device": "cpu", "batch_size": 8}
    core = {"backbone_class": "ResNet18Conv", "backbone_kwargs": {"freeze": True}}
    rgb = tree["observation"]["encoder"]["rgb"]
    rgb |= {"core_kwargs": {**rgb["core_kwargs"], **core}, "obs_randomizer_class": None}
    seen = []
    trunk = ResNet18Conv.forward
    monkeypatch.setattr(
        ResNet18Conv, "forward", lambda self, x, *rest: seen.append(len(x)) or trunk(self, x, *rest)
    )
    assert "of it for the features of frozen encoders" in forecast(tree)
    once = len(seen)  # one trial per camera
    tree["train"]["cache_features"] = False
    seen.clear()
    assert "features" not in forecast(tree)
    assert once < len(seen)


def test_the_forecast_runs_the_first_updates(path):
    tree = first_config(path, "bc", images="none").tree
    tree["train"]["device"] = "cpu"
    words = forecast(tree)
    assert words.startswith("about ") and "on cpu" in words and "s for an update" in words


# ---- memory of large images ----------------------------------------------------------------------


@pytest.fixture
def large(tmp_path):
    return own(tmp_path / "large.hdf5", steps=3, demos=3, image=(480, 640), second=(480, 640))


def test_memory_of_large_images_is_estimated_and_a_smaller_size_proposed(large, path):
    assert "memory" not in reasons(first_config(path))
    words = reasons(first_config(large))["memory"]
    needed, size = words.split(" GB")[0].split()[-1], words.rpartition("--image-size ")[2][:-1]
    assert 8 < float(needed) < 20  # 13.5 GB were resident in an update
    assert size == "120x160"
    made = first_config(large, image_size=(120, 160))
    assert "memory" not in reasons(made)
    assert made.tree["train"]["preprocess"] == [{"step": "resize", "size": [120, 160]}]
    crop = made.tree["observation"]["encoder"]["rgb"]["obs_randomizer_kwargs"]
    assert crop == {"crop_height": 108, "crop_width": 144}
    check_trainable(load_config(made.tree))


@pytest.mark.parametrize(("size", "samples"), [((480, 640), 4), ((48, 64), None)])
def test_a_trial_computes_no_more_than_a_gigabyte_of_images(large, monkeypatch, size, samples):
    made = first_config(large, image_size=size)
    seen = []

    def measured(config, device):
        seen.append(config.train.batch_size)
        return 0.5, 0.0

    monkeypatch.setattr(time_of_training, "_measured", measured)
    words = forecast(made.tree)
    batch = made.tree["train"]["batch_size"]
    assert seen == [samples or batch]
    assert f"{0.5 * batch / seen[0]:.2g} s for an update" in words
    assert (f"measured on {samples} of its {batch} samples" in words) == (samples is not None)
