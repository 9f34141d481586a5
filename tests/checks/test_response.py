"""Delays are found from short episodes without a rate, for velocities, lags and position targets."""

import numpy as np
import pytest

from imitate.checks.motion_model import Effects, Response, reach_of
from imitate.checks.response import (
    of_action_units,
    of_delay,
    of_effects,
    of_order,
    of_parts,
    of_shift,
    right_sides,
)
from imitate.checks.subject import driven


def moved(u, delay=0, pull=0.0, lag=0.0, rng=None):
    """Positions after actions: q' = q + 0.1 s - pull q, with s a lag of the actions `delay` steps before."""
    q, s = np.zeros_like(u), np.zeros(u.shape[1])
    for step in range(len(u) - 1):
        s = lag * s + (1 - lag) * (u[step - delay] if step >= delay else 0)
        q[step + 1] = q[step] + 0.1 * s - pull * q[step]
    return q + (0 if rng is None else rng.normal(0, 1e-3, q.shape))


def episodes(number=20, steps=14, seed=0, size=2, **robot):
    rng = np.random.default_rng(seed)
    smooth = [np.cumsum(rng.normal(0, 0.3, (steps, size)), axis=0) for _ in range(number)]
    return [(u, moved(u, rng=rng, **robot)) for u in smooth]


ROBOTS = {"velocity": {}, "target": {"pull": 0.1}, "lag": {"lag": 0.5, "pull": 0.2}}


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_the_delay_of_a_recording(robot, delay):
    trained = episodes(**ROBOTS[robot])
    found = of_delay(episodes(4, 30, seed=1, delay=delay, **ROBOTS[robot]), trained)
    assert found.is_named == (delay > 0), found
    assert f"actions {delay} steps later" in found.words


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("ahead", [-1, 0, 1, 2])
def test_observations_ahead_of_their_actions_are_shifted(robot, ahead):
    pairs = episodes(30, 20, **ROBOTS[robot])
    size = abs(ahead)
    if ahead > 0:
        pairs = [(u[: len(u) - size], q[size:]) for u, q in pairs]
    elif ahead < 0:
        pairs = [(u[size:], q[: len(q) - size]) for u, q in pairs]
    found = of_shift(pairs)
    assert found.is_named == (ahead > 0), found  # one step later is a delay that robots have
    assert f"actions {max(ahead, 0)} steps {'later' if ahead > 0 else 'earlier'}" in found.words


def test_one_position_that_moves_before_its_action_is_no_shift():
    """A gripper's state that the demonstrator follows."""
    pairs = episodes(30, 20)
    early = [(u[:18], np.stack([q[:18, 0], q[2:, 1]], axis=1)) for u, q in pairs]
    assert of_shift([(u[:18], q[2:]) for u, q in pairs]).is_named
    assert not of_shift(early).is_named


def test_positions_that_no_action_moves_show_nothing():
    rng = np.random.default_rng(0)
    noise = [(rng.normal(size=(20, 2)), rng.normal(size=(20, 2))) for _ in range(20)]
    still = [(u, np.zeros_like(q)) for u, q in noise]
    for pairs in (noise, still, []):
        for found in (of_delay(pairs, pairs), of_shift(pairs), of_order(pairs, pairs)):
            assert found is None or found.score == 0
    assert of_delay(noise, episodes()).score == 0
    assert [reach_of([(np.zeros((n, 1)), None)]) for n in (5, 10, 14, 99)] == [0, 2, 3, 10]


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [2, 0, 1]])
def test_positions_in_another_order(order):
    trained, recorded = (episodes(size=3, seed=seed) for seed in (0, 1))
    found = of_order([(u, q[:, order]) for u, q in recorded], trained)
    back = ", ".join(str(order.index(n)) for n in range(3))
    assert found is None if order == [0, 1, 2] else f"in the order {back} (" in found.words
    assert of_order([(u, q[:, :2]) for u, q in recorded], trained) is None


