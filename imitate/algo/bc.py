"""Behavior cloning: supervised learning of actions from demonstrations.

Variants and losses as studied by Mandlekar et al., "What Matters in Learning from Offline Human Demonstrations for
Robot Manipulation", CoRL 2021 (arXiv:2108.03298). With a = the demonstrated action and f = the network:

    BC           l2 |f(s) - a|^2 + l1 smooth_l1(f(s), a) + cos (1 - cos(f(s), a))        -> BC._loss
    BC_Gaussian  -log N(a; mean(s), std(s))                                              -> BC._nll_loss
    BC_GMM       -log sum_k w_k(s) N(a; mean_k(s), std_k(s))                             -> BC._nll_loss
    BC_VAE       |decode(z, s) - a|^2 + kl_weight KL(q(z|a, s) || p(z|s)), z ~ q         -> BC_VAE._loss
    BC_RNN       BC at every step of a window, with an LSTM or GRU over the window       -> BC._loss
    BC_RNN_GMM   the mixture at every step of a window                                   -> BC._nll_loss
    BC_Transformer, BC_Transformer_GMM                                                   -> bc_transformer.py

With ``algo.chunk`` each of them predicts the next K actions at once, as one vector of K A values, and executes them as
:mod:`imitate.algo.execution` says.

Departures from robomimic: padded steps are left out of the loss where the batch has a ``pad_mask``; the validation
loss of stochastic policies uses the learned noise, not the low one of acting, which made it meaningless; several
stacked frames are all seen by the network, not only the oldest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from imitate.algo.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.bc_config import BCConfig
from imitate.algo.execution import ChunkExecution, Inputs
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.policy_state import PolicyState, where_state
from imitate.algo.sections import ChunkConfig, GMMConfig
from imitate.algo.weights import sample_weight, step_weight
from imitate.errors import ConfigError
from imitate.functional.losses import cosine_loss, masked_mean
from imitate.models.actor import Actor, VAEActor
from imitate.models.heads import (
    ActionHead,
    DeterministicHead,
    GaussianHead,
    GMMHead,
)
from imitate.models.mlp import MLP
from imitate.models.rnn import RNN
from imitate.models.vae import VAE


@register_algo_factory_func("bc", section=BCConfig)
def algo_config_to_class(algo_config: BCConfig) -> tuple[type[Algo], dict[str, Any]]:
    """The class that the enabled parts of the section mean."""
    # Here, since it derives from the classes below.
    from imitate.algo.bc_transformer import BC_Transformer, BC_Transformer_GMM

    parts = [p for p in ("gaussian", "gmm", "vae", "rnn", "transformer") if algo_config[p].enabled]
    classes: dict[tuple[str, ...], type[Algo]] = {
        (): BC,
        ("gaussian",): BC_Gaussian,
        ("gmm",): BC_GMM,
        ("vae",): BC_VAE,
        ("rnn",): BC_RNN,
        ("gmm", "rnn"): BC_RNN_GMM,
        ("transformer",): BC_Transformer,
        ("gmm", "transformer"): BC_Transformer_GMM,
    }
    if tuple(parts) not in classes:
        enabled = " and ".join(f"algo.{p}.enabled" for p in parts)
        raise ConfigError(
            f"{enabled} do not go together; enable one of them, or gmm with rnn or transformer"
        )
    return classes[tuple(parts)], {}


class BC(Algo):
    """Deterministic policy, regression loss."""

    @property
    def policy(self) -> Actor:
        """The network that learns and acts."""
        return cast(Actor, self.active_nets["policy"])

    @cached_property
    def execution(self) -> ChunkExecution | None:
        """How chunks are executed; None for a policy of single actions."""
        chunk: ChunkConfig = self.algo_config.chunk
        return chunk.execution if chunk.enabled else None

    @property
    def _chunk(self) -> int | None:
        """K where the head predicts K actions at once; None where it predicts one."""
        return self.execution.size if self.execution else None

    @property
    def _head_dim(self) -> int:
        """Values that the head predicts: an action, or a chunk of them."""
        return self.ac_dim * (self._chunk or 1)

    def _steps(self, values: Tensor) -> Tensor:
        """What the head predicts, ``(*B, K A)``, as a chunk ``(*B, K, A)``; a single action stays as it is."""
        return values.reshape(*values.shape[:-1], -1, self.ac_dim) if self._chunk else values

    def _create_networks(self) -> None:
        encoder = self._create_encoder()
        rnn = self._create_rnn(encoder.output_dim)
        mlp = MLP(rnn.output_dim if rnn else encoder.output_dim, self.algo_config.actor_layer_dims)
        head = self._create_head(mlp.output_dim)
        self.nets = nn.ModuleDict({"policy": Actor(encoder, rnn, mlp, head)})

    def _create_rnn(self, input_dim: int) -> RNN | None:
        return None

    def _create_head(self, input_dim: int) -> ActionHead:
        return DeterministicHead(input_dim, self._head_dim)

    def _select_batch(self, batch: Batch) -> Batch:
        """The first window of frames, and the action at its last frame or the chunk that begins there."""
        last = self.frame_stack - 1
        steps = slice(0, self.frame_stack) if self.frame_stack > 1 else 0
        selected = {
            "obs": {key: value[:, steps] for key, value in batch["obs"].items()},
            "goal_obs": batch.get("goal_obs"),
        }
        if self._chunk is not None:
            return {**selected, **self._chunks(batch, last)}
        weight = batch.get("weight")
        return {
            **selected,
            "actions": batch["actions"][:, last],
            "weight": None if weight is None else weight[:, last],
        }

    def _chunks(self, batch: Batch, steps: int | slice) -> Batch:
        """The chunks ``(B, [T,] K, A)`` that begin at these steps of the window, what of them is real and counts."""
        assert self._chunk is not None
        chunks = batch["actions"].unfold(1, self._chunk, 1).movedim(-1, 2)
        counts = {
            key: None if (x := batch.get(key)) is None else x.unfold(1, self._chunk, 1)[:, steps]
            for key in ("pad_mask", "weight")
        }
        return {"actions": chunks[:, steps], **counts}

    def _features(self, batch: Batch) -> Tensor:
        """What the head sees, float32."""
        features: Tensor
        with self.autocast():
            features, _ = self.policy(batch["obs"], batch["goal_obs"])
        return features.float()

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions, mask = batch["actions"], step_weight(batch)
        predicted = self._steps(self.policy.head(self._features(batch)).mean)
        weights = self.algo_config.loss
        losses = {"L2_Loss": (weights.l2_weight, (predicted - actions).square().mean(-1))}
        if weights.l1_weight > 0:
            error = nn.functional.smooth_l1_loss(predicted, actions, reduction="none")
            losses["L1_Loss"] = (weights.l1_weight, error.mean(-1))
        if weights.cos_weight > 0:
            error = cosine_loss(predicted[..., :3], actions[..., :3])
            losses["Cosine_Loss"] = (weights.cos_weight, error)
        info = {name: masked_mean(error, mask) for name, (_, error) in losses.items()}
        loss = torch.stack([weight * info[name] for name, (weight, _) in losses.items()]).sum()
        return loss, {"Loss": loss, **info}

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute error of the actions that the policy would take, normalized units."""
        action = self._steps(self.policy.head.act(self._features(batch)))
        error = (action - batch["actions"]).abs().mean(-1)
        return {"Action_Error": masked_mean(error, batch.get("pad_mask"))}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        def decide(inputs: Inputs) -> Tensor:
            features, _ = self.policy(inputs["obs"], inputs["goal"])
            return self._steps(self.policy.head.act(features, explore, generator))

        return self._decide(decide, {"obs": obs, "goal": goal}, state)

    def _decide(
        self, decide: Callable[[Inputs], Tensor], inputs: Inputs, state: PolicyState
    ) -> PolicyStep:
        """The action that ``decide`` takes, or the one of its chunk that is next."""
        if self.execution is None:
            return PolicyStep(decide(inputs), state, {})
        action, chunk, extras = self.execution.step(state["chunk"], inputs, decide)
        return PolicyStep(action, {**state, "chunk": chunk}, extras)

    def _nll_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Mean negative log-likelihood of the demonstrated actions, per step; padded steps left out."""
        actions = batch["actions"]
        distribution = self.policy.head(self._features(batch))
        if self._chunk is None:
            mean = masked_mean(distribution.log_prob(actions), step_weight(batch))
        else:
            mask, weight = batch.get("pad_mask"), batch.get("weight")
            real = torch.ones_like(actions[..., 0]) if mask is None else mask.to(actions)
            dims = real.repeat_interleave(self.ac_dim, dim=-1)
            log_prob = distribution.log_prob(actions.flatten(-2), dims)
            steps = real.sum(-1)
            if weight is not None:  # one density of the whole chunk, so that its steps count alike
                counts = (weight * real).sum(-1) / steps.clamp(min=1.0)
                log_prob, steps = log_prob * counts, steps * counts
            mean = log_prob.sum() / steps.sum()
        return -mean, {"Loss": -mean, "Log_Likelihood": mean}


class BC_Gaussian(BC):  # noqa: N801 - the name users know
    """Diagonal Gaussian policy."""

    def _create_head(self, input_dim: int) -> ActionHead:
        config = self.algo_config.gaussian
        return GaussianHead(
            input_dim,
            self._head_dim,
            init_std=config.init_std,
            min_std=config.min_std,
            fixed_std=config.fixed_std,
            std_activation=config.std_activation,
            low_noise_eval=config.low_noise_eval,
        )

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        return self._nll_loss(batch)


class BC_GMM(BC):  # noqa: N801
    """Mixture of Gaussians policy."""

    def _create_head(self, input_dim: int) -> ActionHead:
        return gmm_head(self.algo_config.gmm, input_dim, self._head_dim)

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        return self._nll_loss(batch)


class BC_RNN(BC):  # noqa: N801
    """Recurrent policy trained on windows; acting, its state is zeroed every ``algo.rnn.horizon`` steps."""

    def _create_rnn(self, input_dim: int) -> RNN | None:
        config = self.algo_config.rnn
        return RNN(input_dim, config.hidden_dim, config.num_layers, config.rnn_type)

    @property
    def rnn(self) -> RNN:
        """The memory."""
        return cast(RNN, self.policy.rnn)

    def _select_batch(self, batch: Batch) -> Batch:
        """Whole windows; with ``open_loop`` each step shows the first observation."""
        obs = batch["obs"]
        if self.algo_config.rnn.open_loop:
            obs = {key: value[:, :1].expand_as(value) for key, value in obs.items()}
        selected = {"obs": obs, "goal_obs": batch.get("goal_obs")}
        if self._chunk is None:
            targets = {key: batch.get(key) for key in ("actions", "pad_mask", "weight")}
            return {**selected, **targets}
        targets = self._chunks(batch, slice(None))
        steps = targets["actions"].shape[1]
        selected["obs"] = {key: value[:, :steps] for key, value in obs.items()}
        return {**selected, **targets}

    def _initial_policy_state(self, batch_size: int) -> PolicyState:
        state: PolicyState = {
            **super()._initial_policy_state(batch_size),
            "rnn": self.rnn.initial_state(batch_size),
            "step": torch.zeros(batch_size, dtype=torch.long, device=self.device),
        }
        if self.algo_config.rnn.open_loop:
            state["obs"] = {
                key: torch.zeros(batch_size, *shape, device=self.device)
                for key, shape in self.obs_shapes.items()
            }
        return state

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """As in the base class; with ``open_loop`` the observation that the policy goes on seeing is a plan too."""
        state = super().cut_plan(state)
        if not self.algo_config.rnn.open_loop:
            return state
        policy = state["policy"]
        return {**state, "policy": {**policy, "step": torch.zeros_like(policy["step"])}}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        fresh = state["step"] == 0
        keep = (~fresh).view(-1, 1, 1)
        rnn_state = {name: value * keep for name, value in state["rnn"].items()}
        next_state: PolicyState = {"step": (state["step"] + 1) % self.algo_config.rnn.horizon}
        if self.algo_config.rnn.open_loop:
            obs = where_state(fresh, obs, state["obs"])
            next_state["obs"] = obs
        window = {key: value.unsqueeze(1) for key, value in obs.items()}
        features, next_state["rnn"] = self.policy(window, goal, rnn_state)

        def decide(inputs: Inputs) -> Tensor:
            return self._steps(self.policy.head.act(inputs["features"], explore, generator))

        return self._decide(decide, {"features": features[:, 0]}, {**state, **next_state})


class BC_RNN_GMM(BC_RNN):  # noqa: N801
    """Recurrent mixture policy: robomimic's strongest on human demonstrations."""

    def _create_head(self, input_dim: int) -> ActionHead:
        return gmm_head(self.algo_config.gmm, input_dim, self._head_dim)

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        return self._nll_loss(batch)


