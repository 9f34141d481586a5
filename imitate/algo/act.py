"""ACT: a transformer that predicts action chunks and is trained as a conditional variational autoencoder.

Zhao, Kumar, Levine & Finn, "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", RSS 2023
(arXiv:2304.13705). With a = the demonstrated chunk of K actions, o = the observation, s = its vectors:

    q(z | a, s): encoder over [CLS, s, a_1 .. a_K], read at CLS              -> ChunkPosterior
    decoder: encoder over [z, s, cells of the images], K queries read it     -> ACTNetwork.decode
    loss = | a - decoder(z, o) | + kl_weight KL(q || N(0, I))                -> ACT._loss
    acting: z = 0                                                            -> ACT._predict
    uncertainty: spread of chunks with z ~ N(0, I)                           -> ACT._predict_various
    executing: K actions at once, or ensembling (chunk.temporal_ensemble)    -> ChunkExecution

Departures: padded steps are left out of the mean of the loss, not only of its sum; every layer of the decoder is used
(``decoder_first_layer_only`` restores the published code's mistake); cameras are distinguished by a learned position,
not by being placed side by side; policies may have only vectors as observations; goals are further tokens.
An image becomes one token per cell with ``pool_class`` null, ``feature_dimension`` null and ``flatten`` false, as in
the paper; with other settings it becomes a single token.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.chunk_policy import ChunkPolicy
from imitate.algo.base.factory import register
from imitate.algo.base.sections import ChunkConfig, EMAConfig, UncertaintySamples
from imitate.algo.slots.advantage import CloningSection
from imitate.config import BaseConfig, DataNeeds, Section
from imitate.config.observation import AUTO
from imitate.config.optimizer import Networks, adamw, networks
from imitate.functional.losses import (
    gaussian_kl_to_standard,
    masked_mean,
    sample_weight,
    step_weight,
)
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.attention import sinusoidal_positions
from imitate.models.detr import Activation, Decoder, DETREncoder, ObservationTokens


class ACTTransformerConfig(Section):
    """Transformers: chunk encoder, observation encoder and decoder, which have common widths, heads and dropout."""

    embed_dim: int = Field(
        512, ge=4, description="number of features of a token, a multiple of 4 and of num_heads"
    )
    num_heads: int = Field(8, ge=1, description="number of attention heads")
    feedforward_dim: int = Field(3200, ge=1, description="width of the MLPs")
    encoder_layers: int = Field(4, ge=1, description="number of layers of the observation encoder")
    decoder_layers: int = Field(
        7, ge=1, description="number of layers of the decoder, which has one query per action"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout of attention and of each sublayer")
    pre_norm: bool = Field(False, description="LayerNorm before each sublayer instead of after it")
    activation: Activation = Field("relu", description="activation of the MLPs: relu or gelu")
    decoder_first_layer_only: bool = Field(
        False,
        description="use only the first layer of the decoder, as the published code of ACT does by mistake",
    )


class ACTTokensConfig(Section):
    """Conversion of observations to tokens."""

    separate_vectors: bool = Field(
        False,
        description="one token per vector, as in LeRobot; false: one token for all vectors together",
    )
    shared_maps: bool = Field(
        False,
        description="cameras that share an encoder (option share of the encoder) also share the linear map from "
        "features to tokens",
    )
    camera_positions: bool = Field(
        True,
        description="distinguish cameras by learned positions; false: do not distinguish them, as in LeRobot",
    )


class ACTVAEConfig(Section):
    """The latent variable: the style of a demonstration, if a task can be done in several ways."""

    enabled: bool = Field(True, description="encode demonstrated chunks; false: z is always 0")
    latent_dim: int = Field(32, ge=1, description="size of the latent")
    kl_weight: float = Field(
        10.0, ge=0, description="weight of the KL divergence of the posterior from N(0, 1)"
    )
    encoder_layers: int = Field(4, ge=1, description="number of layers of the chunk encoder")
    posterior_keys: tuple[str, ...] | None = Field(
        None, description="vector observations that the chunk encoder sees; null: all"
    )


class ACTConfig(CloningSection):
    """Options of algorithm ``act``, under ``algo``."""

    tree_defaults = {"train": {"seq_length": 100}}

    optim_params: Networks = networks(policy=adamw(1e-5, weight_decay=1e-4))
    chunk: ChunkConfig = Field(ChunkConfig(enabled=True, size=100, execute=100))
    transformer: ACTTransformerConfig = Field(ACTTransformerConfig())
    tokens: ACTTokensConfig = Field(ACTTokensConfig())
    vae: ACTVAEConfig = Field(ACTVAEConfig())
    ema: EMAConfig = Field(EMAConfig())
    uncertainty_samples: UncertaintySamples = 0

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request images only for the frames up to the first predicted action."""
        return DataNeeds(observed_steps=config.train.frame_stack, outcome=self.advantage.outcome)

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings with which the policy cannot be trained or cannot act."""
        problems = self.chunk.prediction_problems("algo.chunk", config.train.seq_length)
        problems += self.advantage.problems(self, config)
        if self.networks.encoder is not None:
            problems.append(
                "algo.networks.encoder: act reads tokens of observation.encoder, not features: leave it out"
            )
        width, heads = self.transformer.embed_dim, self.transformer.num_heads
        if width % heads or width % 4:
            problems.append(
                f"algo.transformer.embed_dim is {width}: make it a multiple of 4 and of algo.transformer.num_heads "
                f"{heads}"
            )
        modalities = config.observation.modality_of("obs")
        vectors = [key for key, modality in modalities.items() if modality == "low_dim"]
        unknown = [key for key in self.vae.posterior_keys or () if key not in vectors]
        if unknown and AUTO not in vectors:
            problems.append(
                f"algo.vae.posterior_keys names '{unknown[0]}': expected vectors of "
                f"observation.modalities.obs.low_dim ({', '.join(vectors)})"
            )
        return problems


class ChunkPosterior(nn.Module):
    """q(z | a, s): a transformer over the demonstrated chunk.

    Args:
        config: section ``algo``.
        ac_dim: A, action dimensions.
        state_dim: number of features of s; 0 without vectors.
    """

    places: Tensor

    def __init__(self, config: ACTConfig, ac_dim: int, state_dim: int) -> None:
        super().__init__()
        width = config.transformer.embed_dim
        self.summary = nn.Parameter(torch.randn(width))
        self.state = nn.Linear(state_dim, width) if state_dim else None
        self.action = nn.Linear(ac_dim, width)
        self.encoder = _encoder(config.transformer, config.vae.encoder_layers)
        self.latent = nn.Linear(width, 2 * config.vae.latent_dim)
        places = sinusoidal_positions(config.chunk.size + (2 if state_dim else 1), width)
        self.register_buffer("places", places, persistent=False)

    def forward(self, state: Tensor | None, actions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of the latent, ``(B, Z)`` each.

        Args:
            state: (B, D) features of the state, or None.
            actions: (B, K, A).
            mask: (B, K) bool, true for real actions; padded actions are ignored.
        """
        batch = len(actions)
        tokens = [self.summary.expand(batch, 1, -1)]
        if self.state is not None:
            tokens.append(self.state(state).unsqueeze(1))
        seen = torch.cat([mask.new_ones(batch, len(tokens)), mask], dim=1)
        tokens.append(self.action(actions.masked_fill(~mask.unsqueeze(-1), 0.0)))
        mixed = self.encoder(torch.cat(tokens, dim=1), self.places.unsqueeze(0), seen, count=1)
        mean, logvar = self.latent(mixed[:, 0]).chunk(2, dim=-1)
        return mean, logvar