@pytest.mark.parametrize("flipped", [[], [1], [0, 2]])
def test_positions_with_the_other_sign(flipped):
    trained, recorded = (episodes(size=3, seed=seed) for seed in (0, 1))
    signs = [-1 if n in flipped else 1 for n in range(3)]
    found = of_order([(u, q * signs) for u, q in recorded], trained)
    if not flipped:
        assert found is None
        return
    named = ", ".join(f"{'-' if n in flipped else ''}{n}" for n in range(3))
    assert found.kind == "sign" and f"in the order {named} (" in found.words


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("gain", [1.0, 0.5, 2.0])
def test_the_gain_of_a_recording(robot, gain):
    trained, recorded = episodes(**ROBOTS[robot]), episodes(6, 30, seed=1, **ROBOTS[robot])
    found = of_effects([(u / gain, q) for u, q in recorded], trained)
    assert found.is_named == (gain != 1), found
    if robot == "velocity" and gain != 1:
        assert f"moves {gain:.2f} times as far" in found.words
        assert found.score == pytest.approx(np.log(2) / np.log(1.85), rel=0.02)
    assert of_effects(recorded, []) is None


@pytest.mark.parametrize("robot", ROBOTS)
def test_limits_that_cut_actions_are_found(robot):
    trained, recorded = episodes(**ROBOTS[robot]), episodes(6, 30, seed=1, **ROBOTS[robot])
    cut = [(u, moved(np.clip(u, [-0.4, -9], [0.7, 9]), **ROBOTS[robot])) for u, _ in recorded]
    found = of_effects(cut, trained)
    assert found.kind == "limits" and found.is_named, found
    low, high = map(
        float, found.words.split("actions[0] were cut to ")[1].split(",")[0].split(" to ")
    )
    assert (low, high) == pytest.approx((-0.4, 0.7), abs=0.05)
    assert of_effects(recorded, trained).score < 0.3


def test_positions_that_stand_at_an_obstacle_are_neither_cut_nor_slow():
    trained, recorded = episodes(), episodes(6, 30, seed=1)
    blocked = [(u, np.clip(q, None, 0.02)) for u, q in recorded]
    assert not of_effects(blocked, trained).is_named


def begun(pairs, seed):
    """The same episodes, each from a position of its own."""
    rng = np.random.default_rng(seed)
    return [(u, q + rng.uniform(-1, 1, q.shape[1])) for u, q in pairs]


@pytest.mark.parametrize("scale", [[1, 1], [2.5, 3], [0.3, 0.4]])
def test_positions_on_another_scale_begin_as_far_apart_as_they_move(scale):
    trained, recorded = begun(episodes(), 2), begun(episodes(12, 30, seed=1), 3)
    scaled = of_effects([(u, q * scale + 1) for u, q in recorded], trained)
    weaker = of_effects([(u / scale, q) for u, q in recorded], trained)
    names = {1: (None, None)}.get(scale[0], ("units", "gain"))
    assert tuple(one.kind if one.is_named else None for one in (scaled, weaker)) == names
    assert scaled.score == pytest.approx(weaker.score, rel=0.1)


def test_sides_of_motions_are_right_only_if_all_are():
    trained, recorded = episodes(), episodes(6, 30, seed=1)
    assert right_sides([(u, 3 * q + 1) for u, q in recorded], trained)
    assert not right_sides([(u, q * [1, -1]) for u, q in recorded], trained)
    assert not right_sides([], trained) and not right_sides(recorded, [])


@pytest.mark.parametrize("robot", ROBOTS)
def test_an_action_with_the_other_sign_is_named_after_the_policy_has_left_the_demonstrations(robot):
    trained, recorded = episodes(**ROBOTS[robot]), episodes(6, 30, seed=1, **ROBOTS[robot])
    found = of_effects([(u * [1, -1], q) for u, q in recorded], trained)
    assert found.kind == "sign" and found.is_named and "actions[1]" in found.words


