"""Slot of algorithms that clone actions: a condition that says whether an action is better than usual.

    "algo": {"advantage": {"enabled": true, "positive": 0.3}}

Physical Intelligence, "pi*0.6: a VLA That Learns From Experience", 2025 (arXiv:2511.14759), there called RECAP. The
data are demonstrations, a policy's own episodes, successful or not, and corrections. With T the last step of an
episode, M = ``max_steps`` and N = ``lookahead``:

    value target  G_t = -(T - t) / M in [-1, 0], or -1 in an episode that fails             -> outcome_value
    value         p(. | s), a distribution over bins of [-1, 0], V its mean; loss: the cross-entropy of the target,
                  which is divided between its two neighbouring bins                        -> Advantage.value_loss
    advantage     A_t = -N / M + V(s_t+N) - V(s_t), or G_t - V(s_t) if t + N is after T     -> Advantage.advantages
    threshold     e of a task: the quantile 1 - ``positive`` of its advantages               -> Thresholds.follow
    condition     good if A_t > e or the action is a correction, else not good; left out with probability ``dropout``,
                  so that the policy without condition is learned too                       -> Advantage.conditions

The policy acts under the condition "good" (:data:`imitate.models.observation.GOOD`). A flow policy may exaggerate this
condition:

    guidance      v = v(x | none) + w (v(x | good) - v(x | none)), w = ``guidance``         -> guided

Departures: values are learned at the same time as the policy, by a separate small network, so thresholds are moving
means over batches; the policy learns without condition during the first ``warmup_updates``; the paper assigns each
value target to a single bin.
"""

from dataclasses import replace
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.encoding import Encoding
from imitate.algo.base.sections import LayerDims
from imitate.config import AlgoSection, BaseConfig, Section
from imitate.config.data_needs import Outcome, TrainingSet
from imitate.config.optimizer import OptimizerConfig, adamw
from imitate.functional.losses import (
    categorical_cross_entropy,
    expected_value,
    make_atoms,
    project_categorical,
)
from imitate.models.actor import Obs
from imitate.models.mlp import MLP
from imitate.models.observation import CONDITION_KEY
from imitate.system.instructions import LANGUAGE_KEY

NETWORK = "advantage"
"""Name of the slot's network."""
RATE = 0.01
"""Rate at which the moving thresholds take over the quantiles of the newest batch."""


class ConditioningConfig(Section):
    """Options of ``algo.advantage``: a policy that is conditioned on whether actions are better than usual."""

    enabled: bool = Field(
        False,
        description="condition the policy on whether an action is better than usual, and act under the condition that "
        "it is",
    )
    positive: float = Field(
        0.3, gt=0, lt=1, description="share of each task's steps that count as good"
    )
    lookahead: int | None = Field(
        10,
        ge=1,
        description="N: an advantage is the change of value over N steps; null: until the end of the episode",
    )
    dropout: float = Field(
        0.3, ge=0, lt=1, description="probability that a sample is learned without the condition"
    )
    guidance: float = Field(
        1.0,
        ge=0,
        description="w: guidance above 1 makes the condition stronger than in training; only for flow_policy",
    )
    max_steps: int | None = Field(
        None,
        ge=1,
        description="M: number of steps that lower the value as much as a failure does; null: length of the longest "
        "demo",
    )
    num_tasks: int | None = Field(
        None,
        ge=0,
        description="number of instructions, each of which has its own threshold; null: as in the data",
    )
    bins: int = Field(101, ge=2, description="number of bins of the distribution of values")
    layer_dims: LayerDims = Field(
        (256, 256), description="widths of the hidden layers of the value network"
    )
    warmup_updates: int = Field(
        500,
        ge=0,
        description="number of first updates, in which the policy learns without the condition",
    )
    optimizer: OptimizerConfig = Field(
        adamw(3e-4, weight_decay=0.01), description="optimizer of the value network"
    )

    @property
    def outcome(self) -> Outcome | None:
        """Request the outcome of each sample's episode, if the slot is enabled."""
        return Outcome(self.lookahead) if self.enabled else None

    def problems(self, section: Any, config: BaseConfig) -> list[str]:
        """Return messages for settings of ``algo`` that cannot be combined with ``algo.advantage``."""
        if not self.enabled:
            return []
        memory, window = section.get("rnn", None), section.get("transformer", {})
        found = {
            f"algo.advantage.enabled: no part of {config.algo_name} supports it: set it to false": config.algo
            is not section,
            f"algo.advantage.guidance is {self.guidance:g}, but only flow_policy is guided: set it to 1": (
                self.guidance != 1.0 and config.algo_name != "flow_policy"
            ),
            "algo.advantage.enabled: the steps of a window have one condition, but a policy with a memory learns them "
            "all: set algo.rnn.enabled and algo.transformer.supervise_all_steps to false": (
                (memory is not None and memory.enabled)
                or (window.get("enabled", False) and window.get("supervise_all_steps", False))
            ),
            "algo.advantage.enabled: a network of your own sees no condition: leave algo.networks.encoder out": (
                section.networks.encoder is not None
            ),
        }
        return [words for words, holds in found.items() if holds]


