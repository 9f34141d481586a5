"""State of a run: counters from a checkpoint, best measurements, early stopping."""

import math
from types import SimpleNamespace

import pytest

from imitate.train.outcomes import KEPT
from imitate.train.state import History, TrainState


def test_counters_are_read_and_other_entries_ignored():
    state = TrainState(step=3, epoch=1, wall_s=2.5)
    assert TrainState.from_dict({**state.to_dict(), "more": "x"}) == state
    assert TrainState.from_dict({}) == TrainState(0, 0, 0, 0, 0.0, 0.0)
    assert TrainState.from_dict({"wall_s": 2}).wall_s == 2


@pytest.mark.parametrize(
    "wrong",
    [{"step": -1}, {"step": 1.0}, {"step": True}, {"wall_s": math.inf}, {"wall_s": math.nan}, {"cpu_s": "1"}],
)  # fmt: skip
def test_counters_that_are_none(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainState.from_dict(wrong)


def history(metric="valid_loss", patience=2, target=None, enabled=True):
    return History(
        SimpleNamespace(enabled=enabled, metric=metric, patience=patience, target=target)
    )


def loss(epoch, value):
    return {"kind": "epoch", "epoch": epoch, "Valid/Loss": value}


def rollout(epoch, rate=None, mean=0.0, **more):
    found = {"kind": "rollout", "epoch": epoch, "Rollout/Return": mean, **more}
    return found if rate is None else {**found, "Rollout/Success_Rate": rate}


def test_the_lowest_validation_loss():
    made = history()
    found = [made.add(loss(epoch, value)) for epoch, value in enumerate([3.0, 1.0, 1.0, None], 1)]
    assert found == [{"valid"}, {"valid"}, set(), set()]
    assert made.best_valid == (1.0, 2)
    assert made.add({"kind": "epoch", "epoch": 5}) == set()
    assert made.last_epoch == {"kind": "epoch", "epoch": 5}


def test_the_time_of_all_evaluations_counts_those_before_a_resumption():
    made = history()
    for epoch, seconds in ((1, 205.0), (2, 1.5), (3, None)):
        made.add(rollout(epoch, 0.5, **{"Timing/Rollout_s": seconds}))
    made.add(rollout(4, 0.5))
    assert made.evaluation_s == 206.5


@pytest.mark.parametrize(
    ("records", "best", "best_return"),
    [
        ([(0.5, 1.0), (0.6, 0.0)], 2, 1),
        ([(0.5, 1.0), (0.5, 2.0), (0.5, 0.0)], 2, 2),
        ([(0.5, 1.0), (0.5, 1.0)], 2, 1),  # the later one was trained for longer
        ([(None, 1.0), (None, 3.0), (None, 2.0)], 2, 2),
        ([(None, 5.0), (0.0, 1.0)], 2, 1),
        ([(0.0, 1.0), (0.0, math.nan)], 1, 1),
    ],
)
def test_the_best_evaluation(records, best, best_return):
    made = history()
    for epoch, (rate, mean) in enumerate(records, 1):
        made.add(rollout(epoch, rate, mean))
    assert (made.best[2], made.best_return[1]) == (best, best_return)
    assert made.rollouts[1]["Rollout/Return"] == records[0][1]


def test_kept_bounds_come_before_success():
    made = history()
    assert made.add(rollout(1, 0.9, 5.0, **{KEPT: 0.0})) == {"best", "return"}
    assert made.add(rollout(2, 0.1, 6.0)) == {"best", "return"}
    assert made.add(rollout(3, 1.0, 5.0, **{KEPT: 0.0})) == set()


@pytest.mark.parametrize(
    ("target", "values", "reason"),
    [
        (None, [1.0, 2.0], None),
        (None, [1.0, 1.0, 1.0], "valid_loss has not improved for 2 measurements"),
        (None, [1.0, 2.0, 0.5, 2.0], None),
        (0.5, [1.0, 0.5], "valid_loss reached the target 0.5"),
        (0.5, [1.0, 0.6], None),
        (0.5, [0.4, 2.0], "valid_loss reached the target 0.5"),
    ],
)
def test_validation_ends_a_training(target, values, reason):
    made, other = history(target=target), history(target=target, enabled=False)
    elsewhere = history("success_rate", target=target)
    for epoch, value in enumerate(values, 1):
        for each in (made, other, elsewhere):
            each.add(loss(epoch, value))
    assert made.stop_reason == reason
    assert other.stop_reason is None and elsewhere.stop_reason is None


@pytest.mark.parametrize(
    ("target", "records", "reason"),
    [
        (None, [(0.5, 0), (0.5, 9), (0.5, 10)], "success_rate has not improved for 2 measurements"),
        (None, [(0.5, 0), (0.6, 0), (0.6, 0)], None),
        (None, [(None, 1), (None, 1), (None, 0)], "return has not improved for 2 measurements"),
        (None, [(None, 1), (None, 2), (None, 3)], None),
        (0.6, [(0.6, 0)], "success_rate reached the target 0.6"),
        (0.6, [(0.59, 0), (None, 0)], None),
    ],
)
def test_evaluations_end_a_training(target, records, reason):
    made, elsewhere = history("success_rate", target=target), history(target=target)
    for epoch, (rate, mean) in enumerate(records, 1):
        made.add(rollout(epoch, rate, mean))
        elsewhere.add(rollout(epoch, rate, mean))
    assert made.stop_reason == reason
    assert elsewhere.stop_reason is None