@pytest.mark.parametrize("delay", [0, 4])
def test_a_delay_is_found_beside_contacts(delay):
    """In a step of fourteen something else moves the robot, further than its actions do."""
    rng = np.random.default_rng(5)

    def touched(pairs):
        kicks = [rng.normal(0, 1, q.shape) * (rng.random((len(q), 1)) < 1 / 14) for _, q in pairs]
        return [(u, q + kick.cumsum(axis=0)) for (u, q), kick in zip(pairs, kicks, strict=True)]

    trained = episodes(20, 30)
    found = of_delay(touched(episodes(8, 40, seed=1, delay=delay)), trained)
    assert found.is_named == (delay > 0), found
    assert f"actions {delay} steps later" in found.words


@pytest.mark.parametrize("sign", [1, -1])
def test_a_gripper_that_a_constant_command_closes_the_other_way(sign):
    """Its command hardly varies in the recording, so that no regression of the recording shows the sign."""
    rng = np.random.default_rng(6)

    def driven(commands, sign=1):
        q = [np.full(1, 0.5)]
        for u in commands[:-1]:
            q.append(np.clip(q[-1] + 0.05 * sign * u, 0, 1))
        return commands, np.stack(q)

    def noisy(values):
        return np.array(values)[:, None] + rng.normal(0, 0.02, (len(values), 1))

    trained = [driven(noisy([1.0] * 12 + [-1.0] * 15)) for _ in range(20)]
    found = of_effects([driven(noisy([1.0] * 30), sign) for _ in range(8)], trained)
    assert (found.kind == "sign" and found.is_named) == (sign < 0), found


def test_two_exchanged_positions_among_many_are_found():
    """The others, which contacts move, do not hide them."""
    rng = np.random.default_rng(7)
    trained, recorded = (episodes(30, 30, seed=seed, size=8) for seed in (0, 1))
    order = [1, 0, *range(2, 8)]
    others = [0, 0, *[1] * 6]
    kicks = [(rng.normal(size=q.shape) * others).cumsum(axis=0) for _, q in recorded]
    pairs = [(u, q[:, order] + kick) for (u, q), kick in zip(recorded, kicks, strict=True)]
    assert "in the order 1, 0, 2, 3" in of_order(pairs, trained).words
    assert of_order(recorded, trained) is None


@pytest.mark.parametrize(("moves", "presses"), [(-1.0, -2.0), (-2.0, -1.0)])
def test_a_hand_in_contact_has_no_other_limits_signs_or_gains(moves, presses):
    """It moves on until it meets something, and then presses with another force."""
    held = []
    for u, q in episodes(6, 40, seed=1):
        u[:, 1] = np.where(np.arange(40) < 5, moves, presses) + 0.05 * np.sin(np.arange(40))
        down = 0.1 * np.concatenate([[0.0], u[:4, 1].cumsum(), np.full(35, u[:5, 1].sum())])
        held.append((u, np.stack([q[:, 0], down], axis=1)))
    found = of_effects(held, episodes())
    assert not found.is_named, found


def test_all_actions_with_larger_effects_are_another_rate_if_no_rate_is_known():
    trained, recorded = episodes(size=4), episodes(6, 30, seed=1, size=4)
    faster = [(u / 2, q) for u, q in recorded]
    one = [(u * [1, 1, 1, 0.5], q) for u, q in recorded]
    assert of_effects(faster, trained, same_rate=False).kind == "rate"
    assert of_effects(faster, trained).kind == "gain"
    assert of_effects(one, trained, same_rate=False).kind == "gain"


@pytest.mark.parametrize(
    ("change", "kind"), [([1, 1], None), ([1, -1], "sign"), ([1, 5], "gain"), ([0.2, 1], "gain")]
)
def test_demonstrations_with_other_signs_or_sizes_of_actions(change, kind):
    trained = episodes(12, 60, seed=3)
    mixed = [(u * change, q) if n % 3 == 0 else (u, q) for n, (u, q) in enumerate(trained)]
    named = [cause for cause in of_parts(mixed) if cause.is_named]
    assert [cause.kind for cause in named] == ([kind] if kind else [])
    if kind:
        assert "4 of 12" in named[0].words or "8 of 12" in named[0].words
        assert f"actions[{int(change[0] == 1)}]" in named[0].words
    assert not [*of_parts(mixed[:3])]


