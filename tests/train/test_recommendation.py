import pytest

from imitate.config.experiment import EarlyStoppingConfig
from imitate.run_folder import create_run_folder
from imitate.train.recommendation import caution, kept_checkpoints, recommended
from imitate.train.state import History


@pytest.fixture
def look(tmp_path):
    """The checkpoints of a run with these files and records."""

    def at(files, records):
        folder = create_run_folder(tmp_path, "run")
        for name in files:
            (folder.checkpoints / name).touch()
        history = History(EarlyStoppingConfig())
        for record in records:
            history.add(record)
        return kept_checkpoints(folder, history, 200)

    return at


def epoch(number, valid=None):
    return {"kind": "epoch", "epoch": number, "Valid/Loss": valid}


def rollout(number, rate, value=0.5):
    return {
        "kind": "rollout",
        "epoch": number,
        "Rollout/Success_Rate": rate,
        "Rollout/Return": value,
        "Rollout/Episodes": 50.0,
    }


def test_the_best_by_success_is_named_with_its_epoch_and_rate(look):
    kept = look(
        ["best.pth", "best_valid.pth", "last.pth"],
        [epoch(2, 0.1), rollout(50, 0.68), epoch(200, 0.9), rollout(200, 0.44)],
    )
    assert recommended(kept).words == "best by success rate (epoch 50, 68 % of 50 episodes)"
    assert caution(kept) is None


def test_validation_loss_alone_does_not_choose_the_checkpoint(look):
    kept = look(["best_valid.pth", "last.pth"], [epoch(2, 0.1), epoch(200, 0.9)])
    assert recommended(kept).name == "last.pth"
    assert recommended(kept).words == "the last (epoch 200)"
    assert "best_valid.pth (epoch 2)" in caution(kept)
    assert "imitate eval, or on the robot" in caution(kept)


def test_without_any_measurement_a_comparison_is_advised(look):
    assert caution(look(["last.pth"], [epoch(200)])).startswith("no success rate was measured")
    assert recommended(look([], [])) is None
    assert caution([]) is None


def test_numbered_checkpoints_come_in_their_order(look):
    kept = look(["epoch_100.pth", "epoch_20.pth", "last.pth"], [epoch(200)])
    assert [(c.name, c.epoch) for c in kept] == [
        ("last.pth", 200),
        ("epoch_20.pth", 20),
        ("epoch_100.pth", 100),
    ]


def test_a_best_file_without_its_records_has_no_epoch(look):
    (kept,) = look(["best.pth"], [])
    assert kept.epoch is None
    assert kept.words == "kept as a best one (epoch unknown)"