class CloningSection(AlgoSection):
    """Base class of the sections of algorithms that clone actions and support ``algo.advantage``."""

    advantage: ConditioningConfig = Field(ConditioningConfig())

    def values_from_data(self, dataset: TrainingSet) -> dict[str, Any]:
        """Compute ``advantage.num_tasks`` from the data, if it is null."""
        unknown = self.advantage.enabled and self.advantage.num_tasks is None
        return {"advantage.num_tasks": len(dataset.tasks)} if unknown else {}

    def values_from_horizon(self, steps: int) -> dict[str, Any]:
        """Set ``advantage.max_steps`` to the length of the longest demo, if it is null."""
        unknown = self.advantage.enabled and self.advantage.max_steps is None
        return {"advantage.max_steps": steps} if unknown else {}


def outcome_value(outcome: Tensor, max_steps: int) -> Tensor:
    """Return the value targets G (B,) in [-1, 0], from the outcome of each sample's episode.

    Args:
        outcome: (B, 3): number of steps until the episode's last step; 1 if the episode succeeds, else 0; 1 if the
            action is a correction, else 0.
        max_steps: M, number of steps before a success at which the value target is -1.
    """
    left, solved = outcome[:, 0], outcome[:, 1] > 0
    return torch.where(solved, -left / max_steps, -torch.ones_like(left)).clamp(-1.0, 0.0)


def guided(free: Tensor, good: Tensor, weight: float) -> Tensor:
    """Return ``free + weight (good - free)``: classifier-free guidance (Ho and Salimans 2022, arXiv:2207.12598)."""
    return free + weight * (good - free)


class Thresholds(nn.Module):
    """Moving quantiles of advantages, one for each task.

    Args:
        number: number of tasks.
        positive: share of the advantages above a threshold.

    Attributes:
        values: (number,) the thresholds.
        seen: (number,) number of batches with a sample of the task.
    """

    values: Tensor
    seen: Tensor

    def __init__(self, number: int, positive: float) -> None:
        super().__init__()
        self._quantile = 1.0 - positive
        self.register_buffer("values", torch.zeros(number))
        self.register_buffer("seen", torch.zeros(number))

    def follow(self, advantages: Tensor, task: Tensor) -> None:
        """Move each task's threshold towards the quantile of its advantages (B,) in a batch; ``task`` is (B,)."""
        own = task == torch.arange(len(self.values), device=task.device).unsqueeze(-1)
        found = torch.where(own, advantages, float("nan")).nanquantile(self._quantile, dim=1)
        present = own.any(1)
        self.seen += present
        rate = (1.0 / self.seen.clamp(min=1.0)).clamp(min=RATE) * present
        self.values.lerp_(torch.where(present, found, self.values), rate)


