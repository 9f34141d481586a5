"""Learners: they turn collected steps and demonstrations into batches from which an algorithm learns."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.algo.base.actor_critic import ActorCritic
from imitate.algo.base.algo import Algo, Batch, Info
from imitate.algo.base.on_policy import OnPolicy
from imitate.algo.slots.reward_weights import reward_weights_in
from imitate.train.online.normalization import ObsNormalizer, RewardScaler
from imitate.train.online.replay import Memory, ReplayBuffer, SampleSource
from imitate.train.online.steps import Collected, Step


class Learner(ABC):
    """Turns collected steps into batches to learn from.

    Args:
        algo: algorithm that learns.
        obs_normalizer: running statistics of observations, updated with collected steps.
        demos: demonstrations to sample from.

    Attributes:
        updates: number of batches yielded so far.
        memory: the replay buffer, or None for on-policy algorithms.
    """

    memory: Memory | None = None

    def __init__(
        self, algo: Algo, obs_normalizer: ObsNormalizer | None = None, demos: Memory | None = None
    ) -> None:
        self.algo, self.demos, self.updates = algo, demos, 0
        self.obs_normalizer = obs_normalizer

    @abstractmethod
    def take(self, collected: Collected, counted: int | None = None) -> None:
        """Add collected steps.

        Args:
            collected: the steps.
            counted: steps of this collection over all ranks, or None for a single process.
        """

    def _show_signals(self, collected: Collected) -> None:
        """Update the weights of the named rewards from a collection; all ranks call this together."""
        weights = reward_weights_in(self.algo.nets)
        if weights is not None:
            signals = [step.taken_signals for step in collected.steps]
            found = [each for each in signals if each is not None]
            none = np.zeros((0, len(weights.names)), np.float32)
            weights.observe(np.concatenate([none, *found]), self.algo.ranks)

    @abstractmethod
    def batches_due(self, most: int | None = None) -> Iterator[Batch]:
        """Yield prepared batches for the updates that the steps so far allow, at most ``most``.

        The caller must learn from each batch and call :meth:`learned` before it takes the next.
        """

    def learned(self, info: Info) -> None:  # noqa: B027 - a hook, empty by default
        """Record an update, with the result of ``train_on_batch`` for the latest batch."""

    def demonstrations(self, updates: int) -> Iterator[Batch]:
        """Yield prepared batches of demonstrations only, until this many updates are done; none by default."""
        yield from ()

    def updates_due(self, epoch: int, most: int | None = None) -> Iterator[Info]:
        """Make the updates of :meth:`batches_due`; yield the info of each."""
        for batch in self.batches_due(most):
            info = self.algo.train_on_batch(batch, epoch)
            self.learned(info)
            yield info

    def state_dict(self) -> dict[str, Any]:
        """Return counters and statistics; the replay buffer is saved separately."""
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
    """Batches with a fixed share from each source, such as half from demonstrations.

    Args:
        parts: sources and their shares of a batch, which sum to 1. The first part gets the rest after rounding.
    """

    def __init__(self, parts: Sequence[tuple[SampleSource, float]]) -> None:
        total = sum(share for _, share in parts)
        if abs(total - 1.0) > 1e-6 or any(share < 0 for _, share in parts):
            raise ValueError(
                f"the shares of the parts of a batch, {[share for _, share in parts]}, do not sum to 1"
            )
        self.parts = [(source, share) for source, share in parts if share > 0]

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Return a batch in the order of the parts; drop keys that some parts lack; a missing ``weight`` becomes 1.

        ``part`` (B,) is the number of a sample's part.
        """
        sizes = [round(batch_size * share) for _, share in self.parts]
        sizes[0] += batch_size - sum(sizes)
        batches = [source.sample(n) for (source, _), n in zip(self.parts, sizes, strict=True) if n]
        if any("weight" in batch for batch in batches):
            for batch in batches:
                batch.setdefault("weight", torch.ones(batch["actions"].shape[:2]))
        part = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        return {**joined(batches), "first_part": sizes[0], "part": part}


