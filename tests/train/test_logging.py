import io
import types

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from imitate.config import load_config
from imitate.run_folder import create_run_folder
from imitate.train import logging as module
from imitate.train.console import Console
from imitate.train.logging import RunLogger

from .conftest import config_dict


def config(**logging):
    return load_config(config_dict(experiment={"logging": logging}))


def test_numbers_reach_the_file_and_tensorboard(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    logger = RunLogger(folder, config(log_tb=True), Console(io.StringIO()))
    logger.record("epoch", 1, 20, {"Train/Loss": 0.5})
    logger.record("rollout", 1, 20, {"Rollout/Return": 2.0})
    logger.close()
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert sorted(events.Tags()["scalars"]) == ["Rollout/Return", "Train/Loss"]
    assert [(e.step, e.value) for e in events.Scalars("Train/Loss")] == [(1, 0.5)]
    assert [r["Train/Loss"] for r in logger.metrics.read() if r["kind"] == "epoch"] == [0.5]


def test_tensorboard_is_optional(tmp_path):
    folder = create_run_folder(tmp_path, "x")
    RunLogger(folder, config(log_tb=False), Console(io.StringIO())).close()
    assert not folder.tensorboard.exists()


def test_a_lost_connection_to_wandb_is_told_once_and_ends_nothing(tmp_path, monkeypatch):
    logged = []

    def log(numbers):
        logged.append(numbers)
        if len(logged) == 2:
            raise ConnectionError("gone")

    run = types.SimpleNamespace(log=log, finish=lambda: None)
    started = {}
    wandb = types.SimpleNamespace(init=lambda **kwargs: started.update(kwargs) or run)
    monkeypatch.setattr(module, "import_wandb", lambda: wandb)
    stream = io.StringIO()
    folder = create_run_folder(tmp_path, "x")
    logger = RunLogger(folder, config(log_tb=False, log_wandb=True), Console(stream))
    for epoch in (1, 2, 3):
        logger.record("epoch", epoch, epoch, {"Train/Loss": 0.5})
    logger.close()
    assert logged[0] == {"Train/Loss": 0.5, "epoch": 1}
    assert len(logged) == 2
    assert stream.getvalue().count("gone") == 1
    assert started["id"] == f"x-{folder.path.name}"
    assert started["config"]["algo_name"] == "bc"
    assert len(logger.metrics.read()) == 3
