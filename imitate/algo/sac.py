"""Soft actor-critic (SAC): values include the policy's entropy, so that the policy is as random as the task allows.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905), for continuous actions u;
Christodoulou, "Soft Actor-Critic for Discrete Action Settings" (arXiv:1910.07207), for choices c; Delalleau, Peter,
Alonso, Logut, "Discrete and Continuous Action Representation for Practical RL in Video Games" (arXiv:1912.11077), for a
choice combined with continuous numbers, pi(c | s) pi(u | s, c). With targets Q' and the discount g:

    V(s) = min_e Q'_e(s, u) - alpha log pi(u | s), u ~ pi(s)                           -> SAC._of_numbers
         = sum_c pi(c | s) (min_e Q'_e(s)[c] - alpha log pi(c | s))                    -> SAC._of_choices
         = sum_c pi(c | s) (min_e Q'_e(s, u_c)[c] - alpha_u log pi(u_c | s, c) - alpha_c log pi(c | s)) -> SAC._of_both
    target = r + g V(s'), r alone after a terminal                                     -> SAC._target
    critic: mean over the batch, sum over e, of (Q_e(s, a) - target)^2                 -> SAC._critic_loss
    actor:  -V(s), with Q instead of Q'                                                -> SAC._actor_loss
    alpha:  rises while the entropy is below its target, falls while it is above       -> SAC._temperature_loss

The target entropy of continuous numbers is -(their count), as in the paper. For choices it is half of log(choices)
(``temperature.choice_entropy``) instead of 0.98 log(choices), which would make a policy of two choices almost uniform.
Choices are always summed over instead of sampled. Departures: errors are summed over the critics and not halved; the
logarithm of alpha is learned, as in the authors' code. With ``algo.rnn`` all networks share a recurrent encoder
(:mod:`imitate.algo.slots.memory`); with ``algo.prior`` log pi is relative to a prior (:mod:`imitate.algo.slots.prior`);
with ``algo.optimism`` rollouts explore as in OAC (:mod:`imitate.algo.slots.exploration`). With ``algo.target`` ``data``
targets are SARSA's, for the action a' that was taken next (Rummery & Niranjan 1994):

    target = r + g min_e Q'_e(s', a')                                                  -> SAC._target
"""

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info, PolicyStep
from imitate.algo.base.entropy import EntropyWeight, SACConfig, SoftActorConfig
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.rl_sections import ActorConfig
from imitate.algo.slots.exploration import optimistic
from imitate.errors import ConfigError
from imitate.functional.losses import masked_mean
from imitate.models.categorical import Categorical, CategoricalHead, Mixed, MixedHead
from imitate.models.heads import ActionHead, Gaussian, TanhDistribution


class SoftValue(NamedTuple):
    """Value of states under the policy, and the policy's entropies in them.

    Attributes:
        value: (B,) V(s), with gradient for the policy; (B, V) with a value of each named reward.
        entropies: (B, K) without gradient, one per temperature: first of the continuous numbers, then of the choice.
    """

    value: Tensor
    entropies: Tensor


Values = Callable[[Tensor | None], Tensor]
"""Function from continuous numbers (B, [C,] N), or None, to the critics' combined values (B,) or (B, C)."""


