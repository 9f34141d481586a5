"""MDQ: Q-learning for continuous actions, whose numbers are chosen one after another, each from a set of bins.

Multi-dimensional discrete Q-learning of ALF (github.com/HorizonRobotics/alf, ``mdq_algorithm``). Each of the A numbers
of an action is one of K bins of [-1, 1], with values q_i(s, a_<i, .) of the bins given the numbers before it:

    policy      pi_i(. | s, a_<i) = softmax(q_i / alpha)                                     -> BinsActor.draw
    structured  Q(s, a) = q_0 + alpha log K + sum over i > 0 of (q_i - alpha log mean exp(q_i / alpha))
                                                                                             -> BinsActor.values
    target      r + g (min_e Q'_e(s', a') - alpha sum_i (log pi_i(a'_i) + log K)), a' ~ pi   -> MDQ.td_targets
    critic      mean over the batch, sum over e, of (Q_e(s, a) - target)^2, Q_e of any form  -> MDQ.critic_loss
    actor       (Q(s, a) - min_e Q'_e(s, a))^2, a ~ pi with a little noise                   -> MDQ.distillation
    alpha       rises while the entropy is below its target                                  -> MDQ._update

The alpha term is the divergence from uniform bins. The critics, which are networks of any form, learn the values. The
structured network, from which actions can be drawn exactly, learns from the critics. The target entropy is SAC's,
converted to bins of width 2 / K.

Departures: there is one structured network instead of one per critic (ALF's policy uses only the first); each number
has its own layers.
"""

import math
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.entropy import EntropyWeight, SoftCriticConfig, TemperatureConfig
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import ActorConfig, ActorCriticConfig
from imitate.algo.base.sections import LayerDims
from imitate.config import BaseConfig
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean
from imitate.functional.sampling import draw_class, fill_normal
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.mlp import MLP, FullPrecisionLinear


class BinsActorConfig(ActorConfig):
    """Network of structured bin values, from which actions are drawn."""

    layer_dims: LayerDims = Field(
        (256, 256),
        description="widths of the hidden layers of the network for each number of an action",
    )
    bins: int = Field(15, ge=2, description="K, number of bins of each number of an action")
    noise_std: float = Field(
        0.01,
        ge=0,
        description="standard deviation of the noise added to the policy's actions, from which the structured network "
        "learns",
    )


