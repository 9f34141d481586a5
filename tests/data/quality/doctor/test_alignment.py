"""Alignment of actions, positions and states: motions that are made by the models, and exact steps."""

from types import SimpleNamespace

import numpy as np
import pytest

from imitate.data.quality.doctor import alignment
from imitate.data.quality.doctor.alignment import (
    DELAYS,
    Lag,
    Motions,
    NextObs,
    States,
    fits,
    own_positions,
    shift_remedy,
    shifted,
    shifted_rows,
    target_distances,
    target_errors,
)
from imitate.data.quality.doctor.finding import Level
from imitate.data.quality.doctor.survey import DemoSteps
from imitate.errors import DatasetError


def layout(*lengths, rate=None):
    demos = [SimpleNamespace(name=f"d{n}", length=length) for n, length in enumerate(lengths)]
    return SimpleNamespace(demos=demos, file=SimpleNamespace(control_freq=rate))


# ---- what is stored ------------------------------------------------------------------------------


def motions(*pieces):
    found = Motions()
    for small in pieces:
        found.see(DemoSteps("d", 0, small))
    return found


def recorded(steps, value=0.0, **more):
    return {"actions": np.full((steps, 1), value), "obs/qpos": np.zeros((steps, 2)), **more}


def test_the_motions_that_are_stored():
    found = motions(recorded(17), recorded(16), recorded(1200, 1.0))
    assert [(u.shape, q.shape) for u, q in found.pairs] == [
        ((17, 1), (17, 2)),
        ((1000, 1), (1000, 2)),
    ]
    assert (found.steps, found.columns) == (1017, [("obs/qpos", 0), ("obs/qpos", 1)])
    found = motions(*[recorded(1000)] * 4)
    assert found.steps == 3000  # more than 2000 are enough
    found = motions(recorded(1000), recorded(984), recorded(17), recorded(20))
    assert found.steps == 2001
    assert (
        motions(recorded(20, np.nan)).pairs == [] == motions({"actions": np.zeros((20, 1))}).pairs
    )
    assert motions({"obs/qpos": np.zeros((20, 1))}).steps == 0
    several = motions(recorded(20, **{"obs/eef_pos": np.ones((20, 3, 21))}))
    assert len(several.columns) == 64 == several.pairs[0][1].shape[1]
    assert several.columns[::62] == [("obs/eef_pos", 0), ("obs/eef_pos", 62)]
    assert several.columns[63] == ("obs/qpos", 0)
    assert several.pairs[0][1][0].tolist() == [1.0] * 63 + [0.0]


def test_pairs_are_shifted_and_short_ones_left_out():
    steps = np.arange(20)[:, None]
    ((u, q),) = shifted([(steps, steps), (steps[:18], steps[:18])], 3)
    assert (u[0, 0], u[-1, 0], q[0, 0], q[-1, 0]) == (3, 19, 0, 16)
    ((u, q),) = shifted([(steps, steps)], -2)
    assert (u[0, 0], u[-1, 0], q[0, 0], q[-1, 0]) == (0, 17, 2, 19)
    assert shifted([(steps, steps)], -4) == []


def test_distances_of_targets_by_hand():
    u = np.arange(20.0)[:, None] ** 2
    late = np.concatenate([np.full((3, 1), 7.0), u[:-3]])  # reaches them three steps later
    q = np.column_stack([late[:, 0], late[:, 0] + 0.5, np.zeros(20)])
    found = target_distances([(u, q), (u, q)])
    np.testing.assert_allclose(found[:, :2], [[0, 0.25]], atol=1e-12)
    # A position that stays at 0 is nearest to the first ten targets: their mean fourth power is 15333 / 10.
    assert found[0, 2] == pytest.approx(np.mean([float(n) ** 4 for n in range(10)]))
    errors = target_errors([(u, q)])
    assert errors[0, 0] == 0 and errors[0, 1] == pytest.approx(0.25 / late.var())
    assert errors[0, 2] == np.inf and own_positions([(u, q)]) == {0: 0} and own_positions([]) == {}


@pytest.mark.parametrize(("offset", "own"), [(0.49, {0: 0}), (0.5, {}), (0.51, {})])
def test_a_target_is_nearer_than_a_quarter_of_the_variance(offset, own):
    q = np.tile([1.0, -1.0], 20)[:, None]  # a variance of 1
    assert own_positions([(q + offset, q)]) == own


