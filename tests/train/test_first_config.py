"""Configurations made for a file, and observations named ``auto``: what follows from the file, and that it trains."""

import json

import h5py
import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.config import load_config
from imitate.config.from_data import num_epochs
from imitate.config.loading import names
from imitate.config.readiness import check_trainable
from imitate.data import DatasetWriter, Episode
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert
from imitate.data.quality.doctor.diagnosis import diagnose
from imitate.data.quality.doctor.finding import Level
from imitate.errors import ConfigError, DatasetError
from imitate.models.resnet import ResNet18Conv
from imitate.policy.checkpoint import load_checkpoint
from imitate.policy.export import to_lerobot
from imitate.system.run_folder import find_checkpoint
from imitate.train import first_config as module
from imitate.train import forecast as time_of_training
from imitate.train.first_config import first_config
from imitate.train.forecast import forecast
from imitate.train.online.setup import build_online
from imitate.train.setup import resolve
from imitate.train.trainer import train
from tests.calling import call
from tests.demo_files import OBS_DIMS, make_demo_file
from tests.refusals import refused
from tests.tiny import tiny_tree


def own(
    path, steps=6, demos=4, image=(64, 48), scale=1.5, masks=True, type_=4, second=None, env="arm"
):
    """Demonstrations of an arm of three joints, with a camera or two."""
    random = np.random.default_rng(0)
    meta = {"env_name": env, "type": type_, "env_kwargs": {}}
    with DatasetWriter(path, meta, control_freq=10) as writer:
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


def made_for(path, *words, **options):
    """The configuration that is made for a file, as tree and loaded, and the reasons by name."""
    made = first_config(path, *words, **options)
    return made.tree, load_config(made.tree), dict(made.reasons)


@pytest.mark.parametrize(
    "algorithm", ["bc", "bc_rnn_gmm", "flow_policy", "act", "diffusion_policy", "iql"]
)
def test_the_configuration_is_good(path, algorithm):
    tree, config, _ = made_for(path, algorithm)
    check_trainable(config)
    assert config.experiment.name == "pick"
    assert config.experiment.epoch_every_n_steps == 100
    assert config.train.data[0].path == str(path)
    low_dim = {"goal": "low_dim", "joint_pos": "low_dim"}
    assert config.observation.modality_of("obs") == {**low_dim, "front_image": "rgb"}
    assert not config.experiment.rollout.enabled
    assert "$schema" not in tree


@pytest.mark.parametrize("algorithm", ["bc", "act", "flow_policy"])
def test_the_template_is_the_general_one(path, algorithm):
    _, _, reasons = made_for(path, algorithm, images="none")
    assert reasons["algorithm"].split(";")[0] == f"{algorithm}/{algorithm}"


def test_no_two_templates_have_the_same_name():
    general = [name.rpartition("/")[2] for name in names() if not name.startswith(module.OTHERS)]
    assert len(set(general)) == len(general)


def test_masks_of_the_file_are_used(path, tmp_path):
    _, config, reasons = made_for(path)
    assert config.train.hdf5_filter_key == "train"
    assert config.train.hdf5_validation_filter_key == "valid"
    assert reasons["data"].startswith("2 of 4 demos (filter key 'train'), 12 steps; validated")
    _, config, reasons = made_for(own(tmp_path / "plain.hdf5", masks=False))
    assert config.train.hdf5_filter_key is None and not config.experiment.validate
    assert not config.experiment.save.on_best_validation
    words = "4 of 4 demos, 24 steps; 1 of them failed: `imitate dataset filter"
    assert words in reasons["data"] and "imitate dataset split" in reasons["data"]


def test_a_folder_of_lerobot_is_not_to_be_changed_in_place(tmp_path, monkeypatch):
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "cache"))
    file = own(tmp_path / "own.hdf5", masks=False)
    assert "--success --in-place`" in made_for(file)[2]["data"]
    convert(file, tmp_path / "lr", to_format="lerobot")
    _, _, reasons = made_for(tmp_path / "lr", images="none")
    words = reasons["data"]
    assert reasons["robots"].endswith("RUN FOLDER --to lerobot-plugin")
    assert "robots" not in made_for(file)[2]
    assert "1 of them failed" in words and "--success --out NEW.hdf5`" in words
    assert "--in-place" not in words