@register("sac", SACConfig)
class SAC(ActorCritic[SACConfig]):
    """Soft actor-critic. Actions are N numbers, one of C choices (one-hot), or [one-hot of C choices | N numbers]."""

    def _create_networks(self) -> None:
        config = self.config
        self._check_actions()
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic, num_choices=self._num_choices),
            }
        )
        self._add_targets()
        if config.optimism is not None:
            self.acting_nets = (*self.acting_nets, "critic")
        self.entropy = EntropyWeight(config.temperature, self._wanted_entropy().to(self.device))
        if self.entropy.net is not None:
            self.nets["temperature"] = self.entropy.net

    @property
    def _num_choices(self) -> int:
        """C, the number of choices; 0 if there is no choice."""
        return self.config.num_choices or 0

    @property
    def _num_numbers(self) -> int:
        """N, the number of continuous values of an action."""
        return (self.config.num_continuous or 0) if self._num_choices else self.ac_dim

    def _check_actions(self) -> None:
        if not self._num_choices or self._num_choices + self._num_numbers == self.ac_dim:
            return
        raise ConfigError(
            f"algo.num_choices is {self._num_choices}, but actions have {self.ac_dim} numbers: set it to "
            f"{self.ac_dim}, or algo.num_continuous to the number of continuous values beside the choice"
            if not self._num_numbers
            else f"algo.num_choices {self._num_choices} and algo.num_continuous {self._num_numbers} do not sum to the "
            f"{self.ac_dim} action dimensions: set them so that they do"
        )

    def _create_head(self, input_dim: int, config: ActorConfig) -> ActionHead:
        if not self._num_choices:
            return super()._create_head(input_dim, config)
        if not self._num_numbers:
            return CategoricalHead(input_dim, self.ac_dim)
        net = cast(SoftActorConfig, config).net
        settings = {**net.gaussian.to_dict(), **net.common.to_dict()}
        return MixedHead(input_dim, self._num_choices, self._num_numbers, **settings)

    def _wanted_entropy(self) -> Tensor:
        """Return the target entropies, () or (2,): first of the continuous numbers, then of the choice."""
        config, choices = self.config, self._num_choices
        of_numbers = config.target_entropy(self._num_numbers)
        if not choices:
            return torch.tensor(of_numbers)
        of_choice = config.temperature.choice_entropy * math.log(choices)
        if config.prior is not None:
            of_choice = config.prior.target(1)
        return torch.tensor([of_numbers, of_choice] if self._num_numbers else of_choice)

    def _max_grad_norm(self, name: str) -> float | None:
        return None if name == "temperature" else super()._max_grad_norm(name)

    # ---- soft values ---------------------------------------------------------------------------------------------

    def _soft_value(self, critic: str, obs: Batch, goal: Batch | None) -> SoftValue:
        """Return V(s) by the critics ``critic`` or ``critic_target``, and the policy's entropies."""

        def values(numbers: Tensor | None) -> Tensor:
            each = self._critic(critic)(obs, numbers, goal)
            if numbers is not None and self._num_choices:
                # keep the value of each choice with its own numbers: (E, B, C, ...)
                each = each.diagonal(dim1=2, dim2=3).movedim(-1, 2)
            return self._ensemble_value(each)

        alpha = self.entropy.value
        if critic == "critic_target" and not self.config.entropy_backup:
            alpha = torch.zeros_like(alpha)
        policy = self._policy(obs, goal)
        if isinstance(policy, Mixed):
            return self._of_both(policy, values, alpha)
        if isinstance(policy, Categorical):
            return self._of_choices(policy, values, obs, alpha)
        return self._of_numbers(cast(TanhDistribution, policy), values, obs, alpha)

    def _of_numbers(
        self, policy: TanhDistribution, values: Values, obs: Batch, alpha: Tensor
    ) -> SoftValue:
        """Return the value of continuous actions, from one action of the policy per state."""
        numbers, log_prob = (drawn[:, 0] for drawn in policy.draw(1))
        if self.log_prior is not None:
            log_prob = log_prob - self.log_prior(obs, numbers)
        soft = self._plus(values(numbers), -alpha * log_prob)
        return SoftValue(soft, -log_prob.detach().unsqueeze(-1))

    def _of_choices(
        self, policy: Categorical, values: Values, obs: Batch, alpha: Tensor
    ) -> SoftValue:
        """Return the value of discrete actions, summed over the choices."""
        logits = policy.logits
        if self.prior is not None:
            logits = logits - self.prior.logits(obs, self.preprocess)
        with torch.no_grad():
            believed = values(None)
        soft = self._plus(believed, -alpha * logits)
        entropy = -(policy.probabilities * logits).sum(-1).detach().unsqueeze(-1)
        return SoftValue(self._expected(policy.probabilities, soft), entropy)

    def _of_both(self, policy: Mixed, values: Values, alpha: Tensor) -> SoftValue:
        """Return the expected value over discrete choices, with one sample of the continuous values for each choice."""
        numbers, log_prob = policy.numbers.draw(1)
        log_prob = log_prob.squeeze(-1)
        of_numbers, of_choice = alpha
        probabilities, logits = policy.choice.probabilities, policy.choice.logits
        bonus = -of_numbers * log_prob - of_choice * logits
        soft = self._plus(values(numbers.squeeze(-2)), bonus)
        with torch.no_grad():
            entropy = -(probabilities * log_prob).sum(-1)
            entropies = torch.stack([entropy, policy.choice.entropy()], dim=-1)
        return SoftValue(self._expected(probabilities, soft), entropies)

    def _expected(self, probabilities: Tensor, values: Tensor) -> Tensor:
        """Return the mean of values (*B, C), or (*B, C, V), over the choices with probabilities (*B, C)."""
        if self.value_weights is None:
            return (probabilities * values).sum(-1)
        return (probabilities.unsqueeze(-1) * values).sum(-2)

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """Return the TD target for the critics, in the shape of the rewards (B,) or (B, V), without gradient."""
        if self.config.target == "data":
            each = self._values_of("critic_target", batch, "next_obs", "next_actions")
            after = self._ensemble_value(each)
        else:
            after = self._soft_value("critic_target", batch["next_obs"], batch["goal_obs"]).value
        return cast(Tensor, batch["rewards"] + batch["discounts"] * after)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        target = self._target(batch)
        values = self._values_of("critic", batch, "obs", "actions")
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {
            "Critic_Loss": loss,
            "Q": self._total(values).mean(),
            "Q_Targets": self._total(target).mean(),
        }

    def _values_of(self, name: str, batch: Batch, seen: str, taken: str) -> Tensor:
        """Return the values (E, B) of the batch's actions, by the critics ``critic`` or ``critic_target``."""
        critic, actions, goal = self._critic(name), batch[taken], batch["goal_obs"]
        if not self._num_choices:
            return critic(batch[seen], actions, goal)  # type: ignore[no-any-return]
        chosen, numbers = actions.tensor_split([self._num_choices], dim=-1)
        values = critic(batch[seen], numbers if self._num_numbers else None, goal)
        return self._expected(chosen, values)

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        soft = self._soft_value("critic", batch["obs"], batch["goal_obs"])
        loss = -masked_mean(self._total(soft.value), batch["weight"])
        names = ["Entropy", "Choice_Entropy"][: soft.entropies.shape[-1]]
        means = [masked_mean(each, batch["weight"]) for each in soft.entropies.unbind(-1)]
        alphas = self.entropy.value.reshape(-1).unbind()
        info: Info = {"Actor_Loss": loss, **dict(zip(names, means, strict=True))}
        for name, alpha in zip(names, alphas, strict=True):
            info[name.replace("Entropy", "Temperature")] = alpha
        log_counts = self.action_mask.log_counts(batch["obs"])
        if log_counts is not None and self.prior is None:
            share = self.config.temperature.choice_entropy
            info["Entropy_Target"] = share * masked_mean(log_counts, batch["weight"])
        return loss, info

    def _temperature_loss(self, info: Info) -> Tensor:
        """Return the loss of network ``temperature``, from the entropies in the info of the actor's loss.

        If choices are masked, the target of their entropy is a fraction of log(allowed choices).
        """
        target = self.entropy.target
        names = ["Entropy", "Choice_Entropy"][: target.numel()]
        found = torch.stack([info[name] for name in names]).reshape(target.shape)
        if "Entropy_Target" in info:
            of_choice = info["Entropy_Target"].detach().reshape(1)
            target = torch.cat([target.reshape(-1)[:-1], of_choice]).reshape(target.shape)
        return self.entropy.loss(found, target)

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update critics, actor, temperature and target networks, in this order."""
        update.step("critic", self._critic_loss(batch))
        update.step("actor", self._actor_loss(batch))
        if self.entropy.net is not None and update.learns("actor"):
            self._gradient_step("temperature", self._temperature_loss(update.info))
        if update.learns("critic"):
            self._follow()

    def _validation_info(self, batch: Batch) -> Info:
        """Return the action error: for discrete actions, the fraction of states whose likeliest choice is wrong."""
        if not self._num_choices or self._num_numbers:
            return super()._validation_info(batch)
        policy = cast(Categorical, self._policy(batch["obs"], batch["goal_obs"]))
        best = policy.logits.argmax(-1)
        return {"Action_Error": (best != batch["actions"].argmax(-1)).float().mean()}

    # ---- test time -----------------------------------------------------------------------------------------------

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        config = self.config.optimism
        if not explore or config is None:
            return super()._act(obs, state, goal, explore=explore, generator=generator)
        policy, critic = cast(TanhDistribution, self._policy(obs, goal)), self.active_nets["critic"]

        def upper(actions: Tensor) -> Tensor:
            # copied, because tensors of inference mode cannot have gradients
            seen = {key: value.clone() for key, value in obs.items()}
            aim = None if goal is None else {key: value.clone() for key, value in goal.items()}
            values = self._total(critic(seen, actions, aim))
            return values.mean(0) + config.beta * 0.5 * (values.amax(0) - values.amin(0))

        shifted = optimistic(cast(Gaussian, policy.base), upper, config.shift)
        return PolicyStep(TanhDistribution(shifted).sample(generator), state, {})