def test_a_position_that_hardly_varies_is_no_target():
    for size, is_finite in ((1e-6, False), (1.1e-6, True), (0.9e-6, False)):
        q = np.tile([size, -size], 20)[:, None]
        (error,) = target_errors([(q, q)])
        assert error[0] == (0.0 if is_finite else np.inf)


# ---- delays --------------------------------------------------------------------------------------


def moved(delay, kind="target", constant=0.0, gain=1.0, offset=0.0, steps=120, seed=0):
    """Actions (T, 2) and positions (T, 2) of an arm as in the module's two models."""
    u = np.random.default_rng(seed).normal(size=(steps + 20, 2)).round(2)
    u[:10] *= kind == "target"  # displacements begin at rest
    decay = np.exp(-1 / constant) if constant else 0.0
    s = np.zeros_like(u)
    for t in range(len(u) - 1):
        s[t + 1] = decay * s[t] + (1 - decay) * u[t]
    q = gain * s + offset if kind == "target" else np.cumsum(gain * s + offset, axis=0)
    return u[10 : 10 + steps], q[10 - delay : 10 - delay + steps]


@pytest.mark.parametrize("kind", ["target", "displacement"])
@pytest.mark.parametrize(
    ("delay", "constant", "gain", "offset"),
    [(0, 0, 1, 0), (3, 0.25, 1, 0), (-4, 20, 1, 0), (10, 20, 1, 0), (2, 20, 0.5, 0.2), (-1, 0, 1, 0)],
)  # fmt: skip
def test_the_delay_of_the_models(kind, delay, constant, gain, offset):
    pairs = [moved(delay, kind, constant, gain, offset, seed=seed) for seed in (0, 1)]
    crossed = [(u, q[:, ::-1]) for u, q in pairs]
    for fit in (*fits(pairs, None), *fits(crossed, None)):
        assert DELAYS[int(fit.unexplained.argmin())] == delay
        assert fit.unexplained.min() < 1e-9
        assert (np.delete(fit.unexplained, DELAYS.index(delay)) > 1e-3).all()
        assert fit.unexplained.max() <= 1.0
        is_near = kind == "target" and constant < 1 and gain == 1 and delay >= -1
        assert fit.is_target == is_near


def reference(pairs, moves, slowest):
    """Unexplained fractions by the module's formulas, with numpy's least squares."""
    rows = [np.arange(11, len(q) - 5) for _, q in pairs]
    seen = [q[t] - q[t - 1] if moves else q[t] for (_, q), t in zip(pairs, rows, strict=True)]
    plain, found = np.concatenate(seen), []
    for delay in range(-4, 11):
        rests, begin = [], max(0, -delay)
        for decay in [0.0, *np.exp(-1 / np.geomspace(0.25, slowest, 16))]:
            parts = []
            for (u, q), steps in zip(pairs, rows, strict=True):
                for step in steps:
                    start = 0 if moves else begin
                    t = step - delay
                    past = np.arange(start, t)
                    x = ((1 - decay) * decay ** (t - 1 - past) * u[past]).sum()
                    share = 0.0 if moves else decay ** (t - start)
                    y = q[step] - (q[step - 1] if moves else share * q[start + delay])
                    parts.append((x, 1 - share, y))
            factors, values = np.array(parts)[:, :2], np.array(parts)[:, 2]
            gain = np.linalg.lstsq(factors, values, rcond=None)[0]
            rests.append(((values - factors @ gain) ** 2).sum())
        found.append(min(rests) / ((plain - plain.mean()) ** 2).sum())
    return np.array(found)


@pytest.mark.parametrize("moves", [False, True])
def test_fits_are_those_of_least_squares(moves):
    random, pairs = np.random.default_rng(0), []
    for steps in (24, 30):
        u = random.normal(size=steps)
        q = np.convolve(u, [0, 0, 0.6, 0.3])[:steps] + 0.03 * random.normal(size=steps)
        pairs.append((u, q.cumsum() if moves else 3 * q + 1))
    columns = [(u[:, None], q[:, None]) for u, q in pairs]
    for rate, slowest in ((30, 12.0), (None, 20.0)):
        (fit,) = fits(columns, rate)
        both = [reference(pairs, kind, slowest) for kind in (False, True)]
        wanted = min(both, key=lambda curve: curve.min())
        assert wanted is both[moves] and not fit.is_target
        np.testing.assert_allclose(fit.unexplained, wanted, rtol=1e-6)


