"""Batches of online RL: collect steps, store them, do as many updates as they allow."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from imitate.algo.algo import Batch, Info
from imitate.deploy.robot import RobotError
from imitate.errors import ConfigError, RobotStoppedError, UserError
from imitate.online.metrics import Metrics
from imitate.policy.checkpoint import save_checkpoint
from imitate.ranks import Ranks
from imitate.run_folder import RunFolder
from imitate.train.batch_source import BatchSource, DatasetBatches
from imitate.train.console import Console
from imitate.train.loss_guard import BadLoss
from imitate.train.online_parts import make_collector, make_learner
from imitate.train.online_setup import OnlineSetup
from imitate.train.setup import Setup
from imitate.train.state import TrainState

MEMORY = "memory_*.pt"


def batch_source(setup: Setup, folder: RunFolder, console: Console, ranks: Ranks) -> BatchSource:
    """Build the source of a setup's batches: its dataset, or its environment.

    Raises:
        ConfigError: see :class:`OnlineBatches`.
    """
    if isinstance(setup, OnlineSetup):
        return OnlineBatches(setup, folder, console, ranks)
    return DatasetBatches(setup, ranks)


class OnlineBatches:
    """Batches of collected steps. A step of the run is one of an environment; an epoch ends with a whole collection.

    The replay buffer is saved beside ``last.pth``, in a file that it names.

    Raises:
        ConfigError: several processes train together, or a bad loss is to be rolled back.
    """

    unit = "env steps"
    steps_per_update = 1
    advice = "Lower the learning rate, train.reward.scale or train.online.update_ratio"

    def __init__(
        self, setup: OnlineSetup, folder: RunFolder, console: Console, ranks: Ranks
    ) -> None:
        if ranks.world > 1:
            raise ConfigError(
                f"train.online: online training does not run under torchrun (world size {ranks.world}): start one "
                "process and set train.online.num_workers"
            )
        config = setup.config
        if config.train.on_bad_loss == "rollback":
            raise ConfigError(
                "train.on_bad_loss is 'rollback', but steps of an environment are not taken again: set it to 'stop'"
            )
        self.index: Tensor | None = None
        self.waited_s = 0.0
        self.learner, self.collector = make_learner(setup), make_collector(setup)
        self._setup, self._folder, self._console = setup, folder, console
        self._metrics = Metrics()
        steps = int(config.experiment.epoch_every_n_steps or 1)
        self._total_steps = steps * int(config.train.num_epochs or 1)
        self._named_memories: list[str] = []  # by last.pth, and by the one before it

    def pretraining(self, state: TrainState) -> Iterator[Batch]:
        """Yield ``train.online.pretrain_updates`` batches of demonstrations alone."""
        wanted = 0 if state.step else self._setup.config.train.online.pretrain_updates
        return self.learner.demonstrations(wanted)

    def batches(self, state: TrainState) -> Iterator[Batch]:
        """Collect steps, then give the batches that they allow."""
        online, learner, collector = self._setup.config.train.online, self.learner, self.collector
        warmup = state.step < online.warmup_steps and online.warmup_policy == "random"
        collector.progress = min(state.step / self._total_steps, 1.0)
        collector.version = learner.updates
        if learner.memory is not None:
            learner.memory.anneal(collector.progress)
        asked = time.perf_counter()
        try:
            collected = collector.collect(online.collect_steps, random=warmup)
        except RobotError as error:
            raise RobotStoppedError(
                f"{error}; look at the robot, then: imitate train --resume {self._folder.path}"
            ) from error
        self.waited_s += time.perf_counter() - asked
        for message in collected.messages:
            self._console.say(f"warning: {message}")
        state.step += collected.num_steps
        self._metrics.add(collected.num_steps, collected.episodes)
        learner.take(collected)
        yield from learner.batches_due(collector.updates_allowed())

    def learned(self, info: Info) -> None:
        """Pass the result on to the learner."""
        self.learner.learned(info)

    def metrics(self) -> dict[str, float]:
        """Return numbers of episodes and updates, and those of the collector."""
        return {
            **self._metrics.numbers(),
            "Train/Updates": float(self.learner.updates),
            **self.collector.metrics(),
        }

    def counts(self) -> dict[str, int]:
        """Return the number of updates."""
        return {"updates": self.learner.updates}

    def describe(self, bad: BadLoss, epoch: int) -> str:
        """Describe the step at which the loss went bad."""
        at = f"environment step {bad.step} (epoch {epoch})"
        return f"{at}: the loss is {bad.value:.4g}, {bad.reason}"

    def close(self) -> None:
        """End workers, free simulators."""
        self.collector.close()

    # ---- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return section ``online`` of a ``train_state``; write the replay buffer into a file beside the checkpoint."""
        return {
            "online": {
                "learner": self.learner.state_dict(),
                "metrics": self._metrics.state_dict(),
                "collector": self.collector.state_dict(),
                "memory": self._save_memory(),
            }
        }

    def load_state_dict(self, train_state: Mapping[str, Any]) -> None:
        """Resume from section ``online``, and from the replay buffer's file that it names."""
        saved = train_state["online"]
        self.learner.load_state_dict(saved["learner"])
        self._metrics.load_state_dict(saved["metrics"])
        self.collector.load_state_dict(saved["collector"])
        if self.learner.memory is None:
            return
        path = self._folder.checkpoints / Path(str(saved["memory"])).name
        if saved["memory"] is not None:
            self._named_memories = [path.name]
        if path.is_file() or self._setup.config.train.online.save_buffer:
            self._load_memory(path, saved["learner"])

    def _save_memory(self) -> str | None:
        """Write the replay buffer; return the name of the file for the checkpoint."""
        memory = self.learner.memory
        if memory is None or not self._setup.config.train.online.save_buffer:
            return None
        folder = self._folder.checkpoints
        path = folder / f"memory_{self._metrics.steps}.pt"
        save_checkpoint(memory.state_dict(), path)
        # The checkpoint before this one may still be the one to resume from. Times of files prove nothing: clocks jump.
        if path.name not in self._named_memories:
            self._named_memories = [*self._named_memories[-1:], path.name]
        for file in folder.glob(MEMORY):
            if file.name not in self._named_memories:
                file.unlink(missing_ok=True)
        return path.name

    def _load_memory(self, path: Path, learner: Mapping[str, Any]) -> None:
        """Fill the replay buffer from a file; where it is missing or damaged, warn and begin with an empty one."""
        memory = self.learner.memory
        assert memory is not None
        try:
            with zipfile.ZipFile(path) as archive:  # torch itself does not compare the checksums
                bad = archive.testzip()
            if bad is not None:
                raise zipfile.BadZipFile(f"the checksum of {bad} differs")
            memory.load_state_dict(torch.load(path, weights_only=True))
            memory.cut_episodes()
        except UserError:
            raise
        except Exception as error:  # torch raises many kinds of errors on a damaged file
            reason = "is gone" if isinstance(error, FileNotFoundError) else "is damaged"
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            self.learner = make_learner(self._setup)
            self.learner.load_state_dict(learner)
            self._console.say(
                f"warning: {path} {reason} ({words}): the run continues with an empty replay buffer, which fills anew",
                always=True,
            )
