"""Options, entropy weight and action sampling of soft actor-critics, whose values include the policy's entropy."""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.rl_sections import (
    TARGET,
    ActorCriticConfig,
    ActorNetConfig,
    CriticConfig,
    StochasticActorConfig,
)
from imitate.algo.base.sections import LayerDims
from imitate.algo.slots.dynamics import DYNAMICS, DynamicsConfig
from imitate.algo.slots.exploration import OptimismConfig
from imitate.algo.slots.imagination import ImaginationConfig
from imitate.algo.slots.memory import ReplayedMemoryConfig
from imitate.algo.slots.outcomes import OutcomesConfig
from imitate.algo.slots.prior import PriorConfig
from imitate.config import BaseConfig, Section
from imitate.config.optimizer import Networks, networks
from imitate.models.actor import Actor
from imitate.models.heads import TanhDistribution

LogPrior = Callable[[dict[str, Tensor], Tensor], Tensor]
"""Function from observations (B, ...) and actions (B, A) to the log-densities (B,) of a prior."""


class SoftActorConfig(StochasticActorConfig):
    """Tanh-Gaussian policy with log standard deviations between -20 and 2."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")
    net: ActorNetConfig = Field(
        ActorNetConfig.model_validate(
            {
                "common": {"std_activation": "exp", "use_tanh": True},
                "gaussian": {
                    "init_last_fc_weight": None,
                    "min_std": math.exp(-20.0),
                    "max_std": math.exp(2.0),
                },
            }
        )
    )


class SoftCriticConfig(CriticConfig):
    """Critics, by default with two hidden layers of 256 units."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")


class TemperatureConfig(Section):
    """Temperature: the weight of the entropy, alpha in the paper."""

    initial: float = Field(
        1.0, gt=0, description="initial temperature: weight of the entropy in the loss"
    )
    tuned: bool = Field(True, description="learn the temperature; false: it is constant")
    maximum: float | None = Field(
        None, gt=0, description="largest value of the learned temperature; null: it is not bounded"
    )
    target_entropy: float | None = Field(
        None, description="target entropy of the policy in nats; null: -(action dimensions)"
    )
    choice_entropy: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="target entropy of discrete choices, as a fraction of log(number of choices)",
    )


def prior_field() -> Any:
    """Return the field ``prior`` of a section whose algorithm supports one."""
    return Field(
        None,
        description="prior policy: divergence from it is penalized, and entropy is not rewarded; null: reward the "
        "entropy",
    )


class SoftActorCriticConfig(ActorCriticConfig):
    """Base class of the sections of algorithms whose values include the policy's entropy."""

    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True}}}

    optim_params: Networks = networks("SoftOptimParams", critic=3e-4, actor=3e-4, temperature=3e-4)
    actor: SoftActorConfig = Field(SoftActorConfig())
    critic: SoftCriticConfig = Field(SoftCriticConfig())
    temperature: TemperatureConfig = Field(TemperatureConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        net = self.actor.net
        if net.type != "gaussian" or not net.common.use_tanh:
            problems.append(
                f"algo.actor.net: the actor of {config.algo_name} learns through its samples: set type to 'gaussian' "
                "and common.use_tanh to true"
            )
        prior: PriorConfig | None = self.get("prior", None)
        return problems if prior is None else problems + prior.problems(config)

    def target_entropy(self, size: int) -> float:
        """Return the target entropy of an action of ``size`` numbers, relative to the prior if there is one."""
        prior: PriorConfig | None = self.get("prior", None)
        if prior is not None:
            return prior.target(size)
        wanted = self.temperature.target_entropy
        return -float(size) if wanted is None else wanted


class SACConfig(SoftActorCriticConfig, OutcomesConfig):
    """Options of algorithm ``sac``, under ``algo``; base class of the options of ``sqil`` and ``dac``."""

    value_per_reward = True
    num_choices: int | None = Field(
        None,
        ge=0,
        description="number of choices of a discrete action; 0: actions are continuous; null: as in the environment, "
        "or 0 without one",
    )
    num_continuous: int | None = Field(
        None,
        ge=0,
        description="number of continuous values of an action beside a choice; null: as in the environment, or 0 "
        "without one",
    )
    rnn: ReplayedMemoryConfig = Field(ReplayedMemoryConfig())
    prior: PriorConfig | None = prior_field()
    dynamics: Annotated[DynamicsConfig | None, DYNAMICS] = Field(
        None,
        description="learned model of the environment that adds imagined transitions to batches; null: no model",
    )
    imagination: ImaginationConfig = Field(ImaginationConfig())
    target: Literal["policy", "data"] = TARGET
    entropy_backup: bool = Field(
        True,
        description="TD targets include the entropy of the next action; false: they contain only rewards and values",
    )
    optimism: OptimismConfig | None = Field(
        None,
        description="explore optimistically in rollouts: shift actions towards a high upper bound of their values "
        "(OAC); null: off",
    )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config) + self.problems_of_outcomes(self.dynamics, config)
        if self.dynamics is not None:
            problems += [*self.dynamics.problems(config), *self.imagination.problems(config)]
            if self.target == "data":
                problems.append(
                    "algo.target is 'data', but transitions imagined by algo.dynamics have no next action: set it to "
                    "'policy'"
                )
        if self.optimism is not None and (self.rnn.enabled or self.num_choices):
            problems.append(
                "algo.optimism needs continuous actions and a policy without memory: set it to null"
            )
        return problems


class Temperature(nn.Module):
    """Learned positive numbers, whose logarithms are the parameters; they begin with the values ``initial``."""

    def __init__(self, initial: Tensor) -> None:
        super().__init__()
        self.log = nn.Parameter(initial.log())


class EntropyWeight:
    """Weight of the entropy, alpha: a constant, or learned as the network ``temperature``.

    Args:
        config: section ``algo.temperature``.
        target: entropy above which alpha falls and below which it rises; () or (K,) for K entropies.

    Attributes:
        target: the target entropy.
        net: the network for ``algo.nets``; None: alpha is a constant.
    """

    def __init__(self, config: TemperatureConfig, target: Tensor) -> None:
        self.target, self._config = target, config
        self.net = Temperature(torch.full_like(target, config.initial)) if config.tuned else None

    @property
    def value(self) -> Tensor:
        """Return alpha, with the target's shape, without gradient."""
        if self.net is None:
            return torch.full_like(self.target, self._config.initial)
        value, most = self.net.log.detach().exp(), self._config.maximum
        return value if most is None else value.clamp(max=most)

    def loss(self, entropy: Tensor, target: Tensor | None = None) -> Tensor:
        """Return the loss that trains alpha, the network :attr:`net`.

        Args:
            entropy: mean entropy of the policy, with the target's shape, without gradient.
            target: target entropy that replaces :attr:`target`, for example one that depends on the states.
        """
        assert self.net is not None, "a constant weight learns nothing"
        return (self.net.log * (entropy - (self.target if target is None else target))).sum()


def sampled_actions(
    actor: Actor,
    obs: dict[str, Tensor],
    goal: dict[str, Tensor] | None,
    prior: LogPrior | None = None,
) -> tuple[Tensor, Tensor]:
    """Sample one action (B, A) of a tanh-Gaussian policy per state, with gradient, and its log-density (B,).

    With a prior, the prior's log-density is subtracted.
    """
    features, _ = actor(obs, goal)
    drawn = cast(TanhDistribution, actor.head(features)).draw(1)
    actions, log_prob = drawn[0][:, 0], drawn[1][:, 0]
    return actions, log_prob if prior is None else log_prob - prior(obs, actions)
