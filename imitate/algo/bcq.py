"""Batch-constrained Q-learning: among actions that are likely in the data, choose the one that critics value most.

Fujimoto, Meger & Precup, "Off-Policy Deep Reinforcement Learning without Exploration", ICML 2019 (arXiv:1812.02900);
with a distribution of returns: Bellemare, Dabney & Munos, ICML 2017 (arXiv:1707.06887). With G a generative model of
the data's actions, xi a perturbation of at most ``perturbation_scale``, w = ``ensemble.weight``, N and M numbers of
samples:

    G:      evidence lower bound of a VAE, or likelihood of a mixture of Gaussians            -> Sampler.loss
    target: r + discount max_i [ w min_e Q'_e(s', a_i) + (1 - w) max_e Q'_e(s', a_i) ],
            a_i = b_i + xi'(s', b_i), b_i ~ G(s'), i = 1 .. N                                 -> BCQ._target
    critic: sum_e (Q_e(s, a) - target)^2                                                      -> BCQ._critic_loss
    actor:  -Q_1(s, b + xi(s, b)), b ~ G(s)                                                   -> BCQ._actor_loss
    acting: the best of M such actions by Q_1                                                 -> BCQ._act
    with ``critic.distributional``: cross-entropy of Q_e's distribution and that of the target, r + discount z for each
            atom z, projected to the atoms                                                    -> BCQ._distribution_loss

Without the actor, which is robomimic's default, xi is 0. A mixture is sampled as in acting, by default at its means.
Departures from robomimic: the projection uses all atoms (robomimic takes the second atom for the last atom); mixtures
and distributional critics can be combined; all members of a distributional ensemble are used (robomimic uses only one),
and the target mixes the distributions with the lowest and the highest mean with the weights w and 1 - w, so that the
mean of the mixture is the target above.
"""

from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.rl_sections import ActionSamplerConfig, BCQConfig, PerturbationConfig
from imitate.functional.losses import (
    categorical_cross_entropy,
    expected_value,
    make_atoms,
    masked_mean,
    project_categorical,
    shifted_atoms,
)
from imitate.functional.sampling import pick_class
from imitate.models.actor import GroupEncoder
from imitate.models.critics import polyak_update_, target_of
from imitate.models.heads import DeterministicHead
from imitate.models.mlp import MLP
from imitate.models.vae import VAE