class Reconstruction(NamedTuple):
    """Output of one pass over demonstrated chunks."""

    actions: Tensor
    """(B, K, A) decoded actions."""
    kl: Tensor
    """(B,) KL divergence of q(z | a, s) from N(0, I), summed over the latent dimensions."""


class ACTNetwork(nn.Module):
    """The conditional variational autoencoder.

    Args:
        encoder: encoder of observation and goal.
        config: section ``algo``.
        ac_dim: A, action dimensions.
        frames: number of stacked observations.
    """

    def __init__(
        self, encoder: GroupEncoder, config: ACTConfig, ac_dim: int, frames: int = 1
    ) -> None:
        super().__init__()
        sizes = config.transformer
        width, self.latent_dim = sizes.embed_dim, config.vae.latent_dim
        tokens: dict[str, bool] = {
            "separate_vectors": config.tokens.separate_vectors,
            "shared_maps": config.tokens.shared_maps,
            "learned_camera_positions": config.tokens.camera_positions,
        }
        self.obs = ObservationTokens(encoder.obs, width, frames, **tokens)
        self.goal = None
        if encoder.goal is not None:
            self.goal = ObservationTokens(encoder.goal, width, **tokens)
        seen = config.vae.posterior_keys
        self.posterior_keys = [key for key in self.obs.vectors if seen is None or key in seen]
        state_dim = self.obs.dim_of(self.posterior_keys)
        self.posterior = ChunkPosterior(config, ac_dim, state_dim) if config.vae.enabled else None
        self.latent = nn.Linear(self.latent_dim, width)
        self.latent_place = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.encoder = _encoder(sizes, sizes.encoder_layers)
        self.decoder = Decoder(
            width,
            sizes.decoder_layers,
            sizes.num_heads,
            sizes.feedforward_dim,
            sizes.dropout,
            sizes.pre_norm,
            first_layer_only=sizes.decoder_first_layer_only,
            activation=sizes.activation,
        )
        self.queries = nn.Parameter(torch.randn(config.chunk.size, width))
        self.action = nn.Linear(width, ac_dim)

    def forward(self, obs: Obs, goal: Obs | None, actions: Tensor, mask: Tensor) -> Reconstruction:
        """Encode demonstrated chunks ``(B, K, A)`` and decode a latent sample; ``mask`` (B, K) is false for padding."""
        features = self.obs.features(obs)
        if self.posterior is None:
            z = self._no_style(actions)
            return Reconstruction(self.decode(z, features, goal), z.sum(-1))
        seen = [features[key][:, -1] for key in self.posterior_keys]
        mean, logvar = self.posterior(torch.cat(seen, -1) if seen else None, actions, mask)
        z = mean + (0.5 * logvar).exp() * torch.randn_like(mean)
        kl = gaussian_kl_to_standard(mean.float(), logvar.float())
        return Reconstruction(self.decode(z, features, goal), kl)

    def act(
        self, obs: Obs, goal: Obs | None, style: Callable[[Tensor], Tensor] = torch.zeros_like
    ) -> Tensor:
        """Predict chunks ``(B, K, A)`` of normalized actions.

        Args:
            obs: observations (B, [F,] ...).
            goal: goals, if the policy has goals.
            style: function that makes the latents (B, Z); by default the mean of the prior.
        """
        features = self.obs.features(obs)
        latents = style(self._no_style(next(iter(features.values()))))
        return self.decode(latents, features, goal)

    def decode(self, z: Tensor, features: dict[str, Tensor], goal: Obs | None) -> Tensor:
        """Decode latents ``(B, Z)`` and the features of the observation to chunks ``(B, K, A)``."""
        parts = [(self.latent(z).unsqueeze(1), self.latent_place), self.obs(features)]
        if self.goal is not None:
            parts.append(self.goal(self.goal.features(cast(Obs, goal))))
        tokens, positions = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        memory = self.encoder(tokens, positions)
        return cast(Tensor, self.action(self.decoder(self.queries, memory, positions)))

    def _no_style(self, like: Tensor) -> Tensor:
        return like.new_zeros(len(like), self.latent_dim)


