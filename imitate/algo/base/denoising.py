"""Networks of diffusion and flow policies, their sections of the configuration, and denoising that can be exported.

An exporter traces one run of Python code, which unrolls loops, so that a model of a diffusion policy would grow with
its steps. Therefore the loop over all steps is traced as one empty operator, and a single step is traced separately;
:mod:`imitate.deploy.bundle.exporting` replaces the operator by ONNX's ``Loop`` around the step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from imitate.algo.base.algo import Algo
from imitate.algo.base.execution import ChunkExecution
from imitate.algo.base.sections import EMAConfig, UncertaintySamples, execution_problems
from imitate.algo.slots.advantage import CloningSection
from imitate.config import BaseConfig, DataNeeds, Section
from imitate.config.optimizer import Networks, adam, networks
from imitate.functional.diffusion import Sampler, predicted_data, predicted_noise
from imitate.models.actor import GroupEncoder
from imitate.models.denoiser import AtSteps, Denoiser
from imitate.models.denoising_networks import DenoisingMLP, DiffusionTransformer
from imitate.models.unet import ConditionalUnet1D

NETWORKS = ("unet", "transformer", "mlp")


class HorizonConfig(Section):
    """Numbers of observed steps, predicted actions and executed actions (Chi et al., RSS 2023: To, Tp, Ta)."""

    observation_horizon: int = Field(
        2,
        ge=1,
        description="number of observations that the policy sees; equal to train.frame_stack",
    )
    action_horizon: int = Field(
        8, ge=1, description="number of actions executed before the next prediction"
    )
    prediction_horizon: int = Field(
        16, ge=1, description="number of actions predicted, beginning at the oldest observation"
    )
    temporal_ensemble: float | None = Field(
        None,
        description="m of temporal ensembling: overlapping chunks are averaged with weights "
        "exp(-m i), i = 0 for the oldest; needs action_horizon 1; null: off",
    )
    latency: int = Field(
        0,
        ge=0,
        description="control steps that pass during a prediction; as many actions at the start of each new chunk are "
        "skipped",
    )

    @property
    def execution(self) -> ChunkExecution:
        """Execution of the actions from the newest observation on."""
        size = self.prediction_horizon - self.observation_horizon + 1
        return ChunkExecution(size, self.action_horizon, self.temporal_ensemble, self.latency)

    def problems(self, path: str, frame_stack: int, seq_length: int) -> list[str]:
        """Return messages about settings of training and execution; ``path`` is the dotted key of this section."""
        problems = execution_problems(
            self.prediction_horizon - self.observation_horizon + 1,
            self.action_horizon,
            self.temporal_ensemble,
            self.latency,
            path,
        )
        if frame_stack != self.observation_horizon:
            problems.append(
                f"train.frame_stack is {frame_stack}, but {path}.observation_horizon is {self.observation_horizon}: "
                "set both to the same number"
            )
        if frame_stack - 1 + seq_length < self.prediction_horizon:
            problems.append(
                f"train.seq_length is {seq_length}, too short for {path}.prediction_horizon "
                f"{self.prediction_horizon}: set it to {self.prediction_horizon}"
            )
        return problems


class UNetConfig(Section):
    """Convolutional network (U-Net) over time."""

    enabled: bool = Field(
        False,
        description="denoise with a one-dimensional U-Net; enable exactly one of unet, transformer and mlp",
    )
    diffusion_step_embed_dim: int = Field(
        256, ge=4, description="number of features that encode the denoising step"
    )
    down_dims: tuple[PositiveInt, ...] = Field(
        (256, 512, 1024), description="number of channels of each level"
    )
    kernel_size: int = Field(5, ge=1, description="kernel size of the convolutions, odd")
    n_groups: int = Field(8, ge=1, description="number of groups of each group normalization")
    cond_predict_scale: bool = Field(
        True,
        description="the observation scales and shifts the U-Net's channels; false: it only shifts them",
    )


class DenoisingTransformerConfig(Section):
    """Transformer over the actions of a chunk, with attention to the observations."""

    enabled: bool = Field(False, description="denoise with a transformer")
    embed_dim: int = Field(256, ge=1, description="number of features of a token")
    num_layers: int = Field(8, ge=1, description="number of layers of the decoder")
    num_heads: int = Field(4, ge=1, description="number of attention heads")
    emb_dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout of the embedded actions and observations"
    )
    attn_dropout: float = Field(0.3, ge=0, lt=1, description="dropout inside the layers")
    causal: bool = Field(True, description="an action attends only to earlier actions")


class DenoisingMLPConfig(Section):
    """MLP over the flattened chunk."""

    enabled: bool = Field(False, description="denoise with an MLP over the flattened chunk")
    hidden_dim: int = Field(512, ge=1, description="width of the hidden layers")
    num_blocks: int = Field(3, ge=1, description="number of residual blocks of two layers")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout inside the blocks")


class PrefixConfig(Section):
    """Training-time real-time chunking, Black et al. 2025, arXiv:2512.05964."""

    max_delay: int = Field(
        0,
        ge=0,
        description="D: each training sample is given the first 0 to D actions of its chunk, so "
        "that the policy can continue actions that are executed while it predicts; 0: off",
    )


class DenoisingConfig(CloningSection):
    """Base class of the options of policies that denoise chunks, with one of three networks."""

    tree_defaults = {"train": {"frame_stack": 2, "seq_length": 16}}

    optim_params: Networks = networks(policy=adam(1e-4))
    horizon: HorizonConfig = Field(HorizonConfig())
    unet: UNetConfig = Field(UNetConfig())
    transformer: DenoisingTransformerConfig = Field(DenoisingTransformerConfig())
    mlp: DenoisingMLPConfig = Field(DenoisingMLPConfig())
    ema: EMAConfig = Field(EMAConfig(enabled=True))
    prefix: PrefixConfig = Field(PrefixConfig())
    uncertainty_samples: UncertaintySamples = 0

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request images only for the frames up to the first predicted action."""
        return DataNeeds(
            observed_steps=self.horizon.observation_horizon, outcome=self.advantage.outcome
        )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings with which the policy cannot be trained or cannot act."""
        train = config.train
        problems = self.horizon.problems("algo.horizon", train.frame_stack, train.seq_length)
        problems += self.advantage.problems(self, config)
        free = self.horizon.execution.size - 1
        if self.prefix.max_delay > free:
            problems.append(
                f"algo.prefix.max_delay is {self.prefix.max_delay}, but a chunk has {free + 1} actions from the "
                f"present one on, of which at least one must be predicted: set it to {free} or less"
            )
        enabled = [f"algo.{name}.enabled" for name in NETWORKS if self[name].enabled]
        if len(enabled) != 1:
            every = ", ".join(f"algo.{name}.enabled" for name in NETWORKS)
            problems.append(
                f"enable exactly one network of {every}; enabled: {', '.join(enabled) or 'none'}"
            )
        return problems

    def make_denoiser(
        self, make_encoder: Callable[[int], GroupEncoder], ac_dim: int, horizon: int, frames: int
    ) -> Denoiser:
        """Create the network that the section enables: U-Net, transformer or MLP.

        Args:
            make_encoder: makes an encoder that joins the features of a number of frames.
            ac_dim: A, action dimensions.
            horizon: number of actions in a chunk.
            frames: number of observations that the policy sees.
        """
        marks = self.prefix.max_delay > 0
        input_dim = ac_dim + int(marks)
        if self.transformer.enabled:
            encoder = make_encoder(1)
            network = self._transformer(input_dim, ac_dim, horizon, encoder.output_dim, frames)
            return Denoiser(encoder, network, frames, marks=marks)
        encoder = make_encoder(frames)
        if self.mlp.enabled:
            mlp = DenoisingMLP(
                input_dim,
                horizon,
                encoder.output_dim,
                hidden_dim=self.mlp.hidden_dim,
                num_blocks=self.mlp.num_blocks,
                dropout=self.mlp.dropout,
                output_dim=ac_dim,
            )
            return Denoiser(encoder, mlp, marks=marks)
        unet = ConditionalUnet1D(
            input_dim,
            encoder.output_dim,
            diffusion_step_embed_dim=self.unet.diffusion_step_embed_dim,
            down_dims=self.unet.down_dims,
            kernel_size=self.unet.kernel_size,
            n_groups=self.unet.n_groups,
            cond_predict_scale=self.unet.cond_predict_scale,
            output_dim=ac_dim,
        )
        unet.check_horizon(horizon)
        return Denoiser(encoder, unet, marks=marks)

    def _transformer(
        self, input_dim: int, ac_dim: int, horizon: int, cond_dim: int, frames: int
    ) -> DiffusionTransformer:
        config = self.transformer
        return DiffusionTransformer(
            input_dim,
            horizon,
            cond_dim,
            frames,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_emb=config.embed_dim,
            p_drop_emb=config.emb_dropout,
            p_drop_attn=config.attn_dropout,
            causal_attn=config.causal,
            output_dim=ac_dim,
        )


# ---- denoising in a loop that can be exported ----------------------------------------------------

DOMAIN, OPERATOR = "imitate", "Denoise"
"""Domain and name of the ONNX operator that stands for all denoising steps."""
OPSETS = {DOMAIN: 1}
"""Custom operator domain and its version, as torch's exporter needs them; the operator is replaced later."""
_COEFFICIENTS = ("alpha", "sigma", "data_factor", "noisy_factor", "noise_factor", "std")