def test_actions_and_positions_that_never_change_are_explained():
    still = np.zeros((30, 1))
    (fit,) = fits([(still, still + 2)], None)
    assert fit.unexplained.max() < 1e-9 and not fit.is_target
    u, q = moved(3)
    (first, _) = fits([(u * [0, 1], q)], None)
    assert np.isfinite(first.unexplained).all()
    assert first.unexplained.min() > 0.5


def test_partners_do_not_depend_on_units():
    u, q = moved(3, "displacement")
    for fit in fits([(u, q[:, ::-1] * [0.01, 100.0])], None):
        assert fit.unexplained.argmin() == DELAYS.index(3) and fit.unexplained.min() < 1e-9


def test_noise_is_the_fraction_that_nothing_explains():
    u, q = moved(1, steps=1000)
    noise = np.random.default_rng(1).normal(size=q.shape) * [0.5, 1.0]
    found = [fit.unexplained.min() for fit in fits([(u, q + noise)], None)]
    assert found == pytest.approx([0.2, 0.5], abs=0.03)  # 0.25 / 1.25 and 1 / 2


@pytest.mark.parametrize(
    ("rate", "constant", "is_explained"),
    [(20, 8, True), (20, 16, False), (100, 40, True), (2, 2, True), (2, 4, False), (None, 40, False)],
)  # fmt: skip
def test_the_slowest_controller(rate, constant, is_explained):
    """0.4 s, and two steps at least; or 20 steps if the rate is not known."""
    (fit, _) = fits([moved(0, constant=constant)], rate)
    assert (fit.unexplained[DELAYS.index(0)] < 1e-9) == is_explained


# ---- a lag ---------------------------------------------------------------------------------------


def lag(*pairs, lengths=(120, 120), rate=None):
    motions = SimpleNamespace(pairs=list(pairs), steps=sum(len(u) for u, _ in pairs))
    return list(Lag(layout(*lengths, rate=rate), motions).findings())


@pytest.mark.parametrize(
    ("delay", "words", "late", "shift"),
    [
        (0, None, None, None),
        (2, None, None, None),
        (3, "motion comes 3 steps after", "at least 1 step late", -1),
        (7, "motion comes 7 steps after", "at least 5 steps late", -5),
        (10, "motion comes at least 10 steps after", "at least 8 steps late", None),
        (-1, "motion comes 1 step before", "at least 1 step ahead", 1),
        (-3, "motion comes 3 steps before", "at least 3 steps ahead", 3),
        (-4, "motion comes at least 4 steps before", "at least 4 steps ahead", None),
    ],
)
@pytest.mark.parametrize("kind", ["target", "displacement"])
def test_a_lag_that_no_controller_has(delay, words, late, shift, kind):
    pairs = [moved(delay, kind, seed=seed) for seed in (0, 1)]
    found = lag(*pairs, lengths=(120, 2, 120))
    if words is None:
        assert found == []
        return
    assert (found[0].code, found[0].level) == ("lag", Level.warning)
    assert words in found[0].what and f"observations are {late}" in found[0].what
    assert "(at this delay, they explain 100 % of the motion)" in found[0].what
    if shift is None:
        assert found[0].remedy is None
        return
    rows = found[0].remedy.rows["d0"]
    assert len(rows.seen) == 120 - abs(shift) and rows.done[0] - rows.seen[0] == shift
    assert found[0].remedy.drop_demos == (["d1"] if abs(shift) > 1 else [])


def test_a_lag_needs_steps_and_most_of_the_actions():
    late, at_once = moved(5), moved(0)
    assert lag(moved(5, steps=199)) == [] and len(lag(moved(5, steps=200))) == 1
    half = [np.column_stack([a[:, 0], b[:, 1]]) for a, b in zip(late, at_once, strict=True)]
    assert lag(tuple(half), tuple(half)) == []
    switch = [np.column_stack([u[:, 0], np.sign(u[:, 1])]) for u in (late[0], late[0])][0]
    seen = np.column_stack([late[1][:, 0], np.sign(at_once[1][:, 1])])
    assert len(lag((switch, seen), (switch, seen))) == 1  # a switch does not count


def curve(delay, least, usual=0.9, elsewhere=0.95):
    """Unexplained fractions at delays of -4 to 10."""
    found = np.full(15, elsewhere)
    found[4:7] = usual
    found[DELAYS.index(delay)] = least
    return found


