"""Contrastive RL (CRL): values are the log-odds that a goal belongs to the future of a state and action.

Eysenbach et al., "Contrastive Learning as Goal-Conditioned Reinforcement Learning", NeurIPS 2022 (arXiv:2206.07568),
with the losses and settings of OGBench (Park et al., ICLR 2025, arXiv:2410.20092). With critics
f_e(s, a, g) = phi_e(s, a)^T psi_e(g) / sqrt(K), e = 1, 2, and goals g_j a geometric number of steps after s_j:

    L_f = mean over e, i, j of BCE(f_e(s_i, a_i, g_j), 1 if i = j, else 0)                    -> CRL._contrastive_loss
    L_pi = -E[min_e f_e(s, m, g)] / E|min_e f_e(s, m, g)| - alpha E[ log pi(a | s, g) ],
           m = clip(mean of pi), the divisor without gradient (``ddpgbc``), or
         = -E[ min(exp(alpha (min_e f_e(s, a, g) - h(s, g))), 100) log pi(a | s, g) ] (``awr``),
           h learned as f, without actions, one member                                   -> CRL._extraction_loss

f tends to log p(g in the future of s, a) - log p(g). These are Monte-Carlo values of the policy that collected the
data, so parts of different demos are not combined. pi is a Gaussian of unit variance. All losses of an update use the
networks from before the update. Departure: each network has its own image encoders. robomimic has no CRL.
"""

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.goal_conditioned import (
    ExtractionConfig,
    GoalConditioned,
    GoalCriticConfig,
    ValueGoalsConfig,
)
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean
from imitate.models.goal_networks import BilinearValue, GoalActor


class CRLCriticConfig(GoalCriticConfig):
    """Contrastive critics."""

    latent_dim: int = Field(512, ge=1, description="K: number of features of phi and psi")


class CRLConfig(ExtractionConfig):
    """Options of algorithm ``crl``, under ``algo``."""

    optim_params: Networks = networks("CRLOptimParams", actor=3e-4, critic=3e-4, vf=3e-4)
    alpha: float = Field(
        0.1,
        gt=0,
        description="ddpgbc: weight of the imitation; awr: weights of actions are exp(alpha advantage)",
    )
    value_goals: ValueGoalsConfig = Field(ValueGoalsConfig(current=0.0, random=0.0))
    critic: CRLCriticConfig = Field(CRLCriticConfig())


@register("crl", CRLConfig)
class CRL(GoalConditioned[CRLConfig]):
    """Critics that classify future states, and an actor trained by critics and data."""

    def _create_networks(self) -> None:
        actor = GoalActor(self._create_encoder(), self.config.actor.layer_dims, self.ac_dim)
        self.nets = nn.ModuleDict({"actor": actor, "critic": self._create_bilinear(self.ac_dim, 2)})
        if self.config.actor_loss == "awr":
            self.nets["vf"] = self._create_bilinear(0, 1)

    def _create_bilinear(self, ac_dim: int, size: int) -> BilinearValue:
        section = self.config.critic
        return BilinearValue(
            self.encoding.encoder(goals=False),
            self.encoding.of("goal"),
            section.layer_dims,
            section.latent_dim,
            ac_dim,
            size,
            layer_norm=section.layer_norm,
        )

    # ---- losses --------------------------------------------------------------------------------------------------

    def _contrastive_loss(self, batch: Batch, name: str) -> tuple[Tensor, Info]:
        """Return the contrastive loss of the network ``critic``, or of ``vf``, which sees no actions."""
        actions = batch["actions"] if name == "critic" else None
        net = cast(BilinearValue, self.nets[name])
        logits = net.pairs(batch["obs"], batch["value_goals"], actions)
        labels = torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device)
        errors = nn.functional.binary_cross_entropy_with_logits(
            logits, labels.expand_as(logits), reduction="none"
        )
        loss = masked_mean(errors.mean((0, 2)), batch["weight"])
        right = (logits.mean(0).argmax(1) == labels.argmax(1)).to(logits.dtype).mean()
        if name == "critic":
            return loss, {"Critic_Loss": loss, "Critic_Accuracy": right}
        return loss, {"Vf_Loss": loss, "Vf_Accuracy": right}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the actor and the critics; each loss uses the networks from before the update."""
        update.step("actor", self._extraction_loss(batch))
        for name in ("critic", "vf"):
            if name in self.nets:
                update.step(name, self._contrastive_loss(batch, name))