class MDQConfig(ActorCriticConfig):
    """Options of algorithm ``mdq``, under ``algo``."""

    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True}}}

    optim_params: Networks = networks("MDQOptimParams", critic=1e-3, actor=1e-3, temperature=1e-3)
    actor: BinsActorConfig = Field(BinsActorConfig())
    critic: SoftCriticConfig = Field(SoftCriticConfig())
    temperature: TemperatureConfig = Field(TemperatureConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        if self.networks.get("actor", None) is not None:
            problems.append(
                "algo.networks.actor cannot predict the values of bins: name an encoder instead"
            )
        return problems


# ---- networks ----------------------------------------------------------------------------------------------------


class BinsActor(nn.Module):
    """Networks for the values q_i of all bins of each action dimension, given the action dimensions before it.

    Args:
        encoder: encoder of observation and goal.
        ac_dim: A, the number of action dimensions.
        bins: K, the number of bins of each dimension.
        layer_dims: widths of the hidden layers of each dimension's network.
    """

    def __init__(
        self, encoder: GroupEncoder, ac_dim: int, bins: int, layer_dims: LayerDims
    ) -> None:
        super().__init__()
        self.encoder, self.bins = encoder, bins
        self.numbers = nn.ModuleList()
        for before in range(ac_dim):
            hidden = MLP(encoder.output_dim + before, layer_dims)
            last = FullPrecisionLinear(hidden.output_dim, bins)
            nn.init.uniform_(last.weight, -0.003, 0.003)
            self.numbers.append(nn.Sequential(hidden, last))

    def draw(
        self,
        obs: Obs,
        goal: Obs | None,
        alpha: Tensor,
        generator: torch.Generator | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Draw actions (B, A), the centers of bins, and return their log-probabilities (B,)."""
        joint, log_prob = self.encoder(obs, goal), torch.zeros((), device=alpha.device)
        width = joint.shape[-1]
        for number in self.numbers:
            logits = (number(joint) / alpha).log_softmax(-1)
            chosen = logits.argmax(-1) if greedy else draw_class(logits, generator)
            log_prob = log_prob + logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
            center = (2.0 * chosen + 1.0) / self.bins - 1.0
            joint = torch.cat([joint, center.unsqueeze(-1)], dim=-1)
        return joint[:, width:], log_prob

    def values(self, obs: Obs, goal: Obs | None, actions: Tensor, alpha: Tensor) -> Tensor:
        """Return the structured values (B,) of actions (B, A)."""
        joint = torch.cat([self.encoder(obs, goal), actions], dim=-1)
        width = joint.shape[-1] - len(self.numbers)
        places = ((actions + 1.0) * 0.5 * self.bins).long().clamp(0, self.bins - 1)
        uniform, total = math.log(self.bins), torch.zeros((), device=alpha.device)
        for before, number in enumerate(self.numbers):
            values = number(joint[:, : width + before])
            if before:
                values = values - alpha * (values / alpha).logsumexp(-1, keepdim=True)
            taken = values.gather(-1, places[:, before : before + 1]).squeeze(-1)
            total = total + taken + alpha * uniform
        return total


# ---- the algorithm -----------------------------------------------------------------------------------------------


@register("mdq", MDQConfig)
class MDQ(ActorCritic[MDQConfig]):
    """Multi-dimensional discrete Q-learning: critics, and an actor that chooses a bin for each number of an action."""

    def _create_networks(self) -> None:
        config, own = self.config, self.config.actor
        actor = BinsActor(self._create_encoder(), self.ac_dim, own.bins, own.layer_dims)
        self.nets = nn.ModuleDict({"actor": actor, "critic": self._create_critic(config.critic)})
        self._add_targets()
        wanted = config.temperature.target_entropy
        density = -float(self.ac_dim) if wanted is None else wanted
        target = torch.tensor(density + self.ac_dim * math.log(own.bins / 2.0), device=self.device)
        self.entropy = EntropyWeight(config.temperature, target)
        if self.entropy.net is not None:
            self.nets["temperature"] = self.entropy.net
            self.acting_nets = ("temperature",)

    @property
    def bins_actor(self) -> BinsActor:
        """The structured values, from which actions are drawn."""
        return cast(BinsActor, self.active_nets["actor"])

    def _max_grad_norm(self, name: str) -> float | None:
        return None if name == "temperature" else super()._max_grad_norm(name)

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def td_targets(self, batch: Batch) -> Tensor:
        """Return the TD targets (B,)."""
        obs, goal, alpha = batch["next_obs"], batch["goal_obs"], self.entropy.value
        actions, log_prob = self.bins_actor.draw(obs, goal, alpha)
        following = self._ensemble_value(self._critic("critic_target")(obs, actions, goal))
        divergence = log_prob + self.ac_dim * math.log(self.bins_actor.bins)
        target: Tensor = batch["rewards"] + batch["discounts"] * (following - alpha * divergence)
        return target

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the TD loss of the critics, and scalars to log."""
        target = self.td_targets(batch)
        values = self._critic("critic")(batch["obs"], batch["actions"], batch["goal_obs"])
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean(), "Q_Targets": target.mean()}

    def distillation(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the error of the structured values at the policy's own actions, and scalars to log."""
        obs, goal, weight = batch["obs"], batch["goal_obs"], batch["weight"]
        alpha = self.entropy.value
        with torch.no_grad():
            actions, log_prob = self.bins_actor.draw(obs, goal, alpha)
            noise = fill_normal(torch.empty_like(actions), None) * self.config.actor.noise_std
            actions = (actions + noise).clamp(-1.0, 1.0)
            wanted = self._ensemble_value(self._critic("critic_target")(obs, actions, goal))
        errors = (self.bins_actor.values(obs, goal, actions, alpha) - wanted).square()
        loss = masked_mean(errors, weight)
        entropy = masked_mean(-log_prob, weight)
        return loss, {"Actor_Loss": loss, "Entropy": entropy, "Temperature": alpha}

    def _update(self, batch: Batch, update: Update) -> None:
        """Update critics, structured values, temperature and targets, in this order."""
        update.step("critic", self.critic_loss(batch))
        update.step("actor", self.distillation(batch))
        if self.entropy.net is not None and update.learns("actor"):
            self._gradient_step("temperature", self.entropy.loss(update.info["Entropy"]))
        if update.learns("critic"):
            self._follow()

    def _validation_info(self, batch: Batch) -> Info:
        """Return the mean absolute difference between the most valuable and the data's actions, in normalized units."""
        found = self._decide(batch["obs"], batch["goal_obs"], explore=False, generator=None)
        return {"Action_Error": (found - batch["actions"]).abs().mean()}

    # ---- test time -----------------------------------------------------------------------------------------------

    def _decide(
        self, obs: Batch, goal: Batch | None, explore: bool, generator: torch.Generator | None
    ) -> Tensor:
        alpha = self.entropy.value
        return self.bins_actor.draw(obs, goal, alpha, generator, greedy=not explore)[0]
