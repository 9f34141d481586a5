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


def world(action, arm, size=7):
    """The translation of an arm's action in the world's axes."""
    own = action[size * arm : size * arm + 3]
    return turned(own, (QUARTER, -QUARTER)[arm])


def command(displacement, pace=1.2):
    """30 per metre, shortened to the speed."""
    found = 30.0 * np.asarray(displacement)
    return found * min(1.0, 0.6 * pace / max(np.linalg.norm(found), 1e-9))


POT = [0.0, -0.16, 0.93], [0.0, 0.16, 0.93]


def pot(offset=(0.0, 0.0, 0.0), widths=(0.08, 0.08), lower=0.0):
    """The first hand misses its handle by an offset; the second one is lower, with its handle."""
    handles = np.array(POT[0]), np.array(POT[1]) - lower * Z
    obs = hands((handles[0] - offset, handles[1]), widths)
    obs["object"] = np.array([0.0, 0.0, 0.87, 0, 0, 0, 1, *handles[0], *handles[1]])
    return find_expert("TwoArmLift")(PLAIN).act(obs)


@pytest.mark.parametrize(
    ("offset", "width", "closes"),
    [
        ((0.0095, 0, 0), 0.08, True),
        ((0.0105, 0, 0), 0.08, False),
        ((0, 0, 0.0115), 0.08, True),
        ((0, 0, -0.0125), 0.08, False),
        ((0, 0.024, 0), 0.074, True),
        ((0, 0.024, 0), 0.076, False),
        ((0, 0.026, 0), 0.074, False),
        ((0, 0, 0.024), 0.074, True),
        ((0, 0, 0.026), 0.074, False),
    ],
)
def test_a_handle_is_reached(offset, width, closes):
    action = pot(offset, (width, 0.08))
    assert action[6] == (CLOSE if closes else OPEN) and action[13] == CLOSE


@pytest.mark.parametrize(
    ("widths", "grips"),
    [((0.02, 0.02), (1, 1)), ((0.025, 0.03), (1, 0.5)), ((0.035, 0.02), (0, 1)), ((0.03, 0.03), (0.5, 0.5))],
)  # fmt: skip
def test_the_pot_rises_with_the_weaker_grip(widths, grips):
    offset, lower = np.array([0.004, 0.0, -0.004]), 0.01
    action = pot(offset, widths, lower)
    heights = POT[0][2] - offset[2], POT[1][2] - lower
    for arm, missed in ((0, offset), (1, np.zeros(3))):
        rise = 0.03 * min(grips) + sum(heights) / 2 - heights[arm]
        wanted = (1 - grips[arm]) * missed + min(grips) * rise * Z
        np.testing.assert_allclose(world(action, arm), command(wanted), atol=1e-9)


def test_a_hand_that_is_not_there_yet_keeps_the_pot_down():
    action = pot((0.03, 0.0, 0.0), (0.02, 0.02))
    assert action[6] == OPEN
    np.testing.assert_allclose(world(action, 1), 0.0, atol=1e-9)


@pytest.mark.parametrize(
    ("ahead", "aside", "turn", "enters", "clear"),
    [
        (0.2, 0.0, 0.0, 1.0, 1.0),
        (0.2, 0.03, 0.0, 0.5, 1.0),
        (0.185, 0.03, 0.0, 0.5, 0.5),
        (0.178, 0.03, 0.0, 0.5, 0.5),  # as much as it enters
        (0.17, 0.05, 0.0, 0.0, 0.0),
        (0.26, 0.05, 0.0, 0.0, 1.0),
        (0.26, 0.0, 0.225, 0.5, 1.0),
        (0.26, 0.0, 0.4, 0.0, 1.0),
    ],
)
def test_the_way_of_the_peg_by_hand(ahead, aside, turn, enters, clear):
    obs = hands(([0, 0, 1], [0, 0.1, 1]))
    axis = np.array([math.cos(turn), math.sin(turn), 0.0])
    to_hole = ahead * axis + aside * np.cross(Z, axis)
    plate = np.array([0.0, -math.sin(QUARTER / 2), 0.0, math.cos(QUARTER / 2)])
    peg = quat_product(
        np.array([0, 0, math.sin(turn / 2), math.cos(turn / 2)]),
        np.array([0.0, math.sin(QUARTER / 2), 0.0, math.cos(QUARTER / 2)]),
    )
    np.testing.assert_allclose(rotated(peg, Z), axis, atol=1e-12)
    hole = np.array([0.02, 0.05, 0.9])
    obs["object"] = np.array([*hole, *plate, *(to_hole - 0.1 * Z), *peg])
    action = find_expert("TwoArmPegInHole")(PLAIN).act(obs)
    goal = enters * 0.05 + (1 - enters) * 0.22
    course = max(clear, enters) * aside * np.cross(Z, axis) + (ahead - goal) * axis
    np.testing.assert_allclose(world(action, 0, 6), command(course), atol=1e-6)
    to_place = np.array([0.05, 0.08, 0.95]) - hole - 0.1 * Z
    np.testing.assert_allclose(world(action, 1, 6), command(to_place), atol=1e-9)


