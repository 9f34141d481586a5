"""A run that learns from steps in an environment: collect, remember, update."""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from imitate.algo.actor_critic import ActorCritic
from imitate.algo.on_policy import OnPolicy
from imitate.config import Config
from imitate.config.data_needs import Transitions
from imitate.data.batches.build import training_sources
from imitate.data.batches.rewards import RewardTransform
from imitate.errors import ConfigError, TrainingError, UserError
from imitate.online.collector import Collector
from imitate.online.demonstrations import demonstrations_of, load_demonstrations
from imitate.online.learners import Learner, MixedBuffer, ReplayLearner, RolloutLearner
from imitate.online.memory import Memory, Source
from imitate.online.metrics import Metrics
from imitate.online.normalization import ObsNormalizer, RewardScaler
from imitate.online.prioritized import PrioritizedReplay
from imitate.online.replay import ReplayBuffer
from imitate.online.sequences import SequenceReplay
from imitate.online.workers import Blueprint, ProcessCollector
from imitate.policy.checkpoint import save_checkpoint
from imitate.run_folder import RunFolder
from imitate.train.console import Console, duration, rate
from imitate.train.goals import goals_alike, make_hindsight
from imitate.train.interrupts import Interrupt
from imitate.train.loss_guard import BadLoss, weights_are_finite
from imitate.train.online_setup import OnlineSetup
from imitate.train.ranks import Ranks
from imitate.train.run import ALONE, Run

MEMORY = "memory_*.pt"


