"""VQ-BeT: a transformer chooses codes of action chunks, and an offset is added to the decoded chunk.

Lee, Wang, Etukuru, Kim, Shafiullah & Pinto, "Behavior Generation with Latent Actions", ICML 2024 (arXiv:2403.03181).
With a = the demonstrated chunk, phi and psi = encoder and decoder of the autoencoder, c_1 .. c_L = the codes of phi(a),
layer by layer, e(c) = the sum of their vectors, o = the last observations:

    stage 1, the first ``vq.pretrain_epochs`` epochs, trains the autoencoder -> VQBeT._autoencoder_loss
        | a - psi(e(c)) | + commitment_weight | phi(a) - sg[e(c)] |^2; codes are moving averages (ResidualVQ)
    stage 2, the other epochs, trains the policy; the autoencoder is frozen  -> VQBeT._loss
        focal(c_1 | o) + secondary_code_weight sum_l focal(c_l | o, c_<l)
        + offset_weight | a - psi(e(c)) - offset(o, c) |
    acting: draw c_1, then c_2 given c_1, ...; psi(e(c)) + offset(o, c)      -> VQBeT._predict

The stage depends only on the epoch, so a resumed run continues in the right stage. Each stage has its own learning-rate
schedule, which ends with the stage.

Departures from the published code: the code of a layer is drawn given the codes of previous layers (an option in the
published code), since independently drawn codes mix different ways of solving a task; the offset is learned for the
codes of the demonstration, as in BeT, not for drawn codes, whose offset would point from one way of solving the task to
another; the offset is the output of a network that sees the codes, not one output per code; padded actions are replaced
by the last real action and left out of the losses; one chunk is predicted, from the newest observation. The weights of
the losses are divided by the weight of the first code.
"""

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.chunk_policy import ChunkPolicy
from imitate.algo.base.factory import register
from imitate.algo.base.sections import ChunkConfig, EMAConfig, LayerDims
from imitate.config import AlgoSection, BaseConfig, DataNeeds, Section
from imitate.config.optimizer import Networks, adamw, networks
from imitate.functional.losses import focal_loss, masked_mean, sample_weight, step_weight
from imitate.functional.sampling import draw_class
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.mlp import MLP
from imitate.models.transformer import CausalTransformer
from imitate.models.vq import ChunkAutoencoder


class VQConfig(Section):
    """Autoencoder of chunks, and its codes."""

    pretrain_epochs: int = Field(
        10,
        ge=1,
        description="number of first epochs, in which only the autoencoder is trained; later epochs train the policy",
    )
    num_layers: int = Field(2, ge=1, description="number of codes per chunk")
    num_codes: int = Field(16, ge=2, description="number of possible codes per layer")
    latent_dim: int = Field(512, ge=1, description="size of a code's vector")
    hidden_dims: LayerDims = Field(
        (128, 128), description="widths of the hidden layers of encoder and decoder"
    )
    decay: float = Field(
        0.95, ge=0, lt=1, description="decay of the moving averages that define the codes"
    )
    commitment_weight: float = Field(
        1.0, ge=0, description="weight of the distance between encoded chunks and their codes"
    )


class VQBeTTransformerConfig(Section):
    """Transformer over the last observations."""

    embed_dim: int = Field(
        512, ge=1, description="number of features of a token, a multiple of num_heads"
    )
    num_layers: int = Field(8, ge=1, description="number of blocks")
    num_heads: int = Field(8, ge=1, description="number of attention heads")
    dropout: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="dropout of embedded inputs, of attention weights and after each sublayer",
    )


