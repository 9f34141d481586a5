"""Base of offline goal-conditioned RL: hindsight goals, networks, updates, acting, and the parts of losses.

Goals are states of the data, drawn for each batch (:mod:`imitate.data.batches.goals`); actor and values have separate
goal distributions. The reward is -1 at each step, and 0 in the goal state, which ends the return. As in OGBench
(arXiv:2410.20092), an update computes all losses with the networks from before it, and then moves the target networks.
"""

from abc import abstractmethod
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import TypeVar

from imitate.algo.base.actor_critic import Update
from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.auxiliaries import follow_auxiliaries, learn_auxiliaries
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.sections import LayerDims
from imitate.config import (
    AlgoSection,
    BaseConfig,
    DataNeeds,
    GoalShares,
    HindsightGoals,
    Section,
)
from imitate.functional.losses import advantage_weights, gaussian_log_prob, masked_mean
from imitate.functional.sampling import draw_normal
from imitate.models.critics import polyak_update_, target_of
from imitate.models.goal_networks import GoalActor, GoalValue

WIDTHS = (512, 512, 512)
MAX_WEIGHT = 100.0
"""Largest weight of an action in advantage-weighted regression."""


class ActorGoalsConfig(Section):
    """Distribution of the actor's goals; with the remaining probability a goal is a later state of the same demo."""

    current: float = Field(
        0.0, ge=0, le=1, description="probability that the goal is the sample's own state"
    )
    random: float = Field(
        0.0,
        ge=0,
        le=1,
        description="probability that the goal is a random state of any demonstration",
    )
    geometric: bool = Field(
        False,
        description="draw later states of the same demo with probabilities proportional to discount^distance; false: "
        "uniformly",
    )

    @property
    def shares(self) -> GoalShares:
        """Goal distribution in the form that datasets take."""
        return GoalShares(self.current, self.random, self.geometric)


class ValueGoalsConfig(ActorGoalsConfig):
    """Distribution of the values' goals; with the remaining probability a goal is a later state of the same demo."""

    current: float = Field(
        0.2, ge=0, le=1, description="probability that the goal is the sample's own state"
    )
    random: float = Field(
        0.3,
        ge=0,
        le=1,
        description="probability that the goal is a random state of any demonstration",
    )
    geometric: bool = Field(
        True,
        description="draw later states of the same demo with probabilities proportional to discount^distance; false: "
        "uniformly",
    )


class GoalActorConfig(Section):
    """Actor: a Gaussian policy of unit variance; the executed action is its mean."""

    layer_dims: LayerDims = Field(WIDTHS, description="widths of the hidden layers")


class GoalCriticConfig(Section):
    """Value networks V(s, g) or Q(s, a, g) of states or actions for a goal."""

    layer_dims: LayerDims = Field(WIDTHS, description="widths of the hidden layers")
    layer_norm: bool = Field(True, description="layer normalization after each GELU")


