"""Batches of online RL: collects and stores steps, yields the batches of the updates they allow, saves buffers."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.base.algo import Batch, Info
from imitate.errors import ConfigError, RobotError, RobotStoppedError, UserError
from imitate.policy.checkpoint import save_checkpoint
from imitate.system.ranks import Ranks
from imitate.system.run_folder import RunFolder
from imitate.system.torch_archive import check_archive
from imitate.train.batch_source import BatchSource, DatasetBatches
from imitate.train.console import Console
from imitate.train.loss_guard import BadLoss
from imitate.train.online.collector import Collector
from imitate.train.online.curriculum import Curriculum
from imitate.train.online.parts import make_collector, make_learner
from imitate.train.online.setup import OnlineSetup
from imitate.train.online.steps import Collected, EpisodeRecord, Metrics
from imitate.train.resume import resuming
from imitate.train.setup import Setup
from imitate.train.state import TrainState


class RankFiles:
    """Files ``rank<r>_<step>.pt`` of one rank, of which the two newest are kept.

    Two are kept because rank 0 writes the checkpoint only after all ranks have written these files: if it is killed
    before that, the run resumes from the checkpoint before.

    Args:
        folder: folder of the checkpoints, on storage shared by all ranks.
        rank: rank that owns the files.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._named: list[str] = []

    def path(self, step: int) -> Path:
        """Return the path of the file for a step."""
        return self._folder / f"rank{self._rank}_{step}.pt"

    def save(self, state: dict[str, Any], step: int) -> None:
        """Write the file for a step, and remove older ones."""
        path = self.path(step)
        self._folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(state, path)
        if path.name not in self._named:
            self._named = [*self._named[-1:], path.name]
        for file in self._folder.glob(f"rank{self._rank}_*.pt"):
            if file.name not in self._named:
                file.unlink(missing_ok=True)

    def load(self, step: int) -> dict[str, Any]:
        """Read the file for a step.

        Raises:
            Exception: the file is missing or damaged; torch raises many kinds of errors.
        """
        state = read_whole(self.path(step))
        self._named = [self.path(step).name]
        return state