def test_no_filter_is_proposed_where_every_demo_failed(tmp_path):
    _, _, reasons = made_for(own(tmp_path / "failed.hdf5", demos=1, masks=False))
    assert "none of them is marked as solved" in reasons["data"]
    assert "dataset filter" not in reasons["data"]


def test_actions_beyond_their_range_are_scaled(path, tmp_path):
    _, config, reasons = made_for(path)
    assert "scaled to [-1, 1]" in reasons["actions"]
    assert config.train.action_config.actions.normalization == "auto"
    _, _, reasons = made_for(own(tmp_path / "within.hdf5", scale=1.0))
    assert "not scaled" in reasons["actions"]


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
    _, config, reasons = made_for(own(tmp_path / "a.hdf5", image=size))
    section = config.observation.encoder.rgb
    assert section.core_kwargs.backbone_class == backbone
    kwargs = section.obs_randomizer_kwargs
    assert (crop is None) == (section.obs_randomizer_class is None)
    if crop is not None:
        assert (kwargs.crop_height, kwargs.crop_width) == crop
    assert backbone in reasons["encoder"]


def test_cameras_of_two_sizes_have_two_encoders_and_may_be_chosen(tmp_path):
    path = own(tmp_path / "a.hdf5", second=(96, 96))
    encoder = made_for(path)[1].observation.encoder
    assert encoder["front_image"].obs_randomizer_kwargs.crop_height == 58
    assert encoder["wrist_image"].obs_randomizer_kwargs.crop_height == 86
    assert made_for(path, images="none")[1].observation.modalities.obs.rgb == ()
    _, config, reasons = made_for(path, images="wrist_image")
    assert config.observation.modalities.obs.rgb == ("wrist_image",)
    assert "without front_image" in reasons["images"]


def test_updates_follow_from_the_data(tmp_path, monkeypatch):
    """Null where the template leaves them to the data; else at least what the template has."""
    path = own(tmp_path / "a.hdf5", image=None)
    tree, config, reasons = made_for(path)
    assert (config.train.num_epochs, config.train.batch_size) == (None, 64)
    epochs = num_epochs(12, 64, module.EPOCH_STEPS)
    assert reasons["updates"].startswith(f"{100 * epochs:,} of 64 samples, ")
    assert tree["experiment"]["save"]["every_n_epochs"] == epochs // 4
    assert made_for(path, "bc")[1].train.num_epochs == 40
    monkeypatch.setattr(module, "num_epochs", lambda samples, batch, steps: samples * batch)
    assert made_for(path, "bc")[1].train.num_epochs == 12 * 64


def test_rollouts_where_there_is_a_simulator(tmp_path, monkeypatch):
    path = own(tmp_path / "a.hdf5", type_=2, image=None, env="Pendulum-v1")
    assert made_for(path)[1].experiment.rollout.enabled
    for name, words in (
        ("Isaac-v0", "no environment 'Isaac-v0'"),
        ("isaac.lab:A-v0", "'isaac.lab'"),
    ):
        other = own(tmp_path / f"{name[:6]}.hdf5", type_=2, image=None, env=name)
        _, config, reasons = made_for(other)
        assert not config.experiment.rollout.enabled and words in reasons["rollouts"]
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    _, config, reasons = made_for(path)
    assert not config.experiment.rollout.enabled
    assert "'gymnasium' is not installed" in reasons["rollouts"]


def test_useless_observations_are_left_out(tmp_path):
    random = np.random.default_rng(0)
    with DatasetWriter(
        tmp_path / "a.hdf5", {"env_name": "x", "type": 4, "env_kwargs": {}}
    ) as writer:
        actions = random.normal(size=(30, 3)).astype(np.float32)
        obs = {
            "q": random.normal(size=(30, 2)),
            "dead": np.zeros((30, 4)),
            "last_action": np.roll(actions, 1, 0),
        }
        writer.append_episode(
            Episode(obs, actions, np.zeros(30), np.zeros(30, bool), np.arange(30) == 29)
        )
    _, config, reasons = made_for(tmp_path / "a.hdf5")
    assert config.observation.modalities.obs.low_dim == ("q",)
    assert "dead is left out: 0 in all steps" in reasons["vectors"]
    assert "last_action is left out: it is the action of the step before" in reasons["vectors"]


