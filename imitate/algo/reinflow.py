"""ReinFlow: PPO through the denoising steps of a cloned flow or diffusion policy.

Zhang, Yu, Su, Wang, "ReinFlow: Fine-tuning Flow Matching Policy with Online Reinforcement Learning", NeurIPS 2025
(arXiv:2505.22094). The cloned policy makes a chunk from noise x_0 in S steps f_k without noise: the steps of the flow,
or of DDIM. Noise of a learned size is added to each step, so that the chain x_1 ... x_S of a chunk has a density:

    x_k+1 ~ N(f_k(x_k, s), sigma_k(s)^2), x_0 ~ N(0, 1)                                     -> ReinFlow._drawn
    log pi(x | s) = sum_k log N(x_k+1; f_k(x_k, s), sigma_k(s)^2)                           -> ReinFlow.policy_of
    rho = pi(x | s) / pi_old(x | s)
    L = -E[ min(rho A, clip(rho, 1 - c, 1 + c) A) ] - entropy_weight E[ H(pi) ]             -> ReinFlow._loss
    L_V = E[ (V(s) - R)^2 ]                                                                 -> ReinFlow._value_loss

Gradients pass through one denoising step at a time, because the chain is stored as it was drawn. The advantage A of a
chunk is computed for its ``n_step`` executed actions: within a chunk lambda is 1, so that the chunk's rewards and the
value after it count in full; between chunks lambda is ``trace``. The trained policy acts without the added noise.

Departures: sigma is the same for all actions of a chunk, and depends on the state and the step alone; log-densities
are summed, not averaged, over steps and numbers, so that ``clip`` is larger (the authors' 0.01 is for the mean); the
noise is not clipped. A diffusion policy has DDIM's steps with this noise, in place of DDPM's variance in Ren et al.,
"Diffusion Policy Policy Optimization" (arXiv:2409.00588). robomimic has neither.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Batch, Info, PolicyStep
from imitate.algo.base.execution import ChunkExecution, Inputs
from imitate.algo.base.factory import register
from imitate.algo.base.on_policy import OnPolicy, Rewards
from imitate.algo.base.on_policy_sections import OnPolicyNetConfig, PPOConfig
from imitate.algo.base.policy_state import InnerState
from imitate.algo.base.recorded import detached
from imitate.algo.base.rows import by_parts
from imitate.algo.slots.frozen import FrozenPolicy, FrozenPolicyConfig
from imitate.algo.slots.reward_weights import num_values
from imitate.config import BaseConfig, Section
from imitate.config.optimizer import Networks, networks
from imitate.functional.policy_gradient import (
    clipped_share,
    clipped_surrogate,
    clipped_value_error,
    divergence_of_ratios,
    explained_variance,
)
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.critics import CriticEnsemble
from imitate.models.heads import Gaussian
from imitate.models.mlp import MLP, FullPrecisionLinear
from imitate.models.rnn import RNNState


class StepNoiseConfig(Section):
    """Noise that is added to each denoising step in training."""

    min_std: float = Field(0.1, gt=0, description="smallest standard deviation of the noise")
    max_std: float = Field(0.4, gt=0, description="largest standard deviation of the noise")


class ReinFlowConfig(PPOConfig):
    """Options of algorithm ``reinflow``, under ``algo``."""

    tree_defaults = {
        "train": {
            "batch_size": 256,
            "max_grad_norm": 1.0,
            "online": {"enabled": True, "collect_steps": 2048, "warmup_steps": 0},
        }
    }
    supports_memory: ClassVar[bool] = False
    supports_rules: ClassVar[bool] = False
    supports_popart: ClassVar[bool] = False

    optim_params: Networks = networks("ReinFlowOptimParams", policy=1e-4, value=1e-3)
    base: FrozenPolicyConfig = Field(FrozenPolicyConfig())
    n_step: int = Field(8, ge=1, description="number of actions that are executed of each chunk")
    noise: StepNoiseConfig = Field(StepNoiseConfig())
    clip: float = Field(
        0.2,
        gt=0,
        description="probability ratios of denoising chains are clipped to the range from 1 - clip to 1 + clip",
    )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        if self.noise.min_std >= self.noise.max_std:
            problems.append(
                f"algo.noise.min_std is {self.noise.min_std}, but algo.noise.max_std is {self.noise.max_std}: set a "
                "larger max_std"
            )
        if self.num_choices:
            problems.append(
                f"algo.num_choices is {self.num_choices}, but a flow or diffusion policy has continuous actions: take "
                "ppo for choices"
            )
        usual = OnPolicyNetConfig()
        problems += [
            f"algo.net.{key} is not used by reinflow: leave it at {usual[key]}"
            for key in ("init_std", "orthogonal_init")
            if self.net[key] != usual[key]
        ]
        return problems


class StepNoise(nn.Module):
    """Standard deviations of the noise of each denoising step, as a function of the observation.

    Args:
        encoder: encoder of observations.
        layer_dims: widths of the hidden layers.
        ac_dim: A, action dimensions.
        min_std: smallest standard deviation.
        max_std: largest standard deviation; initial ones are near the geometric mean of both limits.
    """

    def __init__(
        self,
        encoder: GroupEncoder,
        layer_dims: Sequence[int],
        ac_dim: int,
        *,
        min_std: float,
        max_std: float,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = MLP(encoder.output_dim + 1, layer_dims, torch.tanh)
        self.last = FullPrecisionLinear(self.mlp.output_dim, ac_dim)
        self._low, self._range = math.log(min_std), math.log(max_std / min_std)

    def forward(self, obs: Obs, num_steps: int) -> Tensor:
        """Return the standard deviations (B, S, 1, A) of S steps."""
        features: Tensor = self.encoder(obs)
        features = features.unsqueeze(1).expand(-1, num_steps, -1)
        time = torch.arange(num_steps, device=features.device) / num_steps
        inputs = torch.cat([features, time.view(1, -1, 1).expand(len(features), -1, 1)], -1)
        share = self.last(self.mlp(inputs)).sigmoid()
        stds: Tensor = (self._low + self._range * share).exp()
        return stds.unsqueeze(-2)


@register("reinflow", ReinFlowConfig)
class ReinFlow(OnPolicy[ReinFlowConfig]):
    """Cloned flow or diffusion policy, trained by PPO with noise in its denoising steps."""

    def _create_networks(self) -> None:
        config = self.config
        base = FrozenPolicy(
            self.ac_dim, config.base.checkpoint, steered=config.n_step, trained=True
        )
        widths = config.net.layer_dims
        noise = StepNoise(self._create_encoder(), widths, self.ac_dim, **config.noise.to_dict())
        seen = self.encoding.encoder(group="critic")
        value = CriticEnsemble(seen, 0, widths, 1, num_values=num_values(config))
        self.nets = nn.ModuleDict(
            {"policy": nn.ModuleDict({"base": base, "noise": noise}), "value": value}
        )

    @property
    def base(self) -> FrozenPolicy:
        """The policy, whose weights are trained."""
        return cast(FrozenPolicy, cast(nn.ModuleDict, self.nets["policy"])["base"])

    @property
    def noise(self) -> StepNoise:
        """Network of the noise that is added to the policy's denoising steps."""
        return cast(StepNoise, cast(nn.ModuleDict, self.nets["policy"])["noise"])

    @property
    def execution(self) -> ChunkExecution:
        """Execution of the first ``n_step`` actions of each chunk."""
        return ChunkExecution(self.config.n_step, self.config.n_step)

    # ---- chains --------------------------------------------------------------------------------------------------

    def _drawn(
        self, obs: Batch, generator: torch.Generator | None, explore: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Draw chains (B, S + 1, T, A) and return them with their log-densities (B,).

        Without ``explore`` only the noise x_0 is drawn, so the returned densities have no meaning.
        """
        steps = self.base.denoising_steps(obs, self.preprocess, self.frame_stack)
        stds = self.noise(obs, len(steps))
        shape = (len(stds), self.base.prediction_horizon, self.ac_dim)

        def normal() -> Tensor:
            return torch.empty(shape, device=stds.device).normal_(generator=generator)

        chain, means = [normal()], []
        for k, step in enumerate(steps):
            means.append(step(chain[-1]))
            chain.append(means[-1] + stds[:, k] * normal() if explore else means[-1])
        found = torch.stack(chain, 1)
        return found, _gaussian(torch.stack(means, 1), stds).log_prob(found[:, 1:].flatten(1))

    def policy_of(self, obs: Batch, chain: Tensor) -> Gaussian:
        """Return the distribution of the steps (B, S T A) of chains (B, S + 1, T, A), each given the step before it."""
        steps = self.base.denoising_steps(obs, self.preprocess, self.frame_stack)
        means = torch.stack([step(chain[:, k]) for k, step in enumerate(steps)], 1)
        return _gaussian(means, self.noise(obs, len(steps)))

    # ---- rollouts ------------------------------------------------------------------------------------------------

    def prepare_rollout(self, rollout: Batch) -> Batch:
        """Prepare a raw rollout; its samples are the steps at which a chunk was predicted."""
        return super().prepare_rollout({**rollout, "mask": rollout["mask"] & rollout["decided"]})

    def _trace(self, rollout: Batch) -> Rewards:
        """Return lambda of the advantages (T, N): 1 within a chunk, ``trace`` between chunks."""
        following = np.roll(rollout["decided"], -1, axis=0)
        return np.where(following, np.float32(self.config.trace), np.float32(1.0))

    def _values(self, obs: Obs, memory: RNNState | None = None) -> Tensor:
        found = by_parts(lambda part: self._critic(part["obs"]), {"obs": obs})
        return cast(Tensor, found)

    def _critic(self, obs: Obs) -> Tensor:
        """Return the values of observations: (B,), or with named rewards (B, S + 1)."""
        values: Tensor = self.nets["value"](obs)[0]
        return values

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the first step of windows of a dataset, for which chains are drawn."""
        selected = super()._select_batch(batch)
        with torch.no_grad():
            chain, log_prob = self._drawn(selected["obs"], None)
        return {**selected, "actions": chain, "log_prob": log_prob}

    # ---- losses --------------------------------------------------------------------------------------------------

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config, chain = self.config, batch["actions"]
        policy = self.policy_of(batch["obs"], chain)
        log_ratio = policy.log_prob(chain[:, 1:].flatten(1)) - batch["log_prob"]
        policy_loss = clipped_surrogate(log_ratio, self._advantages(batch), config.clip).mean()
        loss, entropy = self._with_entropy(policy_loss, policy)
        with torch.no_grad():
            info = {
                "KL": divergence_of_ratios(log_ratio).mean(),
                "Clip_Fraction": clipped_share(log_ratio, config.clip),
                "Noise_Std": policy.stds.mean(),
            }
        return loss, {"Loss": loss, "Policy_Loss": policy_loss, "Entropy": entropy, **info}

    def _value_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        values, old = self._critic(batch["obs"]), batch["values"]
        errors = clipped_value_error(values, batch["returns"], old, self.config.value_clip)
        loss = self.config.value_weight * errors.mean()
        explained = explained_variance(old, batch["returns"])
        return loss, {"Value_Loss": errors.mean(), "Explained_Variance": explained}

    # ---- update --------------------------------------------------------------------------------------------------

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Update the value, then the policy and its noise."""
        with torch.set_grad_enabled(not validate):
            loss, info = self._value_loss(batch)
        if not validate:
            info["Value_Grad_Norms"] = self._gradient_step("value", loss)
        return {**super().train_on_batch(batch, epoch, validate), **detached(info)}

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
        first = next(iter(obs.values()))
        size, device = len(first), first.device
        steps, horizon = self.base.num_denoising_steps, self.base.prediction_horizon
        drawn = {
            "policy_action": torch.zeros(size, steps + 1, horizon, self.ac_dim, device=device),
            "log_prob": torch.zeros(size, device=device),
            "decided": torch.zeros(size, dtype=torch.bool, device=device),
        }

        def predict(inputs: Inputs) -> Tensor:
            seen, rows = inputs["obs"], inputs["row"]
            with torch.no_grad():
                chain, log_prob = self._drawn(seen, generator, explore)
            for name, value in (("policy_action", chain), ("log_prob", log_prob)):
                drawn[name][rows] = value
            drawn["decided"][rows] = True
            return self.base.executed(seen, chain[:, -1], self.preprocess, self.frame_stack)

        inputs: Inputs = {"obs": obs, "row": torch.arange(size, device=device)}
        action, chunk, extras = self.execution.step(state["chunk"], inputs, predict)
        return PolicyStep(action, {"chunk": chunk}, drawn if explore else extras)


def _gaussian(means: Tensor, stds: Tensor) -> Gaussian:
    """Return the distribution of flat steps (B, S T A), from means (B, S, T, A) and deviations (B, S, 1, A)."""
    return Gaussian(means.flatten(1), stds.expand_as(means).flatten(1))
