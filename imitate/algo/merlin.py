"""MERLIN: a policy with an external memory of latents, which are learned by a predictive model of observations.

Wayne et al., "Unsupervised Predictive Memory in a Goal-Directed Agent" (arXiv:1803.10760). With the features e of an
observation, the predictor's recurrent output h and reading m, and memory rows M:

    p = prior(h, m), q = p + posterior(e, h, m, p), z = mean of q            -> PredictiveMemory.latent
    a = softmax(strength cos(key, M)), reading a M                           -> read
    least used row = [z, 0], other rows += trail [0, z], usage += a          -> write
    trail = rate trail + (1 - rate) for that row, rate trail for the others
    L = predictor_weight (E_q[ |o - decoder(z)|^2 ] + kl_weight KL(q || p))  -> Merlin.predictor_loss
        + L_policy + value_weight E[ (V - R)^2 ] - entropy_weight E[ H ]     -> Merlin._loss

The policy has its own recurrent network and key. It sees z without gradient; the value sees the same inputs, and z with
gradient.

Departures: the clipped surrogate of PPO takes the place of a single actor-critic update. The recurrent networks, the
memory, policy and value see the mean of q, and only the decoder sees a sample, so that the policy in an update equals
the policy in the rollout. The previous action is an observation, if the wrapper ``previous_action`` is set; the prior
does not see it. No values of actions are predicted. A write only adds to the other rows; it does not scale them by
1 - 1 / size.
"""

from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.on_policy import OnPolicy
from imitate.algo.base.on_policy_sections import PPOConfig
from imitate.algo.slots.memory import MemoryConfig
from imitate.algo.slots.reward_weights import num_values
from imitate.config import BaseConfig, Section
from imitate.functional.losses import gaussian_kl
from imitate.functional.policy_gradient import (
    clipped_share,
    clipped_surrogate,
    clipped_value_error,
    divergence_of_ratios,
    explained_variance,
)
from imitate.models.actor import Obs, PolicyAndValue, StochasticPolicy
from imitate.models.reconstruction import ObservationDecoder, joined_errors
from imitate.models.rnn import RNN, RNNState


class SlotsConfig(Section):
    """External memory, which is part of the policy's state."""

    size: int = Field(16, ge=1, description="number of rows of the memory")
    latent_dim: int = Field(
        16, ge=1, description="size of the latent; a row of the memory is twice as long"
    )
    num_keys: int = Field(
        3, ge=1, description="number of keys with which the predictor reads the memory at each step"
    )
    rate: float = Field(
        0.96,
        ge=0,
        lt=1,
        description="decay per step of the weights with which later latents are added to a row of the memory",
    )


class MerlinConfig(PPOConfig):
    """Options of algorithm ``merlin``, under ``algo``."""

    tree_defaults = {
        "train": {
            "batch_size": 256,
            "seq_length": 16,
            "max_grad_norm": 0.5,
            "online": {"enabled": True, "num_envs": 8, "collect_steps": 64, "warmup_steps": 0},
        }
    }

    rnn: MemoryConfig = Field(MemoryConfig(enabled=True, rnn_type="LSTM"))
    slots: SlotsConfig = Field(SlotsConfig())
    rollout_epochs: int = Field(5, ge=1, description="number of passes over each rollout")
    predictor_weight: float = Field(
        1.0, gt=0, description="weight of the loss of the predictive model"
    )
    kl_weight: float = Field(
        0.1, ge=0, description="weight of the divergence of the latent from its prior"
    )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        if not self.rnn.enabled:
            problems.append(
                "algo.rnn.enabled is false, but the recurrent networks of merlin make the keys to its memory: set it "
                "to true, or choose ppo"
            )
        return problems


def read(slots: Tensor, keys: Tensor, strengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the readings (B, K, W) of rows (B, N, W) for keys (B, K, W), and their weights (B, K, N).

    The weights are the softmax of the cosines of key and row times the strengths (B, K).
    """
    cosines = nn.functional.cosine_similarity(keys.unsqueeze(2), slots.unsqueeze(1), dim=-1)
    weights = (strengths.unsqueeze(-1) * cosines).softmax(-1)
    return weights @ slots, weights


def write(
    slots: Tensor, usage: Tensor, trail: Tensor, latent: Tensor, rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Write a latent (B, Z) to the row of the least usage, and to the second halves of the rows written before.

    Args:
        slots: (B, N, 2 Z) rows: a latent, and the average of the latents after it, later ones weighted less.
        usage: (B, N) sum of the weights of readings since a row was written.
        trail: (B, N) weights with which this latent is added to the second halves.
        rate: share of the weights that is kept for the next latent.

    Returns:
        rows, usage and weights after the write.
    """
    chosen = nn.functional.one_hot(usage.argmin(-1), usage.shape[-1]).to(slots)
    others = 1.0 - chosen
    trail, none = trail * others, torch.zeros_like(latent)
    first, second = torch.cat([latent, none], -1), torch.cat([none, latent], -1)
    slots = slots * others.unsqueeze(-1) + chosen.unsqueeze(-1) * first.unsqueeze(1)
    slots = slots + trail.unsqueeze(-1) * second.unsqueeze(1)
    return slots, usage * others + chosen, rate * trail + (1.0 - rate) * chosen


def _layers(inputs: int, size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, size), nn.Tanh(), nn.Linear(size, size))


