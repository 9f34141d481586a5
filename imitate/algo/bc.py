"""Behavior cloning: supervised learning of actions from demonstrations.

Variants and losses as studied by Mandlekar et al., "What Matters in Learning from Offline Human Demonstrations for
Robot Manipulation", CoRL 2021 (arXiv:2108.03298). With a = the demonstrated action and f = the network:

    BC           l2 |f(s) - a|^2 + l1 smooth_l1(f(s), a) + cos (1 - cos(f(s), a))        -> BC._loss
    BC_Gaussian  -log N(a; mean(s), std(s))                                              -> BC._nll_loss
    BC_GMM       -log sum_k w_k(s) N(a; mean_k(s), std_k(s))                             -> BC._nll_loss
    BC_VAE       |decode(z, s) - a|^2 + kl_weight KL(q(z|a, s) || p(z|s)), z ~ q         -> BC_VAE._loss
    BC_RNN       BC at every step of a window, with an LSTM or GRU over the window       -> BC._loss
    BC_RNN_GMM   the mixture at every step of a window                                   -> BC._nll_loss

Departures from robomimic: padded steps are left out of the loss where the batch has a ``pad_mask``; the validation
loss of stochastic policies uses the learned noise, not the low one of acting, which made it meaningless; several
stacked frames are all seen by the network, not only the oldest.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.algo import (
    Algo,
    Batch,
    Info,
    PolicyState,
    PolicyStep,
    register_algo_factory_func,
    where_state,
)
from imitate.config import OpenSection, OptimizerConfig, Section
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

LayerDims = tuple[int, ...]


class OptimParams(Section):
    """Optimizers by network."""

    policy: OptimizerConfig = Field(OptimizerConfig())


class LossConfig(Section):
    """Weights of the regression losses."""

    l2_weight: float = Field(1.0, ge=0, description="weight of the squared error")
    l1_weight: float = Field(0.0, ge=0, description="weight of the smooth L1 error")
    cos_weight: float = Field(0.0, ge=0, description="weight of 1 - cosine of the first 3 dims")


class GaussianConfig(Section):
    """Diagonal Gaussian policy."""

    enabled: bool = Field(False, description="predict a diagonal Gaussian")
    fixed_std: bool = Field(False, description="one learned standard deviation for all states")
    init_std: float = Field(0.1, gt=0, description="standard deviation at the start of training")
    min_std: float = Field(0.01, gt=0, description="floor of the standard deviation")
    std_activation: Literal["softplus", "exp"] = Field("softplus", description="raw to std")
    low_noise_eval: bool = Field(True, description="act with std 1e-4 in evaluation")


class GMMConfig(Section):
    """Mixture of Gaussians policy."""

    enabled: bool = Field(False, description="predict a mixture of diagonal Gaussians")
    num_modes: int = Field(5, ge=1, description="modes of the mixture")
    min_std: float = Field(1e-4, gt=0, description="floor of the standard deviation")
    std_activation: Literal["softplus", "exp"] = Field("softplus", description="raw to std")
    low_noise_eval: bool = Field(True, description="act with std 1e-4 in evaluation")


class VAEDecoderConfig(Section):
    """Decoder of the VAE."""

    is_conditioned: bool = Field(True, description="the decoder sees the observation")
    reconstruction_sum_across_elements: bool = Field(
        False, description="sum the squared error over action dims rather than average it"
    )


class VAEPriorConfig(Section):
    """Prior of the VAE: standard normal unless one of these is set."""

    learn: bool = Field(False, description="learn the prior; else it is fixed")
    is_conditioned: bool = Field(False, description="the learned prior depends on the observation")
    use_gmm: bool = Field(False, description="prior is a mixture of Gaussians")
    gmm_num_modes: int = Field(10, ge=1, description="modes of the mixture prior")
    gmm_learn_weights: bool = Field(False, description="learn the mixture's weights too")
    use_categorical: bool = Field(False, description="discrete latents by Gumbel-softmax")
    categorical_dim: int = Field(10, ge=2, description="classes of each discrete latent")
    categorical_gumbel_softmax_hard: bool = Field(False, description="straight-through one-hot")
    categorical_init_temp: float = Field(1.0, gt=0, description="temperature at the start")
    categorical_temp_anneal_step: float = Field(0.001, ge=0, description="decrease per epoch")
    categorical_min_temp: float = Field(0.3, gt=0, description="floor of the temperature")


class VAEConfig(Section):
    """Conditional variational autoencoder."""

    enabled: bool = Field(False, description="conditional variational autoencoder over actions")
    latent_dim: int = Field(14, ge=1, description="size of the latent (twice the action is usual)")
    latent_clip: float | None = Field(None, description="clip prior samples to +- this")
    kl_weight: float = Field(1.0, ge=0, description="weight of the KL term")
    decoder: VAEDecoderConfig = Field(VAEDecoderConfig())
    prior: VAEPriorConfig = Field(VAEPriorConfig())
    encoder_layer_dims: LayerDims = Field((300, 400), description="hidden layers of the encoder")
    decoder_layer_dims: LayerDims = Field((300, 400), description="hidden layers of the decoder")
    prior_layer_dims: LayerDims = Field((300, 400), description="hidden layers of the prior")


class RNNConfig(Section):
    """Recurrent policy."""

    enabled: bool = Field(False, description="recurrent policy")
    horizon: int = Field(10, ge=1, description="steps after which the state is zeroed when acting")
    hidden_dim: int = Field(400, ge=1, description="size of the hidden state")
    rnn_type: Literal["LSTM", "GRU"] = Field("LSTM", description="kind of cell")
    num_layers: int = Field(2, ge=1, description="stacked layers")
    open_loop: bool = Field(False, description="see only the first observation of each horizon")
    kwargs: OpenSection = Field(
        OpenSection.model_validate({"bidirectional": False}),
        description="further arguments of the network",
    )


class TransformerConfig(Section):
    """Transformer policy: read, so that files of robomimic load, but not available yet."""

    enabled: bool = Field(False, description="transformer policy; not available for bc yet")
    context_length: int = Field(10, ge=1, description="steps that the policy sees")
    embed_dim: int = Field(512, ge=1, description="width")
    num_layers: int = Field(6, ge=1, description="blocks")
    num_heads: int = Field(8, ge=1, description="attention heads")
    emb_dropout: float = Field(0.1, ge=0, lt=1, description="dropout of the inputs")
    attn_dropout: float = Field(0.1, ge=0, lt=1, description="dropout of the attention")
    block_output_dropout: float = Field(0.1, ge=0, lt=1, description="dropout of each block")
    sinusoidal_embedding: bool = Field(False, description="fixed positions")
    activation: Literal["gelu", "geglu"] = Field("gelu", description="of the blocks' hidden layer")
    supervise_all_steps: bool = Field(False, description="loss at every step of the window")
    nn_parameter_for_timesteps: bool = Field(True, description="learned positions")
    pred_future_acs: bool = Field(False, description="predict the actions that follow")


class BCConfig(Section):
    """Section ``algo`` of algorithm ``bc``; at most one of gaussian, gmm and vae is enabled."""

    optim_params: OptimParams = Field(OptimParams())
    loss: LossConfig = Field(LossConfig())
    actor_layer_dims: LayerDims = Field((1024, 1024), description="hidden layers, ReLU after each")
    gaussian: GaussianConfig = Field(GaussianConfig())
    gmm: GMMConfig = Field(GMMConfig())
    vae: VAEConfig = Field(VAEConfig())
    rnn: RNNConfig = Field(RNNConfig())
    transformer: TransformerConfig = Field(TransformerConfig())

    def conflicts(self, config: Any) -> list[str]:
        """Combinations that cannot be trained or cannot act."""
        train = config.train
        problems: list[str] = []
        if not (self.loss.l2_weight or self.loss.l1_weight or self.loss.cos_weight):
            problems.append(
                "algo.loss: all weights are 0, so nothing would be learned: set l2_weight to 1"
            )
        if self.rnn.enabled and train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {train.frame_stack}, but a recurrent policy remembers by itself: set it to 1"
            )
        if self.rnn.enabled and train.seq_length == 1 < self.rnn.horizon:
            problems.append(
                f"train.seq_length is 1, so a recurrent policy would learn from single steps and then act for "
                f"algo.rnn.horizon {self.rnn.horizon} steps: set train.seq_length to {self.rnn.horizon}"
            )
        if self.rnn.enabled and self.rnn.kwargs.get("bidirectional"):
            problems.append(
                "algo.rnn.kwargs.bidirectional is true, but a policy that acts cannot see the future: set it to false"
            )
        return problems


@register_algo_factory_func("bc", section=BCConfig)
def algo_config_to_class(algo_config: BCConfig) -> tuple[type[Algo], dict[str, Any]]:
    """The class that the enabled parts of the section mean."""
    if algo_config.transformer.enabled:
        raise ConfigError(
            "algo.transformer.enabled: transformer policies are not available yet; use algo.rnn with algo.gmm"
        )
    parts = [p for p in ("gaussian", "gmm", "vae", "rnn") if algo_config[p].enabled]
    classes: dict[tuple[str, ...], type[Algo]] = {
        (): BC,
        ("gaussian",): BC_Gaussian,
        ("gmm",): BC_GMM,
        ("vae",): BC_VAE,
        ("rnn",): BC_RNN,
        ("gmm", "rnn"): BC_RNN_GMM,
    }
    if tuple(parts) not in classes:
        enabled = " and ".join(f"algo.{p}.enabled" for p in parts)
        raise ConfigError(f"{enabled} do not go together; enable one of them, or gmm with rnn")
    return classes[tuple(parts)], {}


class BC(Algo):
    """Deterministic policy, regression loss."""

    @property
    def policy(self) -> Actor:
        """The network that learns and acts."""
        return cast(Actor, self.nets["policy"])

    def _create_networks(self) -> None:
        encoder = self._create_encoder()
        rnn = self._create_rnn(encoder.output_dim)
        mlp = MLP(rnn.output_dim if rnn else encoder.output_dim, self.algo_config.actor_layer_dims)
        head = self._create_head(mlp.output_dim)
        self.nets = nn.ModuleDict({"policy": Actor(encoder, rnn, mlp, head)})

    def _create_rnn(self, input_dim: int) -> RNN | None:
        return None

    def _create_head(self, input_dim: int) -> ActionHead:
        return DeterministicHead(input_dim, self.ac_dim)

    def _select_batch(self, batch: Batch) -> Batch:
        """The first window of frames, and the action at its last frame."""
        last = self.frame_stack - 1
        steps = slice(0, self.frame_stack) if self.frame_stack > 1 else 0
        return {
            "obs": {key: value[:, steps] for key, value in batch["obs"].items()},
            "goal_obs": batch.get("goal_obs"),
            "actions": batch["actions"][:, last],
        }

    def _features(self, batch: Batch) -> Tensor:
        """What the head sees, float32."""
        features: Tensor
        with self.autocast():
            features, _ = self.policy(batch["obs"], batch["goal_obs"])
        return features.float()

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions, mask = batch["actions"], batch.get("pad_mask")
        predicted = self.policy.head(self._features(batch)).mean
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
        """Mean absolute error of the action that the policy would take, normalized units."""
        error = (self.policy.head.act(self._features(batch)) - batch["actions"]).abs().mean(-1)
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
        features, _ = self.policy(obs, goal)
        return PolicyStep(self.policy.head.act(features, explore, generator), state, {})

    def _nll_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Mean negative log-likelihood of the demonstrated actions, padded steps left out."""
        log_prob = self.policy.head(self._features(batch)).log_prob(batch["actions"])
        mean = masked_mean(log_prob, batch.get("pad_mask"))
        return -mean, {"Loss": -mean, "Log_Likelihood": mean}


