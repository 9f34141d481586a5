"""Idle stretches, jumps and clocks: exact steps, and each limit from both sides."""

from types import SimpleNamespace

import numpy as np
import pytest

from imitate.data.quality.doctor.finding import Level
from imitate.data.quality.doctor.motion import (
    Idle,
    Jumps,
    LostSteps,
    is_motion,
    is_position,
    is_switch,
)
from imitate.data.quality.doctor.survey import DemoSteps
from imitate.errors import DatasetError


@pytest.mark.parametrize(
    ("key", "position", "motion"),
    [
        ("obs/eef_pos", True, True),
        ("obs/qpos", True, True),
        ("obs/state", True, True),
        ("obs/robot0_joint_pos", True, True),
        ("obs/joint_states", True, True),
        ("obs/positions", True, True),
        ("obs/pose", True, True),
        ("obs/ee", True, True),
        ("obs/xpos", False, False),
        ("obs/pos_x", False, False),
        ("obs/object_pos", False, False),
        ("obs/eef_quat_pos", False, False),
        ("obs/gripper_qpos", False, True),
        ("obs/gripper_quat", False, False),
        ("states/qpos", False, False),
        ("actions", False, False),
    ],
)
def test_names_of_positions(key, position, motion):
    assert (is_position(key), is_motion(key)) == (position, motion)


def test_switches():
    actions = np.array([[0, 1, 5, 0], [1, 2, 5, 0.5], [0, 1, 5, 1], [1, 2, 5, 1]])
    assert is_switch(actions).tolist() == [True, True, True, False]


# ---- idle stretches ------------------------------------------------------------------------------


def piece(idle, steps=40, quiet=0.0, creep=0.0, start=0, is_last=True, switch=None, **more):
    """An arm that moves 0.125 per step of actions 0.5 to 1, and hardly moves in the stretch ``idle``."""
    rest = np.zeros(steps, bool)
    rest[slice(*idle)] = True
    columns = [np.where(rest, quiet, np.linspace(0.5, 1.0, steps))]
    if switch is not None:
        columns.append((np.arange(steps) >= switch).astype(float))
    moved = np.where(rest, creep, 0.125)
    places = np.concatenate([[0], moved.cumsum()[:-1]])
    small = {"actions": np.stack(columns, 1), "obs/eef_pos": places[:, None], **more}
    return DemoSteps("d", start, small, is_last=is_last)


def idle_of(*pieces):
    check = Idle()
    for each in pieces:
        check.see(each)
    return next(check.findings(), None)


def test_an_idle_stretch_and_the_steps_that_are_kept():
    found = idle_of(piece((15, 27)))
    assert (found.code, found.level) == ("idle", Level.warning)
    assert found.what == "nothing happens in 12 steps (30.0 %), in stretches of 10 and more"
    (place,) = found.places
    assert (place.demo, place.key, place.steps) == ("d", "actions", ((15, 27),))
    kept = [n for n in range(40) if not 20 <= n < 27]
    assert found.remedy.rows["d"].done.tolist() == kept
    assert found.advice == "keep these steps if waiting is part of the task"
    (place,) = idle_of(piece((15, 27), start=100)).places
    assert place.steps == ((115, 127),)


@pytest.mark.parametrize(
    ("words", "stretches"),
    [
        ({"idle": (15, 25)}, ((15, 25),)),
        ({"idle": (15, 24)}, None),
        ({"idle": (15, 30), "quiet": 0.01}, ((15, 30),)),  # a hundredth of the largest action
        (
            {"idle": (15, 30), "quiet": 0.0101},
            ((16, 30),),
        ),  # the same target, from its second step on
        ({"idle": (15, 30), "quiet": -0.01}, ((15, 30),)),
        ({"idle": (15, 30), "quiet": np.arange(40) % 2 * 0.0102}, None),
        ({"idle": (15, 30), "quiet": np.arange(40) % 2 * 0.009}, ((15, 30),)),
        ({"idle": (15, 30), "quiet": 0.5 + np.arange(40) % 2 * 0.0001}, ((16, 30),)),
        ({"idle": (15, 30), "quiet": 0.5 + np.arange(40) % 2 * 0.00012}, None),
        ({"idle": (15, 30), "creep": 0.0024}, ((15, 30),)),
        ({"idle": (15, 30), "creep": 0.0026}, None),
        ({"idle": (0, 11), "steps": 11}, ((0, 11),)),
        ({"idle": (0, 10), "steps": 10}, None),
        ({"idle": (15, 36), "switch": 25}, ((15, 25), (26, 36))),
        ({"idle": (15, 34), "switch": 25}, ((15, 25),)),
    ],
)
def test_limits_of_idleness(words, stretches):
    found = idle_of(piece(**words))
    assert (None if found is None else found.places[0].steps) == stretches


