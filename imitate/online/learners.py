"""Learners: from collected steps to batches that an algorithm learns from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.algo.base.actor_critic import ActorCritic
from imitate.algo.base.algo import Algo, Batch, Info
from imitate.algo.base.on_policy import OnPolicy
from imitate.online.memory import Memory, Source
from imitate.online.normalization import ObsNormalizer, RewardScaler
from imitate.online.steps import Collected, Step


class Learner(ABC):
    """Way from collected steps to batches to learn from.

    Args:
        algo: learns.
        obs_normalizer: statistics of observations, which learn from collected steps.
        demos: demonstrations to sample from.

    Attributes:
        updates: batches given so far.
        memory: the replay buffer; None where each rollout is forgotten.
    """

    memory: Memory | None = None

    def __init__(
        self, algo: Algo, obs_normalizer: ObsNormalizer | None = None, demos: Memory | None = None
    ) -> None:
        self.algo, self.demos, self.updates = algo, demos, 0
        self.obs_normalizer = obs_normalizer

    @abstractmethod
    def take(self, collected: Collected, counted: int | None = None) -> None:
        """Take in collected steps.

        Args:
            collected: the steps.
            counted: steps of this collection on all processes that train together; None: there is one process.
        """

    @abstractmethod
    def batches_due(self, most: int | None = None) -> Iterator[Batch]:
        """Prepared batches for the updates that the steps so far allow, at most ``most``.

        Each is to be learned from, and :meth:`learned` called, before the next is drawn.
        """

    def learned(self, info: Info) -> None:  # noqa: B027 - a hook, empty by default
        """Take note of an update: what ``train_on_batch`` returned for the latest batch."""

    def demonstrations(self, updates: int) -> Iterator[Batch]:
        """Prepared batches of demonstrations alone until so many updates are done; none by default."""
        yield from ()

    def updates_due(self, epoch: int, most: int | None = None) -> Iterator[Info]:
        """Make the updates of :meth:`batches_due`; yield the info of each."""
        for batch in self.batches_due(most):
            info = self.algo.train_on_batch(batch, epoch)
            self.learned(info)
            yield info

    def state_dict(self) -> dict[str, Any]:
        """Counters and statistics; the replay buffer is saved apart."""
        normalizer = self.obs_normalizer
        return {
            "updates": self.updates,
            "obs": None if normalizer is None else normalizer.state_dict(),
            "demos": None if self.demos is None else self.demos.draws,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`."""
        self.updates = int(state["updates"])
        if self.obs_normalizer is not None:
            self.obs_normalizer.load_state_dict(state["obs"])
        if self.demos is not None and state.get("demos") is not None:
            self.demos.draws = state["demos"]


class MixedBuffer:
    """Batches of which a fixed share comes from each source, such as half from demonstrations.

    Args:
        parts: sources and their shares of a batch, which sum to 1. What is left by rounding falls to the first.
    """

    def __init__(self, parts: Sequence[tuple[Source, float]]) -> None:
        total = sum(share for _, share in parts)
        if abs(total - 1.0) > 1e-6 or any(share < 0 for _, share in parts):
            raise ValueError(f"shares {[share for _, share in parts]} do not sum to 1")
        self.parts = [(source, share) for source, share in parts if share > 0]

    def sample(self, batch_size: int) -> dict[str, Any]:
        """A batch in the order of the parts; keys that not all have are left out, ``weight`` is 1 where missing.

        ``part`` (B,) is the number of the part that a sample comes from.
        """
        sizes = [round(batch_size * share) for _, share in self.parts]
        sizes[0] += batch_size - sum(sizes)
        batches = [source.sample(n) for (source, _), n in zip(self.parts, sizes, strict=True) if n]
        if any("weight" in batch for batch in batches):
            for batch in batches:
                batch.setdefault("weight", torch.ones_like(batch["rewards"]))
        part = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        return {**joined(batches), "first_part": sizes[0], "part": part}


