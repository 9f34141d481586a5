"""The loop of a run with a source of batches of a few lines, in time that only updates take."""

import io
import signal
from types import SimpleNamespace as Words

import pytest
import torch

from imitate.config import load_config
from imitate.errors import RobotStoppedError, TrainingError
from imitate.policy.checkpoint import load_checkpoint
from imitate.system.processes import Interrupt
from imitate.system.run_folder import create_run_folder
from imitate.train import run as module
from imitate.train.console import Console
from imitate.train.metrics import MetricsFile
from imitate.train.run import Run, elsewhere
from imitate.train.setup import build
from tests.refusals import refused
from tests.tiny import tiny_demos, tiny_tree

UPDATE_S, CPU_S, WAIT_S = 0.5, 0.25, 0.125


class Source:
    """Gives the number of the next batch, whose loss is in ``losses``; a step is a batch."""

    unit, steps_per_update, gives_several = "updates", 1, False
    advice = "Lower the learning rate"
    index = curriculum = None
    waited_s = 0.0

    def __init__(self):
        self.losses, self.before, self.parts, self.asked = {}, [], 0, []
        self.on_step = {}

    def pretraining(self, state):
        yield from self.before

    def batches(self, state):
        self.waited_s += WAIT_S
        number = state.step + state.skipped_batches
        self.asked.append(number)
        self.on_step.get(number, lambda: None)()
        yield self.losses.get(number, 1.0)
        state.step += 1

    def learned(self, info):
        pass

    def metrics(self):
        return {"Own": 7.0}

    def counts(self):
        return {}

    def describe(self, bad, epoch):
        return f"step {bad.step} of epoch {epoch}: {bad.reason}"

    def save_part(self):
        self.parts += 1

    def state_dict(self):
        return {"source": 1}

    def load_state_dict(self, state):
        assert state["source"] == 1

    def close(self):
        pass


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Builds runs of two epochs of three steps."""
    clock = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(module.time, "process_time", lambda: clock[0] * CPU_S / UPDATE_S)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    data = tiny_demos(tmp_path / "a.hdf5", {"s": 3}, num_demos=2, length=5)

    def build_run(*, ckpt=None, folder=None, **settings):
        train = {"num_epochs": 2, **settings.pop("train", {})}
        experiment = {"epoch_every_n_steps": 3, **settings}
        config = load_config(
            tiny_tree("bc", obs={"s": 3}, data=data, train=train, experiment=experiment)
        )
        setup = build(config, torch.device("cpu"))
        made = Words(source=Source(), stream=io.StringIO(), interrupt=Interrupt(), infos=[])
        made.folder = folder or create_run_folder(tmp_path, "run")

        def learn(batch, epoch):
            clock[0] += UPDATE_S
            made.infos.append((batch, epoch))
            return {"Loss": torch.tensor(batch)}

        setup.algo.train_on_batch = learn
        setup.algo.log_info = lambda means: {key: float(value) for key, value in means.items()}
        console = Console(made.stream)
        made.run = Run(setup, made.source, made.folder, console, made.interrupt, ckpt)
        made.lines = lambda: made.stream.getvalue().splitlines()
        made.records = lambda: MetricsFile(made.folder.metrics).read()
        return made

    return build_run


def test_epochs_are_counted_timed_and_described(make):
    made = make()
    made.source.losses = {0: 1.0, 1: 2.0, 2: 6.0}
    assert made.run.last_epoch is None
    assert made.run.loop() == "finished"
    assert [epoch for _, epoch in made.infos] == [1, 1, 1, 2, 2, 2]
    assert made.run.counts() == {"epoch": 2, "step": 6} and made.run.last_epoch == 2
    first, second = made.records()
    shown = {key: value for key, value in first.items() if key != "time"}
    assert shown == {
        **{"kind": "epoch", "epoch": 1, "step": 3, "Train/Loss": 3.0, "Own": 7.0},
        **{"Timing/Steps_Per_s": 2.0, "Timing/Epoch_s": 1.5, "Timing/Data_Wait_s": 0.375},
        "Timing/CPU_s": 0.75,
    }
    assert (second["Train/Loss"], second["Timing/Data_Wait_s"], second["Timing/CPU_s"]) == (
        1.0,
        0.375,
        1.5,
    )
    assert made.lines() == [
        "epoch 1/2: loss 3, 2 updates/s, 1.5 s left",
        "epoch 2/2: loss 1, 2 updates/s, 0.0 s left",
    ]
    state = load_checkpoint(made.folder.last)["train_state"]
    assert (state["epoch"], state["step"], state["wall_s"], state["cpu_s"]) == (2, 6, 3.0, 1.5)


def test_a_run_pauses_after_an_epoch_and_goes_on_as_if_it_had_not(make):
    made = make()
    made.run.until_epoch = 1
    assert made.run.loop() == "paused at epoch 1 of 2"
    saved = load_checkpoint(made.folder.last)
    assert made.source.parts >= 1 and saved["train_state"]["epoch"] == 1
    again = make(ckpt=saved, folder=made.folder)
    assert again.run.loop() == "finished" and again.source.asked == [3, 4, 5]
    assert [record["epoch"] for record in again.records()] == [1, 2]
    assert again.run.state.wall_s == 3.0


def test_a_signal_ends_a_run_between_two_updates(make):
    made = make()
    made.source.on_step = {4: lambda: setattr(made.interrupt, "signal", signal.SIGINT)}
    assert made.run.loop() == "interrupted"
    assert made.run.counts() == {"epoch": 1, "step": 5}
    assert load_checkpoint(made.folder.last)["train_state"]["step"] == 5
    assert made.interrupt.signal == signal.SIGINT
    off = make(save={"enabled": False})
    off.interrupt.signal = signal.SIGINT
    assert off.run.loop() == "interrupted" and not off.folder.last.exists()


def test_accumulated_gradients_are_completed_before_a_signal_ends_the_run(make):
    made = make()
    made.source.steps_per_update = 2
    made.source.on_step = {2: lambda: setattr(made.interrupt, "signal", signal.SIGTERM)}
    assert made.run.loop() == "interrupted" and made.run.state.step == 4


def test_batches_before_the_first_step_are_no_part_of_an_epoch(make):
    made = make()
    made.source.before = [9.0, 9.0]
    assert made.run.loop() == "finished"
    assert made.infos[:3] == [(9.0, 1), (9.0, 1), (1.0, 1)]
    assert made.records()[0]["Train/Loss"] == 1.0 and made.run.state.step == 6
    assert made.run.state.wall_s == 4.0
    bad = make()
    bad.source.before = [9.0, float("nan")]
    with refused("step 0 of epoch 1: not finite. no checkpoint yet", error=TrainingError):
        bad.run.loop()


def test_a_bad_loss_stops_the_run(make):
    made = make()
    made.source.losses = {4: float("nan")}
    words = f"step 4 of epoch 2: not finite. the last good weights are in {made.folder.last}. Lower"
    with refused(words, error=TrainingError):
        made.run.loop()
    assert made.source.asked == [0, 1, 2, 3, 4]


def test_a_bad_loss_is_rolled_back_three_times(make):
    made = make(train={"on_bad_loss": "rollback"})
    made.source.losses = {4: float("inf")}
    assert made.run.loop() == "finished"
    assert made.source.asked == list(range(8))  # 3 and 4 are not repeated after step 3
    state = made.run.state
    assert (state.step, state.skipped_batches, state.rollbacks, state.wall_s) == (6, 2, 1, 4.0)
    assert (
        "warning: step 4 of epoch 2: not finite; rolled back to step 3, these batches are "
        "skipped (1 of 3 times)"
    ) in made.lines()
    worse = make(train={"on_bad_loss": "rollback"})
    worse.source.losses = dict.fromkeys((1, 3, 4, 6), float("nan"))
    words = f"step 1 of epoch 1: not finite. Rolled back 3 times already; the weights in {worse.folder.last} are good"
    with refused(words, error=TrainingError):
        worse.run.loop()
    assert worse.source.asked == [0, 1, 2, 3, 4, 5, 6]


def test_weights_that_are_not_finite_are_a_bad_loss(make):
    made = make()

    def spoil():
        next(iter(made.run.algo.nets.parameters())).data.fill_(float("nan"))

    made.source.on_step = {1: spoil}
    with refused("step 2 of epoch 1: weights that are not finite", error=TrainingError):
        made.run.loop()
    assert elsewhere(5).step == 5 and elsewhere(5).reason == "on another rank"


@pytest.mark.parametrize(("enabled", "saved"), [(True, True), (False, False)])
def test_a_robot_that_stops_leaves_what_was_learned(make, enabled, saved):
    made = make(save={"enabled": enabled})

    def stop():
        raise RobotStoppedError("the arm stopped")

    made.source.on_step = {1: stop}
    with refused("the arm stopped", error=RobotStoppedError):
        made.run.loop()
    assert made.folder.last.exists() == saved
    if saved:
        assert load_checkpoint(made.folder.last)["train_state"]["step"] == 1


def test_a_target_ends_a_run_early(make):
    made = make()
    made.run.history = Words(
        stop_reason="loss reached the target 1", add=lambda record: set(), rollouts={}
    )
    assert made.run.loop() == "stopped early: loss reached the target 1"
    assert made.infos == []


def test_checkpoints_of_epochs(make):
    made = make(save={"every_n_epochs": 2, "epochs": [1]}, train={"num_epochs": 4})
    assert made.run.loop() == "finished"
    names = sorted(path.name for path in made.folder.checkpoints.iterdir())
    assert names == ["epoch_1.pth", "epoch_2.pth", "epoch_4.pth", "last.pth"]