class OnlineRun(Run):
    """A :class:`Run` whose steps are those of an environment; an epoch ends with a whole iteration.

    The remembered steps lie beside ``last.pth``, in a file that it names.
    """

    setup: OnlineSetup
    _unit = "env steps"

    def __init__(
        self,
        setup: OnlineSetup,
        folder: RunFolder,
        console: Console,
        interrupt: Interrupt,
        ckpt: Mapping[str, Any] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        if ranks.world > 1:
            raise ConfigError(
                f"train.online: online training does not run under torchrun (world size {ranks.world}): start one "
                "process and set train.online.num_workers"
            )
        if setup.config.train.on_bad_loss == "rollback":
            raise ConfigError(
                "train.on_bad_loss is 'rollback', but steps of an environment are not taken again: set it to 'stop'"
            )
        self.metrics = Metrics()
        self.learner = make_learner(setup)
        self.collector = make_collector(setup)
        self._named_memories: list[str] = []  # by last.pth, and by the one before it
        super().__init__(setup, folder, console, interrupt, ckpt, ranks)

    def counts(self) -> dict[str, int]:
        """Epochs, environment steps, updates."""
        return {**super().counts(), "updates": self.learner.updates}

    def close(self) -> None:
        """End workers, free simulators, close files."""
        self.collector.close()
        super().close()

    # ---- the loop ---------------------------------------------------------------------------------

    def loop(self) -> str:
        """Learn from demonstrations alone, where that is wanted, then online to the end; the run's status."""
        wanted = 0 if self.state.step else self.config.train.online.pretrain_updates
        self.algo.set_train()
        for info in self.learner.pretrain(wanted):
            bad = self._guard.add(0, info, None)
            if bad is not None:
                self._go_back(bad)
            if self.interrupt.signal is not None:
                return "interrupted"
        return super().loop()

    def _steps(self) -> BadLoss | None:
        """Steps and updates up to the end of the epoch, or to a signal, or to a bad loss."""
        state = self.state
        epoch = state.epoch + 1
        target = epoch * self._steps_per_epoch
        self.algo.set_train()
        self._epoch_began, self._epoch_first, self._waited_s = time.perf_counter(), state.step, 0.0
        while state.step < target:
            if self.interrupt.signal is not None:
                self._stopping = True
                return None
            bad = self._iteration(epoch)
            if bad is not None:
                return bad
            self._progressed()
        bad = self._guard.check()
        if bad is None and not weights_are_finite(self.algo.nets):
            bad = BadLoss(state.step, math.nan, "weights that are not finite", None)
        return bad

    def _iteration(self, epoch: int) -> BadLoss | None:
        """Collect, then learn what the steps allow."""
        online, state, collector = self.config.train.online, self.state, self.collector
        warmup = state.step < online.warmup_steps and online.warmup_policy == "random"
        collector.progress = min(state.step / self._total_steps, 1.0)
        collector.version = self.learner.updates
        if self._memory is not None:
            self._memory.anneal(collector.progress)
        asked = time.perf_counter()
        collected = collector.collect(online.collect_steps, random=warmup)
        self._waited_s += time.perf_counter() - asked
        for message in collected.messages:
            self.console.say(f"warning: {message}")
        state.step += collected.num_steps
        self.metrics.add(collected.num_steps, collected.episodes)
        self.learner.take(collected)
        for info in self.learner.updates_due(epoch, collector.updates_allowed()):
            self._means.add(info)
            bad = self._guard.add(state.step, info, None)
            if bad is not None:
                return bad
        return None

    def _go_back(self, bad: BadLoss) -> None:
        """There is no way back to steps of an environment.

        Raises:
            TrainingError: always.
        """
        raise TrainingError(
            f"the loss was {bad.value:g} at environment step {bad.step}: {bad.reason}; {self.folder.last} is as it was "
            "before. Lower the learning rate, train.reward.scale or train.online.update_ratio"
        )

    def _record(self, kind: str, epoch: int, step: int, numbers: dict[str, float]) -> set[str]:
        if kind == "epoch":
            numbers |= self.metrics.numbers()
            numbers["Train/Updates"] = float(self.learner.updates)
            numbers |= self.collector.metrics()
        return super()._record(kind, epoch, step, numbers)

    def _how_it_goes(self) -> str:
        """Updates so far."""
        return f"{self.learner.updates} updates, "

    def _say_epoch(self, epoch: int, numbers: Mapping[str, float]) -> None:
        speed = numbers["Timing/Steps_Per_s"]
        left = max(self._total_steps - self.state.step, 0) / max(speed, 1e-9)
        mean = numbers.get("Metrics/AverageReturn")
        words = "" if mean is None else f"return {mean:.4g}, "
        self.console.words = f"epoch {epoch}, {words}".rstrip(", ")
        self.console.say(
            f"epoch {epoch}/{self._num_epochs}: {words}{rate(speed)} env steps/s, {duration(left)} left"
        )

    # ---- checkpoints ------------------------------------------------------------------------------

    @property
    def _memory(self) -> Memory | None:
        """The replay buffer; None where each rollout is forgotten."""
        return self.learner.memory

    def _checkpoint(self) -> dict[str, Any]:
        ckpt = super()._checkpoint()
        ckpt["train_state"]["online"] = {
            "learner": self.learner.state_dict(),
            "metrics": self.metrics.state_dict(),
            "collector": self.collector.state_dict(),
            "memory": self._save_memory(),
        }
        return ckpt

    def _save_memory(self) -> str | None:
        """Write the remembered steps; the name of the file, which the checkpoint then names."""
        memory = self._memory
        if memory is None or not self.config.train.online.save_buffer:
            return None
        folder = self.folder.checkpoints
        path = folder / f"memory_{self.state.step}.pt"
        save_checkpoint(memory.state_dict(), path)
        # The checkpoint before this one may still be the one to resume from. Times of files say nothing: clocks jump.
        if path.name not in self._named_memories:
            self._named_memories = [*self._named_memories[-1:], path.name]
        for file in folder.glob(MEMORY):
            if file.name not in self._named_memories:
                file.unlink(missing_ok=True)
        return path.name

    def _restore(self, ckpt: Mapping[str, Any]) -> None:
        super()._restore(ckpt)
        saved = ckpt["train_state"]["online"]
        self.learner.load_state_dict(saved["learner"])
        self.metrics.load_state_dict(saved["metrics"])
        self.collector.load_state_dict(saved["collector"])
        if self._memory is None:
            return
        path = self.folder.checkpoints / Path(str(saved["memory"])).name
        if saved["memory"] is not None:
            self._named_memories = [path.name]
        if path.is_file() or self.config.train.online.save_buffer:
            self._restore_memory(path, saved["learner"])

    def _restore_memory(self, path: Path, learner: Mapping[str, Any]) -> None:
        """Fill the replay buffer from a file; one that is missing or damaged leaves it empty, which is told."""
        memory = self._memory
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
        except Exception as error:  # torch raises what it likes over a damaged file
            reason = "is gone" if isinstance(error, FileNotFoundError) else "is damaged"
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            self.learner = make_learner(self.setup)
            self.learner.load_state_dict(learner)
            self.console.say(
                f"warning: {path} {reason} ({words}): the run goes on with an empty replay buffer, which fills anew",
                always=True,
            )


def make_learner(setup: OnlineSetup) -> Learner:
    """How the algorithm learns from steps."""
    config, algo = setup.config, setup.algo
    train, online = config.train, config.train.online
    normalizer = None
    # Networks that begin with a checkpoint's weights see what they have learned to see.
    if train.obs_normalization == "mean_std" and config.experiment.ckpt_path is None:
        vectors = {k: v for k, v in setup.env.obs_shapes.items() if k not in setup.env.image_keys}
        is_running = online.obs_statistics == "running"
        normalizer = ObsNormalizer(vectors, goals_alike(config), is_running=is_running)
    if algo.experience == "rollout":
        reward = train.reward
        running = config.algo["discount"] if reward.normalization == "running" else None
        return RolloutLearner(
            cast(OnPolicy, algo),
            rollout_steps=online.collect_steps,
            batch_size=train.batch_size,
            reward_scaler=RewardScaler(
                RewardTransform(reward.scale, reward.shift, clip=reward.clip),
                online.num_envs,
                running,
            ),
            obs_normalizer=normalizer,
            demos=expert_steps(setup) if cast(OnPolicy, algo).expert_passes else None,
        )
    memory = make_memory(setup)
    source: Source = memory
    demos = None
    if train.data and (online.demo_ratio > 0 or online.pretrain_updates > 0):
        demos = demonstrations_of(config, memory, setup.env.action_dim)
        source = MixedBuffer([(memory, 1.0 - online.demo_ratio), (demos, online.demo_ratio)])
        if normalizer is not None:
            for episode in demos.episodes():
                normalizer.add({key: np.asarray(x) for key, x in episode.obs.items()})
            normalizer.apply(algo.preprocess)
            normalizer = None
    return ReplayLearner(
        algo,
        memory,
        source,
        demos=demos,
        batch_size=train.batch_size,
        update_ratio=online.update_ratio,
        warmup_steps=online.warmup_steps,
        obs_normalizer=normalizer,
    )


def expert_steps(setup: OnlineSetup) -> ReplayBuffer:
    """The demonstrations that a policy's steps are compared with.

    Raises:
        ConfigError: there are none.
    """
    config, env = setup.config, setup.env
    if not config.train.data:
        raise ConfigError(
            f"algo_name: {config.algo_name} learns from demonstrations: name them in train.data or by --dataset"
        )
    return load_demonstrations(
        training_sources(config),
        env.obs_shapes,
        env.action_dim,
        action_keys=config.train.action_keys,
        images=env.image_keys,
        transitions=Transitions(config.algo["discount"]),
        reward=RewardTransform(),
        reward_free=True,
        seed=config.train.seed + 1,
    )


def make_memory(setup: OnlineSetup) -> ReplayBuffer:
    """The memory that the algorithm's section asks for.

    Raises:
        ConfigError: the algorithm does not learn from transitions.
    """
    config = setup.config
    needs = config.algo.data_needs(config)
    if needs.transitions is None:
        raise ConfigError(
            f"algo_name: '{config.algo_name}' is offline-only; for online training choose an RL algorithm (sac, td3, "
            "ppo, ...)"
        )
    shape = (setup.env.stored_shapes, setup.env.action_dim, config.train.online.buffer_size)
    settings: dict[str, Any] = {
        "num_envs": config.train.online.num_envs,
        "images": setup.env.image_keys,
        "transitions": needs.transitions,
        "returns": needs.returns,
        "frame_stack": config.train.frame_stack,
        "reward": fixed_rewards(config),
        "seed": config.train.seed,
    }
    if config.train.online.hindsight.enabled:
        settings["hindsight"] = make_hindsight(config, setup.make(), setup.env.stored_shapes)
    states = setup.algo.state_shapes
    if needs.sequences is not None and states is not None:
        return SequenceReplay(
            *shape,
            state_shapes=states,
            seq_length=needs.sequences.length,
            burn_in=needs.sequences.burn_in,
            **settings,
        )
    prioritized = config.train.online.prioritized
    if not prioritized.enabled:
        return ReplayBuffer(*shape, **settings)
    if not setup.algo.gives_errors:
        raise ConfigError(
            f"train.online.prioritized.enabled: {config.algo_name} has no critics whose errors count: set it to false"
        )
    cast(ActorCritic, setup.algo).keeps_errors = True
    return PrioritizedReplay(*shape, alpha=prioritized.alpha, beta=prioritized.beta, **settings)


def fixed_rewards(config: Config) -> RewardTransform:
    """What ``train.reward`` means where there are no data to fit it to.

    Raises:
        ConfigError: it is to be fitted.
    """
    reward = config.train.reward
    if reward.normalization is not None:
        raise ConfigError(
            f"train.reward.normalization: '{reward.normalization}' is fitted to demonstrations, which a replay "
            "buffer cannot be: set it to null and choose train.reward.scale"
        )
    return RewardTransform(reward.scale, reward.shift, clip=reward.clip)


def make_collector(setup: OnlineSetup) -> Collector:
    """Build the collector: in this process, or in ``num_workers`` worker processes.

    Raises:
        ConfigError: environments and workers do not divide, or weights would be older than the algorithm can bear.
    """
    config, env, algo = setup.config, setup.env, setup.algo
    online = config.train.online
    group = {
        "seed": config.train.seed,
        "horizon": online.horizon or config.experiment.rollout.horizon,
        "discount": config.algo.get("discount", 1.0),
        "end_at_success": online.end_at_success,
    }
    rollouts = algo.experience == "rollout"
    if online.max_staleness is not None and (rollouts or not online.num_workers):
        raise ConfigError(
            "train.online.max_staleness: wants num_workers of 1 or more and an algorithm that replays: set it to null"
        )
    if online.num_workers > online.num_envs:
        raise ConfigError(
            f"train.online.num_workers: {online.num_workers} processes for {online.num_envs} environments: raise "
            "train.online.num_envs"
        )
    blueprints = [
        Blueprint(
            setup.make,
            lanes,
            group,
            (config.algo_name, config.to_json(), algo.obs_key_shapes, algo.ac_dim),
            env.low,
            env.high,
            env.num_choices,
            config.train.seed + 1 + number,
        )
        for number, lanes in enumerate(
            np.array_split(np.arange(online.num_envs), max(1, online.num_workers))
        )
    ]
    if not online.num_workers:
        return blueprints[0].collector(algo)
    return ProcessCollector(
        blueprints,
        algo,
        step_timeout_s=online.step_timeout_s,
        max_staleness=online.max_staleness,
    )