class BC_Gaussian(BC):  # noqa: N801 - the name users know
    """Diagonal Gaussian policy."""

    def _create_head(self, input_dim: int) -> ActionHead:
        config = self.algo_config.gaussian
        return GaussianHead(
            input_dim,
            self.ac_dim,
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
        return gmm_head(self.algo_config.gmm, input_dim, self.ac_dim)

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
        return {
            "obs": obs,
            "goal_obs": batch.get("goal_obs"),
            "actions": batch["actions"],
            "pad_mask": batch.get("pad_mask"),
        }

    def _initial_policy_state(self, batch_size: int) -> PolicyState:
        state: PolicyState = {
            "rnn": self.rnn.initial_state(batch_size),
            "step": torch.zeros(batch_size, dtype=torch.long, device=self.device),
        }
        if self.algo_config.rnn.open_loop:
            state["obs"] = {
                key: torch.zeros(batch_size, *shape, device=self.device)
                for key, shape in self.obs_shapes.items()
            }
        return state

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
        return PolicyStep(self.policy.head.act(features[:, 0], explore, generator), next_state, {})


class BC_RNN_GMM(BC_RNN):  # noqa: N801
    """Recurrent mixture policy: robomimic's strongest on human demonstrations."""

    def _create_head(self, input_dim: int) -> ActionHead:
        return gmm_head(self.algo_config.gmm, input_dim, self.ac_dim)

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        return self._nll_loss(batch)


class BC_VAE(BC):  # noqa: N801
    """Conditional variational autoencoder over actions; acting, latents come from the prior."""

    @property
    def vae_policy(self) -> VAEActor:
        """The network that learns and acts."""
        return cast(VAEActor, self.nets["policy"])

    def _create_networks(self) -> None:
        encoder = self._create_encoder()
        vae = VAE.from_config(encoder.output_dim, self.ac_dim, self.algo_config.vae)
        self.nets = nn.ModuleDict({"policy": VAEActor(encoder, vae)})

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """As in the base class, at this epoch's Gumbel-softmax temperature where latents are discrete."""
        prior = self.algo_config.vae.prior
        if not prior.use_categorical:
            return super().train_on_batch(batch, epoch, validate)
        temperature = prior.categorical_init_temp - epoch * prior.categorical_temp_anneal_step
        temperature = max(temperature, prior.categorical_min_temp)
        self.vae_policy.vae.set_gumbel_temperature(temperature)
        info = super().train_on_batch(batch, epoch, validate)
        return {**info, "Gumbel_Temperature": torch.tensor(temperature)}

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        policy = self.vae_policy
        out = policy.vae(batch["actions"], policy.encoder(batch["obs"], batch["goal_obs"]))
        reconstruction, kl = out.reconstruction_loss.mean(), out.kl.mean()
        loss = reconstruction + self.algo_config.vae.kl_weight * kl
        return loss, {"Loss": loss, "Reconstruction_Loss": reconstruction, "KL_Loss": kl}

    def _validation_info(self, batch: Batch) -> Info:
        action = self._act(batch["obs"], {}, batch["goal_obs"], explore=False, generator=None)
        return {"Action_Error": (action.action - batch["actions"]).abs().mean()}

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
        action = policy.vae.act(policy.encoder(obs, goal), generator)
        return PolicyStep(action, state, {})


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
