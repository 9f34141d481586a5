"""Training loop with updates, epochs, checkpoints, evaluations and the treatment of bad losses."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from imitate.algo.base.algo import Batch
from imitate.errors import RobotStoppedError, TrainingError
from imitate.evaluate.environments import simulated
from imitate.evaluate.job import device_beside
from imitate.models.precision import begin_compiled_step
from imitate.models.preprocess import Preprocess
from imitate.policy.checkpoint import checkpoint_dict, load_checkpoint
from imitate.system.processes import Interrupt
from imitate.system.ranks import ALONE, Ranks
from imitate.system.run_folder import RunFolder
from imitate.system.seeding import rng_state, set_rng_state
from imitate.system.text import counted
from imitate.train.batch_source import BatchSource
from imitate.train.checkpoints import Checkpoints
from imitate.train.console import Console, Forecast, duration, images_on_cpu, rate
from imitate.train.evaluations import EvalRequest, Rollouts, Validation, calibrator_of
from imitate.train.loss_guard import BadLoss, LossGuard, weights_are_finite
from imitate.train.metrics import Debug, EpochMeans, MetricsFile, RunLogger
from imitate.train.outcomes import rollout_entry
from imitate.train.resume import restored
from imitate.train.setup import Setup
from imitate.train.state import PAUSED, History, TrainState

MAX_ROLLBACKS = 3
PRETRAINING = "update {done}/{total} from demonstrations alone, before the first step"


class Run:
    """Training run in its folder, with its epochs, checkpoints and evaluations.

    Args:
        source: source of the batches, which defines a step of the run.
        ckpt: the checkpoint to resume from, or None to start from scratch.
        ranks: the processes that train together.

    Attributes:
        until_epoch: epoch after which to pause, or None to train to the end.
    """

    def __init__(
        self,
        setup: Setup,
        source: BatchSource,
        folder: RunFolder,
        console: Console,
        interrupt: Interrupt,
        ckpt: Mapping[str, Any] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.setup, self.folder, self.console, self.interrupt = setup, folder, console, interrupt
        self.config, self.algo, self.ranks = setup.config, setup.algo, ranks
        self.state = TrainState()
        self.history = History(self.config.experiment.early_stopping)
        self.checkpoints = Checkpoints(folder, self.config.experiment.save, self._checkpoint)
        self.rollouts = Rollouts(
            self.config.experiment,
            folder,
            simulated(setup.env_metas),
            self.checkpoints,
            console,
            self._record_rollout,
            source.curriculum,
            device_beside(
                setup.device, sum(x.numel() for x in setup.algo.nets.state_dict().values())
            ),
        )
        self._source = source
        self._steps_per_epoch = int(self.config.experiment.epoch_every_n_steps or 1)
        self._num_epochs = int(self.config.train.num_epochs or 1)
        self._total_steps = self._steps_per_epoch * self._num_epochs
        self._forecast = Forecast(
            self._total_steps, source.unit, images_on_cpu=images_on_cpu(setup)
        )
        self.until_epoch: int | None = None
        self._status, self._stopping = "interrupted", False
        self._bad: BadLoss | None = None
        self._means = EpochMeans()
        self._guard = LossGuard(setup.device)
        self._validation = (
            Validation(self.config, setup.valid_set, setup.device) if setup.valid_set else None
        )
        self._calibrator = calibrator_of(setup)
        if ckpt is not None:
            with restored(folder.last):
                self._restore(ckpt)
                set_rng_state(ckpt["train_state"]["rng"])
            self.checkpoints.saved_elsewhere(self.state.step)
        else:  # an earlier try may have written metrics, but no checkpoint, before it was killed
            MetricsFile(folder.metrics).truncate(0)
        self.logger = RunLogger(folder, self.config, console, self.state.epoch)
        train = self.config.train
        size = train.batch_size * train.gradient_accumulation
        self._debug = Debug(self.algo, size) if self.config.experiment.logging.debug else None

    # ---- the loop ---------------------------------------------------------------------------------

    def loop(self) -> str:
        """Train to the end; return the run's status.

        Raises:
            TrainingError: the loss became bad, or a checkpoint could not be written.
            DatasetError: the loss became bad because the data hold values that are not finite.
        """
        try:
            for batch, epoch in self._batches():
                if self.config.train.compile:
                    begin_compiled_step(self.setup.device)
                info = self.algo.train_on_batch(batch, epoch)
                self._source.learned(info)
                if self._debug is not None:
                    self._debug.add(batch)
                self._means.add(info)
                self._bad = self._guard.add(self.state.step, info, self._source.index)
        except RobotStoppedError:
            if self.config.experiment.save.enabled:
                self.checkpoints.write_last(self.state.step)
            raise
        return self._status

    def _batches(self) -> Iterator[tuple[Batch, int]]:
        """Yield prepared batches with their epochs, and end each epoch between two batches."""
        yield from self._pretraining()
        self._redo_lost_evaluation()
        if self.config.train.on_bad_loss == "rollback":
            self.checkpoints.write_last(self.state.step)
        self.console.start_bar(self._total_steps, self.state.step)
        while self.state.epoch < self._num_epochs:
            (stop,) = self.ranks.any(self.history.stop_reason is not None)
            if stop:
                self._status = f"stopped early: {self.history.stop_reason}"
                return
            if self.until_epoch is not None and self.state.epoch >= self.until_epoch:
                self._save(self.config.experiment.save.enabled)
                self._status = f"{PAUSED} at epoch {self.state.epoch} of {self._num_epochs}"
                return
            with self._timed():
                yield from self._batches_of_epoch()
            if self._bad is not None:
                self._go_back(self._bad)
            elif self._stopping:
                self._save(self.config.experiment.save.enabled)
                return
            else:
                with self._timed():
                    self._end_epoch()
                self._save_and_evaluate()
        self._status = "finished"

    def _pretraining(self) -> Iterator[tuple[Batch, int]]:
        """Yield batches before the first step, which do not count in the first epoch's means."""
        if self.state.step:
            return
        self.algo.set_train()
        total = self.config.train.online.pretrain_updates
        if total:
            self.console.start_bar(total, 0)
        with self._timed():
            for done, batch in enumerate(self._source.pretraining(self.state)):
                self.console.advance(done)
                self.console.pulse(partial(PRETRAINING.format, done=done, total=total))
                yield batch, 1
                self._agree()
                if self._bad is not None:
                    self._go_back(self._bad)
                if self._stopping:
                    return
        self._means = EpochMeans()

    def _batches_of_epoch(self) -> Iterator[tuple[Batch, int]]:
        """Yield batches until the epoch ends, a signal arrives or the loss is infinite or NaN."""
        state, source = self.state, self._source
        epoch = state.epoch + 1
        self.algo.set_train()
        self._epoch_began, self._epoch_first = time.perf_counter(), state.step
        source.waited_s = 0.0
        while state.step < epoch * self._steps_per_epoch:
            self._agree()
            if self._failed() or self._stopping:
                return
            self.algo.set_progress(min(state.step / self._total_steps, 1.0))
            for batch in source.batches(state):
                yield batch, epoch
                if source.gives_several:
                    self._share_failure()
                if self._failed():
                    break
            else:
                self._progressed()
        self._bad = self._bad or self._guard.check()
        if self._bad is None and not weights_are_finite(self.algo.nets):
            reason = "weights that are not finite"
            self._bad = BadLoss(state.step - 1, float("nan"), reason, None)
        self._agree()

    def wait_for_evaluations(self) -> None:
        """Evaluate the last epoch if it was not evaluated yet, and wait for all evaluations."""
        epoch = self.state.epoch
        known = self.rollouts.pending | set(self.history.rollouts)
        if self.config.experiment.rollout.enabled and epoch not in known and epoch > 0:
            self.checkpoints.write_candidate(epoch, self.state.step)
            self.rollouts.submit(epoch, self.state.step)
        self.rollouts.training_is_over()
        if self.rollouts.pending:
            epochs = ", ".join(map(str, sorted(self.rollouts.pending)))
            plural = "s" if len(self.rollouts.pending) > 1 else ""
            self.console.say(f"waiting for the evaluation of epoch{plural} {epochs}")
        while self.rollouts.pending and self.interrupt.signal is None:
            self.rollouts.collect(timeout_s=0.2)
            self.console.pulse(self.rollouts.pulse_words)

    def rollout_entry(self, epoch: int) -> dict[str, Any] | None:
        """Return the evaluation of an epoch for results.json, or None if the epoch was not evaluated."""
        record = self.history.rollouts.get(epoch)
        if record is None:
            return None
        entry = rollout_entry(record)
        for result in self.rollouts.latest.get(epoch, ()):
            played = result.to_dict()
            del played["checkpoint"]  # path of a copy that is removed after the evaluation
            if result.video is not None:
                played["video"] = str(Path(result.video).absolute())
            entry.setdefault("environments", []).append(played)
        return entry

    @property
    def last_epoch(self) -> int | None:
        """Number of epochs completed in last.pth; None before it is written."""
        step = self.checkpoints.saved_step
        return None if step is None else step // self._steps_per_epoch

    def counts(self) -> dict[str, int]:
        """Return the progress of the run, for results.json."""
        return {"epoch": self.state.epoch, "step": self.state.step, **self._source.counts()}

    def close(self) -> None:
        """End the workers and close the files."""
        self.console.close_bar()
        self._source.close()
        self.rollouts.close()
        self.logger.close()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Context that counts the duration of its body as training time."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.state.wall_s += time.perf_counter() - wall
            self.state.cpu_s += time.process_time() - cpu

    def _failed(self) -> bool:
        """Return true if a bad loss, of this rank or another, was found and not handled yet."""
        return self._bad is not None

    def _progressed(self) -> None:
        """Show the progress: at intervals in a line, once with a forecast."""
        step = self.state.step
        self.console.advance(min(step, self._total_steps))
        self.console.pulse(self._pulse_words)
        line = self._forecast.line(step)
        if line is not None:
            self.console.say(line)

    def _pulse_words(self) -> str:
        state, done = self.state, max(self.state.step - self._epoch_first, 1)
        speed = done / max(time.perf_counter() - self._epoch_began, 1e-9)
        left = max(self._total_steps - state.step, 0) / max(speed, 1e-9)
        return (
            f"epoch {state.epoch + 1}/{self._num_epochs}, step {state.step}/{self._total_steps}: "
            f"{self._how_it_goes()}{rate(speed)} {self._source.unit}/s, {duration(left)} left"
        )

    def _how_it_goes(self) -> str:
        """Describe the number of updates if it differs from the steps, otherwise the epoch's mean loss so far."""
        counts = self._source.counts()
        if "updates" in counts:
            return f"{counted(counts['updates'], 'update')}, "
        loss = self.algo.log_info(self._means.means()).get("Loss")
        return "" if loss is None else f"loss {loss:.4g}, "

    def _agree(self) -> None:
        """Exchange with the other ranks whether a signal was received or the loss became bad."""
        # Stop only after a whole update: a checkpoint does not contain accumulated gradients.
        whole = self.state.step % self._source.steps_per_update == 0
        stop, failed = self.ranks.any(
            whole and self.interrupt.signal is not None, self._bad is not None
        )
        if stop:
            self._stopping = True
            self.interrupt.signal = self.interrupt.signal or signal.SIGTERM
        if failed and self._bad is None:
            self._bad = elsewhere(self.state.step)

    def _share_failure(self) -> None:
        """Report a bad loss to the other ranks, which would otherwise wait for this rank's next gradients."""
        (failed,) = self.ranks.any(self._bad is not None)
        if failed and self._bad is None:
            self._bad = elsewhere(self.state.step)

    # ---- ends of epochs ---------------------------------------------------------------------------

    def _end_epoch(self) -> None:
        """Log the epoch's means and validation results."""
        state, epoch = self.state, self.state.epoch + 1
        seconds = time.perf_counter() - self._epoch_began
        self.algo.on_epoch_end(epoch)
        log = self.algo.log_info(self._means.means())
        numbers = {f"Train/{key}": value for key, value in log.items()}
        done = max(state.step - self._epoch_first, 1)
        numbers |= {
            "Timing/Steps_Per_s": round(done / max(seconds, 1e-9), 2),
            "Timing/Epoch_s": round(seconds, 4),
            "Timing/Data_Wait_s": round(self._source.waited_s, 4),
            "Timing/CPU_s": round(state.cpu_s, 3),
            **self._source.metrics(),
        }
        self._means = EpochMeans()
        state.epoch = epoch
        if self._validation is not None:
            began = time.perf_counter()
            numbers |= self._validation.run(
                self.algo, epoch, lambda: self.console.pulse(lambda: f"epoch {epoch}: validating")
            )
            numbers["Timing/Validation_s"] = round(time.perf_counter() - began, 4)
        self._improved = self._record("epoch", epoch, state.step, numbers)
        if self._debug is not None:
            self.logger.debug(epoch, self._debug.scalars(), self._debug.histograms())
        self._say_epoch(epoch, numbers)

    def _save_and_evaluate(self) -> None:
        checkpoints, epoch, step = self.checkpoints, self.state.epoch, self.state.step
        save = self.config.experiment.save
        is_last = epoch == self._num_epochs
        best_valid = save.on_best_validation and "valid" in self._improved
        periodic = checkpoints.epoch_is_due(epoch)
        evaluated = self.rollouts.due(epoch)
        due = is_last or best_valid or periodic or evaluated or checkpoints.last_is_due()
        self._save(save.enabled and due)
        if periodic:
            checkpoints.keep_epoch(epoch)
        if best_valid:
            checkpoints.keep_best(checkpoints.last, {"valid"})
        if evaluated:
            checkpoints.write_candidate(epoch, step)
            self.rollouts.submit(epoch, step)
        self.rollouts.collect()

    def _save(self, is_due: bool) -> None:
        """Write last.pth if rank 0 finds it due, after all ranks have written their own files."""
        (any_due,) = self.ranks.any(is_due)
        if any_due:
            self._source.save_part()
        if is_due:
            self.checkpoints.write_last(self.state.step)

    def _record(self, kind: str, epoch: int, step: int, numbers: dict[str, float]) -> set[str]:
        best = self.history.add({"kind": kind, "epoch": epoch, **numbers})
        self.logger.record(kind, epoch, step, numbers)
        return best

    def _record_rollout(self, request: EvalRequest, numbers: dict[str, float]) -> set[str]:
        # Link the best checkpoint before the metrics are written: a kill in between then only repeats an evaluation.
        best = self.history.add({"kind": "rollout", "epoch": request.epoch, **numbers})
        self.checkpoints.keep_best(request.checkpoint, best)
        self.logger.record("rollout", request.epoch, request.step, numbers)
        self._judge_stage(request.epoch, numbers)
        return best

    def _judge_stage(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Begin the next stage of a curriculum if an evaluation ends the current one."""
        curriculum = self._source.curriculum
        if curriculum is not None and curriculum.judge(epoch, self.state.step, numbers):
            self.console.say(f"epoch {epoch}: the curriculum continues with {curriculum.words}")
            self._source.begin_stage()

    def _say_epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        speed = numbers["Timing/Steps_Per_s"]
        left = max(self._total_steps - self.state.step, 0) / max(speed, 1e-9)
        names = {"return": "Metrics/AverageReturn"}
        if "updates" not in self._source.counts():
            names = {"loss": "Train/Loss", "valid": "Valid/Loss"}
        known = {word: numbers[name] for word, name in names.items() if name in numbers}
        words = "".join(f"{word} {value:.4g}, " for word, value in known.items())
        self.console.words = f"epoch {epoch}, {words}".rstrip(", ")
        self.console.say(
            f"epoch {epoch}/{self._num_epochs}: {words}{rate(speed)} {self._source.unit}/s, "
            f"{duration(left)} left"
        )

    # ---- checkpoints and rollbacks -----------------------------------------------------------------

    def _checkpoint(self) -> dict[str, Any]:
        return checkpoint_dict(
            self.algo,
            env_metadata=self.setup.env_metas[0],
            environments=self.setup.env_metas,
            language=self.setup.language,
            shape_metadata=self.setup.shape_metadata,
            train_state={
                **self.state.to_dict(),
                "means": self._means.state(),
                "rng": rng_state(),
                **self._source.state_dict(),
            },
            provenance=self.setup.provenance,
            calibration=self._calibrated(),
        )

    def _calibrated(self) -> dict[str, Any] | None:
        return None if self._calibrator is None else self._calibrator.run(self.algo)

    def _restore(self, ckpt: Mapping[str, Any]) -> None:
        """Restore everything but the random generators from a checkpoint."""
        saved = ckpt["train_state"]
        self.algo.preprocess = Preprocess.from_dict(ckpt["preprocess"]).to(self.setup.device)
        self.algo.deserialize(ckpt["model"])
        self.state = TrainState.from_dict(saved)
        self._means = EpochMeans()
        self._means.load_state(saved["means"], self.setup.device)
        self._guard.reset()
        self._source.load_state_dict(saved)
        metrics = MetricsFile(self.folder.metrics)
        metrics.truncate(self.state.epoch)
        self.history = History(self.config.experiment.early_stopping)
        for record in metrics.records():
            self.history.add(record)
        if self.history.best is not None:
            self.rollouts.best_epoch = self.history.best[-1]
        # The checkpoint was written before its epoch's evaluation, which may have ended a stage.
        self._judge_stage(self.state.epoch, self.history.rollouts.get(self.state.epoch, {}))

    def _redo_lost_evaluation(self) -> None:
        """Repeat the newest evaluation that was interrupted by a kill."""
        lost = self.checkpoints.candidates()
        wanted = [
            epoch
            for epoch in lost
            if epoch <= self.state.epoch and epoch not in self.history.rollouts
        ][-1:]
        for epoch in lost:
            if epoch in wanted and self.config.experiment.rollout.enabled:
                self.rollouts.submit(epoch, epoch * self._steps_per_epoch)
            else:
                self.checkpoints.candidate(epoch).unlink(missing_ok=True)

    def _go_back(self, bad: BadLoss) -> None:
        """After a bad loss, restore the last checkpoint and skip the bad batches, or raise an error."""
        words = self._source.describe(bad, self.state.epoch + 1)
        before = self.state
        last = self.checkpoints.last
        if self.config.train.on_bad_loss != "rollback":
            kept = f"the last good weights are in {last}" if last.is_file() else "no checkpoint yet"
            raise TrainingError(f"{words}. {kept}. {self._source.advice}")
        if before.rollbacks >= MAX_ROLLBACKS:
            raise TrainingError(
                f"{words}. Rolled back {MAX_ROLLBACKS} times already; the weights in {last} are good"
            )
        self._restore(load_checkpoint(last))
        self._bad = None
        self.state.rollbacks = before.rollbacks + 1
        self.state.skipped_batches = bad.step + before.skipped_batches + 1 - self.state.step
        self.state.wall_s, self.state.cpu_s = before.wall_s, before.cpu_s
        self.console.say(
            f"warning: {words}; rolled back to step {self.state.step}, these batches are "
            f"skipped ({self.state.rollbacks} of {MAX_ROLLBACKS} times)",
            always=True,
        )


def elsewhere(step: int) -> BadLoss:
    """Return a BadLoss without details, for a bad loss on another rank: that rank reports the details."""
    return BadLoss(step, float("nan"), "on another rank", None)
