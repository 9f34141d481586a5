"""Output of a training: lines, bars, numbers, its outcome, and what it recommends."""

import io
import re
import sys
import types
from unittest.mock import Mock, call

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from imitate.config import ExperimentConfig, load_config
from imitate.config.experiment import EarlyStoppingConfig
from imitate.system.run_folder import create_run_folder
from imitate.train.console import Console, Forecast, duration
from imitate.train.metrics import EpochMeans, MetricsFile, RunLogger
from imitate.train.outcomes import rollout_entry
from imitate.train.state import History, TrainState
from imitate.train.summary import (
    best_checkpoint,
    caution,
    deploy_lines,
    draw_curves,
    kept_checkpoints,
    recommended,
    summary_lines,
)

from .conftest import config_dict


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (59.0, "59.0 s"), (125.4, "2 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


@pytest.fixture
def now(monkeypatch):
    """The time that passes only by hand."""
    now = [100.0]
    monkeypatch.setattr("imitate.train.console.time.monotonic", lambda: now[0])
    monkeypatch.setattr("imitate.train.console.time.perf_counter", lambda: now[0])
    return now


def test_without_a_terminal_there_are_lines(tmp_path):
    stream, log = io.StringIO(), tmp_path / "log.txt"
    console = Console(stream, log=log)
    console.start_bar(10, 0)
    console.advance(5)
    console.say("hello")
    console.say("epoch 1")
    console.close_bar()
    assert stream.getvalue() == log.read_text() == "hello\nepoch 1\n"


def test_on_a_terminal_lines_stay_above_a_bar(tmp_path):
    stream, log = Terminal(), tmp_path / "log.txt"
    console = Console(stream, log=log)
    console.start_bar(10, 2)
    console.words = "epoch 1, loss 0.5"
    console.advance(5)
    console.say("epoch 1")
    console.say("hello")
    console.advance(10)  # too soon to be drawn
    console.close_bar()
    for words in ("5/10", "10/10", "loss 0.5", "hello\n", "epoch 1\n"):
        assert words in stream.getvalue()
    assert log.read_text() == "epoch 1\nhello\n"


def test_quiet_says_errors_only():
    stream = Terminal()
    console = Console(stream, quiet=True)
    console.start_bar(10, 0)
    console.say("hello")
    console.say("error", always=True)
    assert stream.getvalue() == "error\n"


def test_no_silence_is_long_where_there_is_no_bar(now):
    stream, terminal = io.StringIO(), Terminal()
    console, with_bar = Console(stream), Console(terminal)
    console.pulse(lambda: "too soon")
    now[0] += 31
    for each in (console, with_bar):
        each.pulse(lambda: "step 3")
    console.pulse(lambda: "too soon again")
    now[0] += 29
    console.say("epoch 1")
    now[0] += 29
    console.pulse(lambda: "the epoch was told 29 s ago")
    assert (stream.getvalue(), terminal.getvalue()) == ("step 3\nepoch 1\n", "")


# ---- files of numbers ----------------------------------------------------------------------------


def logs(**logging):
    return load_config(config_dict(experiment={"logging": logging}))


def test_numbers_reach_the_file_and_tensorboard(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    logger = RunLogger(folder, logs(log_tb=True), Console(io.StringIO()))
    logger.record("epoch", 1, 20, {"Train/Loss": 0.5})
    logger.record("rollout", 1, 20, {"Rollout/Return": 2.0})
    logger.close()
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert sorted(events.Tags()["scalars"]) == ["Rollout/Return", "Train/Loss"]
    assert [(e.step, e.value) for e in events.Scalars("Train/Loss")] == [(1, 0.5)]
    assert [r["Train/Loss"] for r in logger.metrics.read() if r["kind"] == "epoch"] == [0.5]
    other = create_run_folder(tmp_path, "y")
    RunLogger(other, logs(log_tb=False), Console(io.StringIO())).close()
    assert not other.tensorboard.exists()


@pytest.mark.parametrize(("epoch", "purged"), [([], None), ([4], 5)])
def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path, monkeypatch, epoch, purged):
    writer = Mock()
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", writer)
    folder = create_run_folder(tmp_path, "x")
    logger = RunLogger(folder, logs(log_tb=True), Console(io.StringIO()), *epoch)
    logger.record("epoch", 5, 20, {"Train/Loss": 0.5})
    logger.close()
    writer.assert_called_once_with(str(folder.tensorboard), purge_step=purged)
    calls = [call.add_scalar("Train/Loss", 0.5, 5), call.flush(), call.close()]
    assert writer().method_calls == calls


def test_a_lost_connection_to_wandb_is_told_once_and_ends_nothing(tmp_path, monkeypatch):
    logged = []

    def log(numbers):
        logged.append(numbers)
        if len(logged) == 2:
            raise ConnectionError("gone")

    finish, started = Mock(), {}
    run = types.SimpleNamespace(log=log, finish=finish)
    wandb = types.SimpleNamespace(init=lambda **kwargs: started.update(kwargs) or run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    stream = io.StringIO()
    folder = create_run_folder(tmp_path, "x")
    logger = RunLogger(folder, logs(log_tb=False, log_wandb=True), Console(stream))
    for epoch in (1, 2, 3):
        logger.record("epoch", epoch, epoch, {"Train/Loss": 0.5})
    logger.close()
    finish.assert_not_called()
    RunLogger(folder, logs(log_tb=False, log_wandb=True), Console(stream)).close()
    finish.assert_called_once_with()
    assert logged[0] == {"Train/Loss": 0.5, "epoch": 1}
    assert len(logged) == 2
    assert stream.getvalue().count("gone") == 1
    assert started["id"] == f"x-{folder.path.name}"
    assert started["config"]["algo_name"] == "bc"
    assert len(logger.metrics.read()) == 3


def test_means_are_of_copies_over_the_steps_that_have_a_key():
    means, value = EpochMeans(), torch.tensor(1.0)
    means.add({"Loss": value, "rare": torch.tensor(5.0)})
    value.fill_(100.0)
    means.add({"Loss": torch.tensor(2.0)})
    assert means.means() == {"Loss": torch.tensor(1.5), "rare": torch.tensor(5.0)}


def test_means_go_on_from_their_state_also_on_a_device_without_float64():
    first, second, elsewhere = EpochMeans(), EpochMeans(), EpochMeans()
    first.add({"Loss": torch.tensor(0.1)})
    second.load_state(first.state(), torch.device("cpu"))
    elsewhere.load_state(first.state(), torch.device("meta"))  # any that is not the CPU
    assert elsewhere.sums["Loss"].dtype == torch.float32
    for means in (first, second):
        means.add({"Loss": torch.tensor(0.2)})
    assert first.means() == second.means()
    assert first.means()["Loss"].dtype == first.sums["Loss"].dtype == torch.float64


def test_lines_are_appended_read_and_cut_back(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    assert metrics.read() == []
    metrics.truncate(3)
    for epoch in (1, 2, 3):
        metrics.append({"kind": "epoch", "epoch": epoch, "Train/Loss": epoch / 3})
    metrics.append({"kind": "rollout", "epoch": 1, "Rollout/Return": float("nan")})
    with metrics.path.open("a") as file:
        file.write('{"kind": "epoch", "epo')
    assert [record["epoch"] for record in metrics.read()] == [1, 2, 3, 1]
    assert metrics.read()[3]["Rollout/Return"] is None
    metrics.truncate(1)
    first, second = metrics.read()
    assert (first["kind"], first["epoch"], first["Train/Loss"]) == ("epoch", 1, 1 / 3)
    assert (second["kind"], second["epoch"]) == ("rollout", 1)
    assert metrics.path.read_text().endswith("\n")


# ---- time that is left ---------------------------------------------------------------------------


def forecast(now, seconds, steps, total=1000, first=30.0, **settings):
    """Lines of a forecast during so many steps of a training; the first one is slow."""
    found, said = Forecast(total, "updates", **settings), []
    for step in range(1, steps + 1):
        now[0] += first if step == 1 else seconds
        said.append(found.line(step))
    return [line for line in said if line is not None]


IMAGES = {"images_on_cpu": True}


@pytest.mark.parametrize(
    ("training", "line", "advised"),
    [
        ((5.0, 20), "about 1 h 23 min for this training: 996 updates at 0.2 per s", False),
        ((0.5, 20), "about 8 min 18 s", False),  # fast updates are measured for longer
        ((5.0, 20, IMAGES), "about", True),
        ((0.5, 20, IMAGES), "about", False),
        ((7.5, 7, {"total": 100, "first": 7.5, **IMAGES}), "about 12 min", True),
    ],
)
def test_a_forecast_is_said_once_and_slow_images_are_given_advice(now, training, line, advised):
    seconds, steps, *words = training
    (found,) = forecast(now, seconds, steps, **dict(*words))
    assert found.startswith(line) and ("imitate config init" in found) is advised


def test_short_trainings_are_not_told_of(now):
    assert forecast(now, 0.01, 500) == []


# ---- outcome -------------------------------------------------------------------------------------


RESULTS = {
    **{"run": "runs/lift/1", "status": "finished", "algo": "bc_rnn_gmm", "algo_name": "bc"},
    **{"epoch": 10, "step": 1000, "train_loss": -12.34567, "valid_loss": None},
    "final": {
        **{"epoch": 10, "success_rate": 0.96, "success_rate_95": [0.865, 0.989]},
        **{"episodes": 50, "mean_return": 0.96},
    },
    "best": None,
    "times": {"train_wall_s": 75.0, "train_cpu_s": 70.0, "evaluation_wall_s": 12.0},
    "checkpoint": "runs/lift/1/checkpoints/best.pth",
}


def test_the_table_holds_the_outcome():
    text = "\n".join(summary_lines(RESULTS))
    assert "96 % (epoch 10, 50 episodes, 95 % interval 86 - 99 %), return 0.96" in text
    assert "-12.35, -" in text and re.search("algorithm +bc_rnn_gmm\n", text)
    assert "1 min 15 s (CPU 1 min 10 s)" in text
    assert "success, best" not in text
    assert "policy_from_checkpoint(ckpt_path='runs/lift/1/checkpoints/best.pth')" in text
    assert "deploy" not in "\n".join(summary_lines({**RESULTS, "checkpoint": None}))
    record = {**rollout(3, None, 200.0), "Rollout/Return_Std": 35.0}
    # Student's t: 2.009575 * 35 / sqrt(50) = 9.947.
    words = "200 ± 35 (95 % interval 190.1 - 209.9), epoch 3, 50 episodes"
    lines = summary_lines({**RESULTS, "final": rollout_entry(record)})
    assert ["return, final", words] in [re.split(" {2,}", line) for line in lines]


@pytest.mark.parametrize(
    ("algo", "success", "advised"),
    [("bc", 0.2, True), ("bc_gmm", 0.59, True), ("bc", 0.6, False), ("bc_rnn_gmm", 0.2, False)],
)
def test_a_policy_of_single_steps_that_fails_is_told_what_to_try(algo, success, advised):
    final = {**RESULTS["final"], "success_rate": success}
    text = "\n".join(summary_lines({**RESULTS, "algo": algo, "final": final}))
    assert ("config init FILE --algo flow_policy" in text) is advised
    assert "next:" not in "\n".join(summary_lines({**RESULTS, "algo": algo, "final": None}))


def test_the_lines_are_python():
    lines = deploy_lines("it's.pth")
    assert len(lines) == 3
    compile("\n".join(lines), "lines", "exec")


def test_curves_need_an_epoch(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    folder.config.write_text('{"experiment": {"name": "x"}}')
    assert draw_curves(folder) is None
    metrics = MetricsFile(folder.metrics)
    metrics.append({"kind": "epoch", "epoch": 1, "Train/Loss": 1.0})
    assert draw_curves(folder) == folder.curve
    small = folder.curve.stat().st_size
    metrics.append({"kind": "epoch", "epoch": 2, "Train/Loss": 0.5, "Valid/Loss": 0.6})
    rates = {"": 0.5, "_Low": 0.3, "_High": 0.7}
    for epoch in (2, 1):  # an evaluation may end late
        found = {f"Rollout/Success_Rate{end}": rate for end, rate in rates.items()}
        metrics.append({"kind": "rollout", "epoch": epoch, **found})
    draw_curves(folder)
    assert folder.curve.stat().st_size > small
    assert folder.curve.read_bytes()[:4] == b"\x89PNG"


def test_best_before_last(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    assert best_checkpoint(folder) is None
    for name in ("last.pth", "best.pth"):
        (folder.checkpoints / name).touch()
        assert best_checkpoint(folder).name == name


# ---- bests and early stopping --------------------------------------------------------------------


def stopping(**values):
    return ExperimentConfig(early_stopping=values).early_stopping


def rollout(epoch, rate, mean_return=0.0):
    found = {"Success_Rate": rate, "Return": mean_return, "Episodes": 50.0}
    found = {
        f"Rollout/{name}": value
        for name, value in found.items()
        if name != "Success_Rate" or rate is not None
    }
    return {"kind": "rollout", "epoch": epoch, **found}


def valid(epoch, loss=None):
    return {"kind": "epoch", "epoch": epoch, "Valid/Loss": loss}


def test_bests():
    history = History(stopping())
    assert history.add(rollout(1, 0.2, 3.0)) == {"best", "return"}
    assert history.add(rollout(2, 0.2, 2.0)) == set()
    assert history.add(rollout(3, 0.4, 1.0)) == {"best"}
    assert history.add(rollout(4, 0.4, 1.0)) == {"best"}  # as good, and later
    assert (history.best, history.best_return) == ((0.4, 1.0, 4), (3.0, 1))
    assert history.add(valid(1, 0.5)) == {"valid"} and history.add(valid(2, 0.5)) == set()
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


def test_where_success_is_unknown_the_return_decides():
    history = History(stopping(enabled=True, patience=2, target=0.1))
    assert history.add(rollout(1, None, -3.0)) == {"best", "return"}
    assert history.add(rollout(2, None, -2.0)) == {"best", "return"}
    assert history.add(rollout(3, None, -2.0)) == {"best"} and history.stop_reason is None
    assert history.add(rollout(4, None, -9.0)) == set()
    assert history.stop_reason == "return has not improved for 2 measurements"
    assert history.best == (None, -2.0, 3)
    assert history.add(rollout(5, 0.0, -30.0)) == {"best"}, (
        "a known rate is better than an unknown one"
    )


def test_an_evaluation_that_keeps_its_bounds_is_better_than_any_that_does_not():
    history = History(stopping())
    for epoch, (kept, value) in enumerate([(0.0, 9.0), (1.0, 2.0), (0.0, 10.0), (1.0, 1.0)]):
        history.add({**rollout(epoch, None, value), "Rollout/Bounds_Kept": kept})
    assert history.best == (None, 2.0, 1)


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
    assert not any(TrainState().to_dict().values())


def test_numbers_that_are_not_finite_are_never_the_best_and_can_be_read_again():
    live, again = History(stopping()), History(stopping())
    for value in (float("nan"), float("inf"), -float("inf")):
        # The metrics file holds null where a number is not finite.
        for history, written in ((live, value), (again, None)):
            assert history.add(rollout(1, 0.5, written)) == {"best"}
            assert history.add(valid(1, written)) == set()
    for history in (live, again):
        assert (history.best_return, history.best_valid) == (None, None)
        assert history.add(rollout(2, 0.25, -7.0)) == {"return"}
        assert history.add(valid(2, 3.0)) == {"valid"}
        assert history.best == (0.5, -float("inf"), 1)


# ---- recommended checkpoints ---------------------------------------------------------------------


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


def test_the_best_by_success_is_named_with_its_epoch_and_rate(look):
    files = ["best.pth", "best_valid.pth", "last.pth"]
    kept = look(files, [valid(2, 0.1), rollout(50, 0.68), valid(200, 0.9), rollout(200, 0.44)])
    assert recommended(kept).words == "best by success rate (epoch 50, 68 % of 50 episodes)"
    assert caution(kept) is None


def test_where_success_is_unknown_the_best_by_return_is_named(look):
    (best, _) = look(
        ["best.pth", "last.pth"], [rollout(50, None, -120.0), rollout(200, None, -3e3)]
    )
    assert best.words == "best by return (epoch 50, -120 of 50 episodes)"


def test_validation_loss_alone_does_not_choose_the_checkpoint(look):
    kept = look(["best_valid.pth", "last.pth"], [valid(2, 0.1), valid(200, 0.9)])
    assert recommended(kept).name == "last.pth"
    assert recommended(kept).words == "the last (epoch 200)"
    assert "best_valid.pth (epoch 2)" in caution(kept)
    assert "imitate eval in a simulator" in caution(kept)


def test_without_any_measurement_a_comparison_is_advised(look):
    assert caution(look(["last.pth"], [valid(200)])).startswith("no episodes were evaluated")
    assert recommended(look([], [])) is None
    assert caution([]) is None


def test_numbered_checkpoints_come_in_their_order_and_a_best_one_without_records_has_no_epoch(look):
    kept = look(["epoch_100.pth", "epoch_20.pth", "last.pth"], [valid(200)])
    found = [(c.name, c.epoch) for c in kept]
    assert found == [("last.pth", 200), ("epoch_20.pth", 20), ("epoch_100.pth", 100)]
    (kept,) = look(["best.pth"], [])
    assert (kept.epoch, kept.words) == (None, "kept as one of the best (epoch unknown)")