class ActionSampler(nn.Module, ABC):
    """Model of the actions that the data contain in a state."""

    def __init__(self, encoder: GroupEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the weighted loss of the batch's actions in its states."""

    @abstractmethod
    def _draw(self, features: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw one action for each row of features ``(*B, D)``."""

    @torch.no_grad()
    def sample(
        self,
        obs: Batch,
        goal: Batch | None,
        number: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Sample actions (B, N, A), as in evaluation."""
        features = self.encoder(obs, goal).unsqueeze(1).expand(-1, number, -1)
        return self._draw(features, generator)

    def begin_epoch(self, epoch: int) -> None:
        """Update settings that depend on the epoch (from 1); the base class does nothing."""


class VAESampler(ActionSampler):
    """Sampler that is a conditional variational autoencoder."""

    def __init__(self, encoder: GroupEncoder, ac_dim: int, config: ActionSamplerConfig) -> None:
        super().__init__(encoder)
        self.config = config
        self.vae = VAE.from_config(encoder.output_dim, ac_dim, config.vae)

    def loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the negative evidence lower bound."""
        out = self.vae(batch["actions"], self.encoder(batch["obs"], batch["goal_obs"]))
        reconstruction = masked_mean(out.reconstruction_loss, batch["weight"])
        kl = masked_mean(out.kl, batch["weight"])
        loss = reconstruction + self.config.vae.kl_weight * kl
        return loss, {"Action_Sampler_Loss": loss, "Reconstruction": reconstruction, "KL": kl}

    def _draw(self, features: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.vae.act(features, generator)

    def begin_epoch(self, epoch: int) -> None:
        """Freeze the encoder in the configured epoch, and set the temperature of discrete latents."""
        freeze, prior = self.config.freeze_encoder_epoch, self.config.vae.prior
        self.vae.encoder.requires_grad_(freeze == -1 or epoch < freeze)
        if prior.use_categorical:
            self.vae.set_gumbel_temperature(prior.temperature(epoch))


class GMMSampler(ActionSampler):
    """Sampler that is a mixture of Gaussians."""

    def __init__(self, encoder: GroupEncoder, ac_dim: int, config: ActionSamplerConfig) -> None:
        super().__init__(encoder)
        self.mlp = MLP(encoder.output_dim, config.actor_layer_dims)
        self.head = config.gmm.make_head(self.mlp.output_dim, ac_dim)

    def loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the negative log-likelihood."""
        features = self.mlp(self.encoder(batch["obs"], batch["goal_obs"]))
        loss = -masked_mean(self.head(features).log_prob(batch["actions"]), batch["weight"])
        return loss, {"Action_Sampler_Loss": loss}

    def _draw(self, features: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.head.act(self.mlp(features), generator=generator)


class Perturbation(nn.Module):
    """Perturbation actor, which changes given actions by at most ``perturbation_scale``."""

    def __init__(self, encoder: GroupEncoder, ac_dim: int, config: PerturbationConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = MLP(encoder.output_dim + ac_dim, config.layer_dims, dropout=config.dropout)
        self.head = DeterministicHead(self.mlp.output_dim, ac_dim)
        self.scale = config.perturbation_scale

    def forward(self, obs: Batch, actions: Tensor, goal: Batch | None) -> Tensor:
        """Perturb actions (B, N, A) within [-1, 1]."""
        features = self.encoder(obs, goal).unsqueeze(1).expand(-1, actions.shape[1], -1)
        change = self.head.act(self.mlp(torch.cat([features, actions], dim=-1)))
        return (actions + self.scale * change).clamp(-1.0, 1.0)


@register("bcq", BCQConfig)
class BCQ(ActorCritic[BCQConfig]):
    """Batch-constrained Q-learning.

    Attributes:
        atoms: (K,) returns whose probabilities distributional critics predict; None: critics predict the mean return.
    """

    main_net = "critic"
    atoms: Tensor | None = None

    @property
    def sampler(self) -> ActionSampler:
        """The model of the data's actions."""
        return cast(ActionSampler, self.active_nets["action_sampler"])

    def _create_networks(self) -> None:
        config, atoms = self.config, self.config.critic.distributional
        if atoms.enabled:
            bounds = config.critic.value_bounds
            # BCQConfig.conflicts refuses null with distributional critics
            assert bounds is not None
            self.atoms = make_atoms(*bounds, atoms.num_atoms).to(self.device)
        num_atoms = atoms.num_atoms if atoms.enabled else 0
        kind = GMMSampler if config.action_sampler.gmm.enabled else VAESampler
        self.nets = nn.ModuleDict(
            {
                "critic": self._create_critic(config.critic, num_atoms=num_atoms),
                "action_sampler": kind(self._create_encoder(), self.ac_dim, config.action_sampler),
            }
        )
        self._add_targets()
        self.acting_nets = ("action_sampler",)
        if config.actor.enabled:
            actor = Perturbation(self._create_encoder(), self.ac_dim, config.actor)
            self.acting_nets = ("action_sampler", "actor")
            self.nets.update({"actor": actor, "actor_target": target_of(actor)})

    # ---- losses --------------------------------------------------------------------------------------------------

    def _values(self, name: str, obs: Batch, actions: Tensor, goal: Batch | None) -> Tensor:
        """Return expected returns (E, B, N) of actions (B, N, A), by ``critic`` or ``critic_target``."""
        values: Tensor = self._critic(name)(obs, actions, goal)
        return values if self.atoms is None else expected_value(values, self.atoms)

    def _perturbed(self, name: str, obs: Batch, actions: Tensor, goal: Batch | None) -> Tensor:
        """Perturb actions (B, N, A) by the perturbation actor ``actor``; without one, return them unchanged."""
        if name not in self.nets:
            return actions
        return cast(Tensor, self.active_nets[name](obs, actions, goal))

    @torch.no_grad()
    def _next_actions(self, batch: Batch) -> Tensor:
        """Sample possible next actions (B, N, A)."""
        obs, goal = batch["next_obs"], batch["goal_obs"]
        actions = self.sampler.sample(obs, goal, self.config.critic.num_action_samples)
        return self._perturbed("actor_target", obs, actions, goal)

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """Return the TD target (B,) for the critics, without gradient."""
        actions = self._next_actions(batch)
        values = self._values("critic_target", batch["next_obs"], actions, batch["goal_obs"])
        best = self._ensemble_value(values).amax(-1)
        return cast(Tensor, batch["rewards"] + batch["discounts"] * best)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the loss of network ``critic``."""
        if self.atoms is not None:
            return self._distribution_loss(batch, self.atoms)
        target = self._target(batch)
        values = self._critic("critic")(batch["obs"], batch["actions"], batch["goal_obs"])
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q_Data": values.mean(), "Q_Targets": target.mean()}

    @torch.no_grad()
    def _target_distribution(self, batch: Batch, atoms: Tensor) -> Tensor:
        """Return the TD target (B, K) of distributional critics: probabilities of the atoms, without gradient."""
        actions = self._next_actions(batch)
        logits = self._critic("critic_target")(batch["next_obs"], actions, batch["goal_obs"])
        values = expected_value(logits, atoms)
        best = self._ensemble_value(values).argmax(-1)
        # for the best action: each member's distribution (B, E, K) and its mean (B, E)
        chosen = pick_class(logits.softmax(-1), best.expand(len(logits), -1)).transpose(0, 1)
        means = chosen @ atoms
        weight = self.config.critic.ensemble.weight
        least = pick_class(chosen, means.argmin(-1))
        greatest = pick_class(chosen, means.argmax(-1))
        mixture = weight * least + (1.0 - weight) * greatest
        moved = shifted_atoms(batch["rewards"], batch["discounts"], atoms)
        return project_categorical(mixture, moved, atoms)

    def _distribution_loss(self, batch: Batch, atoms: Tensor) -> tuple[Tensor, Info]:
        """Return the loss of network ``critic`` for distributional critics: a cross-entropy."""
        target = self._target_distribution(batch, atoms)
        logits = self._critic("critic")(batch["obs"], batch["actions"], batch["goal_obs"])
        loss = masked_mean(categorical_cross_entropy(logits, target).sum(0), batch["weight"])
        return loss, {
            "Critic_Loss": loss,
            "Q_Data": expected_value(logits, atoms).mean(),
            "Q_Targets": (target @ atoms).mean(),
        }

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the loss of network ``actor``."""
        obs, goal = batch["obs"], batch["goal_obs"]
        actions = self._perturbed("actor", obs, self.sampler.sample(obs, goal, 1), goal)
        value = self._values("critic", obs, actions, goal)[0, :, 0]
        loss = -masked_mean(value, batch["weight"])
        return loss, {"Actor_Loss": loss}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update action sampler, critics, actor and targets, in this order."""
        self.sampler.begin_epoch(update.epoch)
        update.step("action_sampler", self.sampler.loss(batch))
        update.step("critic", self._critic_loss(batch))
        if update.learns("critic"):
            self._follow()
        if "actor" in self.nets:
            update.step("actor", self._actor_loss(batch))
            if update.learns("actor"):
                rate = self.config.target_tau
                polyak_update_(self.nets["actor_target"], self.nets["actor"], rate)

    def _max_grad_norm(self, name: str) -> float | None:
        if name == "action_sampler":
            return Algo._max_grad_norm(self, name)
        return super()._max_grad_norm(name)

    # ---- test time -----------------------------------------------------------------------------------------------

    def _best(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the best actions (B, A) and their values (B,), by the first critic."""
        number = self.config.critic.num_action_samples_rollout
        actions = self.sampler.sample(obs, goal, number, generator)
        actions = self._perturbed("actor", obs, actions, goal)
        value, best = self._values("critic", obs, actions, goal)[0].max(-1)
        return pick_class(actions, best), value

    def state_value(
        self, obs: Batch, goal: Batch | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return values (B,) of states: the value of the best of some sampled actions, by the first critic."""
        return self._best(obs, goal, generator)[1]

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute difference between the policy's and the data's actions, in normalized units."""
        action, _ = self._best(batch["obs"], batch["goal_obs"])
        return {"Action_Error": (action - batch["actions"]).abs().mean()}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        action, value = self._best(obs, goal, generator)
        return PolicyStep(action, state, {"value": value})


BCQ_Distributional = BCQ
"""Robomimic's class name of BCQ with distributional critics, an alias."""
