import pytest

from imitate.config import ExperimentConfig
from imitate.train.state import History, TrainState


def stopping(**values):
    return ExperimentConfig(early_stopping=values).early_stopping


def rollout(epoch, rate, mean_return=0.0):
    return {
        "kind": "rollout",
        "epoch": epoch,
        "Rollout/Success_Rate": rate,
        "Rollout/Return": mean_return,
    }


def valid(epoch, loss):
    return {"kind": "epoch", "epoch": epoch, "Valid/Loss": loss}


def test_bests():
    history = History(stopping())
    assert history.add(rollout(1, 0.2, 3.0)) == {"success", "return"}
    assert history.add(rollout(2, 0.2, 2.0)) == set()
    assert history.add(rollout(3, 0.4, 1.0)) == {"success"}
    assert history.add(rollout(4, 0.4, 1.0)) == {"success"}  # as good, and later
    assert history.best_success == (0.4, 1.0, 4)
    assert history.best_return == (3.0, 1)
    assert history.add(valid(1, 0.5)) == {"valid"}
    assert history.add(valid(2, 0.5)) == set()
    assert history.add({"kind": "epoch", "epoch": 3, "Train/Loss": 1.0}) == set()
    assert history.best_valid == (0.5, 1)
    assert sorted(history.rollouts) == [1, 2, 3, 4]
    assert history.last_epoch["epoch"] == 3


def test_no_early_stopping_unless_asked():
    history = History(stopping(patience=1, target=0.0))
    for epoch in range(5):
        history.add(rollout(epoch, 0.5))
    assert history.stop_reason is None


def test_patience_counts_measurements_without_improvement():
    history = History(stopping(enabled=True, patience=2))
    for epoch, rate in enumerate([0.1, 0.1, 0.2, 0.2]):
        history.add(rollout(epoch, rate))
        history.add(valid(epoch, 1.0))
        assert history.stop_reason is None
    history.add(rollout(5, 0.1))
    assert history.stop_reason == "success_rate has not improved for 2 measurements"


@pytest.mark.parametrize(
    ("metric", "worse", "good"), [("valid_loss", 0.3, 0.2), ("success_rate", 0.8, 0.9)]
)
def test_targets(metric, worse, good):
    history = History(stopping(enabled=True, metric=metric, target=good))
    record = valid if metric == "valid_loss" else rollout
    history.add(record(1, worse))
    assert history.stop_reason is None
    history.add(record(2, good))
    assert history.stop_reason == f"{metric} reached the target {good}"


def test_counters_survive_a_checkpoint():
    state = TrainState(step=7, epoch=2, skipped_batches=3, rollbacks=1, wall_s=1.5, cpu_s=1.0)
    assert TrainState.from_dict({**state.to_dict(), "rng": {}, "means": {}}) == state


def test_numbers_that_are_not_finite_are_never_the_best_and_can_be_read_again():
    live, again = History(stopping()), History(stopping())
    for value in (float("nan"), float("inf"), -float("inf")):
        # The metrics file holds null where a number is not finite.
        for history, written in ((live, value), (again, None)):
            assert history.add(rollout(1, 0.5, written)) == {"success"}
            assert history.add(valid(1, written)) == set()
    for history in (live, again):
        assert (history.best_return, history.best_valid) == (None, None)
        assert history.add(rollout(2, 0.25, -7.0)) == {"return"}
        assert history.add(valid(2, 3.0)) == {"valid"}
        assert history.best_success == (0.5, -float("inf"), 1)