def test_incomplete_folders_of_lerobot_and_their_names(tmp_path, monkeypatch):
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "cache"))
    file = own(tmp_path / "own.hdf5", masks=False, second=(64, 48))
    convert(file, tmp_path / "lr", to_format="lerobot", options=Options(video="h264"))
    (tmp_path / "lr/meta/imitate.hdf5").unlink()
    next(tmp_path.glob("lr/videos/*wrist*/*/*.mp4")).unlink()
    words = "no episode has a video of 'observation.images.wrist'|add --skip-incomplete|or --images none"
    with refused(words, error=ConfigError):
        first_config(tmp_path / "lr")
    for options, cameras in (
        ({"images": "none"}, ()),
        ({"skip_incomplete": True}, ("front_image",)),
    ):
        _, config, reasons = made_for(tmp_path / "lr", **options)
        assert config.observation.modalities.obs.rgb == cameras
        assert "wrist" in reasons["incomplete"] and reasons["data"].startswith("4 of 4 demos")
    assert config.train.hdf5_filter_key == "complete"


def test_what_a_folder_of_lerobot_lacks_is_said_by_info_and_doctor(tmp_path, monkeypatch):
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "lr"
    convert(own(tmp_path / "own.hdf5"), root, to_format="lerobot", options=Options(video="h264"))
    (root / "meta/imitate.hdf5").unlink()
    whole = json.loads(call("info --json", root).output)
    assert whole["missing"] == "" and "missing" not in call("info", root).output
    (root / "videos").rename(root / "video")
    words = (
        "no episode has a video of 'observation.images.front'",
        "but there is 'video': rename it",
    )
    done = call("info", root).output
    assert all(word in done for word in words) and "imitate config init" in done
    for _ in range(2):  # the second time from the cache
        finding = {one.code: one for one in diagnose(root).findings}["incomplete"]
        assert all(word in finding.what for word in words)
        assert finding.level is Level.warning and "--images none" in finding.advice


def test_robosuites_usual_observations(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    more = {**OBS_DIMS, "robot0_joint_vel": 7}
    path = make_demo_file(tmp_path / "lift.hdf5", obs_dims=more, image=True)
    _, config, reasons = made_for(path, images="none")
    assert set(config.observation.modalities.obs.low_dim) == set(OBS_DIMS)
    assert "without robot0_joint_vel" in reasons["vectors"]
    assert "object" not in made_for(path)[1].observation.modalities.obs.low_dim


def test_an_algorithm_is_named_as_the_template_or_its_end(path):
    assert first_config(path, "bc/bc_rnn_gmm").tree == first_config(path, "bc_rnn_gmm").tree
    assert made_for(path)[2]["control rate"].startswith("10 Hz")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"images": "front"}, "no colour images 'front', did you mean 'front_image'"),
        ({"algorithm": "act/bc_rnn_gmm"}, "no algorithm 'act/bc_rnn_gmm' "),
        ({"algorithm": "smolvla"}, "LeRobot's smolvla and other VLAs are not available here"),
        ({"algorithm": "flow_polcy"}, "--algo: no algorithm 'flow_polcy' |mean 'flow_policy'"),
        ({"algorithm": "hbc"}, "hbc: has several lists of observations"),
    ],
)
def test_what_is_not_there_is_refused(path, words, named):
    with refused(named, error=ConfigError):
        first_config(path, **words)


@pytest.mark.slow("runs the first updates")
def test_the_forecast_computes_features_of_a_frozen_encoder_once(path, monkeypatch):
    tree = first_config(path, "bc").tree
    tree["train"] |= {"device": "cpu", "batch_size": 8}
    core = {"backbone_class": "ResNet18Conv", "backbone_kwargs": {"freeze": True}}
    rgb = tree["observation"]["encoder"]["rgb"]
    rgb |= {"core_kwargs": {**rgb["core_kwargs"], **core}, "obs_randomizer_class": None}
    seen, trunk = [], ResNet18Conv.forward

    def watched(self, x, *rest):
        seen.append(len(x))
        return trunk(self, x, *rest)

    monkeypatch.setattr(ResNet18Conv, "forward", watched)
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
    assert words.startswith("about ") and "on cpu" in words and "s per update" in words


# ---- memory of large images ----------------------------------------------------------------------


@pytest.fixture
def large(tmp_path):
    return own(tmp_path / "large.hdf5", steps=3, demos=3, image=(480, 640), second=(480, 640))