@pytest.mark.parametrize(
    ("idle", "level"), [((50, 60), Level.info), ((50, 61), Level.warning), ((50, 59), None)]
)
def test_a_tenth_of_the_steps_may_be_idle(idle, level):
    found = idle_of(piece(idle, steps=100))
    assert (None if found is None else found.level) is level


@pytest.mark.parametrize(("creep", "found"), [(0.0024, True), (0.0026, False)])
def test_the_usual_motion_is_that_of_steps_with_motion(creep, found):
    """Actions move the arm in each fifth step only."""
    rest = np.zeros(80, bool)
    rest[20:40] = True
    moved = np.where(rest, creep, np.where(np.arange(80) % 5 == 0, 0.125, 0.0))
    places = np.concatenate([[0], moved.cumsum()[:-1]])
    small = {"actions": np.where(rest, 0, np.linspace(0.5, 1, 80))[:, None]}
    stretch = idle_of(DemoSteps("d", 0, {**small, "obs/eef_pos": places[:, None]}))
    assert bool(stretch) == found


def test_parts_of_demos_have_no_remedy():
    for more in ({"start": 5}, {"is_last": False}):
        found = idle_of(piece((15, 27), **more))
        assert found.remedy is None and found.advice == "cut the demos into shorter ones"
    assert idle_of(DemoSteps("d", 0, {"obs/eef_pos": np.zeros((40, 1))})) is None
    assert idle_of(DemoSteps("d", 0, {"actions": np.zeros((40, 1))})) is None
    # steps without positions count as steps
    found = idle_of(piece((50, 61), steps=100), DemoSteps("e", 0, {"actions": np.ones((10, 1))}))
    assert found.level is Level.info and "(10.0 %)" in found.what


# ---- jumps ---------------------------------------------------------------------------------------


def walk(demo, size=1.0, jump=None, at=20, steps=40, start=0):
    moves = np.full(steps, size)
    if jump is not None:
        moves[at] = jump
    places = np.concatenate([[0], moves.cumsum()])
    return DemoSteps(demo, start, {"obs/eef_pos": np.stack([places, 0 * places], 1)})


def jumps_of(*pieces):
    check = Jumps()
    for each in pieces:
        check.see(each)
    return next(check.findings(), None)


def test_a_jump_is_many_times_farther_than_a_large_step():
    assert jumps_of(walk("a", jump=15.0), walk("b")) is None
    pieces = [walk("a", jump=-15.1, start=100), walk("b"), walk("c", jump=16, at=0), walk("d")]
    found = jumps_of(*pieces, walk("e"))
    assert (found.code, found.level) == ("jump", Level.warning)
    assert found.what == (
        "the robot jumps in 2 demos, 15 times farther than in a large step elsewhere"
    )
    places = [(place.demo, place.key, place.steps) for place in found.places]
    assert places == [("a", "obs", ((121, 122),)), ("c", "obs", ((1, 2),))]
    assert found.remedy.drop_demos == ["a", "c"]
    assert jumps_of(*pieces).level is Level.warning  # in half of the demos
    found = jumps_of(*pieces[:3])
    assert (found.level, found.remedy) == (Level.info, None)
    assert found.advice.startswith("look at one with imitate dataset playback: in most demos")