class VQBeTConfig(AlgoSection):
    """Options of algorithm ``vq_bet``, under ``algo``."""

    tree_defaults = {"train": {"frame_stack": 5, "seq_length": 5}}

    optim_params: Networks = networks(
        "VQBeTOptimParams",
        autoencoder=adamw(1e-3, weight_decay=1e-4),
        policy=adamw(1e-4, weight_decay=1e-6, scheduler_type="cosine", warmup_steps=500),
    )
    chunk: ChunkConfig = Field(ChunkConfig(enabled=True, size=5, execute=5))
    vq: VQConfig = Field(VQConfig())
    transformer: VQBeTTransformerConfig = Field(VQBeTTransformerConfig())
    focal_gamma: float = Field(
        2.0,
        ge=0,
        description="gamma of the focal loss, which lowers the weight of codes that are predicted well; 0: equal "
        "weights",
    )
    secondary_code_weight: float = Field(
        0.1,
        ge=0,
        description="weight of the loss of all codes after the first code, which has weight 1",
    )
    offset_weight: float = Field(
        20.0, ge=0, description="weight of the error of the predicted offset"
    )
    temperature: float = Field(
        0.5,
        ge=0,
        description="temperature of drawing codes: below 1 likely codes are drawn more often, "
        "which compensates for the focal loss; 0: the most likely code",
    )
    ema: EMAConfig = Field(EMAConfig())

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request images only for the frames up to the first predicted action."""
        return DataNeeds(observed_steps=config.train.frame_stack)

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings with which the policy cannot be trained or cannot act."""
        problems = self.chunk.prediction_problems("algo.chunk", config.train.seq_length)
        epochs = config.train.num_epochs
        if epochs is not None and epochs <= self.vq.pretrain_epochs:
            problems.append(
                f"train.num_epochs is {config.train.num_epochs}, of which algo.vq.pretrain_epochs "
                f"{self.vq.pretrain_epochs} leave none for the policy: raise the first or lower the second"
            )
        stopping, rollout = config.experiment.early_stopping, config.experiment.rollout
        patience = stopping.patience * (rollout.rate if stopping.metric == "success_rate" else 1)
        if stopping.enabled and patience <= self.vq.pretrain_epochs:
            problems.append(
                f"experiment.early_stopping.patience {stopping.patience} would end the run while the policy waits for "
                f"algo.vq.pretrain_epochs {self.vq.pretrain_epochs}: raise it"
            )
        if self.transformer.embed_dim % self.transformer.num_heads:
            problems.append(
                f"algo.transformer.embed_dim is {self.transformer.embed_dim}, which algo.transformer.num_heads "
                f"{self.transformer.num_heads} does not divide: make it a multiple"
            )
        return problems


