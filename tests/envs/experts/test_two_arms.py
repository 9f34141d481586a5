import math

import numpy as np
import pytest

from imitate.envs.experts import find_expert
from imitate.envs.experts.expert import (
    CLOSE,
    OPEN,
    ExpertLayout,
    gripper_down,
    quat_product,
    rotated,
    tilted,
    turned,
)

from .hands import PLAIN

QUARTER = math.pi / 2
X, Y, Z = np.eye(3)


def hands(places, widths=(0.08, 0.08), yaws=(QUARTER, -QUARTER)):
    obs = {}
    for arm, (place, width, yaw) in enumerate(zip(places, widths, yaws, strict=True)):
        obs[f"robot{arm}_eef_pos"] = np.array(place, dtype=float)
        obs[f"robot{arm}_eef_quat"] = gripper_down(yaw)
        obs[f"robot{arm}_gripper_qpos"] = np.array([width / 2, -width / 2])
    return obs


def test_layouts():
    assert ExpertLayout().motion.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert ExpertLayout().gripper.tolist() == [6]
    two = ExpertLayout(arms=2)
    assert two.motion.tolist() == [[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]]
    assert two.gripper.tolist() == [6, 13]
    bare = ExpertLayout(arms=2, grippers=False)
    assert (bare.motion[1].tolist(), bare.gripper.tolist()) == ([6, 7, 8, 9, 10, 11], [])


def test_rotations():
    np.testing.assert_allclose(turned(X, QUARTER), Y, atol=1e-12)
    about_z = np.array([0.0, 0.0, math.sin(QUARTER / 2), math.cos(QUARTER / 2)])
    np.testing.assert_allclose(rotated(about_z, X), Y, atol=1e-12)
    about_x = np.array([math.sin(QUARTER / 2), 0.0, 0.0, math.cos(QUARTER / 2)])
    both = quat_product(about_x, about_z)  # first about z: x to y; then about x: y to z
    np.testing.assert_allclose(rotated(both, X), Z, atol=1e-12)
    np.testing.assert_allclose(rotated(tilted(about_z, QUARTER * X), X), Z, atol=1e-12)
    np.testing.assert_allclose(tilted(about_z, np.zeros(3)), about_z)


def test_each_arm_is_told_in_the_axes_of_its_own_base():
    expert = find_expert("TwoArmLift")(PLAIN)
    ahead = np.array([0.0, 0.4, 0.1, 0.0, 0.2, 0.0, CLOSE])
    action = expert.both(ahead, ahead)
    # +y is straight ahead for the first base, and straight back for the second
    np.testing.assert_allclose(action[:7], [0.4, 0, 0.1, 0.2, 0, 0, CLOSE], atol=1e-12)
    np.testing.assert_allclose(action[7:], [-0.4, 0, 0.1, -0.2, 0, 0, CLOSE], atol=1e-12)


@pytest.mark.parametrize(
    ("widths", "rises"), [((0.02, 0.02), True), ((0.02, 0.05), False), ((0.05, 0.02), False)]
)
def test_a_pot_is_raised_where_both_hands_hold_it(widths, rises):
    handles = [0.0, -0.16, 0.93], [0.0, 0.16, 0.93]
    obs = hands(handles, widths)
    obs["object"] = np.array([0.0, 0.0, 0.87, 0, 0, 0, 1, *handles[0], *handles[1]])
    action = find_expert("TwoArmLift")(PLAIN).act(obs)
    assert (action[2] > 0.3) == (action[9] > 0.3) == rises
    assert action[6] == action[13] == CLOSE


def test_the_hand_that_hangs_back_rises_faster():
    handles = [0.0, -0.16, 0.93], [0.0, 0.16, 0.93]
    obs = hands(([0.0, -0.16, 0.95], [0.0, 0.16, 0.93]), (0.02, 0.02))
    obs["object"] = np.array([0.0, 0.0, 0.87, 0, 0, 0, 1, *handles[0], *handles[1]])
    action = find_expert("TwoArmLift")(PLAIN).act(obs)
    assert action[9] == pytest.approx(0.72)  # the style's speed times the pace
    assert 0.0 < action[2] < 0.72


def peg_and_plate(ahead, aside, turn=0.0):
    """A peg along +x whose hole is ``ahead`` and ``aside`` of it; ``turn`` is that of the peg about z."""
    obs = hands(([0, 0, 1], [0, 0.1, 1]))
    to_hole = np.array([ahead, aside, 0.0])
    # the plate's z axis is -x, its x axis is z: the hole is 10 cm above its edge
    plate = np.array([0.0, -math.sin(QUARTER / 2), 0.0, math.cos(QUARTER / 2)])
    assert np.allclose(rotated(plate, Z), -X) and np.allclose(rotated(plate, X), Z)
    peg = tilted(np.array([0.0, math.sin(QUARTER / 2), 0.0, math.cos(QUARTER / 2)]), turn * Z)
    edge = np.array([0.05, 0.08, 0.95]) - 0.1 * Z
    obs["object"] = np.concatenate([edge, plate, to_hole - 0.1 * Z, peg, [1, 0, 0]])
    return obs


