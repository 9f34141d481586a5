"""Actions and ranges: exact shares and steps, and each limit from both sides."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from imitate.data.quality.doctor import actions as actions_module
from imitate.data.quality.doctor.actions import (
    Clipping,
    ObservedOrder,
    Ranges,
    Representations,
    with_one_sign,
)
from imitate.data.quality.doctor.finding import Level
from imitate.data.quality.doctor.survey import DemoSteps


def column(*values):
    return np.array(values, dtype=float)[:, None]


def piece(demo="d", start=0, **small):
    return DemoSteps(demo, start, {key.replace("__", "/"): value for key, value in small.items()})


def found_by(check, *pieces):
    for each in pieces:
        check.see(each)
    return list(check.findings())


def steps_of(finding):
    return [(place.demo, place.key, place.steps) for place in finding.places]


# ---- at a limit ----------------------------------------------------------------------------------

INNER = [3, 4, 5, 4, 3, 4, 5, 4]
"""Values within the limits, which reverse."""


@pytest.mark.parametrize(
    ("pieces", "level", "percent"),
    [
        ([[9, 0, 9, 0, *INNER, *INNER]], Level.info, 20),
        ([[9, 0, 9, *INNER, *INNER]], None, None),
        ([[9, 0] * 4 + INNER], Level.warning, 50),
        ([[9, 0] * 3 + [9, *INNER]], Level.info, 47),
        ([[9, 0] * 4 + INNER, [0, *INNER[:3]]], Level.info, 45),  # the same end again
        ([[9, 0] * 4 + INNER, [-1, *INNER[:3]]], Level.info, 25),  # the low end is another one
        ([[9, 0] * 4 + INNER, [10, *INNER[:3]]], Level.info, 25),
        ([INNER * 2, [0, 9, 9, 9]], Level.info, 20),
        ([[4, 9, 9, 0, 0] * 4], None, None),  # three values: a switch
        ([[4, 9, 9, 0, 0] * 4, [4, 3, 4, 3, 4]], Level.info, 64),  # four in two pieces
        ([[0] * 9 + [2, 5, 7] + [9] * 9], Level.info, 86),  # a ramp from end to end
        ([[0] * 9 + [2, 5, 7, 5] + [9] * 9], Level.warning, 82),  # it reverses
        ([[0] * 9 + [2, 5, 5, 7] + [9] * 9], Level.info, 82),
        ([[0] * 9 + [2, 5, 7, 9, 7, 5, 2] + [0] * 9], Level.info, 76),  # at the end alone
    ],
)
def test_actions_at_their_limits(pieces, level, percent):
    check = Clipping(SimpleNamespace(pairs=[]), {"actions": ["lift"]})
    found = found_by(check, piece(), *(piece(actions=column(*values)) for values in pieces))
    assert [finding.level for finding in found] == ([level] if level else [])
    if found:
        assert f"in {percent} % of" in found[0].what and "dimension 0 (lift)" in found[0].what
        assert steps_of(found[0]) == [(None, "actions", ())]


def test_targets_of_positions_are_at_an_end_while_the_robot_waits():
    targets = np.array([9, 0] * 4 + INNER * 4, dtype=float)[:, None]
    check = Clipping(SimpleNamespace(pairs=[(targets, targets)]), {})
    assert found_by(check, piece(actions=targets)) == []


# ---- ranges --------------------------------------------------------------------------------------


def test_values_that_are_not_finite_are_named_with_their_steps():
    bad = column(0, np.nan, 1, np.inf, -np.inf, 2)
    large = np.zeros((6, 3, 3), np.float32)
    large[5, 1, 1] = np.nan
    check = Ranges()
    check.see(DemoSteps("a", 10, {"obs/s": bad, "rewards": np.arange(6)}, large=("obs/i", large)))
    check.see(DemoSteps("b", 0, {"obs/s": column(np.nan, np.nan)}))
    check.see(DemoSteps("c", 0, {"obs/s": column(3, 4)}, large=("obs/i", large[:5])))
    (found,) = [finding for finding in check.findings() if finding.code == "nan"]
    assert (found.level, found.remedy.drop_demos) == (Level.error, ["a", "b"])
    assert found.what == "2 demos have NaN or inf in 'obs/i', 'obs/s'"
    places = [("a", "obs/s", ((11, 12), (13, 15))), ("a", "obs/i", ((15, 16),))]
    assert steps_of(found) == [*places, ("b", "obs/s", ((0, 2),))]
    assert check.constants() == {}
    check.see(DemoSteps("d", 0, {f"obs/{name}": column(np.nan) for name in "jkl"}))
    words = [x.what for x in check.findings() if x.code == "nan"]
    assert words == ["3 demos have NaN or inf in 'obs/i', 'obs/j', 'obs/k' ..."]


@pytest.mark.parametrize("clips_itself", [True, False])
@pytest.mark.parametrize(("beyond", "rare"), [(10, True), (11, False)])
def test_actions_beyond_one(clips_itself, beyond, rare):
    actions = np.linspace(-1, 1, 200)[:, None].repeat(2, axis=1)
    actions[7:16, 0] = actions[16, 1] = -1.5
    actions[30 : 20 + beyond, 1] = 3.0
    check = Ranges(clips_itself)
    found = found_by(check, piece(start=5, actions=actions), piece(actions=np.ones((0, 2))))
    found = next(finding for finding in found if finding.code == "action_range")
    low, high, percent = (-1.5, 3, 5.5) if beyond == 11 else (-1.5, 1, 5)
    assert f"in {percent:.1f} % of the steps: {low:g} to {high:g}" in found.what
    runs = ((12, 22),) if beyond == 10 else ((12, 22), (35, 36))
    assert steps_of(found) == [("d", "actions", runs)]
    is_clipped = rare and clips_itself
    assert found.level == (Level.warning if is_clipped else Level.info)
    assert (found.remedy is not None) == is_clipped
    if is_clipped:
        assert found.remedy.values["actions"](column(-2, 0.5, 2)).tolist() == [[-1], [0.5], [1]]


def test_a_hundred_places_are_named():
    odd = np.where(np.arange(250) % 2, 0.0, 3.0)[:, None]
    found = found_by(Ranges(), piece(actions=odd, obs__s=np.where(odd, np.inf, 0)))
    assert {finding.code for finding in found} >= {"action_range", "nan"}
    for finding in found[:2]:
        (place,) = finding.places
        assert (len(place.steps), place.steps[99]) == (100, (198, 199))
    signs = np.where(np.arange(250) // 2 % 2, -1.0, 1.0)[:, None] * np.array([ONE])
    (flips,) = found_by(Representations({}), piece(obs__q=signs))
    assert len(flips.places[0].steps) == 100


@pytest.mark.parametrize("dtype", [np.uint8, bool, np.float32])
def test_actions_of_one_are_within_the_limits(dtype):
    check = Ranges()
    check.see(piece(actions=np.ones((3, 1), dtype)))
    assert [finding.code for finding in check.findings()] == ["constant"]


@pytest.mark.parametrize("row", [0, 511, 512, 1023, 1024, 1299])
def test_every_row_of_many_counts(row):
    actions = np.zeros((1300, 2))
    actions[row] = -3, 4
    (found,) = [x for x in found_by(Ranges(), piece(actions=actions)) if x.code == "action_range"]
    assert "leave [-1, 1] in 0.1 % of the steps: -3 to 4" in found.what


def test_numbers_that_never_or_hardly_change():
    still = np.tile([2.0, 5.0, 0.0, 1e6], (4, 1))
    still[1:, 1] = 7
    still[1:, 3] += 0.9, 0.8, 0.7
    nothing = np.zeros((4, 2))
    check = Ranges(names={"obs/s": ["a", "b", "c", "d"]})
    keys = {"obs__s": still, "obs__z": nothing, "next_obs__z": nothing, "obs__y": nothing}
    found = found_by(check, piece(**keys, actions=nothing, states=nothing, obs__o=nothing[:1]))
    words = [(finding.code, finding.level, finding.places[0].key) for finding in found]
    assert words == [
        ("constant", Level.info, "actions"),
        ("constant", Level.info, "obs/s"),
        ("near_constant", Level.info, "obs/s"),
        ("constant", Level.warning, "obs/y"),
        ("constant", Level.warning, "obs/z"),
    ]
    assert found[1].what == "'obs/s' never changes in 2 of 4 dimensions: 0 (a), 2 (c)"
    assert found[2].what.endswith("in 1 of 4 dimensions: 3 (d)")
    remedies = [finding.remedy and finding.remedy.drop_keys for finding in found]
    assert remedies == [None, None, None, ["obs/y"], ["obs/z", "next_obs/z"]]
    zeros = dict.fromkeys(("obs/z", "next_obs/z", "obs/y", "actions", "states"), "0")
    assert check.constants() == zeros
    check.see(piece(obs__z=nothing + 1, obs__o=nothing[:1], obs__one=nothing + 1))
    del zeros["obs/z"]
    assert check.constants() == {**zeros, "obs/o": "0", "obs/one": "the same"}


def test_arrays_without_numbers_or_with_one_step():
    check = Ranges()
    assert found_by(check, piece(obs__none=np.zeros((3, 0)), obs__one=column(2.0))) == []
    assert check.constants() == {}


@pytest.mark.parametrize("shape", [(2,), (2, 1025)])
@pytest.mark.parametrize(
    ("bad", "words"), [(1e300, "(in float32) in"), (-4e38, "(in float32) in"), (3.4e38, None)]
)
def test_numbers_that_are_too_large_for_float32_are_named(shape, bad, words):
    values = np.zeros((3, *shape))
    values[2, 1] = bad
    steps = (
        DemoSteps("d", 5, {}, ("obs/i", values))
        if len(shape) == 2
        else piece(start=5, obs__i=values)
    )
    found = [x for x in found_by(Ranges(), steps) if x.code == "nan"]
    assert [steps_of(x) for x in found] == ([[("d", "obs/i", ((7, 8),))]] if words else [])
    assert all(f"1 demo has NaN or inf {words} 'obs/i'" == x.what for x in found)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_large_arrays_that_are_not_finite(bad):
    large = np.ones((3, 2, 2), np.float32)
    large[1, 0, 1] = bad
    check = Ranges()
    check.see(DemoSteps("a", 0, {}, large=("obs/i", large)))
    check.see(DemoSteps("b", 0, {}, large=("obs/j", np.full((3, 2), 9))))
    (found,) = check.findings()
    assert (found.code, steps_of(found)) == ("nan", [("a", "obs/i", ((1, 2),))])


@pytest.mark.parametrize("rows", [[[-1e6, 1], [-1e6 + 1, 3]], [[1e6 - 1, -1], [1e6, -3]]])
def test_the_largest_value_is_that_of_all_dimensions(rows):
    (found,) = found_by(Ranges(), piece(obs__s=np.array(rows)))
    assert found.code == "near_constant" and found.what.endswith("in 1 of 2 dimensions: 0")


@pytest.mark.parametrize(("change", "is_near"), [(1.0, True), (1.1, False)])
def test_a_millionth_of_the_largest_value_is_hardly_a_change(change, is_near):
    found = found_by(Ranges(), piece(obs__s=-1e6 + column(0, change)))
    assert [finding.code for finding in found] == ["near_constant"] * is_near


# ---- representations -----------------------------------------------------------------------------

ONE = [1.0, 0, 0, 0]
MINUS = [-1.0, 0, 0, 0]


def test_rotations_with_one_sign():
    other = [0, 0.6, 0.8, 0]
    values = np.array([ONE, MINUS, MINUS, ONE, [-0.8, 0.6, 0, 0], other])
    wanted = [ONE, ONE, ONE, ONE, [0.8, -0.6, 0, 0], [0, -0.6, -0.8, 0]]
    assert with_one_sign(values).tolist() == wanted
    assert with_one_sign(values.astype(np.float32)).dtype == np.float32
    right = np.array([ONE, [0, 1.0, 0, 0]])  # by half a turn, which has no nearer sign
    assert with_one_sign(right).tolist() == right.tolist()


@pytest.mark.parametrize(
    ("key", "chosen", "level"),
    [
        ("obs/q", None, Level.warning),
        ("obs/q", ["q"], Level.warning),
        ("obs/q", ["s"], Level.info),
        ("actions", ["s"], Level.warning),
        ("states", None, None),
    ],
)
def test_quaternions_that_flip(key, chosen, level):
    check = Representations({}, chosen)
    for demo, start, rows in (("a", 0, [ONE, ONE, MINUS]), ("a", 3, [ONE, ONE]), ("b", 0, [MINUS])):
        check.see(DemoSteps(demo, start, {key: np.array(rows)}))
    found = list(check.findings())
    assert [finding.level for finding in found] == ([level] if level else [])
    for finding in found:
        assert (finding.code, "in 1 demo:" in finding.what) == ("quaternion_sign", True)
        assert steps_of(finding) == [("a", key, ((2, 3),)), ("a", key, ((3, 4),))]
        names = ["obs/q", "next_obs/q"] if key == "obs/q" else ["actions"]
        assert list(finding.remedy.values) == names


@pytest.mark.parametrize("length", [-1.00045, -0.9996])
def test_a_rotation_has_a_square_of_one_but_for_a_thousandth(length):
    assert len(found_by(Representations({}), piece(obs__q=np.array([ONE, [length, 0, 0, 0]])))) == 1


@pytest.mark.parametrize(
    "rows", [[ONE, [-1.00055, 0, 0, 0]], [ONE, [-0.9994, 0, 0, 0]], [ONE[:3], MINUS[:3]]]
)
def test_vectors_that_are_no_rotations_do_not_flip(rows):
    assert found_by(Representations({}), piece(obs__q=np.array(rows))) == []


def test_a_vector_that_is_a_rotation_in_some_demos_only_does_not_flip():
    flips = np.array([ONE, MINUS, ONE])
    for order in ([flips, 2 * flips], [2 * flips, flips]):
        pieces = [piece(f"d{n}", obs__q=values) for n, values in enumerate(order)]
        assert found_by(Representations({}), *pieces) == []


TURNED = [0.6, 0.8, 0, 0]
BACK = [-0.6, -0.8, 0, 0]


@pytest.mark.parametrize(
    ("rows", "chosen", "level"),
    [
        ([ONE, TURNED, BACK], None, Level.warning),
        ([ONE, TURNED, BACK], ["q"], Level.info),  # what robosuite's usual observations have
        ([ONE, TURNED, [-0.6, -0.7, 0, 0]], None, None),  # no rotation
        ([ONE, TURNED, ONE], None, None),
        ([ONE, ONE, MINUS], None, None),  # a switch from -1 to 1 beside constants
    ],
)
def test_a_quaternion_that_flips_in_a_longer_vector(rows, chosen, level):
    values = np.array([[2.0, 3.0, *row, 4.0] for row in rows])
    found = found_by(Representations({}, chosen), piece(start=5, obs__q=values))
    assert [finding.level for finding in found] == ([level] if level else [])
    for finding in found:
        assert finding.what.startswith("'obs/q'[2:6] flips its sign from q to -q")
        assert finding.what.endswith("is a jump for a network")
        assert steps_of(finding) == [("d", "obs/q", ((7, 8),))]
        assert '"observed_rotation_6d", "observation": "q", "dims": [2, 3, 4, 5]' in finding.advice
        repaired = finding.remedy.values["next_obs/q"](values)
        assert repaired.tolist() == [[2, 3, *row, 4] for row in (ONE, TURNED, TURNED)]
        assert values[2, 2] == -0.6


PI = math.pi


@pytest.mark.parametrize(
    ("angles", "at"),
    [
        ([PI - 0.2, PI - 0.1, -PI + 0.1, -PI + 0.2], 2),
        ([0.2, 0.1, 2 * PI - 0.1, 2 * PI - 0.2], 2),
        ([0, 0, 2 * PI - 0.49, 2 * PI - 0.49], 2),
        ([0, 0, 2 * PI - 0.51, 2 * PI - 0.51], None),  # no whole turn
        ([0.1, 0, 2 * PI + 0.3, 2 * PI + 0.3], 2),
        ([0, 0, 2 * PI + 0.6, 2 * PI + 0.6], None),  # beyond a turn
        ([-0.5, -0.5, 2 * PI - 0.5, 2 * PI - 0.5], 2),
        ([-PI - 0.4, -PI - 0.4, PI - 0.4, PI - 0.4], None),  # further than angles
        ([-0.6, -0.6, 2 * PI - 0.6, 2 * PI - 0.6], None),  # on both sides of neither
        ([1.05 * PI, PI, -PI, -PI], 2),
        ([1.06 * PI, PI, -PI, -PI], None),  # further than angles
        ([0.1, 0, 2 * (1.05 * PI), 2 * (1.05 * PI)], 2),
        ([0, 0, 2 * PI - 0.5, 2 * PI - 0.5], None),
        ([2, 2.25, 2.5, 3, -3.25, -2.75], None),  # half of the steps are a half
        ([2, 2.25, 2.5, 2.99, -3.25, -2.75], 4),
        ([0.1, 0, 2.11 * PI, 2.11 * PI], None),
        ([PI - 0.3, -PI + 0.3] * 3, None),  # it is not a slow motion
    ],
)
@pytest.mark.parametrize(
    ("unit", "beside", "words"),
    [(1, 0, "train with"), (180 / PI, 1e4, "store the angle in radians, and train with")],
)
def test_angles_that_wrap(angles, at, unit, beside, words):
    values = np.column_stack([np.full(len(angles), beside), np.array(angles) * unit])
    check = Representations({"obs/a": ["x", "yaw"]})
    found = found_by(check, piece(start=7, obs__a=values))
    assert [finding.code for finding in found] == ["angle_wrap"] * (at is not None)
    if found:
        assert "1 (yaw)" in found[0].what and '"dims": [1]' in found[0].advice
        assert found[0].advice.startswith(words)
        assert steps_of(found[0]) == [("d", "obs/a", ((7 + at, 8 + at),))]


@pytest.mark.parametrize(("demo", "start", "runs"), [("d", 9, ((9, 10),)), ("e", 0, None)])
def test_an_angle_that_wraps_between_two_pieces(demo, start, runs):
    after = piece(demo, start, actions=column(-PI, 0.1 - PI, 0.2 - PI, 0.3 - PI))
    found = found_by(Representations({}), piece(start=7, actions=column(PI - 0.1, PI)), after)
    assert [steps_of(finding) for finding in found] == ([[("d", "actions", runs)]] if runs else [])


# ---- the order of joints -------------------------------------------------------------------------


def order(*, steps=100, seen=lambda q: q, later=1, names=None):
    """Findings on three targets that change at random, and on positions that reach them a step later."""
    targets = np.random.default_rng(0).normal(size=(steps, 3))
    reached = np.concatenate([np.zeros((later, 3)), targets[: steps - later]])
    motions = SimpleNamespace(
        pairs=[(targets, seen(reached))],
        columns=[("obs/q", n) for n in range(seen(reached).shape[1])],
        steps=steps,
    )
    return list(ObservedOrder(motions, names or {}).findings())


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (lambda q: q, []),
        (lambda q: q[:, [1, 0, 2]], ["obs/q[1, 0] reach the targets of actions[0, 1]"]),
        (lambda q: q[:, [2, 0, 1]], ["obs/q[1, 2, 0] reach the targets of actions[0, 1, 2]"]),
        (lambda q: q * [1, -1, 1], ["obs/q[1] are the negatives of the targets in actions[1]"]),
        (lambda q: -q, []),  # nothing shows that they are targets
    ],
)
def test_joints_in_another_order_and_negated(seen, words):
    found = order(seen=seen)
    assert [finding.what.partition(":")[0] for finding in found] == words
    assert {(finding.code, finding.level) for finding in found} <= {("joint_order", Level.warning)}
    assert order(seen=seen, steps=99) == []


def test_joints_are_named():
    names = {"obs/q": ["a", "b", "c"], "actions": ["x", "y", "z"]}
    (found,) = order(seen=lambda q: q[:, [1, 0, 2]], names=names)
    assert found.what.startswith("obs/q[1 (b), 0 (a)] reach the targets of actions[0 (x), 1 (y)]:")


@pytest.mark.parametrize(
    ("own", "errors", "against", "words"),
    [
        # the error of the right place is more than four times as large as that of the other one
        (
            {0: 1, 1: 0},
            [[4.1, 1], [1, 4.1]],
            None,
            "obs/q[1, 0] reach the targets of actions[0, 1]",
        ),
        ({0: 1, 1: 0}, [[4.0, 1], [1, 4.1]], None, "obs/q[0] reach the targets of actions[1]"),
        ({0: 1, 1: 0}, [[4.0, 1], [1, 4.0]], None, None),
        ({0: 1, 1: 1}, [[9, 1], [9, 1]], None, None),  # two targets of one position
        ({0: 0, 1: 1}, [[0, 9], [9, 0]], None, None),
        (
            {0: 0},
            [[0, 9], [9, 1.1]],
            [[9, 9], [9, 0.049]],
            "obs/q[1] are the negatives of the targets in actions[1]",
        ),
        ({0: 0}, [[0, 9], [9, 1.1]], [[9, 9], [9, 0.05]], None),
        ({0: 0}, [[0, 9], [9, 1.0]], [[9, 9], [9, 0.01]], None),
        ({}, [[9, 9], [9, 9]], [[0, 0], [0, 0]], None),
        (
            {0: 0},
            [[2, 9], [9, 0.5]],
            [[0, 0], [0, 9]],
            None,
        ),  # only actions and positions without a partner
    ],
)
def test_limits_of_the_order(monkeypatch, own, errors, against, words):
    found = [
        np.array(errors, float),
        np.full((2, 2), 9.0) if against is None else np.array(against),
    ]
    monkeypatch.setattr(actions_module, "own_positions", lambda pairs: own)
    monkeypatch.setattr(actions_module, "target_errors", lambda pairs: found.pop(0))
    columns = [("obs/q", 0), ("obs/q", 1)]
    motions = SimpleNamespace(pairs=[(1, 2)], columns=columns, steps=100)
    said = [finding.what.partition(":")[0] for finding in ObservedOrder(motions, {}).findings()]
    assert said == ([words] if words else [])