class PredictiveMemory(nn.Module):
    """Memory, predictor and the policy's recurrent network, used in place of a policy's single recurrent network.

    The state has tensors (B, ., .): ``h`` and ``c`` of the predictor's recurrent network, ``policy_h`` and ``policy_c``
    of the policy's, ``reading`` (B, 1, K 2 Z), ``slots`` (B, N, 2 Z), ``usage`` and ``trail`` (B, 1, N).

    Args:
        input_dim: number of features of an observation.
        config: section ``algo.slots``.
        rnn: section ``algo.rnn``, of both recurrent networks.
    """

    def __init__(self, input_dim: int, config: SlotsConfig, rnn: MemoryConfig) -> None:
        super().__init__()
        self.config, size = config, config.latent_dim
        known = rnn.hidden_dim + 2 * size * config.num_keys
        self.prior = _layers(known, 2 * size)
        self.posterior = _layers(input_dim + known + 2 * size, 2 * size)
        self.rnn = rnn.make(size + 2 * size * config.num_keys)
        self.policy_rnn = rnn.make(size)
        self.keys = nn.Linear(rnn.hidden_dim, config.num_keys * (2 * size + 1))
        self.policy_key = nn.Linear(rnn.hidden_dim, 2 * size + 1)
        self.output_dim = 3 * size + rnn.hidden_dim
        """Number of features that policy and value see: the latent, the reading and the recurrent output."""

    def initial_state(self, batch_size: int) -> RNNState:
        """Return the state of B new episodes: zeros, with an empty memory."""
        state, zeros = self.rnn.initial_state(batch_size), self.keys.weight.new_zeros
        width, config = 2 * self.config.latent_dim, self.config
        return {
            **state,
            **{f"policy_{name}": value for name, value in state.items()},
            "reading": zeros(batch_size, 1, width * config.num_keys),
            "slots": zeros(batch_size, config.size, width),
            "usage": zeros(batch_size, 1, config.size),
            "trail": zeros(batch_size, 1, config.size),
        }

    def forward(self, x: Tensor, state: RNNState) -> tuple[Tensor, RNNState]:
        """Run over windows of features (B, T, D); return outputs, see :meth:`step`, (B, T, ...) and the last state."""
        outputs = []
        for features in x.unbind(1):
            output, state = self.step(features, state)
            outputs.append(output)
        return torch.stack(outputs, 1), state

    def latent(self, features: Tensor, state: RNNState) -> tuple[Tensor, Tensor]:
        """Return posterior and prior, (B, 2 Z) each: means and logarithms of variances."""
        known = torch.cat([state["h"][:, -1], state["reading"][:, 0]], -1)
        prior = self.prior(known)
        return prior + self.posterior(torch.cat([features, known, prior], -1)), prior

    def step(self, features: Tensor, state: RNNState) -> tuple[Tensor, RNNState]:
        """Compute one step of memory, predictor and recurrent networks for B sequences.

        Args:
            features: (B, D) of an observation.
            state: before the step.

        Returns:
            posterior (2 Z), prior (2 Z), reading (2 Z) and recurrent output (H) of the policy, joined (B, ...); and
            the next state.
        """
        posterior, prior = self.latent(features, state)
        latent = posterior[:, : self.config.latent_dim]
        inputs = torch.cat([latent, state["reading"][:, 0]], -1)
        output, after = self.rnn(
            inputs.unsqueeze(1), {k: state[k] for k in ("h", "c") if k in state}
        )
        before = {name: state[f"policy_{name}"] for name in after}
        decided, policy_after = self.policy_rnn(latent.detach().unsqueeze(1), before)
        slots, usage = state["slots"], state["usage"][:, 0]
        reading, weights = read(slots, *self._keys(self.keys(output[:, 0])))
        of_policy, more = read(slots, *self._keys(self.policy_key(decided[:, 0])))
        usage = usage + (weights.sum(1) + more.sum(1)).detach()
        slots, usage, trail = write(
            slots, usage, state["trail"][:, 0], latent.detach(), self.config.rate
        )
        return torch.cat([posterior, prior, of_policy[:, 0], decided[:, 0]], -1), {
            **after,
            **{f"policy_{name}": value for name, value in policy_after.items()},
            "reading": reading.flatten(1).unsqueeze(1),
            "slots": slots,
            "usage": usage.unsqueeze(1),
            "trail": trail.unsqueeze(1),
        }

    def _keys(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Split numbers (B, K (2 Z + 1)) into keys (B, K, 2 Z) and strengths (B, K) above 0."""
        rows = numbers.reshape(len(numbers), -1, 2 * self.config.latent_dim + 1)
        return rows[..., :-1], nn.functional.softplus(rows[..., -1])


class MerlinNet(PolicyAndValue):
    """Policy and value on the outputs of a :class:`PredictiveMemory`, and the decoder of observations."""

    def __init__(self, *args: Any, decoder: ObservationDecoder, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.decoder = decoder

    def policy_of(self, features: Tensor) -> StochasticPolicy:
        """Return the distribution of the policy from a predictor's outputs; the latent has no gradient."""
        latent, rest = self._seen(features)
        return super().policy_of(torch.cat([latent.detach(), rest], -1))

    def values_of(self, features: Tensor, obs: Obs) -> Tensor:
        """Return the values from a predictor's outputs."""
        return super().values_of(torch.cat(self._seen(features), -1), obs)

    def _seen(self, features: Tensor) -> tuple[Tensor, Tensor]:
        size = cast(PredictiveMemory, self.memory).config.latent_dim
        return features[:, :size], features[:, 4 * size :]

    @property
    def unused_to_act(self) -> tuple[str, ...]:
        """Names of the submodules that acting cannot use, because they see more than the policy."""
        return (*super().unused_to_act, "decoder")


@register("merlin", MerlinConfig)
class Merlin(OnPolicy[MerlinConfig]):
    """PPO with an external memory and a predictive model of observations."""

    def _create_networks(self) -> None:
        config, encoder = self.config, self._create_encoder()
        predictor = PredictiveMemory(encoder.output_dim, config.slots, config.rnn)
        net = MerlinNet(
            encoder,
            self.ac_dim,
            config.num_choices or 0,
            cast(RNN, predictor),
            num_values=num_values(config),
            popart=config.popart,
            more=self._create_more(),
            decoder=ObservationDecoder(config.slots.latent_dim, self.encoding.shapes("obs")),
            **config.net.to_dict(),
        )
        self.nets = nn.ModuleDict({"policy": net})

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config, net = self.config, cast(MerlinNet, self.net)
        assert self.memory is not None and net.memory is not None
        features = self.memory.features(net.encoder, net.memory, batch)
        policy, values = net.decide(features, batch["obs"])
        policy = self.action_mask.policy(policy, batch["obs"])
        log_ratio = policy.log_prob(batch["actions"]) - batch["log_prob"]
        policy_loss = clipped_surrogate(log_ratio, self._advantages(batch), config.clip).mean()
        errors = clipped_value_error(values, batch["returns"], batch["values"], config.value_clip)
        value_loss = self._mean_error(errors)
        predictor_loss, info = self.predictor_loss(features, batch["obs"])
        loss = policy_loss + config.value_weight * value_loss
        loss, entropy = self._with_entropy(loss + config.predictor_weight * predictor_loss, policy)
        with torch.no_grad():
            divergence = divergence_of_ratios(log_ratio).mean()
            clip_fraction = clipped_share(log_ratio, config.clip)
            explained = explained_variance(batch["values"], batch["returns"])
        return loss, {
            "Loss": loss,
            "Policy_Loss": policy_loss,
            "Value_Loss": value_loss,
            "Entropy": entropy,
            "KL": divergence,
            "Clip_Fraction": clip_fraction,
            "Explained_Variance": explained,
            **info,
        }

    def predictor_loss(self, features: Tensor, obs: Obs) -> tuple[Tensor, Info]:
        """Return the predictor's loss () and its parts: the error of decoded observations, and KL(q || p).

        Args:
            features: (B, ...) outputs of :meth:`PredictiveMemory.step`.
            obs: prepared observations (B, ...).
        """
        size = self.config.slots.latent_dim
        mean, log_var, prior_mean, prior_log_var = features[:, : 4 * size].chunk(4, -1)
        sample = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        decoder = cast(MerlinNet, self.net).decoder
        error = joined_errors(decoder.squared_errors(sample, obs)).mean()
        divergence = gaussian_kl(mean, log_var, prior_mean, prior_log_var).mean()
        loss = error + self.config.kl_weight * divergence
        return loss, {"Reconstruction_Loss": error, "Latent_KL": divergence}
