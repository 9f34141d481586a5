"""Cameras against what is known of Lift's scene: a table at 0.8 m, a red cube, a camera 3 m above the floor."""

import gc

import numpy as np
import pytest

from imitate.envs import make_env
from imitate.envs.cameras import Camera, camera_kwargs, choose_cameras, observe, sizes_of
from imitate.envs.robosuite_env import RobosuiteEnv
from imitate.errors import EnvError

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": {}}


# ---- which cameras -------------------------------------------------------------------------------


def test_names_of_observations():
    assert Camera("front", 4, 6).keys == ["front_image"]
    assert Camera("front", depth=True, segmentation="class").keys == [
        "front_image",
        "front_depth",
        "front_segmentation",
    ]


def test_size_for_all_or_by_camera_else_as_recorded_else_84():
    recorded = {"camera_names": ["a", "b"], "camera_heights": [10, 20], "camera_widths": 30}
    assert choose_cameras(recorded, ["b", "a"]) == (Camera("b", 20, 30), Camera("a", 10, 30))
    assert choose_cameras(recorded, ["a"], size=7) == (Camera("a", 7, 7),)
    assert choose_cameras(recorded, ["a", "b"], size={"b": (3, 4)}) == (
        Camera("a", 10, 30),
        Camera("b", 3, 4),
    )
    assert choose_cameras({}, ["a"]) == (Camera("a", 84, 84),)
    # a camera that the file did not have: the first one's size
    assert choose_cameras(recorded, ["c"]) == (Camera("c", 10, 30),)


def test_cameras_of_observation_keys():
    keys = ["object", "a_image", "a_depth", "b_segmentation"]
    assert choose_cameras({}, obs_keys=keys) == (
        Camera("a", depth=True),
        Camera("b", segmentation="instance"),
    )
    assert choose_cameras({"camera_names": "a"}, obs_keys=["object"]) == ()


def test_description_gives_the_same_cameras():
    cameras = (Camera("a", 5, 6, depth=True), Camera("b", 7, 8, segmentation="class"))
    kwargs = camera_kwargs(cameras)
    assert kwargs == {
        "camera_names": ["a", "b"],
        "camera_heights": [5, 7],
        "camera_widths": [6, 8],
        "camera_depths": [True, False],
        "camera_segmentations": [None, "class"],
    }
    assert choose_cameras(kwargs, ["a", "b"]) == cameras
    assert camera_kwargs((Camera("a"),)) == {
        "camera_names": ["a"],
        "camera_heights": 84,
        "camera_widths": 84,
        "camera_depths": False,
    }


def test_sizes_from_the_shapes_that_a_policy_takes():
    shapes = {"a_image": (10, 20, 3), "b_depth": (5, 6, 1), "object": (10,), "odd_image": (4,)}
    assert sizes_of(shapes) == {"a": (10, 20), "b": (5, 6)}


def test_segmentation_that_does_not_exist():
    with pytest.raises(EnvError, match="did you mean 'instance'"):
        choose_cameras({"camera_names": ["a"], "camera_segmentations": "instances"}, ["a"])


# ---- what they see -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lift():
    cameras = (
        Camera("birdview", 64, 64, depth=True, segmentation="element"),
        Camera("agentview", 96, 128, depth=True, segmentation="instance"),
        Camera("robot0_eye_in_hand", 48, 48, segmentation="class"),
    )
    meta = {**LIFT, "env_kwargs": camera_kwargs(cameras)}
    env = make_env(meta, camera_names=[camera.name for camera in cameras])
    yield env
    env.close()


@pytest.fixture(scope="module")
def seen(lift):
    """Observations after a reset, and what is known of the cameras then."""
    obs, _ = lift.reset(seed=0)
    return obs, lift.camera_info()


pixels = [pytest.mark.robosuite, pytest.mark.render, pytest.mark.slow("draws in software")]


def label(env, camera, name):
    return env.camera_info()[camera]["segmentation"].index(name) + 1