class CodePolicy(nn.Module):
    """Network that predicts codes and an offset from observations.

    Args:
        encoder: encoder of one observation, and the goal.
        config: section ``algo``.
        ac_dim: A, action dimensions.
        frames: F, number of observations that the policy sees.
    """

    def __init__(
        self, encoder: GroupEncoder, config: VQBeTConfig, ac_dim: int, frames: int = 1
    ) -> None:
        super().__init__()
        sizes, width = config.transformer, config.transformer.embed_dim
        self.frames = frames
        self.num_codes = config.vq.num_codes
        self.chunk_shape = (config.chunk.size, ac_dim)
        self.encoder = encoder
        self.transformer = CausalTransformer(
            encoder.output_dim,
            embed_dim=width,
            num_layers=sizes.num_layers,
            num_heads=sizes.num_heads,
            context_length=frames,
            emb_dropout=sizes.dropout,
            attn_dropout=sizes.dropout,
            block_output_dropout=sizes.dropout,
        )

        def head(layers_known: int, size: int) -> nn.Sequential:
            known = layers_known * self.num_codes
            return nn.Sequential(MLP(width + known, (width,)), nn.Linear(width, size))

        num_layers = config.vq.num_layers
        self.codes = nn.ModuleList(head(layer, self.num_codes) for layer in range(num_layers))
        self.offset = head(num_layers, config.chunk.size * ac_dim)

    def features(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Return features ``(B, E)`` of the newest of the observations ``(B, [F,] ...)``, given the earlier ones."""
        encoded: Tensor = self.encoder(obs, goal)
        if self.frames == 1:
            encoded = encoded.unsqueeze(1)
        mixed: Tensor = self.transformer(encoded)
        return mixed[:, -1]

    def forward(self, obs: Obs, goal: Obs | None, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``(B, L, C)`` of each layer given the codes ``(B, L)`` before it, and offsets ``(B, K, A)``."""
        features = self.features(obs, goal)
        logits = [head(self._joined(features, codes[:, :i])) for i, head in enumerate(self.codes)]
        return torch.stack(logits, dim=1), self.offset_of(features, codes)

    def draw(
        self, features: Tensor, temperature: float, generator: torch.Generator | None
    ) -> Tensor:
        """Draw codes ``(B, L)``, layer by layer; temperature 0 takes the most likely ones."""
        codes = features.new_zeros(len(features), 0, dtype=torch.long)
        for head in self.codes:
            logits = head(self._joined(features, codes)).float()
            greedy = temperature == 0
            code = logits.argmax(-1) if greedy else draw_class(logits / temperature, generator)
            codes = torch.cat([codes, code.unsqueeze(1)], dim=1)
        return codes

    def offset_of(self, features: Tensor, codes: Tensor) -> Tensor:
        """Return the offset ``(B, K, A)`` from the decoded chunk of these codes."""
        offset: Tensor = self.offset(self._joined(features, codes))
        return offset.view(-1, *self.chunk_shape)

    def _joined(self, features: Tensor, codes: Tensor) -> Tensor:
        known = nn.functional.one_hot(codes, self.num_codes).flatten(1)
        return torch.cat([features, known.to(features.dtype)], dim=-1)


@register("vq_bet", VQBeTConfig)
class VQBeT(ChunkPolicy[VQBeTConfig]):
    """Vector-quantized behavior transformer."""

    acting_nets = ("autoencoder",)
    # padding repeats the last action, which would be wrong for differences between actions
    learns_deltas = False

    @property
    def policy(self) -> CodePolicy:
        """The network that chooses codes."""
        return cast(CodePolicy, self.active_nets["policy"])

    @property
    def autoencoder(self) -> ChunkAutoencoder:
        """The network that encodes chunks as codes; its weights are never averaged, since it is frozen in stage 2."""
        return cast(ChunkAutoencoder, self.nets["autoencoder"])

    def _create_networks(self) -> None:
        config, vq = self.config, self.config.vq
        autoencoder = ChunkAutoencoder(
            self.ac_dim,
            self.prediction_horizon,
            latent_dim=vq.latent_dim,
            hidden_dims=vq.hidden_dims,
            num_codes=vq.num_codes,
            num_layers=vq.num_layers,
            decay=vq.decay,
        )
        encoder = self._create_encoder(frames=1)
        policy = CodePolicy(encoder, config, self.ac_dim, self.frame_stack)
        self.nets = nn.ModuleDict({"autoencoder": autoencoder, "policy": policy})

    def _epochs_of(self, name: str) -> int:
        """Return the number of epochs of the network's stage."""
        pretrain: int = self.config.vq.pretrain_epochs
        return pretrain if name == "autoencoder" else super()._epochs_of(name) - pretrain

    def _select_batch(self, batch: Batch) -> Batch:
        """Select chunks; padded steps repeat the last real action, so that their content does not matter."""
        selected = super()._select_batch(batch)
        selected["actions"] = hold_last(selected["actions"], selected["pad_mask"])
        return selected

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Update the autoencoder in stage 1, and the policy in stage 2; the epoch determines the stage.

        Validation always measures the policy, so that its losses are comparable.
        """
        if validate or epoch > self.config.vq.pretrain_epochs:
            return super().train_on_batch(batch, epoch, validate)
        loss, info = self._autoencoder_loss(batch, learn=True)
        info["Autoencoder_Grad_Norms"] = self._gradient_step("autoencoder", loss)
        share = self.optimization.share_weights
        if share is not None:
            # each process has updated the codes with its own part of the batch, so all take those of rank 0
            share(self.autoencoder.quantizer)
        return {name: value.detach() for name, value in info.items()}

    def _autoencoder_loss(self, batch: Batch, learn: bool) -> tuple[Tensor, Info]:
        """Return the loss of reconstruction and commitment; with ``learn`` the codes are updated too."""
        made, quantized = self.autoencoder(batch["actions"], learn)
        error = (made - batch["actions"]).abs().mean(-1)
        reconstruction = masked_mean(error, step_weight(batch))
        commitment = quantized.commitment.mean()
        loss = reconstruction + self.config.vq.commitment_weight * commitment
        return loss, {
            "Loss": loss,
            "Reconstruction_Loss": reconstruction,
            "Commitment_Loss": commitment,
        }

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config = self.config
        with torch.no_grad():
            codes = self.autoencoder.encode(batch["actions"])
            missing = batch["actions"] - self.autoencoder.decode(codes)
        with self.autocast():
            logits, offset = self.policy(batch["obs"], batch["goal_obs"], codes)
        focal = focal_loss(logits.float(), codes, config.focal_gamma)
        each = sample_weight(batch)
        focal = focal.mean(0) if each is None else each @ focal / each.sum().clamp(min=1e-12)
        error = (offset.float() - missing).abs().mean(-1)
        offset_loss = masked_mean(error, step_weight(batch))
        code_loss = focal[0] + config.secondary_code_weight * focal[1:].sum()
        loss = code_loss + config.offset_weight * offset_loss
        right = (logits.argmax(-1) == codes).float().mean(0)
        return loss, {
            "Loss": loss,
            "Code_Loss": code_loss,
            "Offset_Loss": offset_loss,
            "Code_Accuracy": right[0],
        }

    def _validation_info(self, batch: Batch) -> Info:
        """Reconstruction error of the codes, and the error of the predicted chunks."""
        _, info = self._autoencoder_loss(batch, learn=False)
        reconstruction = info["Reconstruction_Loss"]
        return {**super()._validation_info(batch), "Reconstruction_Loss": reconstruction}

    def _predict(self, obs: Batch, goal: Batch | None, generator: torch.Generator | None) -> Tensor:
        policy = self.policy
        features = policy.features(obs, goal)
        codes = policy.draw(features, self.config.temperature, generator)
        return self.autoencoder.decode(codes) + policy.offset_of(features, codes)


def hold_last(actions: Tensor, mask: Tensor | None) -> Tensor:
    """Replace padded actions of ``(B, K, A)``, where the mask (B, K) is false, by the last real action."""
    if mask is None:
        return actions
    steps = torch.arange(actions.shape[1], device=actions.device)
    last = torch.where(mask.bool(), steps, 0).cummax(dim=1).values
    return actions.gather(1, last.unsqueeze(-1).expand_as(actions))
