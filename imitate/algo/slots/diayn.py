"""Diversity is all you need (DIAYN): skills that a discriminator recognizes by the states that they reach.

Eysenbach, Gupta, Ibarz, Levine, "Diversity is All You Need: Learning Skills without a Reward Function", ICLR 2019
(arXiv:1802.06070). The skill z, one of K, is an observation that is drawn for each episode (the wrapper ``skills``).
With a discriminator q that sees the next observation s' without the skill:

    loss    E[ -log q(z | s') ]                                                              -> DIAYN.loss
    reward  log q(z | s') - log p(z) = log q(z | s') + log K                                 -> DIAYN.reward

The entropy of the policy is part of the paper's objective, so ``sac`` is the natural algorithm; ``algo.extrinsic`` 0
leaves out the environment's reward. For skills on the unit sphere, q is a von Mises-Fisher distribution with
concentration 1 around a predicted direction m(s'), as in Hansen et al., "Fast Task Inference with Variational Intrinsic
Successor Features", ICLR 2020 (arXiv:1906.05030):

    loss = -E[ m(s') z ],  reward = m(s') z

The bonus of a replayed batch is computed before the update with it. Departures: the bonus is not normalized; the
discriminator sees the observation after the action, as the authors' code does, and not the observation before it.
"""

import math
from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from imitate.algo.slots.auxiliary import (
    Auxiliary,
    AuxiliaryConfig,
    AuxiliaryContext,
    Batch,
    register,
)
from imitate.config import OptimizerConfig, Section
from imitate.config.optimizer import adam
from imitate.errors import ConfigError, nearest
from imitate.functional.losses import masked_mean
from imitate.models.mlp import MLP
from imitate.system.text import PREVIOUS_ACTION, SKILL


class DIAYNConfig(AuxiliaryConfig):
    """Options of an auxiliary of type ``diayn``."""

    model_config = {**Section.model_config}

    reward: float = Field(
        1.0, ge=0, description="weight of the bonus, which is at most log(number of skills)"
    )
    skill: str = Field(SKILL, description="observation that contains the skill")
    continuous: bool = Field(
        False, description="skills are points on the unit sphere; false: skills are one-hot vectors"
    )
    observations: tuple[str, ...] | None = Field(
        None,
        description="observations that the discriminator sees; null: all except the skill and the previous action",
    )
    layer_dims: tuple[PositiveInt, ...] = Field(
        (64, 64), description="widths of the hidden layers of the discriminator"
    )
    optimizer: OptimizerConfig = Field(adam(1e-3), description="optimizer of the discriminator")


@register("diayn", DIAYNConfig)
class DIAYN(Auxiliary):
    """Discriminator of skills."""

    def __init__(self, config: DIAYNConfig, context: AuxiliaryContext) -> None:
        super().__init__(config, context)
        shapes = context.shapes
        if config.skill not in shapes:
            raise ConfigError(
                f"algo.auxiliary: diayn needs the observation '{config.skill}' ({nearest(config.skill, shapes)}): list "
                'it in observation.modalities.obs.low_dim, and set train.online.wrappers to [{"type": "skills", '
                '"num": 5}]'
            )
        hidden = (config.skill, PREVIOUS_ACTION)
        keys = config.observations or [key for key in shapes if key not in hidden]
        self.encoder = context.encoder(keys)
        self.mlp = MLP(self.encoder.output_dim, config.layer_dims)
        self.last = nn.Linear(self.mlp.output_dim, math.prod(shapes[config.skill]))
        self._latest: tuple[Any, Tensor] | None = None

    def _log_q(self, batch: Batch) -> Tensor:
        """Return log q(z | s') (B,); for continuous skills without the constant term."""
        skill = batch["obs"][self.config.skill]
        skill = skill[:, -1] if skill.dim() == 3 else skill
        scores: Tensor = self.last(self.mlp(self.encoder(batch["next_obs"])))
        if self.config.continuous:
            along: Tensor = (nn.functional.normalize(scores, dim=-1) * skill).sum(-1)
            return along
        # the index of the largest number is the skill, even if the one-hot vector was normalized
        return -nn.functional.cross_entropy(scores, skill.argmax(-1), reduction="none")

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean cross-entropy of the skills."""
        log_q = self._log_q(batch)
        self._latest = batch["next_obs"], log_q.detach()
        loss = -masked_mean(log_q, batch.get("mask"))
        return loss, {"Loss": loss}

    def follow(self, batch: Batch) -> None:
        """Discard the log-probabilities that :meth:`loss` kept for the latest batch."""
        self._latest = None

    @torch.no_grad()
    def reward(self, batch: Batch) -> Tensor:
        """Return the bonus (B,): log q(z | s') plus log K."""
        latest = self._latest
        is_of_batch = latest is not None and latest[0] is batch["next_obs"]
        log_q = latest[1] if latest is not None and is_of_batch else self._log_q(batch)
        return log_q if self.config.continuous else log_q + math.log(self.last.out_features)
