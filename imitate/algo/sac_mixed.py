"""Soft actor-critic for a choice with numbers beside it, such as which tool to use and where to put it.

Delalleau, Peter, Alonso, Logut, "Discrete and Continuous Action Representation for Practical RL in Video Games"
(arXiv:1912.11077). The policy is pi(c | s) pi(u | s, c): a categorical one, and for each choice c a tanh-Gaussian of
its own over the numbers u, all from one network. The critics take the numbers and give a value for each choice. With
targets Q', one sample u_c ~ pi(. | s, c) for each choice and the discount g:

    soft(s, c) = min_e Q'_e(s, u_c)[c] - alpha_u log pi(u_c | s, c) - alpha_c log pi(c | s)
    target = r + g sum_c pi(c | s') soft(s', c), r alone after a terminal                  -> MixedSAC._target
    critic: mean over the batch, sum over e, of (Q_e(s, u)[c] - target)^2                  -> MixedSAC._critic_loss
    actor:  -sum_c pi(c | s) soft(s, c), with Q for Q'                                     -> MixedSAC._actor_loss
    alpha_u, alpha_c: as in ``sac``, from the entropies of the numbers and of the choice   -> MixedSAC._temperature_loss

The numbers' entropy is the mean of those of the choices by their probabilities; it is tuned to -(numbers), that of the
choice to half of log(choices), as in ``sac_discrete.py``. Here choices are always summed over rather than sampled.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from imitate.algo.algo import Batch, Info
from imitate.algo.rl_sections import ActorConfig
from imitate.algo.sac import SAC, SACActorConfig, Temperature
from imitate.errors import ConfigError
from imitate.functional.losses import masked_mean
from imitate.models.mixed import Mixed, MixedHead


class MixedSAC(SAC):
    """Actions are [one-hot of C choices | N numbers]."""

    def _create_networks(self) -> None:
        config = self.algo_config
        if config.num_choices + config.num_continuous != self.ac_dim:
            raise ConfigError(
                f"algo.num_choices {config.num_choices} and algo.num_continuous {config.num_continuous} do not sum to "
                f"the {self.ac_dim} numbers of an action: correct them"
            )
        super()._create_networks()

    @property
    def _num_choices(self) -> int:
        number: int = self.algo_config.num_choices
        return number

    def _create_head(self, input_dim: int, config: ActorConfig) -> MixedHead:
        net = cast(SACActorConfig, config).net
        settings = {**net.gaussian.to_dict(), **net.common.to_dict()}
        return MixedHead(input_dim, self._num_choices, self.algo_config.num_continuous, **settings)

    def _wanted_entropy(self) -> Tensor:
        """Of the numbers, of the choice."""
        temperature = self.algo_config.temperature
        numbers = temperature.target_entropy
        if numbers is None:
            numbers = -float(self.algo_config.num_continuous)
        return torch.tensor([numbers, temperature.choice_entropy * math.log(self._num_choices)])

    # ---- losses --------------------------------------------------------------------------------------------------

    def _soft_values(
        self, critic: str, obs: Batch, goal: Batch | None
    ) -> tuple[Tensor, Mixed, Tensor]:
        """soft(s, c) (B, C), the policy, and log pi(u_c | s, c) (B, C) of the samples."""
        features, _ = self.actor(obs, goal)
        policy = cast(Mixed, self.actor.head(features))
        numbers, density = policy.numbers.draw(1)
        density = density.squeeze(-1)
        # (E, B, of which choice the numbers are, C): a choice is judged with its own.
        values = self._critic(critic)(obs, numbers.squeeze(-2), goal)
        believed = self._ensemble_value(values.diagonal(dim1=-2, dim2=-1))
        of_numbers, of_choice = self._alpha
        soft = believed - of_numbers * density - of_choice * policy.choice.logits
        return soft, policy, density

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """(B,) what the critics are to say of the action that was taken."""
        soft, policy, _ = self._soft_values("critic_target", batch["next_obs"], batch["goal_obs"])
        value = (policy.choice.probabilities * soft).sum(-1)
        return cast(Tensor, batch["rewards"] + batch["discounts"] * value)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        target = self._target(batch)
        chosen, numbers = batch["actions"].tensor_split([self._num_choices], dim=-1)
        values = self._critic("critic")(batch["obs"], numbers, batch["goal_obs"])
        taken = (values * chosen).sum(-1)
        loss = self._td_loss(taken, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": taken.mean(), "Q_Targets": target.mean()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        soft, policy, density = self._soft_values("critic", batch["obs"], batch["goal_obs"])
        probabilities, weight = policy.choice.probabilities, batch["weight"]
        loss = -masked_mean((probabilities * soft).sum(-1), weight)
        with torch.no_grad():
            entropy = -masked_mean((probabilities * density).sum(-1), weight)
            choice_entropy = masked_mean(policy.choice.entropy(), weight)
        of_numbers, of_choice = self._alpha
        return loss, {
            "Actor_Loss": loss,
            "Entropy": entropy,
            "Choice_Entropy": choice_entropy,
            "Temperature": of_numbers,
            "Choice_Temperature": of_choice,
        }

    def _temperature_loss(self, info: Info) -> Tensor:
        entropies = torch.stack([info["Entropy"], info["Choice_Entropy"]])
        log = cast(Temperature, self.nets["temperature"]).log
        return (log * (entropies - self._target_entropy)).sum()