def test_the_peg_goes_in_where_it_is_straight_and_before_the_hole():
    expert = find_expert("TwoArmPegInHole")(PLAIN)

    def of_the_peg(**where):
        """Return its translation in the world's axes; the first base is turned by a quarter."""
        return turned(expert.act(peg_and_plate(**where))[:3], QUARTER)

    assert of_the_peg(ahead=0.22, aside=0.0)[0] > 0.3
    assert of_the_peg(ahead=0.22, aside=0.1)[0] == pytest.approx(0.0, abs=1e-9)
    assert of_the_peg(ahead=0.22, aside=0.1)[1] > 0.3
    near = of_the_peg(ahead=0.12, aside=0.1)  # back first: the tip would touch the plate
    assert near[0] < -0.3 and near[1] == pytest.approx(0.0, abs=1e-9)
    assert of_the_peg(ahead=0.22, aside=0.0, turn=0.5)[0] < 0.3


def test_peg_and_plate_turn_towards_each_other():
    action = find_expert("TwoArmPegInHole")(PLAIN).act(peg_and_plate(0.22, 0.0, turn=0.5))
    assert action.shape == (12,)
    assert action[5] < -0.5  # the peg's turn is undone
    assert action[11] > 0.5
    np.testing.assert_allclose(action[6:9], 0.0, atol=1e-9)  # the plate is in its place


def hammer(places, widths, middle=(0.0, 0.0, 1.05)):
    obs = hands(places, widths)
    along_y = np.array([-math.sin(QUARTER / 2), 0.0, 0.0, math.cos(QUARTER / 2)])
    assert np.allclose(rotated(along_y, Z), Y)
    obs["object"] = np.array([*middle, *along_y, *middle])
    return obs


def test_a_hammer_is_let_go_once_the_other_hand_holds_it():
    expert = find_expert("TwoArmHandover")(PLAIN)
    places = [0.0, -0.04, 1.05], [0.0, 0.04, 1.05]
    alone = expert.act(hammer((places[0], [0.0, 0.1, 1.17]), (0.035, 0.08)))
    assert (alone[6], alone[13]) == (CLOSE, OPEN)
    assert alone[9] < 0  # the other one comes down on the free end
    for width, comes in (
        (0.0461, True),
        (0.0469, False),
    ):  # a grip of a little more, or less, than a half
        seen = hammer((places[0], [0.0, 0.1, 1.17]), (width, 0.08))
        assert (expert.act(seen)[9] < -0.01) == comes
    both = expert.act(hammer(places, (0.035, 0.035)))
    assert (both[6], both[13]) == (OPEN, CLOSE)
    gone = expert.act(hammer(places, (0.08, 0.035)))
    assert gone[6] == OPEN
    assert gone[0] < -0.2  # back, in the axes of its base
    assert gone[2] > 0.2


def test_the_second_hand_waits_until_the_hammer_is_between_them():
    expert = find_expert("TwoArmHandover")(PLAIN)
    away = (0.0, -0.4, 0.82)
    action = expert.act(hammer(([0.0, -0.44, 0.82], [0.0, 0.1, 1.17]), (0.035, 0.08), away))
    assert action[2] > 0.5  # up from the table first
    assert action[13] == OPEN
    np.testing.assert_allclose(action[7:10], 0.0, atol=1e-9)


def drawn(random, task):
    """An observation with hands near to and far from where they decide anew."""

    def turn():
        quat = random.normal(size=4)
        return quat / np.linalg.norm(quat)

    def off(least=-2.7):
        return 10 ** random.uniform(least, -0.7) * random.normal(size=3) / math.sqrt(3)

    if task == "TwoArmPegInHole":
        obs = peg_and_plate(
            random.uniform(0.03, 0.3), random.uniform(-0.06, 0.06), random.uniform(-0.5, 0.5)
        )
        for arm in (0, 1):
            obs[f"robot{arm}_eef_quat"] = turn()
        obs["object"][:3] += off()
        return obs
    if task == "TwoArmLift":
        handles = [0.0, -0.16, 0.93] + off(), [0.0, 0.16, 0.93] + off()
        parts = [0.0, 0.0, 0.87], [0, 0, 0, 1], *handles
        places = [handle + off() for handle in handles]
    else:
        middle = [0.0, 0.0, 1.05] + off() * [1, 1, 2]
        parts = middle, tilted(hammer([Y, Y], (0, 0))["object"][3:7], off()), middle
        places = [middle + side * 0.04 * Y + off() for side in (-1, 1)]
    widths = np.where(random.random(2) < 0.5, random.uniform(0.02, 0.055, 2), 0.08)
    obs = hands(places, widths, [base + 3 * off()[0] for base in (QUARTER, -QUARTER)])
    return {**obs, "object": np.concatenate(parts)}


@pytest.mark.parametrize(
    ("task", "horizon", "mean"),
    [
        ("TwoArmLift", 300, 0.0003693121264973463),
        ("TwoArmPegInHole", 300, -0.0007202666363577998),
        ("TwoArmHandover", 500, 0.0011003090974949074),
    ],
)
def test_habits_are_the_same_in_each_version(task, horizon, mean):
    random, expert = np.random.default_rng(3), find_expert(task)(PLAIN)
    actions = np.array([expert.act(drawn(random, task)) for _ in range(400)])
    assert expert.horizon == horizon
    assert (actions * random.uniform(-1, 1, actions.shape)).mean() == pytest.approx(mean, abs=1e-9)
