"""Cameras against what is known of Lift's scene: a table at 0.8 m, a red cube, a camera 3 m above the floor."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest

from imitate.envs import make_env
from imitate.envs.cameras import (
    Camera,
    camera_info,
    camera_kwargs,
    choose_cameras,
    free_renderer,
    observe,
    project,
    sizes_of,
)
from imitate.envs.robosuite_env import RobosuiteEnv
from imitate.errors import EnvError
from tests.refusals import refused

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


# ---- a stand-in for the scene --------------------------------------------------------------------


class Scene:
    """A robosuite environment with three geoms and two cameras; each pixel of a frame is another number."""

    def __init__(self, instances=2):
        self.current, self.views = 0, []
        context = SimpleNamespace(make_current=self.make_current)
        self.context = SimpleNamespace(
            gl_ctx=context, vopt=SimpleNamespace(sitegroup=np.array([1, 0, 1]))
        )
        turned = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
        self.sim = SimpleNamespace(
            render=self.render,
            _render_context_offscreen=self.context,
            model=SimpleNamespace(
                camera_names=("front", "hand"),
                camera_name2id=("front", "hand").index,
                cam_fovy=np.array([90.0, 60.0]),
                cam_bodyid=np.array([0, 2]),
                body_weldid=np.array([0, 0, 1]),
                body_id2name=("world", "base", "arm").__getitem__,
                geom_names=("floor", None, "cube"),
                stat=SimpleNamespace(extent=2.0),
                vis=SimpleNamespace(map=SimpleNamespace(znear=0.5, zfar=5.0)),
            ),
            data=SimpleNamespace(
                cam_xmat=np.stack([np.eye(3).ravel(), turned.ravel()]),
                cam_xpos=np.array([[1.0, 2, 3], [4, 5, 6]]),
                body_xmat=np.stack([np.eye(3).ravel()] * 2 + [turned.ravel()]),
                body_xpos=np.array([[0.0, 0, 0], [0, 0, 1], [1, 1, 1]]),
            ),
        )
        names = [f"thing {number}" for number in range(instances)]
        self.model = SimpleNamespace(
            geom_ids_to_instances={2: names[1], 0: names[0]},
            instances_to_ids=dict.fromkeys(names, ()),
            geom_ids_to_classes={1: "Box"},
            classes_to_ids={"Floor": (), "Box": ()},
        )

    def make_current(self):
        self.current += 1

    def render(self, *, height, width, camera_name, depth=False, segmentation=False):
        self.views.append((camera_name, height, width))
        frame = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
        if segmentation:
            assert self.context.vopt.sitegroup.tolist() == [0, 0, 0]
            kinds = np.full((height, width, 2), -1)
            kinds[0, :3] = [[5, 2], [5, 0], [6, 1]]
            return kinds
        return (frame, np.linspace(0, 1, height * width).reshape(height, width)) if depth else frame


def test_observations_are_upright_and_depth_is_in_metres():
    scene = Scene()
    obs = observe(scene, Camera("front", 2, 3))
    assert list(obs) == ["front_image"] and scene.current == 1
    assert obs["front_image"][:, 0, 0].tolist() == [9, 0] and obs["front_image"].flags.c_contiguous
    obs = observe(scene, Camera("front", 2, 3, depth=True, segmentation="element"))
    assert list(obs) == ["front_image", "front_depth", "front_segmentation"]
    assert set(scene.views) == {("front", 2, 3)}
    depth = obs["front_depth"]
    assert (depth.shape, depth.dtype) == ((2, 3, 1), np.float32)
    # planes at 1 and 10 m: 1 / (1 - 0.9 z)
    np.testing.assert_allclose(depth[1, :, 0], [1, 1 / 0.82, 1 / 0.64], rtol=1e-6)
    np.testing.assert_allclose(depth[0, 2], 10.0, rtol=1e-6)
    labels = obs["front_segmentation"]
    assert (labels.shape, labels.dtype) == ((2, 3, 1), np.int32)
    assert labels[..., 0].tolist() == [[0, 0, 0], [3, 1, 0]]
    assert scene.context.vopt.sitegroup.tolist() == [1, 0, 1]  # as before
    with refused("Scene: no camera 'fornt'; did you mean 'front'", error=EnvError):
        observe(scene, Camera("fornt"))


@pytest.mark.parametrize(
    ("kind", "names", "labels", "dtype"),
    [
        ("element", ["floor", "geom 1", "cube"], [3, 1, 0], np.int32),
        ("instance", ["thing 0", "thing 1"], [2, 1, 0], np.uint8),
        ("class", ["Floor", "Box"], [0, 0, 0], np.uint8),
    ],
)
def test_labels_by_kind(kind, names, labels, dtype):
    camera = Camera("front", 2, 3, segmentation=kind)
    assert camera_info(Scene(), camera)["segmentation"] == names
    found = observe(Scene(), camera)["front_segmentation"]
    assert found[1, :, 0].tolist() == labels and found.dtype == dtype
    assert "segmentation" not in camera_info(Scene(), Camera("front"))


def test_labels_that_do_not_fit():
    camera = Camera("front", 2, 3, segmentation="instance")
    assert len(camera_info(Scene(255), camera)["segmentation"]) == 255
    words = "Scene: 256 instance labels do not fit into uint8; use 'element'"
    with refused(words, error=EnvError):
        camera_info(Scene(256), camera)


def test_poses_and_projections():
    scene = Scene()
    info = camera_info(scene, Camera("front", 4, 6))
    assert info["frame"] == "world"
    # a field of view of 90 degrees over 4 pixels: a focal length of 2
    np.testing.assert_allclose(info["intrinsics"], [[2, 0, 3], [0, 2, 2], [0, 0, 1]], atol=1e-12)
    pose = [[1, 0, 0, 1], [0, -1, 0, 2], [0, 0, -1, 3], [0, 0, 0, 1]]
    np.testing.assert_allclose(info["extrinsics"], pose)
    points = np.array([[1.0, 2, 1], [2, 2, 1], [1, 3, 1], [1, 2, 3], [1, 2, 4]])
    found = project(scene, Camera("front", 4, 6), points)
    np.testing.assert_allclose(found[:3], [[3, 2], [4, 2], [3, 1]])
    assert np.isnan(found[3:]).all()  # in the camera, and behind it
    info = camera_info(scene, Camera("hand", 4, 6))
    assert info["frame"] == "arm"
    # the arm is turned by a quarter at (1, 1, 1), the camera at (4, 5, 6) like it
    pose = [[1, 0, 0, 4], [0, -1, 0, -3], [0, 0, -1, 5], [0, 0, 0, 1]]
    np.testing.assert_allclose(info["extrinsics"], pose, atol=1e-12)
    assert info["intrinsics"][0][0] == pytest.approx(2 * np.sqrt(3))
    for call in (camera_info, lambda *words: project(*words, points)):
        with refused("no camera 'top'", error=EnvError):
            call(scene, Camera("top"))


def test_a_renderer_is_freed_in_its_own_context():
    scene = Scene()
    free_renderer(scene)
    assert scene.current == 1 and scene.context not in vars(scene.sim).values()
    free_renderer(scene)
    free_renderer(SimpleNamespace(sim=None))
    assert scene.current == 1


# ---- arguments of files --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "camera"),
    [
        ({"camera_heights": [], "camera_widths": (7, 8)}, Camera("a", 84, 7)),
        ({"camera_names": ["a"], "camera_heights": (5,)}, Camera("a", 5, 84)),
        ({"camera_depths": 1, "camera_segmentations": ["class"]}, Camera("a", depth=True, segmentation="class")),
        ({"camera_names": "a", "camera_segmentations": [["element", "class"]]}, Camera("a", segmentation="element")),
        ({"camera_names": "a", "camera_segmentations": [[]]}, Camera("a")),
        ({"camera_names": None, "camera_depths": None}, Camera("a")),
    ],
)  # fmt: skip
def test_cameras_of_arguments(kwargs, camera):
    assert choose_cameras(kwargs, ["a", "a"]) == (camera,)


def test_depth_and_labels_that_are_asked_for_are_added():
    recorded = {"camera_names": "a", "camera_depths": True, "camera_segmentations": "class"}
    keys = ["a_image", "b_depth", "b_segmentation"]
    found = choose_cameras(recorded, ["a", "b"], (3, 4.0), keys)
    # a camera that the file did not have is like those that it has
    both = {"height": 3, "width": 4, "depth": True, "segmentation": "class"}
    assert found == (Camera("a", **both), Camera("b", **both))
    assert choose_cameras({}, ["b"], obs_keys=keys) == (
        Camera("b", depth=True, segmentation="instance"),
    )
    assert choose_cameras({}, ["a"], obs_keys=keys) == (Camera("a"),)
