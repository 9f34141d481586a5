import numpy as np
import pytest
from PIL import Image, ImageColor

from imitate.run_folder import create_run_folder
from imitate.train.learning_curve import BOTTOM, COLORS, SIZE, TOP, numbers, words
from imitate.train.metrics import MetricsFile
from imitate.train.summary import best_checkpoint, deploy_lines, draw_curves, summary_lines

RESULTS = {
    "run": "runs/lift/1",
    "status": "finished",
    "algo": "BC_RNN_GMM",
    "epoch": 10,
    "step": 1000,
    "train_loss": -12.34567,
    "valid_loss": None,
    "final": {
        "epoch": 10,
        "success_rate": 0.96,
        "success_rate_95": [0.865, 0.989],
        "episodes": 50,
        "mean_return": 0.96,
    },
    "best": None,
    "times": {"train_wall_s": 75.0, "train_cpu_s": 70.0, "evaluation_wall_s": 12.0},
    "checkpoint": "runs/lift/1/checkpoints/best.pth",
}


def test_the_table_holds_the_outcome():
    text = "\n".join(summary_lines(RESULTS))
    assert "96 % (epoch 10, 50 episodes, 95 % interval 86 - 99 %), return 0.96" in text
    assert "-12.35, -" in text
    assert "1 min 15 s (CPU 1 min 10 s)" in text
    assert "success, best" not in text
    assert "policy_from_checkpoint(ckpt_path='runs/lift/1/checkpoints/best.pth')" in text
    without = "\n".join(summary_lines({**RESULTS, "checkpoint": None}))
    assert "deploy" not in without


@pytest.mark.parametrize(
    ("algo", "success", "advised"),
    [("BC", 0.2, True), ("BC_GMM", 0.59, True), ("BC", 0.6, False), ("BC_RNN_GMM", 0.2, False)],
)
def test_a_policy_of_single_steps_that_fails_is_told_what_to_try(algo, success, advised):
    final = {**RESULTS["final"], "success_rate": success}
    text = "\n".join(summary_lines({**RESULTS, "algo": algo, "final": final}))
    assert ("config init FILE --algo flow_policy" in text) is advised
    not_evaluated = "\n".join(summary_lines({**RESULTS, "algo": algo, "final": None}))
    assert "next:" not in not_evaluated


def test_the_lines_are_python():
    lines = deploy_lines("it's.pth")
    assert len(lines) == 3
    compile("\n".join(lines), "lines", "exec")


def rows_of(folder, color):
    """Rows of the picture in which a line of a color is seen: of the left panel, and of the right one."""
    drawn = (np.asarray(Image.open(folder.curve)) == ImageColor.getrgb(color)).all(2)
    return [np.flatnonzero(half.any(1)) for half in np.split(drawn, 2, axis=1)]


def test_curves_need_an_epoch(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    blue, orange = COLORS
    assert draw_curves(folder) is None
    metrics = MetricsFile(folder.metrics)
    metrics.append({"kind": "epoch", "epoch": 1, "Train/Loss": 1.0})
    assert draw_curves(folder) == folder.curve
    assert [len(rows) > 0 for rows in rows_of(folder, blue)] == [True, False]
    metrics.append({"kind": "epoch", "epoch": 2, "Train/Loss": 0.5, "Valid/Loss": 0.6})
    ends = {"Rollout/Success_Rate_Low": 0.3, "Rollout/Success_Rate_High": 0.7}
    for epoch in (2, 1):  # an evaluation may end late
        metrics.append({"kind": "rollout", "epoch": epoch, "Rollout/Success_Rate": 0.5, **ends})
    draw_curves(folder)
    (losses, rates), (validation, none) = rows_of(folder, blue), rows_of(folder, orange)
    # Losses from 0.5 to 1 on an axis a tenth longer; success from 0.3 to 0.7 on one from -0.03 to 1.03.
    height = SIZE[1] - TOP - BOTTOM
    assert np.ptp(losses) == pytest.approx(height / 1.1, abs=4)
    assert TOP < losses[0] < validation.mean() < losses[-1] and len(none) == 0
    below_legend = rates[rates > TOP + 40]
    assert below_legend[0] == pytest.approx(TOP + height * 0.33 / 1.06, abs=2)
    assert rates[-1] == pytest.approx(TOP + height * 0.73 / 1.06, abs=2)


@pytest.mark.parametrize(
    ("low", "high", "whole", "shown"),
    [
        (0.0, 100.0, False, "0 20 40 60 80 100"),
        (-0.03, 1.03, False, "0.0 0.2 0.4 0.6 0.8 1.0"),
        (0.95, 3.05, True, "1 2 3"),
        (0.95, 1.05, True, "1"),
        (1.1, 3.2, False, "1.25 1.50 1.75 2.00 2.25 2.50 2.75 3.00"),
        (
            2e-9,
            4.1e-9,
            False,
            "2e-09 2.25e-09 2.5e-09 2.75e-09 3e-09 3.25e-09 3.5e-09 3.75e-09 4e-09",
        ),
        (
            1e6,
            1.0035e6,
            False,
            "1e+06 1.0005e+06 1.001e+06 1.0015e+06 1.002e+06 1.0025e+06 1.003e+06 1.0035e+06",
        ),
    ],
)
def test_numbers_of_an_axis_are_round(low, high, whole, shown):
    assert " ".join(words(numbers(low, high, whole))) == shown


def test_best_before_last(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    assert best_checkpoint(folder) is None
    folder.last.touch()
    assert best_checkpoint(folder) == folder.last
    (folder.checkpoints / "best.pth").touch()
    assert best_checkpoint(folder).name == "best.pth"
