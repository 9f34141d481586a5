"""First configurations in exact values: every word of their reasons, batches, crops and rollouts."""

import h5py
import pytest

from imitate.errors import ConfigError
from imitate.train import first_config as module
from imitate.train.first_config import first_config
from tests.demo_files import OBS_DIMS, make_demo_file
from tests.refusals import refused
from tests.train.test_first_config import own

NO_GPU = "ShallowConv (four convolutions, because there is no GPU); "
RATE = "10 Hz: the policy has to act at the same rate"
SCALED = "scaled to [-1, 1] for the networks, and back (normalization auto: min_max)"
NOT_SIMULATED = "off: an environment of type 4 is not a simulator; compare checkpoints on the robot"


def encoder(name="ShallowConv", pool=None, **more):
    """Section of the encoder of an image."""
    pool = pool or {"num_kp": None, "temperature": 0.1}
    core = {"backbone_class": name, "pool_class": "SpatialSoftmax", "pool_kwargs": pool}
    return {
        "core_class": "VisualCore",
        "core_kwargs": {**core, "feature_dimension": 64},
        **more,
    }


def cropped(height, width, *words):
    kwargs = {"crop_height": height, "crop_width": width}
    more = {"obs_randomizer_class": "CropRandomizer", "obs_randomizer_kwargs": kwargs}
    return encoder(*words, **more)


def test_everything_of_two_cameras_on_a_robot(tmp_path):
    made = first_config(own(tmp_path / "a.h5", image=(48, 47), second=(96, 130)))
    reasons = {
        "data": "2 of 4 demos (filter key 'train'), 12 steps; validated on the filter key 'valid'",
        "algorithm": "flow_policy/flow_policy_image; choose another with --algo",
        "vectors": "goal (2,), joint_pos (3,)",
        "images": "front_image (48, 47, 3), wrist_image (96, 130, 3); --images none leaves them out",
        "encoder": NO_GPU + "random crops of 44 x 47 of 48 x 47, 86 x 116 of 96 x 130",
        "actions": f"3 numbers from -1.36 to 1.32: {SCALED}",
        "control rate": RATE,
        "rollouts": NOT_SIMULATED,
        # 1000 * 64 / 12
        "updates": "1,000 of 64 samples, 5333 passes over the training steps",
    }
    assert made.reasons == tuple(reasons.items())
    assert made.tree["observation"]["encoder"] == {
        "front_image": encoder(),  # a side of 47 pixels is not cropped
        "wrist_image": cropped(86, 116),
    }
    save = {"every_n_epochs": 2, "on_best_validation": True}
    rollout = {"enabled": False}
    given = {"epoch_every_n_steps": 100, "validate": True, "save": save, "rollout": rollout}
    assert given.items() <= made.tree["experiment"].items()
    keys = {"hdf5_filter_key": "train", "hdf5_validation_filter_key": "valid"}
    given = {"batch_size": 64, "num_epochs": None, "precision": "auto", **keys}
    assert given.items() <= made.tree["train"].items()


@pytest.mark.parametrize("gpu", [False, True])
def test_everything_of_a_simulated_arm(tmp_path, monkeypatch, gpu):
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(module, "image_seconds", lambda tree, shapes: 0.25)
    options = {"masks": False, "scale": 1.0, "type_": 2, "env": "Pendulum-v1", "image": (48, 64)}
    path = own(tmp_path / "b.hdf5", **options)
    made = first_config(path, algorithm="bc")
    names = "ResNet18Conv (a GPU is available); " if gpu else NO_GPU
    assert dict(made.reasons) == {
        "data": f"4 of 4 demos, 24 steps; 1 of them failed: `imitate dataset filter {path} good --success "
        "--in-place`, then train.hdf5_filter_key good; no held-out demos (`imitate dataset split "
        f"{path} --in-place` makes some)",
        "algorithm": "bc/bc_image; choose another with --algo",
        "vectors": "goal (2,), joint_pos (3,)",
        "images": "front_image (48, 64, 3); --images none leaves them out",
        "encoder": f"{names}random crops of 44 x 58 of 48 x 64",
        "actions": "3 numbers from -0.999 to 0.948: not scaled (normalization auto)",
        "control rate": RATE,
        "rollouts": "on: gymnasium evaluates the policy during training",
        "updates": "4,000 of 64 samples, 10667 passes over the training steps",
    }
    own_encoder = cropped(44, 58, "ResNet18Conv", {"num_kp": 32}) if gpu else cropped(44, 58)
    assert made.tree["observation"]["encoder"] == {"rgb": own_encoder}
    assert made.tree["experiment"]["save"] == {"every_n_epochs": 10}
    assert made.tree["train"]["num_epochs"] == 40
    assert "hdf5_filter_key" not in made.tree["train"]
    assert made.image_s == (0.0 if gpu else 4000 * 0.25)


def test_batches_are_small_below_two_thousand_steps_and_with_images(tmp_path):
    path = own(tmp_path / "a.hdf5", masks=False, steps=500, image=(4, 4))
    for images, batch in (("none", 256), ("all", 64)):
        tree = first_config(path, "bc", images=images).tree
        assert tree["train"]["batch_size"] == batch
        assert ("precision" in tree["train"]) == (images == "all")
        assert ("rgb" in tree["observation"]["modalities"]["obs"]) == (images == "all")
        assert ("encoder" in tree["observation"]) == (images == "all")