def test_few_demonstrations_with_a_certain_sign_say_nothing_about_the_others():
    """In 16 of 20 demonstrations the second action is noise that moves nothing."""
    rng = np.random.default_rng(0)
    mixed = [(u * [1, (-1) ** n], q) for n, (u, q) in enumerate(episodes(4, 60, seed=3))]
    rest = [
        (
            np.stack([u[:, 0], rng.normal(0, 0.01, 60)], axis=1),
            q * [1, 0] + rng.normal(0, 0.01, q.shape),
        )
        for u, q in episodes(16, 60, seed=4)
    ]
    assert any(cause.kind == "sign" and cause.is_named for cause in of_parts(mixed))
    assert not any(cause.kind == "sign" and cause.is_named for cause in of_parts(mixed + rest))


def test_slow_motion_is_measured_by_the_usual_one():
    """A fifth of the usual motion without any action: 4 % of a usual motion is unexplained, not all of the slow one."""
    generator = np.random.default_rng(0)
    actions = generator.choice([-1.0, 1.0], size=(8, 40, 1))
    places = np.concatenate([np.zeros((8, 1, 1)), actions.cumsum(axis=1)[:, :-1]], axis=1)
    model = Response(list(zip(actions, places, strict=True)))
    slow = [(np.zeros((40, 1)), 0.2 * np.arange(40.0)[:, None])]
    assert model.unexplained(slow, 0, 0) == pytest.approx([0.04], abs=0.005)