def joined(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One batch from several."""
    if len(batches) == 1:
        return dict(batches[0])
    first = batches[0]
    return {
        key: joined([batch[key] for batch in batches])
        if isinstance(value, Mapping)
        else torch.cat([batch[key] for batch in batches])
        for key, value in first.items()
        if all(key in batch for batch in batches)
    }


class ReplayLearner(Learner):
    """Stores steps in a replay buffer and samples from it, ``update_ratio`` batches per environment step.

    Args:
        algo: learns.
        memory: takes the steps.
        source: gives the batches: the memory, or a mixture with demonstrations.
        batch_size: of an update.
        update_ratio: updates per environment step.
        warmup_steps: environment steps that are remembered before the first update.
        obs_normalizer: learns from these steps, and where it is running from all that follow.
        demos: demonstrations that ``source`` draws from too.
    """

    memory: Memory

    def __init__(
        self,
        algo: Algo,
        memory: Memory,
        source: Source,
        *,
        batch_size: int,
        update_ratio: float,
        warmup_steps: int,
        obs_normalizer: ObsNormalizer | None = None,
        demos: Memory | None = None,
    ) -> None:
        super().__init__(algo, obs_normalizer, demos)
        self.memory, self.source = memory, source
        self._batch_size, self._ratio = batch_size, update_ratio
        self._warmup_left = float(warmup_steps)
        self._owed = 0.0
        self._sampled: NDArray[np.int64] | None = None

    def demonstrations(self, updates: int) -> Iterator[Batch]:
        """Prepared batches of demonstrations alone until so many updates are done."""
        while self.demos is not None and self.updates < updates:
            yield self._batch(self.demos)

    def take(self, collected: Collected, counted: int | None = None) -> None:
        """Add steps to the replay buffer; updates become due by the steps of all processes."""
        self.memory.drop_episodes(collected.lost_lanes)
        for step in collected.steps:
            self.memory.add(step, collected.lanes)
        counted = collected.num_steps if counted is None else counted
        self._observe(collected, counted)
        steps = counted - self._warmup_left
        self._warmup_left = max(-steps, 0.0)
        self._owed += self._ratio * max(steps, 0.0)

    def _observe(self, collected: Collected, counted: int) -> None:
        """Let statistics of observations learn; what is stored is raw, so old steps are seen with the new ones too."""
        normalizer, is_warm = self.obs_normalizer, self._warmup_left <= 0
        if normalizer is None or (is_warm and not normalizer.is_running):
            return
        normalizer.add_all(step.taken_obs for step in collected.steps)
        if normalizer.has_grown if is_warm else counted >= self._warmup_left:
            normalizer.apply(self.algo.preprocess)

    def batches_due(self, most: int | None = None) -> Iterator[Batch]:
        """Prepared samples for the updates that the steps so far allow, at most ``most``."""
        (nothing,) = self.algo.ranks.any(not len(self.memory))
        number = 0 if nothing else int(self._owed)
        for _ in range(number if most is None else min(number, most)):
            self._owed -= 1.0
            yield self._batch(self.source)

    def _batch(self, source: Source) -> Batch:
        """A prepared batch, and where in the replay buffer its samples lie."""
        raw = source.sample(self._batch_size)
        self.updates += 1
        # Of a mixed batch, the memory's part comes first.
        of_memory = source is self.source and "index" in raw
        self._sampled = (
            raw["index"][: raw.get("first_part", len(raw["index"]))].numpy() if of_memory else None
        )
        return self.algo.process_batch_for_training(raw)

    def learned(self, info: Info) -> None:
        """Give the replay buffer the errors of its samples, where the algorithm keeps them."""
        errors = cast(ActorCritic, self.algo).sample_errors if self.algo.gives_errors else None
        rows = self._sampled
        if errors is not None and rows is not None:
            self.memory.update_priorities(rows, errors[: len(rows)].cpu().numpy())

    def state_dict(self) -> dict[str, Any]:
        """Counters and statistics; the replay buffer is saved apart."""
        return {**super().state_dict(), "owed": self._owed, "warmup_left": self._warmup_left}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`."""
        super().load_state_dict(state)
        self._owed, self._warmup_left = float(state["owed"]), float(state["warmup_left"])


class RolloutLearner(Learner):
    """Gathers a rollout, learns from it in shuffled minibatches, forgets it.

    Args:
        algo: learns.
        rollout_steps: steps of each environment in a rollout.
        batch_size: of a minibatch; the last one of a pass takes what is left.
        reward_scaler: rewards as the algorithm sees them.
        obs_normalizer: learns from a rollout once the algorithm has, so that acting and learning see the same.
        demos: demonstrations, for an algorithm whose rewards come from comparing with them.
    """

    algo: OnPolicy

    def __init__(
        self,
        algo: OnPolicy,
        *,
        rollout_steps: int,
        batch_size: int,
        reward_scaler: RewardScaler,
        obs_normalizer: ObsNormalizer | None = None,
        demos: Memory | None = None,
    ) -> None:
        super().__init__(algo, obs_normalizer, demos)
        self._rollout_steps, self._batch_size = rollout_steps, batch_size
        self._reward_scaler = reward_scaler
        self._waiting: list[Collected] = []
        self._leaves = False

    def take(self, collected: Collected, counted: int | None = None) -> None:
        """Gather steps."""
        self._waiting.append(collected)

    def batches_due(self, most: int | None = None) -> Iterator[Batch]:
        """Prepared minibatches of a rollout, if it is whole; there is no limit to their number."""
        steps = [step for collected in self._waiting for step in collected.steps]
        lanes = self._waiting[-1].lanes if self._waiting else np.zeros(0, dtype=np.int64)
        if len(steps) < self._rollout_steps:
            return
        self._waiting.clear()
        rollout = stacked(steps)
        rollout["rewards"] = self.algo.rollout_rewards(rollout)
        rollout["rewards"] = self._reward_scaler(
            rollout["rewards"], rollout["terminals"] | rollout["timeouts"], lanes, rollout["mask"]
        )
        batch = self.algo.prepare_rollout(rollout)
        yield from self._passes(batch)
        if self.obs_normalizer is not None:
            mask = rollout["mask"]
            self.obs_normalizer.add({key: seen[mask] for key, seen in rollout["obs"].items()})
            self.obs_normalizer.apply(self.algo.preprocess)

    def _passes(self, batch: Batch) -> Iterator[Batch]:
        algo, self._leaves = self.algo, False
        for number in range(algo.config.rollout_epochs):
            for minibatch in self._minibatches(batch):
                self.updates += 1
                if number < algo.expert_passes:
                    minibatch["expert"] = self._demonstrated(len(minibatch["log_prob"]))
                yield minibatch
                if self._leaves:
                    return

    def _minibatches(self, batch: Batch) -> Iterator[Batch]:
        """Yield one pass over a rollout, as many minibatches on all ranks.

        Ranks whose environments failed have fewer steps; the others leave out what these lack.
        """
        ranks = self.algo.ranks
        if ranks.world == 1:
            yield from self.algo.minibatches(batch, self._batch_size)
            return
        is_empty = not len(batch["log_prob"])
        found = [] if is_empty else list(self.algo.minibatches(batch, self._batch_size))
        yield from found[: int(ranks.table(len(found)).min())]

    def learned(self, info: Info) -> None:
        """Leave the rollout where the algorithm says so, such as after a large step of the policy."""
        self._leaves = self.algo.leaves_rollout(info)

    def _demonstrated(self, size: int) -> dict[str, Any]:
        assert self.demos is not None
        return self.algo.process_batch_for_training(self.demos.sample(size))

    def state_dict(self) -> dict[str, Any]:
        """Counters and statistics; a rollout that is not whole is left out."""
        return {**super().state_dict(), "rewards": self._reward_scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`."""
        super().load_state_dict(state)
        self._reward_scaler.load_state_dict(state["rewards"])


def stacked(steps: Sequence[Step]) -> dict[str, Any]:
    """Steps as a rollout (T, N, ...), in the form that :meth:`OnPolicy.prepare_rollout` takes."""
    count = len(steps[0].rewards)
    mask = np.ones((len(steps), count), dtype=np.bool_)
    timeouts = np.stack([step.timeouts for step in steps])
    for number, step in enumerate(steps):
        if step.lost is not None:
            for lane in np.flatnonzero(step.lost):
                before = [k for k in range(number) if steps[k].ends[lane]]
                mask[(before[-1] + 1 if before else 0) : number + 1, lane] = False
                timeouts[number, lane] = True
    cut = timeouts.copy()
    cut[-1] = True
    rows = np.flatnonzero(cut)
    ends = [divmod(int(row), count) for row in rows]
    return {
        "obs": _stack_by_key([step.obs for step in steps]),
        "end_obs": {
            key: np.stack([steps[t].next_obs[key][n] for t, n in ends]) for key in steps[0].obs
        },
        "end_rows": rows,
        "actions": np.stack([step.actions for step in steps]),
        "rewards": np.stack([step.rewards for step in steps]),
        "terminals": np.stack([step.terminals for step in steps]),
        "timeouts": timeouts,
        "mask": mask,
        **_stack_by_key([step.extras for step in steps]),
    }


def _stack_by_key(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: np.stack([tree[key] for tree in trees]) for key in trees[0]}