def joined(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the batches concatenated along the first axis, by key."""
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
        algo: algorithm that learns.
        memory: replay buffer that stores the steps.
        source: source of the batches: the buffer, or a mixture with demonstrations.
        batch_size: samples per update.
        update_ratio: updates per environment step.
        warmup_steps: environment steps that are stored before the first update.
        obs_normalizer: statistics updated with these steps, and with all later ones if its ``is_running`` is true.
        demos: demonstrations from which ``source`` also draws.
    """

    memory: Memory

    def __init__(
        self,
        algo: Algo,
        memory: Memory,
        source: SampleSource,
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
        """Yield prepared batches of demonstrations only, until this many updates are done."""
        while self.demos is not None and self.updates < updates:
            yield self._batch(self.demos)

    def take(self, collected: Collected, counted: int | None = None) -> None:
        """Add steps to the replay buffer; the steps of all processes determine the updates due."""
        self.memory.drop_episodes(collected.lost_lanes)
        for step in collected.steps:
            self.memory.add(step, collected.lanes)
        self._show_signals(collected)
        counted = collected.num_steps if counted is None else counted
        self._observe(collected, counted)
        steps = counted - self._warmup_left
        self._warmup_left = max(-steps, 0.0)
        self._owed += self._ratio * max(steps, 0.0)

    def _observe(self, collected: Collected, counted: int) -> None:
        """Update the observation statistics; stored values are raw, so old steps also use the new statistics."""
        normalizer, is_warm = self.obs_normalizer, self._warmup_left <= 0
        if normalizer is None or (is_warm and not normalizer.is_running):
            return
        normalizer.add_all(step.taken_obs for step in collected.steps)
        if normalizer.has_grown if is_warm else counted >= self._warmup_left:
            normalizer.apply(self.algo.preprocess)

    def batches_due(self, most: int | None = None) -> Iterator[Batch]:
        """Yield prepared batches for the updates that the steps so far allow, at most ``most``."""
        (nothing,) = self.algo.ranks.any(not len(self.memory))
        number = 0 if nothing else int(self._owed)
        for _ in range(number if most is None else min(number, most)):
            self._owed -= 1.0
            yield self._batch(self.source)

    def _batch(self, source: SampleSource) -> Batch:
        """Return a prepared batch, and remember which rows of the replay buffer it contains."""
        raw = source.sample(self._batch_size)
        self.updates += 1
        # In a mixed batch, the samples of the replay buffer come first.
        of_memory = source is self.source and "index" in raw
        self._sampled = (
            raw["index"][: raw.get("first_part", len(raw["index"]))].numpy() if of_memory else None
        )
        if "part" not in raw and (self.algo.auxiliaries or "following" in raw):
            raw["part"] = torch.full((len(raw["rewards"]),), int(source is self.demos))
        return self.algo.process_batch_for_training(raw)

    def learned(self, info: Info) -> None:
        """Give the replay buffer the TD errors of its samples, if the algorithm reports them."""
        errors = cast(ActorCritic, self.algo).sample_errors if self.algo.gives_errors else None
        rows = self._sampled
        if errors is not None and rows is not None:
            self.memory.update_priorities(rows, errors[: len(rows)].cpu().numpy())

    def state_dict(self) -> dict[str, Any]:
        """Return counters and statistics; the replay buffer is saved separately."""
        return {**super().state_dict(), "owed": self._owed, "warmup_left": self._warmup_left}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`."""
        super().load_state_dict(state)
        self._owed, self._warmup_left = float(state["owed"]), float(state["warmup_left"])


class RolloutLearner(Learner):
    """Gathers a rollout, yields it in shuffled minibatches, and then drops it.

    Args:
        algo: algorithm that learns.
        rollout_steps: steps of each environment in a rollout.
        batch_size: samples per minibatch; the last one of a pass takes the rest.
        reward_scaler: transforms rewards for the algorithm.
        obs_normalizer: statistics updated with a rollout after learning from it, so that acting and learning use the
            same statistics.
        demos: demonstrations, for an algorithm that computes rewards by comparison with them.
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
        self._due: deque[Iterator[Batch]] = deque()
        self._leaves = False

    def take(self, collected: Collected, counted: int | None = None) -> None:
        """Add steps to the rollout that is being gathered."""
        self._waiting.append(collected)
        self._show_signals(collected)

    def batches_due(self, most: int | None = None) -> Iterator[Batch]:
        """Yield prepared minibatches of complete rollouts, at most ``most``; the rest follows in the next call.

        A rollout is prepared when its turn comes, with the policy and value function of that moment.
        """
        steps = [step for collected in self._waiting for step in collected.steps]
        if len(steps) >= self._rollout_steps:
            self._due.append(self._batches_of(stacked(steps), self._waiting[-1].lanes))
            self._waiting.clear()
        while self._due and most != 0:
            batch = next(self._due[0], None)
            if batch is None:
                self._due.popleft()
                continue
            yield batch
            most = None if most is None else most - 1

    def _batches_of(self, rollout: Batch, lanes: NDArray[np.int64]) -> Iterator[Batch]:
        """Yield the minibatches of a raw rollout of these environments, then update the observation statistics."""
        rollout["rewards"] = self.algo.rollout_rewards(rollout)
        rollout["rewards"] = self._reward_scaler(
            rollout["rewards"], rollout["terminals"] | rollout["timeouts"], lanes, rollout["mask"]
        )
        batch = self.algo.prepare_rollout(rollout)
        yield from self._passes(rollout, batch)
        for further in self.algo.after_rollout(rollout, batch, self._batch_size):
            self.updates += 1
            yield further
        if self.obs_normalizer is not None:
            mask = rollout["mask"]
            self.obs_normalizer.add({key: seen[mask] for key, seen in rollout["obs"].items()})
            self.obs_normalizer.apply(self.algo.preprocess)

    def _passes(self, rollout: Batch, batch: Batch) -> Iterator[Batch]:
        algo, self._leaves = self.algo, False
        for number in range(algo.config.rollout_epochs):
            if number and algo.prepares_each_pass:
                batch = algo.prepare_rollout(rollout)
            for minibatch in self._minibatches(batch):
                self.updates += 1
                if number < algo.expert_passes:
                    minibatch["expert"] = self._demonstrated(len(minibatch["log_prob"]))
                yield minibatch
                if self._leaves:
                    return

    def _minibatches(self, batch: Batch) -> Iterator[Batch]:
        """Yield one pass over a rollout, with equally many minibatches on all ranks.

        Ranks whose environments failed have fewer steps; the others then omit as many. A rollout without a sample, such
        as one in which no chunk was predicted, has no minibatch.
        """
        ranks, is_empty = self.algo.ranks, not len(batch["log_prob"])
        found = iter(()) if is_empty else self.algo.minibatches(batch, self._batch_size)
        if ranks.world == 1:
            yield from found
            return
        whole = list(found)
        yield from whole[: int(ranks.table(len(whole)).min())]

    def learned(self, info: Info) -> None:
        """Drop the rest of the rollout if the algorithm requests it, such as after a large policy step."""
        self._leaves = self.algo.leaves_rollout(info)

    def _demonstrated(self, size: int) -> dict[str, Any]:
        assert self.demos is not None
        return self.algo.process_batch_for_training(self.demos.sample(size))

    def state_dict(self) -> dict[str, Any]:
        """Return counters, statistics and the algorithm's ``kept`` values; steps of an incomplete rollout are lost."""
        rewards = self._reward_scaler.state_dict()
        return {**super().state_dict(), "rewards": rewards, "kept": list(self.algo.kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`."""
        super().load_state_dict(state)
        self._reward_scaler.load_state_dict(state["rewards"])
        self.algo.kept[:] = state["kept"]


def stacked(steps: Sequence[Step]) -> dict[str, Any]:
    """Stack steps to a rollout (T, N, ...) for :meth:`OnPolicy.prepare_rollout`."""
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
    signals = [step.signals for step in steps if step.signals is not None]
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
        **({"signals": np.stack(signals)} if signals else {}),
        **_stack_by_key([step.extras for step in steps]),
    }


def _stack_by_key(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: np.stack([tree[key] for tree in trees]) for key in trees[0]}


class Corrected:
    """Samples from all demonstrated steps and all steps in which a person intervened.

    The latter are stored only in the replay buffer, and are overwritten there like all others. Without interventions,
    samples and random numbers are the same as for the demonstrations alone.

    Args:
        demos: buffer of demonstrations.
        memory: replay buffer of the same form of samples; its random numbers draw the corrections.
    """

    def __init__(self, demos: Memory, memory: ReplayBuffer) -> None:
        self._demos, self._memory = demos, memory

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Draw ``batch_size`` samples: the corrections, then the demonstrations."""
        memory = self._memory
        rows = np.flatnonzero(memory.intervened[: memory.filled * memory.num_envs])
        if not len(rows):
            return self._demos.sample(batch_size)
        share = len(rows) / (len(rows) + len(self._demos))
        count = int(memory.generator.binomial(batch_size, share))
        drawn = memory.generator.choice(rows, count)
        parts = [memory.at(drawn)] if count else []
        parts += [self._demos.sample(batch_size - count)] if count < batch_size else []
        return joined(parts)