class Advantage(nn.Module):
    """Values of states and thresholds of advantages.

    Args:
        config: section ``algo.advantage``.
        encoding: observations of the algorithm.

    Attributes:
        thresholds: threshold of each task; the first threshold is for demonstrations without an instruction.
        updates: number of updates.
    """

    atoms: Tensor
    updates: Tensor

    def __init__(self, config: ConditioningConfig, encoding: Encoding) -> None:
        super().__init__()
        self.config = config
        self.encoder = replace(encoding, is_conditioned=False, frames=1).encoder()
        mlp = MLP(self.encoder.output_dim, config.layer_dims)
        self.value = nn.Sequential(mlp, nn.Linear(mlp.output_dim, config.bins))
        self.register_buffer("atoms", make_atoms(-1.0, 0.0, config.bins), persistent=False)
        self.thresholds = Thresholds((config.num_tasks or 0) + 1, config.positive)
        self.register_buffer("updates", torch.zeros(()))

    @property
    def max_steps(self) -> int:
        """M of the value targets; 1 if the algorithm is built without data, only for inspection."""
        return self.config.max_steps or 1

    def logits(self, obs: Obs, goal: Obs | None) -> Tensor:
        """Return the logits (B, bins) of the values of states ``obs`` {key: (B, ...)}."""
        return cast(Tensor, self.value(self.encoder(obs, goal)))

    def value_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy of targets (B,) in [-1, 0]."""
        one = torch.ones_like(target).unsqueeze(-1)
        wanted = project_categorical(one, target.unsqueeze(-1), self.atoms)
        return categorical_cross_entropy(logits, wanted).mean()

    def advantages(self, value: Tensor, later: Tensor | None, outcome: Tensor) -> Tensor:
        """Return the advantages (B,) of actions.

        Args:
            value: (B,) V of the states.
            later: (B,) V of the states N steps later; None: only the rest of the episode counts.
            outcome: see :func:`outcome_value`.
        """
        rest = outcome_value(outcome, self.max_steps)
        steps = self.config.lookahead
        if later is None or steps is None:
            return rest - value
        ended = outcome[:, 0] < steps
        return torch.where(ended, rest, later - steps / self.max_steps) - value

    def conditions(self, advantages: Tensor, task: Tensor, outcome: Tensor) -> Tensor:
        """Return the conditions (B, 2): (1, 0) good, (0, 1) not good, (0, 0) left out."""
        good = (advantages > self.thresholds.values[task]) | (outcome[:, 2] > 0)
        kept = torch.rand_like(advantages) >= self.config.dropout
        kept &= self.updates > self.config.warmup_updates
        return torch.stack([good & kept, ~good & kept], dim=-1).to(advantages.dtype)


def advantage_of(config: Any, encoding: Encoding) -> dict[str, nn.Module]:
    """Return a dict with the slot's network by its name; empty if the algorithm's section does not enable the slot."""
    return {NETWORK: Advantage(config.advantage, encoding)} if encoding.is_conditioned else {}


def with_outcome(chosen: dict[str, Any], batch: dict[str, Any], frames: int) -> dict[str, Any]:
    """Add the slot's batch under ``advantage`` to the batch ``chosen`` if the prepared ``batch`` has outcomes.

    ``chosen`` is the part of ``batch`` that the algorithm learns from.
    """
    if "outcome" not in batch:
        return chosen
    outcome, later = batch["outcome"], batch.get("later_obs")
    now = {key: value[:, frames - 1] for key, value in batch["obs"].items()}
    if later is not None and LANGUAGE_KEY in now:
        later = {**later, LANGUAGE_KEY: now[LANGUAGE_KEY]}
    task = batch.get("task_id")
    task = (
        torch.zeros(len(outcome), dtype=torch.long, device=outcome.device)
        if task is None
        else task + 1
    )
    return {**chosen, "advantage": {"obs": now, "later": later, "outcome": outcome, "task": task}}


def conditioned(
    algo: Any, batch: dict[str, Any], learn: bool = True
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Update the slot's network with a batch, and add the condition to the batch's observations.

    Args:
        algo: an :class:`~imitate.algo.base.algo.Algo`.
        batch: the batch from which the algorithm learns (``Algo.selected``).
        learn: false: only compute losses and conditions.

    Returns:
        the batch with :data:`CONDITION_KEY`, and detached scalars to log.
    """
    if NETWORK not in algo.nets:
        return batch, {}
    slot, seen = cast(Advantage, algo.nets[NETWORK]), batch["advantage"]
    outcome, task, goal = seen["outcome"], seen["task"], batch.get("goal_obs")
    target = outcome_value(outcome, slot.max_steps)
    with torch.set_grad_enabled(learn):
        logits = slot.logits(seen["obs"], goal)
        loss = slot.value_loss(logits, target)
    with torch.no_grad():
        value = expected_value(logits, slot.atoms)
        later = None
        if seen["later"] is not None:
            later = expected_value(slot.logits(seen["later"], goal), slot.atoms)
        advantages = slot.advantages(value, later, outcome)
        if learn:
            slot.updates += 1
            slot.thresholds.follow(advantages, task)
            # ranks see different advantages, so all take the thresholds of rank 0
            if algo.optimization.share_weights is not None:
                algo.optimization.share_weights(slot.thresholds)
        condition = slot.conditions(advantages, task, outcome)
    if learn:
        algo.optimization.step(NETWORK, loss)
    key, shape = next((key, shape) for key, shape in algo.obs_shapes.items() if key in batch["obs"])
    steps = batch["obs"][key].dim() - len(shape) - 1
    spread = condition.view(len(condition), *[1] * steps, 2)
    obs = {**batch["obs"], CONDITION_KEY: spread.expand(*batch["obs"][key].shape[: steps + 1], 2)}
    info = {
        "Advantage/Value_Loss": loss.detach(),
        "Advantage/Value_Error": (value - target).abs().mean(),
        "Advantage/Good": condition[:, 0].sum() / condition.sum().clamp(min=1.0),
        "Advantage/Std": advantages.std(correction=0),
    }
    return {**batch, "obs": obs}, info


def without_condition(obs: Obs, shapes: dict[str, tuple[int, ...]]) -> Obs:
    """Add a condition of zeros, which means no condition, to observations {key: (*B, ...)} of these shapes."""
    key = next(iter(shapes))
    leading = obs[key].shape[: obs[key].dim() - len(shapes[key])]
    return {**obs, CONDITION_KEY: obs[key].new_zeros(*leading, 2)}