class TestScene:
    pytestmark = pixels

    def test_shapes_and_types(self, seen):
        obs, _ = seen
        found = {
            key: (value.shape, value.dtype.name)
            for key, value in obs.items()
            if key.startswith(("bird", "agent")) or "eye" in key
        }
        assert found == {
            "birdview_image": ((64, 64, 3), "uint8"),
            "birdview_depth": ((64, 64, 1), "float32"),
            "birdview_segmentation": ((64, 64, 1), "int32"),
            "agentview_image": ((96, 128, 3), "uint8"),
            "agentview_depth": ((96, 128, 1), "float32"),
            "agentview_segmentation": ((96, 128, 1), "uint8"),
            "robot0_eye_in_hand_image": ((48, 48, 3), "uint8"),
            "robot0_eye_in_hand_segmentation": ((48, 48, 1), "uint8"),
        }

    def test_depth_of_the_table_from_above(self, seen):
        """The camera hangs at 3.0 m and looks straight down on a table top at 0.8 m and a floor at 0."""
        obs, info = seen
        names = info["birdview"]["segmentation"]
        ids = obs["birdview_segmentation"][..., 0]
        depth = obs["birdview_depth"][..., 0]
        table = ids == names.index("table_visual") + 1
        floor = ids == names.index("floor") + 1
        assert table.sum() > 100
        # at edges, depth and label of a pixel may be those of different surfaces
        assert np.isclose(depth[table], 2.2, atol=0.001).mean() > 0.98
        assert np.isclose(depth[floor], 3.0, atol=0.001).mean() > 0.98

    def test_pixels_and_depth_lead_back_to_the_cube(self, lift, seen):
        """A pixel, its depth, intrinsics and extrinsics give a point of the cube, whose place is observed."""
        obs, info = seen
        info = info["agentview"]
        assert info["frame"] == "world"
        labels = obs["agentview_segmentation"][..., 0]
        rows, columns = np.nonzero(labels == label(lift, "agentview", "cube"))
        assert len(rows) > 20
        # robosuite's cube is red; the rest of the scene is not
        red, green, blue = np.moveaxis(obs["agentview_image"][rows, columns].astype(int), -1, 0)
        assert np.median(red - np.maximum(green, blue)) > 50
        depth = obs["agentview_depth"][rows, columns, 0]
        rays = np.linalg.inv(info["intrinsics"]) @ [columns + 0.5, rows + 0.5, np.ones(len(rows))]
        points = np.array(info["extrinsics"]) @ np.vstack([rays * depth, np.ones(len(rows))])
        cube = obs["object"][:3]
        assert (
            np.abs(points[:3].T - cube).max() < 0.022 * np.sqrt(3) + 0.005
        )  # half a side, to a corner
        np.testing.assert_allclose(points[:2].mean(axis=1), cube[:2], atol=0.022)

    def test_segmentation_by_class_and_by_instance(self, lift, seen):
        obs, info = seen
        assert info["agentview"]["segmentation"][:2] == ["cube", "Panda0"]
        assert info["robot0_eye_in_hand"]["segmentation"][:2] == ["BoxObject", "Panda"]
        # table and walls; cube; the arm's mount; its gripper; the arm itself is above the image
        assert np.unique(obs["agentview_segmentation"]).tolist() == [0, 1, 3, 4]
        gripper = label(lift, "robot0_eye_in_hand", "PandaGripper")
        in_hand = obs["robot0_eye_in_hand_segmentation"][..., 0]
        assert (in_hand == gripper).any()  # the camera in the hand sees its fingers

    def test_nothing_invisible_covers_the_segmentation(self, lift, seen):
        """Each pixel shows floor, wall or something before them; the line below the gripper has no label."""
        obs, info = seen
        assert obs["birdview_segmentation"].min() >= 1
        front = Camera("frontview", 64, 64, segmentation="element")
        assert observe(lift.base_env, front)["frontview_segmentation"].min() >= 1

    def test_camera_in_the_hand_moves_with_it(self, lift, seen):
        _, first = seen
        for _ in range(2):
            lift.step(np.array([1.0, 0.5, 0, 0, 0, 0.5, 0]))
        later = lift.camera_info()
        assert first["robot0_eye_in_hand"]["frame"] == "robot0_right_hand"
        for camera in first:
            np.testing.assert_allclose(
                later[camera]["extrinsics"], first[camera]["extrinsics"], atol=1e-9
            )
        # 48 / 2 / tan(75 / 2 degrees): robosuite's camera has a field of view of 75 degrees
        assert first["robot0_eye_in_hand"]["intrinsics"][0] == pytest.approx(
            [31.278, 0, 24], abs=1e-3
        )

    @pytest.mark.nightly
    def test_a_restored_state_shows_the_same_pixels(self, lift):
        lift.reset(seed=1)
        obs, *_ = lift.step(np.full(7, 0.5))
        state = lift.get_state()
        lift.reset(seed=2)
        again = lift.reset_to(state)
        for key in ("agentview_image", "agentview_depth", "agentview_segmentation"):
            assert (again[key] == obs[key]).all()

    @pytest.mark.nightly
    def test_images_survive_the_collection_of_an_older_scene(self, lift):
        """robosuite leaves the scene before a reset to Python's collector, whenever that comes."""
        first, _ = lift.reset(seed=3)
        again, _ = lift.reset(seed=3)
        gc.collect()
        later = lift.reset_to({"states": lift.get_state()["states"]})
        for camera in ("birdview", "agentview", "robot0_eye_in_hand"):
            assert (again[f"{camera}_image"] == first[f"{camera}_image"]).all()
            assert (later[f"{camera}_image"] == first[f"{camera}_image"]).all()

    @pytest.mark.nightly
    def test_two_environments_in_one_process(self, lift):
        before, _ = lift.reset(seed=3)
        other = RobosuiteEnv("Lift", camera_names=["agentview"], camera_size=(96, 128))
        seen, _ = other.reset(seed=3)
        assert (seen["agentview_image"] == before["agentview_image"]).all()
        state = {"states": lift.get_state()["states"]}
        assert (lift.reset_to(state)["agentview_image"] == before["agentview_image"]).all()
        del other  # not closed
        gc.collect()
        assert (lift.reset_to(state)["agentview_image"] == before["agentview_image"]).all()

    @pytest.mark.nightly
    def test_chosen_by_observation_keys(self, lift):
        keys = ["agentview_depth", "object"]
        env = RobosuiteEnv("Lift", obs_keys=keys, camera_size=16)
        obs, _ = env.reset(seed=0)
        env.close()
        assert list(obs) == keys
        assert obs["agentview_depth"].shape == (16, 16, 1)

    def test_unknown_camera(self):
        with pytest.raises(EnvError, match="no camera 'agentvew'; did you mean 'agentview'"):
            RobosuiteEnv("Lift", camera_names=["agentvew"])