@pytest.mark.slow("networks for large images are made")
def test_memory_of_large_images_is_estimated_and_a_smaller_size_proposed(large, path):
    assert "memory" not in made_for(path)[2]
    words = made_for(large)[2]["memory"]
    needed, size = words.split(" GB")[0].split()[-1], words.rpartition("--image-size ")[2][:-1]
    assert 8 < float(needed) < 20  # 13.5 GB were resident in an update
    assert size == "120x160"
    made = first_config(large, image_size=(120, 160))
    assert "memory" not in dict(made.reasons)
    assert ", resized to 120x160; --images none" in dict(made.reasons)["images"]
    assert 10 < first_config(large).image_s / made.image_s < 20  # a sixteenth of the pixels
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
        return [0.5], 0.0

    monkeypatch.setattr(time_of_training, "_measured", measured)
    words = forecast(made.tree)
    batch = made.tree["train"]["batch_size"]
    assert seen == [samples or batch]
    assert f"{0.5 * batch / seen[0]:.2g} s per update" in words
    assert (f"measured on {samples} of its {batch} samples" in words) == (samples is not None)


# ---- observations named auto, and keys that the data lack ----------------------------------------


@pytest.fixture
def data(tmp_path):
    sizes = {"joint_pos": 3, "goal": 2}
    return make_demo_file(tmp_path / "own.hdf5", obs_dims=sizes, image=True, action_dim=3)


def resolved(data, *overrides):
    return resolve(load_config("bc/bc", overrides), data, None)


LOW_DIM, RGB, SCAN = (f"observation.modalities.obs.{kind}" for kind in ("low_dim", "rgb", "scan"))
FLAT = {"goal": "low_dim", "joint_pos": "low_dim"}
IMAGE = {"agentview_image": "rgb"}


@pytest.mark.parametrize(
    ("overrides", "taken"),
    [
        (["observation.modalities=auto"], {**FLAT, **IMAGE}),
        # That of one modality leaves the others as they are.
        ([f"{LOW_DIM}=auto"], FLAT),
        ([f'{LOW_DIM}=["goal"]', f"{RGB}=auto"], {"goal": "low_dim", **IMAGE}),
        # A key that is listed under another modality of the group stays there.
        ([f'{SCAN}=["joint_pos"]', f"{LOW_DIM}=auto"], {"goal": "low_dim", "joint_pos": "scan"}),
    ],
)
def test_auto_is_all_that_the_file_has(data, overrides, taken):
    assert resolved(data, *overrides).observation.modality_of("obs") == taken


def test_auto_for_goals(data):
    assert not resolved(data, "observation.modalities=auto").use_goals
    groups = ("obs", "goal")
    auto = [f"observation.modalities.{group}.low_dim=auto" for group in groups]
    config = resolved(data, *auto, "train.goal_mode=last")
    for group in groups:
        assert set(config.observation.modality_of(group)) == {"goal", "joint_pos"}


def test_the_runs_configuration_names_the_keys(data, tmp_path):
    tree = tiny_tree(train={"num_epochs": 1}, experiment={"epoch_every_n_steps": 1})
    tree["observation"]["modalities"]["obs"]["low_dim"] = "auto"
    result = train(tree, dataset=data, output_dir=tmp_path / "runs", quiet=True)
    tree = json.loads((result.run_dir / "config.json").read_text())
    assert tree["observation"]["modalities"]["obs"]["low_dim"] == ["goal", "joint_pos"]


def test_keys_that_the_data_lack_are_refused_with_the_ways_out(data):
    missing = "'object', 'robot0_eef_pos', 'robot0_eef_quat', 'robot0_gripper_qpos'"
    there = "they have agentview_image (8, 6, 3), goal (2,), joint_pos (3,)"
    ways = ("--set observation.modalities=auto", f"imitate config init {data}")
    with refused(missing, there, *ways, error=ConfigError):
        resolved(data)
    with refused("the demos have no 'joint_poss' (did you mean 'joint_pos'?)", error=ConfigError):
        resolved(data, f'{LOW_DIM}=["joint_poss"]')
    with h5py.File(data, "a") as file:
        last = sorted(file["data"])[-1]
        del file[f"data/{last}/obs/goal"]
    with refused(f"demo '{last}' has no 'obs/goal'", error=DatasetError):
        resolved(data, f'{LOW_DIM}=["goal", "joint_pos"]')
    assert resolved(data, f'{LOW_DIM}=["joint_pos"]').all_obs_keys == ("joint_pos",)