@pytest.mark.parametrize(
    ("curves", "delay", "percent"),
    [
        ([curve(5, 0.1)], 5, 90),
        ([curve(5, 0.64, 1.3)], 5, 36),
        ([curve(5, 0.6401, 1.3)], None, None),  # too little is explained
        ([curve(5, 0.3, 0.61)], 5, 70),
        ([curve(5, 0.3, 0.59)], None, None),  # the usual delays explain more than half as much
        ([curve(5, 0.5 * 0.5 - 1e-6, 0.5)], None, None),
        ([curve(5, 0.5 * 0.5 - 1.1e-6, 0.5)], 5, 75),
        ([curve(5, 0.0, 1.5e-6)], None, None),  # rounding
        ([curve(5, 0.1), curve(1, 0.1)], None, None),  # half of them
        ([curve(5, 0.1), curve(7, 0.2), curve(1, 0.1)], 6, 90),
        ([curve(5, 0.1), curve(5, 0.9)], 5, 90),  # one is not clear
        ([curve(-3, 0.1), curve(-1, 0.1), curve(-3, 0.3)], -3, 90),
    ],
)
def test_most_of_the_clear_curves_have_a_delay(monkeypatch, curves, delay, percent):
    monkeypatch.setattr(
        alignment, "fits", lambda pairs, rate: [alignment.Fit(c, False) for c in curves]
    )
    u = np.random.default_rng(0).normal(size=(200, len(curves)))
    found = lag((u, u), lengths=(200,))
    assert len(found) == (delay is not None)
    if found:
        words = "before" if delay < 0 else "after"
        assert (
            f"motion comes {abs(delay)} step" in found[0].what and f" {words} the" in found[0].what
        )
        assert f"they explain {percent} % of the motion" in found[0].what
        assert found[0].remedy is None  # since a shift changes nothing here


@pytest.mark.parametrize("rate", [20.0, None])
def test_the_rate_of_the_file_limits_the_controller(monkeypatch, rate):
    rates = []

    def noted(pairs, rate_hz):
        rates.append(rate_hz)
        return [alignment.Fit(curve(5, 0.1), False)]

    class File:
        @property
        def control_freq(self):
            if rate is None:
                raise DatasetError("no number")
            return rate

    monkeypatch.setattr(alignment, "fits", noted)
    pairs = [(np.random.default_rng(0).normal(size=(200, 1)),) * 2]
    check = Lag(SimpleNamespace(demos=[], file=File()), SimpleNamespace(pairs=pairs, steps=200))
    assert len(list(check.findings())) == 1 and rates == [rate, rate]  # before and after a shift


# ---- states and next observations ----------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1, -1, 2, -2])
def test_observations_of_other_steps_than_states(ahead):
    states = np.random.default_rng(0).normal(size=(20, 3))
    obs = np.column_stack([np.roll(states[:, 1], -ahead), np.ones(20)])
    check = States(layout(20, 2, 3))
    for n in range(2):
        check.see(
            DemoSteps(f"d{n}", 0, {"states": states, "obs/a": obs[:, :1], "obs/b": obs[:, 1:]})
        )
    found = list(check.findings())
    if ahead == 0:
        assert found == []
        return
    (finding,) = found
    assert (finding.code, finding.level) == ("misaligned", Level.error)
    count = "one step" if abs(ahead) == 1 else "2 steps"
    way = "ahead of" if ahead > 0 else "behind"
    assert finding.what.startswith(f"observations are {count} {way} 'states'")
    assert finding.what.endswith(f"obs[t] shows states[t{ahead:+d}]")
    assert finding.remedy.drop_demos == (["d1"] if abs(ahead) == 2 else [])
    assert finding.remedy.rows["d0"].seen[0] - finding.remedy.rows["d0"].done[0] == -ahead


@pytest.mark.parametrize(("steps", "found"), [(7, False), (8, True)])
def test_short_demos_and_unrelated_observations_show_no_shift(steps, found):
    states = np.random.default_rng(0).normal(size=(steps, 2))
    check = States(layout(steps))
    check.see(DemoSteps("d0", 0, {"states": states, "obs/a": np.roll(states, -1, axis=0)}))
    assert bool(list(check.findings())) == found
    check = States(layout(20))
    check.see(DemoSteps("d0", 0, {"states": np.zeros((20, 2)), "obs/a": np.zeros((20, 1))}))
    check.see(DemoSteps("d0", 0, {"states": np.eye(20)}))
    assert list(check.findings()) == []