def test_demos_that_jump_are_no_measure_of_a_large_step():
    """Without a the median of the large steps is 1, not 2, so that b jumps, too."""
    pieces = [walk("a", 3, 100), walk("d", 3), walk("b", 1, 20), walk("c", 1)]
    assert jumps_of(*pieces).remedy.drop_demos == ["a", "b"]
    assert jumps_of(walk("d", 3), *pieces[1:]) is None


def test_positions_in_whole_numbers_do_not_wrap():
    places = np.tile([20, 21], 20).astype(np.uint8)
    places[30:] += 20
    usual = DemoSteps("b", 0, {"obs/eef_pos": np.tile([20, 21], 20).astype(np.uint8)[:, None]})
    found = jumps_of(DemoSteps("a", 0, {"obs/eef_pos": places[:, None]}), usual)
    assert [place.steps for place in found.places] == [((30, 31),)]


def test_too_short_still_or_not_finite():
    def short(demo, steps, jump):
        return walk(demo, jump=jump, at=1, steps=steps)

    usual = [walk(name) for name in "bcd"]
    assert jumps_of(short("a", 4, 16.0), *usual).remedy.drop_demos == ["a"]
    assert jumps_of(short("a", 3, 16.0), *usual) is None
    assert jumps_of(short("a", 4, np.nan), *usual) is None
    assert jumps_of() is None
    assert jumps_of(walk("a", 0.0, 5.0), walk("b", 0.0), walk("c", 0.0)) is None


@pytest.mark.parametrize(("steps", "found"), [(4000, True), (3999, False)])
def test_of_many_steps_some_are_compared(steps, found):
    """Of 4000 steps each second one is read, so that the large ones between are not seen."""
    moves = np.tile([1.0, 10.0], 2000)[:steps]
    moves[2001] = 20.0
    places = np.concatenate([[0], moves.cumsum()])
    assert bool(jumps_of(DemoSteps("a", 0, {"obs/eef_pos": places[:, None]}))) == found


# ---- clocks --------------------------------------------------------------------------------------


def layout(rate_hz=10.0, keys=("obs/timestamp",), env_type=4):
    class File:
        env_meta = {"type": env_type}

        @property
        def control_freq(self):
            if rate_hz == "bad":
                raise DatasetError("no number")
            return rate_hz

    return SimpleNamespace(steps=dict.fromkeys(keys), file=File())


def clocks_of(shape, *times, key="obs/timestamp"):
    check = LostSteps(shape)
    for number, each in enumerate(times):
        check.see(DemoSteps(f"demo_{number}", 5 * number, {key: np.asarray(each)[:, None]}))
    return next(check.findings(), None)


TIMES = np.arange(30) / 10
GAP = np.where(np.arange(30) >= 12, TIMES + 0.2, TIMES)


def test_clocks():
    assert clocks_of(layout(), TIMES) is None
    assert clocks_of(layout("bad"), TIMES) is None
    found = clocks_of(layout(), TIMES, GAP, TIMES)
    assert (found.code, found.level) == ("clock", Level.warning)
    assert found.what.startswith("by 'obs/timestamp' ")
    (place,) = found.places
    assert (place.demo, place.key) == ("demo_1", "obs/timestamp")
    assert found.remedy.drop_demos == ["demo_1"] and found.advice == ""
    assert place.steps[0][0] in (16, 17)  # step 11 or 12 of a piece that begins at 5
    found = clocks_of(layout(20.0), TIMES)
    assert found.remedy is None and found.advice.startswith("correct the attribute 'control_freq'")
    assert [(place.demo, place.key) for place in found.places] == [(None, "obs/timestamp")]


def test_the_clock_of_robosuites_states():
    def states(env_type=1, keys=("states",), bad=1):
        times = [GAP] * bad + [TIMES] * 2
        return clocks_of(layout(None, keys, env_type), *times, key="states")

    assert states().remedy.drop_demos == ["demo_0"]
    assert len(states(bad=2).places) == 2
    assert states(bad=3) is None  # most of them: states that do not begin with the time
    assert states(env_type=2) is None
    assert states(keys=("obs/timestamp", "states")) is None