@pytest.mark.parametrize("env", ["Pendulum-v1", "imitate.envs.worlds.tasks:Doors-v0"])
def test_auto_without_a_file_means_the_observations_of_the_environment(env):
    changes = ["observation.modalities=auto", f"train.online.env={env}", "train.cuda=false"]
    config = build_online(load_config("sac/sac_pendulum", changes), torch.device("cpu")).config
    wanted = {"flat": "low_dim"}
    if "Doors" in env:
        wanted["action_mask"] = "mask"
    assert config.observation.modality_of("obs") == wanted


def test_auto_reads_and_writes_as_any_value():
    config = load_config({"algo_name": "bc", "observation": {"modalities": "auto"}})
    assert load_config(config.to_json()) == config
    assert config.observation.modalities.obs.rgb == ("auto",)


def with_environment(path):
    """Demonstrations whose two vectors have LeRobot's names."""
    with DatasetWriter(path, {"env_name": "a", "type": 4, "env_kwargs": {}}) as writer:
        random = np.random.default_rng(0)
        obs = {
            "state": random.normal(size=(20, 3)),
            "environment_state": random.normal(size=(20, 2)),
        }
        end = np.arange(20) == 19
        writer.append_episode(Episode(obs, random.normal(size=(20, 4)), np.zeros(20), ~end, end))
    return path


@pytest.mark.parametrize("algorithm", ["act", "diffusion_policy"])
def test_lerobot_takes_back_what_was_trained_for_it(tmp_path, algorithm):
    made = first_config(with_environment(tmp_path / "a.hdf5"), algorithm, toolkit="lerobot")
    assert dict(made.reasons)["robots"].endswith("--to lerobot")
    small = {
        "act": {"transformer.feedforward_dim": 8, "vae.posterior_keys": ["state"]},
        "diffusion_policy": {"unet.down_dims": [8, 16]},
    }
    settings = {f"algo.{key}": value for key, value in small[algorithm].items()}
    settings |= {"train.num_epochs": 1, "experiment.epoch_every_n_steps": 1, "train.batch_size": 2}
    settings |= {"train.output_dir": str(tmp_path / "runs")}
    run = train(load_config(made.tree).with_overrides(settings)).run_dir
    path = find_checkpoint(run)
    to_lerobot(load_checkpoint(path), tmp_path / "theirs", "lerobot")
    obs = {"state": np.ones(3, np.float32), "environment_state": np.ones(2, np.float32)}
    actions = []
    for place in (path, tmp_path / "theirs"):
        policy, _ = policy_from_checkpoint(ckpt_path=place, device="cpu")
        policy.start_episode()
        torch.manual_seed(0)
        actions.append(policy(obs))
    np.testing.assert_allclose(*actions, atol=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "options", "words"),
    [
        ("bc", {}, "LeRobot has no policy that acts like 'bc'"),
        (
            "act",
            {"images": "none"},
            "observations goal, joint_pos: .* also an image or environment_state",
        ),
        ("act", {"image_size": (32, 32)}, "train.preprocess resizes images"),
    ],
)
def test_what_lerobot_cannot_take_back_is_said_before_the_training(path, algorithm, options, words):
    with pytest.raises(ConfigError, match=f"^--for lerobot: .*{words}"):
        first_config(path, algorithm, toolkit="lerobot", **options)


@pytest.mark.parametrize("algorithm", ["act", "diffusion_policy"])
def test_cameras_are_encoded_as_lerobot_does(tmp_path, algorithm):
    path = own(tmp_path / "two.hdf5", second=(64, 48))
    tree, config, reasons = made_for(path, algorithm, toolkit="lerobot")
    assert reasons["robots"].endswith("--to lerobot")
    assert reasons["encoder"] == "ResNet18Conv, as LeRobot has it"
    assert ("obs_randomizer_class" in tree["observation"]["encoder"]["rgb"]) == (algorithm != "act")
    check_trainable(config)


def test_a_folder_of_lerobot_is_said_where_its_policy_can_go(tmp_path, monkeypatch):
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "cache"))
    convert(own(tmp_path / "own.hdf5"), tmp_path / "lr", to_format="lerobot")
    for algorithm, end in (
        ("act", "--to lerobot-plugin; as its own act with the keys that --for lerobot writes"),
        ("bc", "--to lerobot-plugin"),
    ):
        assert made_for(tmp_path / "lr", algorithm)[2]["robots"].endswith(end)
    assert made_for(tmp_path / "lr", "act", "none")[2]["robots"].endswith("--to lerobot-plugin")
    assert "robots" not in made_for(tmp_path / "own.hdf5", "act")[2]