def test_columns_are_equal_at_every_step():
    states = np.random.default_rng(0).normal(size=(20, 1))
    obs = np.roll(states, -1)
    obs[9] += 1e-3
    check = States(layout(20))
    check.see(DemoSteps("d0", 0, {"states": states, "obs/a": obs}))
    assert list(check.findings()) == []


def test_a_column_of_the_same_step_excludes_a_shift():
    states = np.random.default_rng(0).normal(size=(20, 3))
    obs = np.column_stack([states[:, 0], np.roll(states[:, 1:], -1, axis=0)])
    check = States(layout(20))
    check.see(DemoSteps("d0", 0, {"states": states, "obs/a": obs}))
    assert list(check.findings()) == []


@pytest.mark.parametrize(("step", "found"), [(199, False), (200, True)])
def test_two_hundred_steps_are_compared(step, found):
    states = np.random.default_rng(0).normal(size=(230, 2))
    obs = np.roll(states[:, :1], -1)
    obs[step - 1] += 1.0
    check = States(layout(230))
    check.see(DemoSteps("d0", 0, {"states": states, "obs/a": obs}))
    assert bool(list(check.findings())) == found


@pytest.mark.parametrize(
    ("size", "error", "found"),
    [
        (1.0, 0, True),
        (1.1e-5, 0, True),
        (0.9e-5, 0, False),
        (1.0, 1.5e-6, True),
        (1.0, 5e-6, False),
        (1e3, 9e-4, True),
        (1e3, 3e-3, False),
    ],
)
def test_what_varies_and_what_is_equal(size, error, found):
    states = size * np.tile([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], (5, 1))
    obs = np.roll(states[:, 1:], -1) + error
    check = States(layout(20))
    check.see(DemoSteps("d0", 0, {"states": states[:, 1:], "obs/a": obs}))
    assert bool(list(check.findings())) == found


@pytest.mark.parametrize(("number", "found"), [(50, True), (51, False)])
def test_fifty_demos_are_compared_with_their_states(number, found):
    states, check = np.random.default_rng(0).normal(size=(20, 1)), States(layout(20))
    for _ in range(number - 1):
        check.see(DemoSteps("d0", 0, {"states": states, "obs/a": 0 * states}))
    check.see(DemoSteps("d0", 0, {"states": states, "obs/a": np.roll(states, -1)}))
    assert bool(list(check.findings())) == found


def test_rows_of_a_shift():
    late, ahead = shifted_rows(6, -2), shifted_rows(6, 2)
    assert (late.seen.tolist(), late.done.tolist()) == ([2, 3, 4, 5], [0, 1, 2, 3])
    assert (ahead.seen.tolist(), ahead.done.tolist()) == ([0, 1, 2, 3], [2, 3, 4, 5])
    remedy = shift_remedy(layout(3, 2), -2)
    assert list(remedy.rows) == ["d0"] and remedy.drop_demos == ["d1"]


@pytest.mark.parametrize(
    ("wrong", "level", "percent"),
    [(10, None, None), (11, Level.warning, 11), (50, Level.warning, 50), (51, Level.error, 51)],
)
def test_next_observations_that_do_not_follow(wrong, level, percent):
    seen = np.arange(101.0)[:, None] * [1.0, 1.0]
    following = seen + 1
    following[:wrong, 1] += 2e-6
    following[100] = -7  # the last one has no successor
    check, right = NextObs(), {"obs/b": seen, "next_obs/b": seen + 1 + 9e-7}
    check.see(DemoSteps("d", 0, {"obs/a": seen, "next_obs/a": following, **right}))
    check.see(DemoSteps("e", 0, {"obs/a": seen[:1], "next_obs/a": following[:1] + 1}))
    check.see(DemoSteps("e", 0, {"obs/a": seen, "next_obs/a": seen[:, :1], "next_obs/c": seen}))
    found = list(check.findings())
    assert [finding.level for finding in found] == ([level] if level else [])
    if found:
        assert f"'next_obs/a' is not the following observation in {percent} %" in found[0].what
        assert [(place.demo, place.key) for place in found[0].places] == [("d", "next_obs/a")]
        assert found[0].remedy.drop_keys == ["next_obs"] and "more" not in found[0].what
