"""The way of a hand under actions that are not executed."""

from types import SimpleNamespace

import numpy as np
import pytest

from imitate.envs.cameras import Camera, camera_info, observe, project
from imitate.envs.robosuite_env import RobosuiteEnv, planned_paths

# A critically damped spring of kp 150 has the frequency w = 12.247 / s. From rest, 0.05 s later it is at the share
# 1 - (1 + 0.05 w) exp(-0.05 w) = 0.1260 of the way to its goal.
SHARE = 0.1260


class Controller(SimpleNamespace):
    """robosuite's OSC_POSE at 20 Hz, as far as it is needed."""

    def scale_action(self, command):
        return 0.05 * np.clip(command, -1, 1)


def controller(**settings):
    defaults = {
        "name_suffix": "POSE",
        "use_ori": True,
        "ref_name": "hand",
        "input_ref_frame": "world",
        "input_type": "delta",
        "origin_pos": np.array([1.0, 0.0, 0.0]),
        # a quarter turn about z: x of the base is y of the world
        "origin_ori": np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
        "control_freq": 20,
        "kp": np.full(6, 150.0),
        "kd": np.full(6, 2 * np.sqrt(150.0)),
    }
    return Controller(**{**defaults, **settings})


def scene(*controllers):
    """An arm of seven numbers, the last of them its gripper's, per controller; all hands rest at (0.2, 0.3, 1)."""
    robots = [
        SimpleNamespace(
            arms=["right"],
            action_dim=7,
            composite_controller=SimpleNamespace(
                update_state=lambda: None,
                part_controllers={"right": one},
                _action_split_indexes={"right": (0, 6), "right_gripper": (6, 7)},
            ),
        )
        for one in controllers
    ]
    data = SimpleNamespace(
        site_xpos=np.array([[0.2, 0.3, 1.0]]), get_site_xvelp=lambda name: np.zeros(3)
    )
    model = SimpleNamespace(site_name2id=["hand"].index)
    return SimpleNamespace(robots=robots, sim=SimpleNamespace(data=data, model=model))


def test_relative_commands_pull_the_hand_a_share_of_the_way():
    actions = np.zeros((2, 7))
    actions[0, :3] = [1.0, 5.0, 0.0]  # the second is clipped to 1: 5 cm
    (path,) = planned_paths(scene(controller()), actions)
    assert path.shape == (3, 3)
    assert path[0].tolist() == [0.2, 0.3, 1.0]
    np.testing.assert_allclose(path[1] - path[0], np.array([1, 1, 0]) * 0.05 * SHARE, rtol=0.05)
    # It is still moving when the second command holds it where it is.
    assert (path[2] > path[1])[:2].all()


@pytest.mark.parametrize(
    ("rate", "pulses", "length"), [(1000, 1, 0.001), (250, 2, 0.002), (200, 2, 0.0025)]
)
def test_the_spring_moves_in_pulses_of_two_milliseconds(rate, pulses, length):
    actions = np.zeros((1, 7))
    actions[0, 0] = 1.0
    (path,) = planned_paths(scene(controller(control_freq=rate)), actions)
    place = speed = 0.0
    for _ in range(pulses):
        speed += length * (150.0 * (0.05 - place) - 2 * np.sqrt(150.0) * speed)
        place += length * speed
    np.testing.assert_allclose(path[1] - path[0], [place, 0, 0], rtol=1e-9, atol=1e-15)


def test_a_goal_that_does_not_follow_the_hand_is_reached():
    actions = np.zeros((30, 7))
    actions[:4, 2] = 1.0
    (path,) = planned_paths(scene(controller(_goal_update_mode="desired")), actions)
    np.testing.assert_allclose(path[-1], [0.2, 0.3, 1.2], atol=1e-3)


@pytest.mark.parametrize(("frame", "end"), [("world", [0.4, 0.1, 0.9]), ("base", [0.9, 0.4, 0.9])])
def test_absolute_goals_in_the_frame_of_the_controller(frame, end):
    actions = np.zeros((30, 7))
    actions[:, :3] = [0.4, 0.1, 0.9]
    absolute = controller(input_type="absolute", input_ref_frame=frame)
    (path,) = planned_paths(scene(absolute), actions)
    np.testing.assert_allclose(path[-1], end, atol=1e-3)


def test_relative_commands_in_the_frame_of_the_base():
    actions = np.zeros((1, 7))
    actions[0, 0] = 1.0
    (path,) = planned_paths(scene(controller(input_ref_frame="base")), actions)
    np.testing.assert_allclose(path[1] - path[0], [0, 0.05 * SHARE, 0], rtol=0.05, atol=1e-9)


def test_each_robot_has_its_columns_and_joint_controllers_have_no_path():
    actions = np.zeros((1, 21))
    actions[0, 7 + 7] = 1.0  # the third robot's x
    joints = SimpleNamespace(name_suffix=None)
    still, moved = planned_paths(scene(controller(), joints, controller()), actions)
    assert (still[1] == still[0]).all()
    assert moved[1, 0] > moved[0, 0]


@pytest.fixture(scope="module")
def lift():
    env = RobosuiteEnv("Lift", render=True)
    yield env
    env.close()


def play(env, actions, look):
    obs, _ = env.reset(seed=2)
    positions = [obs["robot0_eef_pos"]]
    path = planned_paths(env.base_env, actions)[0] if look else None
    for action in actions:
        obs, *_ = env.step(action)
        positions.append(obs["robot0_eef_pos"])
    return np.array(positions), path


@pytest.mark.slow("a simulator moves and draws")
@pytest.mark.robosuite
@pytest.mark.render
def test_lift_goes_there_and_looking_changes_nothing(lift):
    actions = np.zeros((12, 7))
    actions[:, :3] = [0.5, -0.8, -0.6]
    way, path = play(lift, actions, look=True)
    unseen, _ = play(lift, actions, look=False)
    assert (way == unseen).all()
    moved = np.linalg.norm(way[-1] - way[0])
    assert moved > 0.1
    assert np.linalg.norm(path - way, axis=1).max() < 0.2 * moved


@pytest.mark.slow("a simulator draws")
@pytest.mark.robosuite
@pytest.mark.render
def test_pixels_of_the_path_lie_where_the_camera_sees_the_hand(lift):
    lift.reset(seed=0)
    camera = Camera("frontview", 128, 128, segmentation="instance")
    labels = observe(lift.base_env, camera)["frontview_segmentation"][..., 0]
    names = camera_info(lift.base_env, camera)["segmentation"]
    (gripper,) = [number for number, name in enumerate(names, 1) if "Gripper" in name]
    rows, columns = np.nonzero(labels == gripper)
    (path,) = lift.planned_paths(np.zeros((2, 7)), height=128, width=128, camera_name="frontview")
    assert path.shape == (3, 2)
    x, y = path[0]
    assert np.isnan(project(lift.base_env, camera, np.array([[5.0, 0.0, 1.0]]))).all()  # behind it
    # Between the tips of the fingers: at the lower end of what is seen of the gripper.
    assert columns.min() < x < columns.max()
    assert abs(y - rows.max()) < 4