def handle(middle, ways=((0, 0, 0), (0, 0, 0)), widths=(0.043, 0.08), turn=0.0):
    """A handle along y, turned about z; each hand misses its place by a way."""
    axis = np.array([-math.sin(turn), math.cos(turn), 0.0])
    places = [np.array(middle) + side * 0.04 * axis for side in (-1, 1)]
    obs = hands([place - way for place, way in zip(places, ways, strict=True)], widths)
    quat = tilted(np.array([-math.sin(QUARTER / 2), 0, 0, math.cos(QUARTER / 2)]), turn * Z)
    np.testing.assert_allclose(rotated(quat, Z), axis, atol=1e-12)
    obs["object"] = np.array([0, 0, 0, *quat, *middle])
    return find_expert("TwoArmHandover")(PLAIN).act(obs)


AWAY = (0.0, 0.3, 0.3)


@pytest.mark.parametrize(
    ("height", "width", "grip", "free"),
    [
        (0.85, 0.043, 1.0, 0.0),
        (0.90, 0.043, 1.0, 0.5),
        (0.92, 0.043, 1.0, 1.0),
        (0.90, 0.0465, 0.5, 0.5),
        (0.90, 0.05, 0.0, 0.5),
    ],
)
def test_the_hammer_is_carried_to_the_other_hand(height, width, grip, free):
    middle, way = (0.1, -0.2, height), np.array([0.002, 0.0, -0.002])
    action = handle(middle, (way, AWAY), (width, 0.08))
    course = np.array([-0.1 * free, 0.2 * free, 1.05 - height])
    wanted = command((1 - grip) * way + grip * course, 1.3)
    np.testing.assert_allclose(world(action, 0), wanted, atol=1e-9)
    assert action[6] == CLOSE


@pytest.mark.parametrize(
    ("turn", "height", "wanted"), [(0.1, 1.0, -0.2), (0.1, 0.9, -0.1), (0.1, 0.85, 0.0)]
)
def test_a_raised_hammer_is_turned_towards_the_other_hand(turn, height, wanted):
    action = handle((0.0, -0.2, height), ((0, 0, 0), AWAY), turn=turn)
    assert action[5] == pytest.approx(wanted, abs=1e-9)  # 0.5 rad per unit


@pytest.mark.parametrize(
    ("way", "width", "closes"),
    [(0.0135, 0.08, True), (0.0145, 0.08, False), (0.039, 0.074, True), (0.039, 0.076, False), (0.041, 0.074, False)],
)  # fmt: skip
def test_each_hand_closes_about_its_end(way, width, closes):
    action = handle((0.0, 0.0, 1.05), ((way, 0, 0), AWAY), (width, 0.08))
    assert action[6] == (CLOSE if closes else OPEN)
    action = handle((0.0, 0.0, 1.05), ((0, 0, 0), (way, 0, 0)), (0.043, width))
    assert action[13] == (CLOSE if closes else OPEN)


@pytest.mark.parametrize(("width", "rise"), [(0.043, 0.0), (0.06, 0.5), (0.07, 1.0), (0.08, 1.0)])
def test_the_first_hand_lets_go_and_draws_back(width, rise):
    action = handle((0.0, 0.0, 1.05), widths=(width, 0.043))
    np.testing.assert_allclose(
        world(action, 0), command(rise * np.array([0, -0.1, 0.1]), 1.3), atol=1e-9
    )
    assert action[6] == OPEN and action[13] == CLOSE
    assert handle((0.0, 0.0, 1.05), widths=(0.043, 0.0435))[6] == CLOSE  # not held firmly yet


@pytest.mark.parametrize(
    ("off", "width", "comes"),
    [(0.0, 0.043, True), (0.059, 0.043, True), (0.061, 0.043, False), (0.0, 0.0464, True), (0.0, 0.0466, False)],
)  # fmt: skip
def test_the_second_hand_comes_where_the_hammer_is_held_at_the_meeting_place(off, width, comes):
    way = np.array([0.0, 0.0, -0.2])
    action = handle((off, 0.0, 1.05), ((0, 0, 0), way), (width, 0.08))
    place = np.array([off, 0.04, 1.05])
    waiting = np.array([0.0, 0.10, 1.17]) - (place - way)
    wanted = way if comes else waiting
    np.testing.assert_allclose(world(action, 1), command(wanted, 1.3), atol=1e-9)
    assert action[13] == OPEN
