"""Slot of algorithms: a learned model of the environment, as an ensemble of M members.

    "algo": {"dynamics": {"type": "ensemble", "members": 5}}

Each type is one file: its section, derived from :class:`DynamicsConfig`, and its class under ``@register("ensemble",
EnsembleConfig)``. A type is found by its name: as the module ``imitate.algo.slots.<type>``, or as an entry point of
another package in the group ``imitate.dynamics``.

A *state* is the model's input: (D,) all vectors of an observation, concatenated in the order of their keys, unless a
type defines it otherwise. Observations are prepared, without stacked frames; actions are normalized.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from imitate.config import BaseConfig, OptimizerConfig, Section
from imitate.config.kinds import Kinds
from imitate.config.optimizer import adamw

Batch = Mapping[str, Any]


class DynamicsConfig(Section):
    """Options of ``algo.dynamics``, a learned model of the environment; each type of model adds its own options."""

    model_config = ConfigDict(extra="allow")

    type: str = Field("ensemble", min_length=1, description="type of the model, such as 'ensemble'")
    optimizer: OptimizerConfig = Field(
        adamw(1e-3, weight_decay=1e-4), description="optimizer of the model"
    )

    def problems(self, config: BaseConfig) -> list[str]:
        """Return messages for settings that cannot be combined with a model which predicts vectors."""
        train, observation, problems = config.train, config.observation, []
        if train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {train.frame_stack}, but algo.dynamics predicts one observation from the one "
                "before: set it to 1"
            )
        others = [key for key, kind in observation.modality_of("obs").items() if kind != "low_dim"]
        if others:
            problems.append(
                f"observation.modalities.obs: algo.dynamics predicts vectors, but {', '.join(others)} are not vectors: "
                "leave them out"
            )
        if observation.modality_of("goal"):
            problems.append(
                "observation.modalities.goal: algo.dynamics predicts rewards without goals: leave it empty"
            )
        return problems


class PredictedStep(NamedTuple):
    """Predicted outcome of actions.

    Attributes:
        states: (..., D) the next states.
        rewards: (...) rewards of the actions.
        ends: (...) probabilities, in [0, 1], that the next state is terminal.
        std: (...) norm of the predicted standard deviations of state change and reward, in standardized units; None:
            not predicted.
    """

    states: Tensor
    rewards: Tensor
    ends: Tensor
    std: Tensor | None = None


Correct = Callable[[Tensor, Tensor, PredictedStep], PredictedStep]
"""Function of states (M, N, D), actions (M, N, A) and predictions that returns the outcomes to use instead."""


class Dynamics(nn.Module, ABC):
    """An ensemble of models of the environment.

    Args:
        config: section of the model.
        obs_shapes: shape of each observation, all of them vectors.
        ac_dim: A, action dimensions.
    """

    members = 1
    """M, number of members."""

    @property
    def scale(self) -> Tensor | float:
        """Standard deviations (D,) of the changes of states in the data, or 1 if they are not known."""
        return 1.0

    def __init__(self, config: Any, obs_shapes: Mapping[str, tuple[int, ...]], ac_dim: int) -> None:
        super().__init__()
        self.config = config
        self.obs_shapes = dict(sorted(obs_shapes.items()))
        self.state_dim = sum(math.prod(shape) for shape in self.obs_shapes.values())

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss, and scalars to log.

        Args:
            batch: prepared transitions of one step: ``obs``, ``next_obs`` {key: (B, ...)}, ``actions`` (B, A),
                ``rewards`` (B,), ``discounts`` (B,) 0 after terminals, ``weight`` (B,) or None, and ``index`` (B,)
                int64, the storage numbers of the transitions.
        """

    @abstractmethod
    def step(
        self, states: Tensor, actions: Tensor, generator: torch.Generator | None = None
    ) -> PredictedStep:
        """Predict the outcome of actions with each member separately.

        Args:
            states: (M, N, D).
            actions: (M, N, A).
            generator: source of randomness, if predictions are sampled.

        Returns:
            next states (M, N, D), rewards (M, N) and end probabilities (M, N).
        """

    def follow(self, batch: Batch) -> None:  # noqa: B027 - a hook, empty by default
        """Update running statistics with a batch; called before the loss of that batch."""

    def state_of(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the state (B, D) of observations {key: (B, ...)}."""
        return torch.cat([obs[key].flatten(1) for key in self.obs_shapes], dim=-1)

    def obs_of(self, states: Tensor) -> dict[str, Tensor]:
        """Return the observations {key: (B, ...)} of a state (B, D)."""
        sizes = [math.prod(shape) for shape in self.obs_shapes.values()]
        parts = torch.split(states, sizes, dim=-1)
        return {
            key: part.reshape(len(part), *shape)
            for (key, shape), part in zip(self.obs_shapes.items(), parts, strict=True)
        }

    def imagine(
        self,
        states: Tensor,
        actions: Tensor,
        generator: torch.Generator | None = None,
        correct: Correct | None = None,
    ) -> PredictedStep:
        """Predict the outcome of each row with a random member.

        Args:
            states: (N, D).
            actions: (N, A).
            generator: source of randomness.
            correct: function that corrects the predictions, or None.

        Returns:
            next states (N, D), rewards (N,) and end probabilities (N,).
        """
        size = (self.members, -1, -1)
        states, actions = states.expand(size), actions.expand(size)
        outcome = self.step(states, actions, generator)
        if correct is not None:
            outcome = correct(states, actions, outcome)
        states = states[0]
        rows = torch.arange(len(states), device=states.device)
        member = torch.randint(
            self.members, (len(states),), generator=generator, device=states.device
        )
        return PredictedStep(*(each[member, rows] for each in outcome[:3]))

    def returns(
        self,
        states: Tensor,
        plans: Tensor,
        discount: float,
        particles: int = 1,
        generator: torch.Generator | None = None,
        correct: Correct | None = None,
    ) -> Tensor:
        """Predict discounted returns of plans; each member simulates them with its own particles.

        ``sum_t discount^t prod_{k<t} (1 - end_k) r_t`` with r_t of (s_t, a_t), mean over members and particles (TS-inf
        of Chua et al. 2018, arXiv:1805.12114).

        Args:
            states: (B, D) states in which the plans begin.
            plans: (B, P, H, A) actions.
            discount: in [0, 1].
            particles: number of trajectories per member and plan, which differ if predictions are sampled.
            generator: source of randomness.
            correct: function that corrects the predictions of each step, or None.

        Returns:
            (B, P) mean returns.
        """
        shape = (plans.shape[0], plans.shape[1], particles)
        actions = plans.unsqueeze(2).expand(*shape, *plans.shape[2:]).flatten(0, 2)
        now = states[:, None, None].expand(*shape, -1).flatten(0, 2).expand(self.members, -1, -1)
        total = states.new_zeros(now.shape[:2])
        factor = torch.ones_like(total)
        for step in actions.unbind(1):
            taken = step.expand(self.members, -1, -1)
            outcome = self.step(now, taken, generator)
            if correct is not None:
                outcome = correct(now, taken, outcome)
            total = total + factor * outcome.rewards
            factor = factor * discount * (1.0 - outcome.ends)
            now = outcome.states
        return total.view(self.members, *shape).mean((0, 3))


DYNAMICS: Kinds[Dynamics, DynamicsConfig] = Kinds(
    "algo.dynamics", __package__, "imitate.dynamics", DynamicsConfig, ("ensemble",)
)
register = DYNAMICS.register


def built(
    config: DynamicsConfig, obs_shapes: Mapping[str, tuple[int, ...]], ac_dim: int
) -> Dynamics:
    """Create the learned model that a configuration section describes."""
    return DYNAMICS.find(config.type)[0](config, obs_shapes, ac_dim)