@dataclass
class Loop:
    """Denoising steps of a policy that was traced for export.

    Attributes:
        step: one step: maps a chunk and the step's coefficients, noise and condition to the next chunk.
        inputs: example inputs of one step.
        num_steps: number of steps.
    """

    step: nn.Module
    inputs: tuple[Tensor, ...]
    num_steps: int


@contextmanager
def looped_denoising(algo: Algo) -> Iterator[list[Loop]]:
    """Make a policy with a diffusion sampler (attribute ``sampler``) denoise in a loop that can be exported.

    Yields:
        a list, which contains the loop after the policy has made a prediction; it stays empty for other policies.
    """
    loops: list[Loop] = []
    sampler = getattr(algo, "sampler", None)
    if not isinstance(sampler, Sampler):
        yield loops
        return
    algo.__dict__["sampler"] = LoopedSampler(sampler, algo.active_nets, loops)
    try:
        yield loops
    finally:
        algo.__dict__["sampler"] = sampler


class LoopedSampler:
    """Sampler whose denoising steps are exported as one operator.

    Args:
        sampler: original sampler.
        nets: networks that contain the denoiser.
        loops: list that receives the loop.
    """

    def __init__(self, sampler: Sampler, nets: nn.Module, loops: list[Loop]) -> None:
        self._sampler, self._nets, self._loops = sampler, nets, loops
        self.timesteps = sampler.timesteps
        rows = [[getattr(step, name) for name in _COEFFICIENTS] for step in sampler.steps]
        self._coefficients = torch.tensor(rows)
        fresh = torch.tensor([step.std > 0 for step in sampler.steps])
        self._count = int(fresh.sum())
        # For each step, the row of its noise in `padded`. Steps without noise use the last row, which is zero.
        self._rows = torch.where(fresh, fresh.long().cumsum(0) - 1, self._count)

    def sample(
        self, network: AtSteps, noise: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Run all denoising steps; the arguments are those of :meth:`Sampler.sample`."""
        fresh = [torch.zeros(1, *noise.shape)]
        if self._count:
            drawn = torch.empty(self._count, *noise.shape).normal_(generator=generator)
            fresh.insert(0, drawn)
        padded = torch.cat(fresh)[self._rows]
        conditions = torch.cat([condition.flatten(1) for condition in network.conditions], dim=1)
        shapes = [tuple(condition.shape[1:]) for condition in network.conditions]
        per_step = (self._coefficients, padded, conditions)
        step = _Step(self._sampler, self._nets, network, shapes)
        if not self._loops:
            examples = tuple(x.detach() for x in (noise, *(values[0] for values in per_step)))
            self._loops.append(Loop(step, examples, len(self.timesteps)))
        return cast(Tensor, _operator(step).apply(noise, *per_step))


class _Step(nn.Module):
    """One denoising step, with coefficients as tensors."""

    def __init__(
        self, sampler: Sampler, nets: nn.Module, network: AtSteps, shapes: list[tuple[int, ...]]
    ) -> None:
        super().__init__()
        self.nets = nets  # registered as a submodule, so that the exporter finds the weights
        self._sampler, self._denoise, self._shapes = sampler, network.denoise, shapes
        self.eval()

    def forward(
        self, noisy: Tensor, coefficients: Tensor, fresh: Tensor, condition: Tensor
    ) -> Tensor:
        parts = torch.split(condition, [torch.Size(shape).numel() for shape in self._shapes])
        given = [part.reshape(s) for part, s in zip(parts, self._shapes, strict=True)]
        prediction, clip = self._sampler.prediction, self._sampler.clip
        # with gradients enabled, networks do not use their fast code for acting, which cannot be exported
        with torch.enable_grad():
            output = self._denoise(noisy, given).detach()
        alpha, sigma, data_factor, noisy_factor, noise_factor, std = coefficients.unbind(0)
        data = predicted_data(prediction, output, noisy, alpha, sigma)
        if clip is not None:
            data = data.clamp(-clip, clip)
        noise = predicted_noise(prediction, output, noisy, alpha, sigma)
        return data * data_factor + noisy * noisy_factor + noise * noise_factor + fresh * std


def _operator(step: Callable[..., Tensor]) -> Any:
    """Return a function that computes all denoising steps, and becomes one operator in an exported model."""

    class Denoise(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *per_step: Tensor) -> Tensor:
            if torch.onnx.is_in_onnx_export():
                # during export, `symbolic` writes one operator in place of the following loop
                return x.clone()
            for rows in zip(*per_step, strict=True):
                x = step(x, *rows)
            return x

        @staticmethod
        def symbolic(g: Any, x: Any, *per_step: Any) -> Any:
            return g.op(f"{DOMAIN}::{OPERATOR}", x, *per_step).setType(x.type())

    return Denoise