def test_a_resize_is_the_first_step_of_images_alone(tmp_path):
    path = own(tmp_path / "a.hdf5", image=(20, 30))
    reasons = dict(first_config(path, image_size=(60, 90)).reasons)
    assert reasons["encoder"] == f"{NO_GPU}random crops of 54 x 80 of 60 x 90"
    assert "preprocess" not in first_config(path, images="none", image_size=(60, 90)).tree["train"]
    reasons = dict(first_config(path).reasons)
    assert reasons["encoder"] == f"{NO_GPU}too small to crop"


def test_images_are_halved_until_an_update_fits(tmp_path, monkeypatch):
    """Here an update takes the mean number of rows of the images; of 30 x 40 and 10 x 50 that is 20."""
    path = own(tmp_path / "a.hdf5", image=(30, 40), second=(10, 50))

    def rows(tree, shapes):
        encoders = tree["observation"]["encoder"]
        assert len(encoders) == (2 if len({s[:2] for s in shapes.values()}) == 2 else 1)
        return sum(shape[0] for shape in shapes.values()) / len(shapes)

    monkeypatch.setattr(module, "image_memory", rows)
    monkeypatch.setattr(module, "gigabytes", str)
    monkeypatch.setattr(module, "smaller", lambda size: tuple(max(7, side // 2) for side in size))
    for least, words in (
        (20.5, None),
        (20, "20 for the images of an update, of 30x40; 15 at 15x20"),
        (15, "20 for the images of an update, of 30x40; 7 at 7x10"),
        (5, "20 for the images of an update, of 30x40; 7 at 7x7"),
    ):
        monkeypatch.setattr(module, "LARGE", least)
        size = "" if words is None else words.rpartition(" ")[2]
        way = f", by a step resize: `imitate config init {path} --image-size {size}`"
        expected = None if words is None else f"about {words}{way}"
        assert dict(first_config(path).reasons).get("memory") == expected


@pytest.mark.parametrize(
    ("meta", "there", "plays", "words"),
    [
        ({"type": 1}, ["robosuite"], True, "on: robosuite evaluates the policy during training"),
        ({"type": 1}, [], False, "off: the package 'robosuite' is not installed"),
        ({"type": None}, [], False, "off: an environment of type None is not a simulator"),
        ({}, ["gymnasium"], False, "off: an environment of type None is not a simulator"),
        ({"type": 3}, [], False, "off: an environment of type 3 is not a simulator"),
        ({"type": 2, "env_name": "Pendulum-v1"}, ["gymnasium"], True, "on: gymnasium evaluates"),
        ({"type": 2, "env_name": "X-v1"}, ["gymnasium"], False, "no environment 'X-v1' here"),
        ({"type": 2, "env_name": "a.b:X-v1"}, ["gymnasium", "a"], True, "on: gymnasium evaluates"),
        ({"type": 2, "env_name": "a.b:X-v1"}, ["gymnasium"], False, "in the module 'a.b', which"),
    ],
)
def test_rollouts(tmp_path, monkeypatch, meta, there, plays, words):
    monkeypatch.setattr(module, "find_spec", lambda name: name if name in there else None)
    path = own(tmp_path / "a.hdf5", image=None)
    monkeypatch.setattr(module.DatasetFile, "env_meta", meta)
    made = first_config(path, "bc")
    assert words in dict(made.reasons)["rollouts"]
    assert made.tree["experiment"]["rollout"].get("enabled", True) == plays


def test_vectors_of_robosuite(tmp_path):
    path = make_demo_file(tmp_path / "a.hdf5", obs_dims=OBS_DIMS, image=True)
    usual = "robot0_eef_pos, robot0_eef_quat, robot0_gripper_qpos"
    reasons = dict(first_config(path, images="none").reasons)
    assert reasons["vectors"] == f"{usual}, object"
    assert reasons["images"] == "none of agentview_image (--images none)"
    assert dict(first_config(path).reasons)["vectors"] == (
        f"{usual}; robosuite's usual ones, without object"
    )
    words = dict(first_config(path, images="agentview_image").reasons)["images"]
    assert words == "agentview_image (8, 6, 3); --images none leaves them out"


def test_the_range_and_shapes_of_the_first_fifty_demos(tmp_path):
    path = own(tmp_path / "a.hdf5", demos=51, steps=2, image=None, masks=False)
    with h5py.File(path, "a") as file:
        for demo, value in ((49, 3.0), (1, -2.0), (50, 9.0)):
            file[f"data/demo_{demo}/actions"][0, 0] = value
        del file["data/demo_50/obs/goal"]
        file["data/demo_50/obs/goal"] = [[1.0] * 3] * 2
    reasons = dict(first_config(path).reasons)
    assert "from -2 to 3: scaled" in reasons["actions"]
    assert reasons["data"].startswith("51 of 51 demos, 102 steps; 1 of them failed")
    with h5py.File(path, "a") as file:
        del file["data/demo_49/obs/goal"]
        file["data/demo_49/obs/goal"] = [[1.0] * 4] * 2
    with refused("'obs/goal' has steps of shape (2,) in 'demo_48' and (4,) in 'demo_49'; see"):
        first_config(path)


def test_algorithms_that_are_learned_online_are_no_templates(tmp_path):
    path = own(tmp_path / "a.hdf5", image=None)
    with refused("--algo: no algorithm 'sac_pendulum' for", error=ConfigError):
        first_config(path, "sac_pendulum")
    assert first_config(path, "bc").image_s == 0.0