class GoalConditionedConfig(AlgoSection):
    """Base class of the sections of offline goal-conditioned RL."""

    tree_defaults = {"train": {"batch_size": 1024}}

    discount: float = Field(0.99, ge=0, lt=1, description="discount factor per step")
    actor_goals: ActorGoalsConfig = Field(ActorGoalsConfig())
    actor: GoalActorConfig = Field(GoalActorConfig())

    def _value_goals(self) -> ActorGoalsConfig:
        """Return the section with the goal distribution of the values."""
        return cast(ActorGoalsConfig, self.get("value_goals", self.actor_goals))

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request hindsight goals and next observations; demonstrations need no rewards."""
        goals = HindsightGoals(
            keys=tuple(sorted(config.observation.modality_of("goal"))),
            value=self._value_goals().shares,
            actor=self.actor_goals.shares,
            discount=self.discount,
            subgoal_steps=self.get("subgoal_steps", None),
        )
        return DataNeeds(
            goals=goals, observed_steps=config.train.frame_stack, environment_rewards=False
        )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        train, name = config.train, config.algo_name
        problems = {
            f"train.goal_mode is '{train.goal_mode}', but {name} draws its goals from the data: set it to null": (
                train.goal_mode is not None
            ),
            f"train.online.enabled is true, but {name} learns from demonstrations alone: set it to false": (
                train.online.enabled
            ),
            f"train.gradient_accumulation is {train.gradient_accumulation}, but {name} makes several steps with every "
            "batch: set it to 1 and enlarge train.batch_size": train.gradient_accumulation > 1,
            f"train.precision is 'bf16', too coarse for the values of {name}: set it to 'fp32'": (
                train.precision == "bf16"
            ),
        }
        for key, section in (("actor", self.actor_goals), ("value", self._value_goals())):
            total = section.current + section.random
            words = (
                f"algo.{key}_goals: current and random are {section.current:g} and {section.random:g}: their sum "
                "may be 1 at the most"
            )
            problems[words] = total > 1.0 + 1e-9
        return [words for words, holds in problems.items() if holds]


class ExtractionConfig(GoalConditionedConfig):
    """Options of an actor that learns from critics and from the data (:meth:`GoalConditioned._extraction_loss`)."""

    actor_loss: Literal["ddpgbc", "awr"] = Field(
        "ddpgbc",
        description="ddpgbc: maximize the critics' values and imitate the data's actions; awr: imitate the data's "
        "actions, weighted by their advantages",
    )
    alpha: float = Field(
        0.3,
        gt=0,
        description="ddpgbc: weight of the imitation; awr: weights of actions are exp(alpha advantage)",
    )


GoalConfigT = TypeVar("GoalConfigT", bound=GoalConditionedConfig, default=Any)
"""Type of the section of an algorithm with hindsight goals."""


class GoalConditioned(Algo[GoalConfigT]):
    """Algorithm that learns to reach states of the data.

    Prepared batches have, for the B samples: ``obs``, ``next_obs`` {key: (B, [F,] ...)}, ``goal_obs`` and
    ``value_goals`` {key: (B, ...)} for actor and values, ``actions`` (B, A), ``rewards`` (B,) -1 or 0, ``discounts``
    (B,) 0 in the goal, ``weight`` (B,) or None; a hierarchy has ``low_goals`` and ``high_targets`` {key: (B, ...)}.
    """

    main_net = "actor"

    # ---- networks ------------------------------------------------------------------------------------------------

    @property
    def actor(self) -> GoalActor:
        """The network that acts."""
        return cast(GoalActor, self.active_nets["actor"])

    def _create_value(self, *, of_actions: bool = False, size: int = 2) -> GoalValue:
        """Create an ensemble of ``size`` networks V(s, g), or Q(s, a, g) with ``of_actions``."""
        section = self.config["critic"]
        return GoalValue(
            self._create_encoder(),
            section.layer_dims,
            self.ac_dim if of_actions else 0,
            size,
            layer_norm=section.layer_norm,
        )

    def _add_targets(self) -> None:
        """Add the target networks as copies of their online networks, which must exist already."""
        for target, online in self.targets.items():
            self.nets[target] = target_of(self.nets[online])

    def _follow(self) -> None:
        """Move the target networks towards their online networks."""
        for target, online in self.targets.items():
            polyak_update_(self.nets[target], self.nets[online], self.config["target_tau"])

    # ---- training ------------------------------------------------------------------------------------------------

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the current step and its goals, and compute the reward with respect to the goal of the values."""
        frames, now = self.frame_stack, self.frame_stack - 1
        weight, at_goal = batch.get("weight"), batch["at_goal"].float()
        goals = ("goal_obs", "value_goals", "low_goals", "high_targets")
        obs = {key: value[:, :frames] for key, value in batch["obs"].items()}
        # the frames of the next step: those of the current step without the oldest, and the next observation
        following = {
            key: torch.cat([obs[key][:, 1:], value[:, now:frames]], dim=1)
            for key, value in batch["next_obs"].items()
        }
        if frames == 1:
            obs, following = (
                {key: x[:, 0] for key, x in each.items()} for each in (obs, following)
            )
        return {
            "obs": obs,
            "next_obs": following,
            **{name: batch[name] for name in goals if batch.get(name)},
            "actions": batch["actions"][:, now],
            "rewards": at_goal - 1.0,
            "discounts": self.config.discount * (1.0 - at_goal),
            "weight": None if weight is None else weight[:, now],
        }

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the sum of all losses."""
        update = Update(self, epoch=1, learn=False)
        self._update(batch, update)
        return update.loss, update.info

    @abstractmethod
    def _update(self, batch: Batch, update: Update) -> None:
        """Compute all losses in their order, train the networks (:meth:`Update.step`) and move the targets."""

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Update all networks once, in order; with ``validate`` only compute the losses.

        The logged ``Loss`` is the sum of the losses of this update.
        """
        update = Update(self, epoch, learn=not validate)
        update.info |= learn_auxiliaries(self, batch, not validate)
        with torch.set_grad_enabled(not validate):
            self._update(batch, update)
        if validate:
            update.info |= self._validation_info(batch)
        else:
            follow_auxiliaries(self, batch)
        info = {**update.info, "Loss": update.loss}
        return {name: value.detach() for name, value in info.items()}

    @torch.no_grad()
    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute difference between the actor's and the data's actions, in normalized units."""
        made = self._mean_actions(batch["obs"], batch["goal_obs"])
        return {"Action_Error": (made - batch["actions"]).abs().mean()}

    # ---- parts of losses -----------------------------------------------------------------------------------------

    def _imitation_loss(
        self, mean: Tensor, wanted: Tensor, weight: Tensor | None, advantage_weight: Tensor | None
    ) -> tuple[Tensor, Info]:
        """Return the mean negative log-likelihood of ``wanted`` (B, A), optionally with weights (B,), and info."""
        log_prob = gaussian_log_prob(wanted, mean, torch.ones_like(mean))
        each = log_prob if advantage_weight is None else advantage_weight * log_prob
        return masked_mean(-each, weight), {
            "Log_Likelihood": log_prob.mean(),
            "Action_MSE": (mean - wanted).square().mean(),
        }

    def _extraction_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the actor's loss, which combines the critics' values with imitation of the data (``algo.actor_loss``).

        With m = clip(mean of pi), the members Q_i of the ensemble ``critic`` and the value V of the network ``vf``::

            ddpgbc: -E[min_i Q_i(s, m, g)] / E|min_i Q_i(s, m, g)| - alpha E[ log pi(a | s, g) ]
            awr:    -E[ min(exp(alpha (min_i Q_i(s, a, g) - V(s, g))), 100) log pi(a | s, g) ]
        """
        obs, goal, alpha = batch["obs"], batch["goal_obs"], self.config["alpha"]
        mean = self.actor(obs, goal)
        if self.config["actor_loss"] == "awr":
            with torch.no_grad():
                values = self.nets["critic"](obs, goal, batch["actions"]).amin(0)
                weights = advantage_weights(
                    values - self.nets["vf"](obs, goal)[0], 1.0 / alpha, None, MAX_WEIGHT
                )
            loss, info = self._imitation_loss(mean, batch["actions"], batch["weight"], weights)
            return loss, {"Actor_Loss": loss, **info, "Advantage_Weight": weights.mean()}
        values = self.nets["critic"](obs, goal, mean.clamp(-1.0, 1.0)).amin(0)
        imitation, info = self._imitation_loss(mean, batch["actions"], batch["weight"], None)
        improvement = -masked_mean(values, batch["weight"]) / (values.abs().mean().detach() + 1e-6)
        loss = improvement + alpha * imitation
        return loss, {"Actor_Loss": loss, **info, "Q_Policy": values.mean()}

    # ---- test time -----------------------------------------------------------------------------------------------

    def _mean_actions(self, obs: Batch, goal: Batch | None) -> Tensor:
        """Return the actor's means (B, A), not clipped."""
        mean: Tensor = self.actor(obs, goal)
        return mean

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        action = self._mean_actions(obs, goal)
        if explore:
            action = draw_normal(action, torch.ones_like(action), generator)
        return PolicyStep(action.clamp(-1.0, 1.0), state, {})