def pushed(number, seed=0, steps=20):
    """Demonstrations of a mass with friction that limited, noisy forces bring to a target."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(number):
        q, v, target = rng.uniform(-1, 1, 2), np.zeros(2), rng.uniform(-1, 1, 2)
        forces, places = [], []
        for _ in range(steps):
            u = np.clip(2 * (target - q) - 4 * v + rng.normal(0, 0.1, 2), -1, 1)
            forces.append(u)
            places.append(q)
            v = 0.9 * v + 0.1 * u
            q = q + v
        found.append((np.array(forces), np.array(places)))
    return found


def test_forces_are_compared_with_velocities():
    """Positions precede the forces that brake them, which alone looks like a shift of the file."""
    pairs = pushed(20)
    assert of_shift(pairs).is_named
    moving, _ = driven(pairs)
    assert moving is not pairs and moving[0][1].shape == (19, 2)
    assert not of_shift(moving).is_named
    shifted, _ = driven([(u[2:], q[:-2]) for u, q in pairs])
    early, _ = driven([(u[:-2], q[2:]) for u, q in pairs])
    assert not of_shift(shifted).is_named and of_shift(early).is_named
    late = [(u[:-2], np.concatenate([q[:2], q[:-4]])) for u, q in pushed(6, 1, 30)]
    assert of_delay(driven(pairs, late)[1], moving).is_named
    for robot in ROBOTS.values():
        moved_by_commands = episodes(**robot)
        assert driven(moved_by_commands)[0] is moved_by_commands


def test_noise_of_positions_is_no_velocity():
    rng = np.random.default_rng(0)
    noisy = [(0.01 * rng.normal(size=(30, 2)), rng.normal(size=(30, 2))) for _ in range(20)]
    assert driven(noisy)[0] is noisy


def test_observed_velocities_stand_for_positions_that_are_too_noisy():
    rng = np.random.default_rng(0)
    clean = pushed(20)
    noisy = [(u, q + rng.normal(0, 0.05, q.shape)) for u, q in clean]
    speeds = [(u, np.diff(q, axis=0, prepend=q[:1])) for u, q in clean]
    both = [
        (u, np.concatenate([q, v], axis=1)) for (u, q), (_, v) in zip(noisy, speeds, strict=True)
    ]
    assert driven(noisy)[0] is noisy
    turned = [(u * [1, (-1) ** n], v) for n, (u, v) in enumerate(speeds)]
    first = [(u, v[:, :1]) for u, v in turned]
    assert driven(turned, vectors=(first, []))[0] is turned, "the second action would not be seen"
    found, _ = driven(noisy, vectors=(both, []))
    assert [q.shape for _, q in found] == [(20, 2)] * 20 and (found[0][1] == speeds[0][1]).all()


@pytest.mark.parametrize(("factor", "named"), [(1.0, False), (57.3, True), (1 / 57.3, True)])
def test_targets_in_another_unit_than_the_positions_that_they_are_relative_to(factor, named):
    rng = np.random.default_rng(0)
    wishes = [np.cumsum(rng.normal(0, 0.3, (14, 2)), axis=0) for _ in range(20)]
    pairs = [(factor * u, np.concatenate([u[:1], u[:-1]])) for u in wishes]
    cause = of_action_units(pairs)
    assert (cause.kind, cause.is_named) == ("units", named)
    assert of_action_units([(u, rng.normal(size=u.shape)) for u in wishes]) is None
    assert of_action_units([]) is None


@pytest.mark.parametrize(("flipped", "named"), [(0, False), (1, False), (2, True)])
def test_short_demonstrations_with_another_sign(flipped, named):
    """Fourteen steps are too few for a model of each demonstration, but not for a correlation."""
    trained = episodes(12, 14, seed=3)
    mixed = [(u * [1, -1], q) if n < flipped else (u, q) for n, (u, q) in enumerate(trained)]
    first = next(of_parts(mixed))
    assert first.kind == "sign" and first.is_named == named
    assert (
        not named
        or "actions[1] moves position 1 in the opposite direction in 2 of 12" in first.words
    )


def test_an_action_that_goes_along_with_another_has_no_sign_of_its_own():
    """Each demonstration passes on the left or on the right, by a second action in step with the first."""
    rng = np.random.default_rng(0)
    first = [np.sin(np.arange(20)) + rng.normal(0, 0.1, 20) for _ in range(12)]
    both = [
        np.stack([u, (-1) ** n * u + rng.normal(0, 0.3, 20)], axis=1) for n, u in enumerate(first)
    ]
    pairs = [(u, np.concatenate([[0.0], np.cumsum(u[:-1, 0])])[:, None]) for u in both]
    assert not any(cause.kind == "sign" and cause.is_named for cause in of_parts(pairs))


@pytest.mark.parametrize("late", [0, 4])
def test_late_actions_are_found_where_little_of_the_motion_is_explained(late):
    rng = np.random.default_rng(3)

    def changing(number, **robot):
        every = [np.repeat(rng.uniform(-1, 1, (15, 6)), 4, axis=0) for _ in range(number)]
        return [(u, moved(u, rng=rng, **robot)) for u in every]

    trained = changing(20)
    rough = [
        (u, q + rng.normal(0, 0.12, q.shape).cumsum(axis=0)) for u, q in changing(8, delay=late)
    ]
    found = of_delay(rough, trained)
    assert found.is_named == (late > 0), found
    assert not late or "clearest 4 steps later" in found.words


def straight(rng, steps=30, wait=10):
    """A shuttle that waits and then goes straight ahead at a constant speed; two actions, two positions."""
    way = rng.uniform(-np.pi, np.pi)
    u = np.zeros((steps, 2))
    u[wait:-2] = np.cos(way), np.sin(way)
    return u, rng.uniform(-1, 1, 2) + 0.08 * np.concatenate(
        [np.zeros((1, 2)), u[:-1].cumsum(axis=0)]
    )


def test_straight_motions_show_neither_a_sign_nor_a_shift():
    rng = np.random.default_rng(0)
    pairs = [straight(rng, 30 + n, 5 + n) for n in range(14)]
    assert not [cause for cause in of_parts(pairs) if cause.is_named]
    shift = of_shift(pairs)
    assert shift is None or not shift.is_named


def test_episodes_that_are_too_short_show_no_effects():
    short = [(np.zeros((2, 2)), np.zeros((2, 3)))]
    assert not Effects(short).certain.any() and Effects(short).size.shape == (2, 3)
