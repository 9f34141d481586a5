"""`imitate sweep`: what its options mean, and what is printed."""

import json

import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.errors import TrainingError
from imitate.train.sweep.state import Halving
from imitate.train.sweep.sweep import Resources, Sweep, SweepResult, SweepRun, default_workers
from tests.train.test_sweep import write_config


@pytest.fixture
def swept(monkeypatch, tmp_path):
    """Runs the command without its trainings; what they would have been called with, and what was printed."""
    config, called = write_config(tmp_path), {}

    def run(self, workers, tell, statistic, **rest):
        called.update(rest)
        one = SweepRun("seed=1", {"train.seed": 1}, "pruned at epoch 1: ...", {})
        two = SweepRun("seed=2", {"train.seed": 2}, "finished", {})
        tell(two)
        if "fails" in self.folder.name:
            raise TrainingError("no room")
        self.folder.mkdir(parents=True)
        (self.folder / "results.json").write_text("[]")
        return SweepResult(self.folder, (one, two), None, interrupted=False)

    monkeypatch.setattr(Sweep, "run", run)

    def start(*options):
        return CliRunner().invoke(app, ["sweep", str(config), *options]), called

    return start


def test_by_default_all_runs_train_to_their_ends_on_half_of_the_cores(swept):
    result, called = swept()
    assert result.exit_code == 0, result.output
    wanted = Resources(on="local", workers=default_workers(), hang_s=3600.0)
    assert called == {"resources": wanted, "halving": None}
    assert "seed=2: finished" in result.stdout and "pruned at epoch 1" in result.stdout


def test_places_sizes_and_limits_of_runs(swept):
    _, called = swept("--on", "ray:10.0.0.1:6379", "--cpus", "4", "--gpus", "2")
    wanted = Resources("ray:10.0.0.1:6379", workers=None, cpus=4, gpus=2, hang_s=3600.0)
    assert called["resources"] == wanted
    _, called = swept("--workers", "3", "--hang-minutes", "0")
    assert called["resources"] == Resources(workers=3, hang_s=None)
    _, called = swept("--hang-minutes", "1.5", "--cpus", "1")
    assert called["resources"].hang_s == 90.0
    assert called["resources"].workers == default_workers(1) >= default_workers(2)


def test_early_stopping(swept):
    options = ("--metric", "valid_loss", "--reduction", "4", "--first-epochs", "5")
    _, called = swept("--stop-early", "asha", *options)
    assert called["halving"] == Halving("valid_loss", reduction=4, first_epochs=5)
    result, _ = swept("--stop-early", "hyperband")
    assert result.exit_code == 2


def test_json_alone_on_stdout(swept):
    result, _ = swept("--json")
    assert json.loads(result.stdout) == []
    assert "seed=2: finished" in result.stderr


def test_a_full_disk_is_told_in_one_line(swept):
    result, _ = swept("--name", "fails")
    assert result.exit_code == 1
    assert "error: no room" in result.stderr
