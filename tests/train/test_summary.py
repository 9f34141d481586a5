import pytest

from imitate.run_folder import create_run_folder
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


def test_curves_need_an_epoch(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    assert draw_curves(folder) is None
    metrics = MetricsFile(folder.metrics)
    metrics.append({"kind": "epoch", "epoch": 1, "Train/Loss": 1.0})
    assert draw_curves(folder) == folder.curve
    small = folder.curve.stat().st_size
    metrics.append({"kind": "epoch", "epoch": 2, "Train/Loss": 0.5, "Valid/Loss": 0.6})
    for epoch in (2, 1):  # an evaluation may end late
        metrics.append(
            {
                "kind": "rollout",
                "epoch": epoch,
                "Rollout/Success_Rate": 0.5,
                "Rollout/Success_Rate_Low": 0.3,
                "Rollout/Success_Rate_High": 0.7,
            }
        )
    draw_curves(folder)
    assert folder.curve.stat().st_size > small
    assert folder.curve.read_bytes()[:4] == b"\x89PNG"


def test_best_before_last(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    assert best_checkpoint(folder) is None
    folder.last.touch()
    assert best_checkpoint(folder) == folder.last
    (folder.checkpoints / "best.pth").touch()
    assert best_checkpoint(folder).name == "best.pth"