def read_whole(path: Path) -> dict[str, Any]:
    """Read a file of tensors and plain data after checks that torch omits: of sizes, checksums and pickled calls.

    Raises:
        Exception: the file is missing or damaged; torch raises many kinds of errors.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")  # reading a pipe would block
    check_archive(path, path, path.stat().st_size)
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


MEMORY = "memory_*.pt"


def batch_source(setup: Setup, folder: RunFolder, console: Console, ranks: Ranks) -> BatchSource:
    """Build the source of a setup's batches: a dataset or an environment.

    Raises:
        ConfigError: see :class:`OnlineBatches`.
    """
    if isinstance(setup, OnlineSetup):
        return OnlineBatches(setup, folder, console, ranks)
    return DatasetBatches(setup, ranks)


class OnlineBatches:
    """Batches of collected steps. A step of the run is an environment step; an epoch ends after a whole collection.

    The replay buffer is saved beside ``last.pth``, which contains the name of its file. With several ranks, each rank
    has a part of the environments, of the replay buffer and of each batch, and saves it in its own file; steps,
    episodes and updates are counted over all ranks.

    Args:
        setup: setup of the training.
        folder: run folder of rank 0, which all ranks see.
        console: console for warnings.
        ranks: the processes that train together.

    Raises:
        ConfigError: ``train.on_bad_loss`` is "rollback", or the ranks cannot share environments or batches equally.
    """

    unit = "env steps"
    steps_per_update = 1
    gives_several = True
    advice = "Lower the learning rate, train.reward.scale or train.online.update_ratio"

    def __init__(
        self, setup: OnlineSetup, folder: RunFolder, console: Console, ranks: Ranks
    ) -> None:
        config = setup.config
        if config.train.on_bad_loss == "rollback":
            raise ConfigError(
                "train.on_bad_loss is 'rollback', but environment steps cannot be repeated: "
                "set it to 'stop'"
            )
        self.index: Tensor | None = None
        self.waited_s = 0.0
        self._setup, self._folder, self._console = setup, folder, console
        self._ranks = ranks
        section = config.train.online.curriculum
        self.curriculum = Curriculum(section, setup.stages) if setup.stages else None
        self.learner, self.collector = make_learner(setup), self._new_collector()
        self._metrics = Metrics()
        # episodes and warnings of this rank that the other ranks have not received yet
        self._episodes: list[EpisodeRecord] = []
        self._messages: list[str] = []
        self._parts = RankFiles(folder.checkpoints, ranks.rank)
        steps = int(config.experiment.epoch_every_n_steps or 1)
        self._total_steps = steps * int(config.train.num_epochs or 1)
        self._warn_without_updates()
        # files of the replay buffer that last.pth and the checkpoint before it name
        self._named_memories: list[str] = []

    def _warn_without_updates(self) -> None:
        """Warn if the training ends before the warm-up does."""
        online, total = self._setup.config.train.online, self._total_steps
        replays = self.learner.memory is not None
        if replays and total <= online.warmup_steps and not online.pretrain_updates:
            self._console.say(
                f"warning: nothing is learned: the training has {total} environment steps, but updates begin after "
                f"{online.warmup_steps} (train.online.warmup_steps): lower them, or raise train.num_epochs"
            )

    def pretraining(self, state: TrainState) -> Iterator[Batch]:
        """Yield ``train.online.pretrain_updates`` batches of demonstrations only."""
        wanted = 0 if state.step else self._setup.config.train.online.pretrain_updates
        return self.learner.demonstrations(wanted)

    def batches(self, state: TrainState) -> Iterator[Batch]:
        """Collect steps, then yield the batches that they allow."""
        online, learner, collector = self._setup.config.train.online, self.learner, self.collector
        warmup = state.step < online.warmup_steps and online.warmup_policy != "policy"
        collector.progress = min(state.step / self._total_steps, 1.0)
        collector.version = learner.updates
        if learner.memory is not None:
            learner.memory.anneal(collector.progress)
        began = time.perf_counter()
        try:
            collected = collector.collect(online.collect_steps, random=warmup)
        except RobotError as error:
            raise RobotStoppedError(
                f"{error}; check the robot, then: {resuming(self._folder)}"
            ) from error
        self.waited_s += time.perf_counter() - began
        counted = int(self._ranks.total(collected.num_steps))
        state.step += counted
        self._metrics.add(counted, ())
        self._episodes += collected.episodes
        self._messages += collected.messages
        if self._ranks.world == 1:
            self._exchange()
        learner.take(self._renumbered(collected), counted)
        yield from learner.batches_due(self._updates_allowed())

    def _renumbered(self, collected: Collected) -> Collected:
        """Convert lane numbers, which count over all ranks, to numbers within this rank: it has every world-th copy."""
        world, agents = self._ranks.world, self._setup.env.num_agents
        if world == 1:
            return collected

        def own(lanes: NDArray[np.int64]) -> NDArray[np.int64]:
            number, agent = np.divmod(lanes, agents)
            renumbered: NDArray[np.int64] = number // world * agents + agent
            return renumbered

        return replace(collected, lanes=own(collected.lanes), lost_lanes=own(collected.lost_lanes))

    def _updates_allowed(self) -> int | None:
        """Return the number of updates that the collectors of all ranks allow, or None if there is no limit."""
        most = self.collector.updates_allowed()
        return None if most is None else int(self._ranks.table(most).min())

    def _exchange(self) -> None:
        """Gather the episodes and warnings of all ranks since the last exchange."""
        rows = [astuple(episode) for episode in self._episodes]
        for part in self._ranks.gather({"episodes": rows, "messages": self._messages}):
            self._metrics.add(0, [EpisodeRecord(*row) for row in part["episodes"]])
            for message in part["messages"]:
                self._console.say(f"warning: {message}")
        self._episodes, self._messages = [], []

    def _new_collector(self) -> Collector:
        """Build a collector in the current stage of the environment."""
        setup, curriculum = self._setup, self.curriculum
        return make_collector(setup if curriculum is None else setup.at_stage(curriculum.meta))

    def begin_stage(self) -> None:
        """Collect in the current stage from now on; cut running episodes, and clear the replay buffer if configured."""
        assert self.curriculum is not None
        meta = self.curriculum.meta
        episodes, make = self.collector.state_dict(), self._setup.at_stage(meta).make
        if not self.collector.begin_stage(make, meta.get("env_kwargs") or {}):
            self.collector.close()
            self.collector = self._new_collector()
        self.collector.load_state_dict(episodes)
        if self.learner.memory is None:
            return
        if self._setup.config.train.online.curriculum.buffer == "keep":
            self.learner.memory.cut_episodes()
            return
        state = self.learner.state_dict()
        self.learner = make_learner(self._setup)
        batch = float(self._setup.config.train.batch_size)
        self.learner.load_state_dict({**state, "warmup_left": batch})

    def learned(self, info: Info) -> None:
        """Pass the result on to the learner."""
        self.learner.learned(info)

    def metrics(self) -> dict[str, float]:
        """Return metrics of the episodes and updates of all ranks, and those of this rank's collector."""
        self._exchange()
        return {
            **self._metrics.numbers(),
            "Train/Updates": float(self.learner.updates),
            **self.collector.metrics(),
            **({} if self.curriculum is None else self.curriculum.metrics()),
        }

    def counts(self) -> dict[str, int]:
        """Return the number of updates."""
        return {"updates": self.learner.updates}

    def describe(self, bad: BadLoss, epoch: int) -> str:
        """Describe the step at which the loss became bad."""
        at = f"environment step {bad.step} (epoch {epoch})"
        return f"{at}: the loss is {bad.value:.4g}, {bad.reason}"

    def close(self) -> None:
        """End the workers and free the simulators."""
        self.collector.close()

    # ---- checkpoints ------------------------------------------------------------------------------

    def save_part(self) -> None:
        """Write the file of this rank unless it is rank 0; all ranks wait, so that all files are of one step."""
        self._exchange()
        if self._ranks.rank > 0:
            memory = self.learner.memory
            keeps = memory is not None and self._setup.config.train.online.save_buffer
            part = {
                "learner": self.learner.state_dict(),
                "collector": self.collector.state_dict(),
                "memory": memory.state_dict() if memory is not None and keeps else None,
            }
            self._parts.save(part, self._metrics.steps)
        self._ranks.any(False)

    def state_dict(self) -> dict[str, Any]:
        """Return section ``online`` of ``train_state``; write the replay buffer to a file beside the checkpoint."""
        return {
            "online": {
                "learner": self.learner.state_dict(),
                "metrics": self._metrics.state_dict(),
                "collector": self.collector.state_dict(),
                "memory": self._save_memory(),
                "world": self._ranks.world,
                "curriculum": None if self.curriculum is None else self.curriculum.state_dict(),
            }
        }

    def load_state_dict(self, train_state: Mapping[str, Any]) -> None:
        """Resume from section ``online``, and from the replay buffer's file that it names.

        Raises:
            ConfigError: the run was begun by another number of processes.
        """
        saved = train_state["online"]
        world = saved.get("world", 1)
        if world != self._ranks.world:
            raise ConfigError(
                f"{self._folder.path}: the run was begun by {world} processes, each with its "
                f"environments and replay buffer, but {self._ranks.world} resume it: start "
                f"{world} processes"
            )
        self._metrics.load_state_dict(saved["metrics"])
        self.learner.load_state_dict(saved["learner"])
        if self._ranks.rank > 0:
            self._load_part(saved["learner"])
            return
        if self.curriculum is not None and saved.get("curriculum") is not None:
            self.curriculum.load_state_dict(saved["curriculum"])
            self.collector.close()
            self.collector = self._new_collector()
        self.collector.load_state_dict(saved["collector"])
        if self.learner.memory is None:
            return
        path = self._folder.checkpoints / Path(str(saved["memory"])).name
        if saved["memory"] is not None:
            self._named_memories = [path.name]
        if path.is_file() or self._setup.config.train.online.save_buffer:
            self._load_memory(path, saved["learner"])

    def _save_memory(self) -> str | None:
        """Write the replay buffer to a file; return its name for the checkpoint, or None if no buffer is saved."""
        memory = self.learner.memory
        if memory is None or not self._setup.config.train.online.save_buffer:
            return None
        folder = self._folder.checkpoints
        path = folder / f"memory_{self._metrics.steps}.pt"
        save_checkpoint(memory.state_dict(), path)
        # The checkpoint before this one may still be the one to resume from. File times are not used, because clocks
        # may jump.
        if path.name not in self._named_memories:
            self._named_memories = [*self._named_memories[-1:], path.name]
        for file in folder.glob(MEMORY):
            if file.name not in self._named_memories:
                file.unlink(missing_ok=True)
        return path.name

    def _load_memory(self, path: Path, learner: Mapping[str, Any]) -> None:
        """Fill the replay buffer from a file; if it is missing or damaged, warn and begin with an empty one."""
        try:
            state = read_whole(path)
        except Exception as error:  # torch raises many kinds of errors on a damaged file
            self._begin_empty(path, error, learner)
            return
        self._filled(path, state, learner)

    def _load_part(self, learner: Mapping[str, Any]) -> None:
        """Resume from the file of this rank; if it is missing or damaged, warn and load only ``learner``."""
        step = self._metrics.steps
        path = self._parts.path(step)
        try:
            part = self._parts.load(step)
            memory, of_learner, of_collector = part["memory"], part["learner"], part["collector"]
        except Exception as error:
            self._begin_empty(path, error, learner)
            return
        if memory is None or self._filled(path, memory, learner):
            self.learner.load_state_dict(of_learner)
            self.collector.load_state_dict(of_collector)

    def _filled(self, path: Path, state: Mapping[str, Any], learner: Mapping[str, Any]) -> bool:
        """Fill the replay buffer; if ``state`` is damaged, warn, begin with an empty one, and return false."""
        try:
            self._fill(state)
        except UserError:  # the file is complete, but belongs to another training
            raise
        except Exception as error:
            self._begin_empty(path, error, learner)
            return False
        return True

    def _fill(self, state: Mapping[str, Any]) -> None:
        memory = self.learner.memory
        assert memory is not None
        memory.load_state_dict(state)
        memory.cut_episodes()

    def _begin_empty(self, path: Path, error: Exception, learner: Mapping[str, Any]) -> None:
        reason = "is gone" if isinstance(error, FileNotFoundError) else "is damaged"
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        self.learner = make_learner(self._setup)
        self.learner.load_state_dict(learner)
        self._console.say(
            f"warning: {path} {reason} ({words}): the run continues with an empty replay buffer, which fills again",
            always=True,
        )