@register("act", ACTConfig)
class ACT(ChunkPolicy[ACTConfig]):
    """Action chunking with transformers."""

    recordable = True

    @property
    def policy(self) -> ACTNetwork:
        """The network that learns and acts."""
        return cast(ACTNetwork, self.active_nets["policy"])

    def _create_networks(self) -> None:
        encoder = self._create_encoder(frames=1)
        policy = ACTNetwork(encoder, self.config, self.ac_dim, self.frame_stack)
        self.nets = nn.ModuleDict({"policy": policy})

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions, mask = batch["actions"], batch["pad_mask"]
        if mask is None:
            mask = torch.ones_like(actions[..., 0], dtype=torch.bool)
        with self.autocast():
            made = self.policy(batch["obs"], batch["goal_obs"], actions, mask)
        error = (made.actions.float() - actions).abs().mean(-1)
        l1 = masked_mean(error, step_weight({**batch, "pad_mask": mask}))
        kl = masked_mean(made.kl, sample_weight(batch))
        loss = l1 + self.config.vae.kl_weight * kl
        return loss, {"Loss": loss, "L1_Loss": l1, "KL_Loss": kl}

    def _predict(self, obs: Batch, goal: Batch | None, generator: torch.Generator | None) -> Tensor:
        return self.policy.act(obs, goal)

    def _predict_various(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None
    ) -> Tensor:
        """Predict several chunks: the first, which is executed, from the prior's mean, the others from its samples."""

        def style(zeros: Tensor) -> Tensor:
            drawn = zeros.normal_(generator=generator)
            drawn[: len(drawn) // self._samples] = 0.0
            return drawn

        return self.policy.act(obs, goal, style)


def _encoder(sizes: ACTTransformerConfig, num_layers: int) -> DETREncoder:
    return DETREncoder(
        sizes.embed_dim,
        num_layers,
        sizes.num_heads,
        sizes.feedforward_dim,
        sizes.dropout,
        sizes.pre_norm,
        sizes.activation,
    )