class BC_VAE(BC):  # noqa: N801
    """Conditional variational autoencoder over actions; acting, latents come from the prior."""

    @property
    def vae_policy(self) -> VAEActor:
        """The network that learns and acts."""
        return cast(VAEActor, self.active_nets["policy"])

    def _create_networks(self) -> None:
        encoder = self._create_encoder()
        vae = VAE.from_config(encoder.output_dim, self._head_dim, self.algo_config.vae)
        self.nets = nn.ModuleDict({"policy": VAEActor(encoder, vae)})

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """As in the base class, at this epoch's Gumbel-softmax temperature where latents are discrete."""
        prior = self.algo_config.vae.prior
        if not prior.use_categorical:
            return super().train_on_batch(batch, epoch, validate)
        temperature = prior.temperature(epoch)
        self.vae_policy.vae.set_gumbel_temperature(temperature)
        info = super().train_on_batch(batch, epoch, validate)
        return {**info, "Gumbel_Temperature": torch.tensor(temperature)}

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        policy = self.vae_policy
        actions, each = batch["actions"], sample_weight(batch)
        flat = actions.flatten(1)
        out = policy.vae(flat, policy.encoder(batch["obs"], batch["goal_obs"]))
        kl = masked_mean(out.kl, each)
        if self._chunk is None:
            reconstruction = masked_mean(out.reconstruction_loss, each)
        else:
            error = (self._steps(out.reconstruction) - actions).square()
            sums = self.algo_config.vae.decoder.reconstruction_sum_across_elements
            reconstruction = masked_mean(
                error.sum(-1) if sums else error.mean(-1), step_weight(batch)
            )
        loss = reconstruction + self.algo_config.vae.kl_weight * kl
        return loss, {"Loss": loss, "Reconstruction_Loss": reconstruction, "KL_Loss": kl}

    def _validation_info(self, batch: Batch) -> Info:
        policy = self.vae_policy
        action = self._steps(policy.vae.act(policy.encoder(batch["obs"], batch["goal_obs"])))
        error = (action - batch["actions"]).abs().mean(-1)
        return {"Action_Error": masked_mean(error, batch.get("pad_mask"))}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        policy = self.vae_policy

        def decide(inputs: Inputs) -> Tensor:
            features = policy.encoder(inputs["obs"], inputs["goal"])
            return self._steps(policy.vae.act(features, generator))

        return self._decide(decide, {"obs": obs, "goal": goal}, state)


def gmm_head(config: GMMConfig, input_dim: int, ac_dim: int) -> GMMHead:
    """The mixture head that ``algo.gmm`` describes."""
    return GMMHead(
        input_dim,
        ac_dim,
        num_modes=config.num_modes,
        min_std=config.min_std,
        std_activation=config.std_activation,
        low_noise_eval=config.low_noise_eval,
    )
