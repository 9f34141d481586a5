"""The one-dimensional conditional U-Net of Diffusion Policy (Chi et al. 2023, arXiv:2303.04137).

The weights have the names of Diffusion Policy's and robomimic's code, so that their checkpoints can be loaded.

Inside, a chunk is an image of height 1 with channels last. For the short sequences of policies, this layout makes a
forward pass on a CPU several times faster than one-dimensional convolutions, and (B, T, A) tensors need not be copied
to convert them.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.functional.kernels import convolution_over_time
from imitate.models.denoising_networks import step_encoder, steps_like

Condition = list[Tensor]
"""Conditions of one denoising step: one (B, 2 C) or (B, C) tensor per residual block."""


def _store_channels_last(weight: Tensor) -> None:
    """Store a kernel of shape (O, I, K) with the input channels innermost in memory."""
    weight.data = weight.data.transpose(1, 2).contiguous().transpose(1, 2)


class Conv1d(nn.Conv1d):
    """Convolution over time of (B, C, 1, T)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride)
        _store_channels_last(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, inputs, 1, T)`` to ``(B, outputs, 1, T / stride)``."""
        return convolution_over_time(
            x, self.weight, self.bias, self.stride[0], learning=self.training
        )


class Downsample(nn.Module):
    """Halve the time axis."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv1d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, 1, T)`` to ``(B, C, 1, T / 2)``."""
        return cast(Tensor, self.conv(x))


class Upsample(nn.Module):
    """Double the time axis."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(channels, channels, 4, stride=2, padding=1)
        _store_channels_last(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, 1, T)`` to ``(B, C, 1, 2 T)``."""
        kernel = self.conv.weight.unsqueeze(2)
        return F.conv_transpose2d(x, kernel, self.conv.bias, (1, 2), (0, 1))


class ConvBlock(nn.Module):
    """Convolution, GroupNorm, Mish."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Conv1d(inputs, outputs, kernel), nn.GroupNorm(groups, outputs), nn.Mish()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, inputs, 1, T)`` to ``(B, outputs, 1, T)``."""
        return cast(Tensor, self.block(x))


class ConditionalResidualBlock(nn.Module):
    """Two convolution blocks; between them the condition scales and shifts each channel (FiLM).

    As in the original code, channels are multiplied by the scale itself, not by 1 plus the scale.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        condition_dim: int,
        kernel: int,
        groups: int,
        predict_scale: bool,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                ConvBlock(inputs, outputs, kernel, groups),
                ConvBlock(outputs, outputs, kernel, groups),
            ]
        )
        self.predict_scale = predict_scale
        film_dim = outputs * (2 if predict_scale else 1)
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(condition_dim, film_dim))
        self.residual_conv = Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, film: Tensor) -> Tensor:
        """Map ``(B, inputs, 1, T)`` and a condition ``(B, film_dim)`` to ``(B, outputs, 1, T)``."""
        out = self.blocks[0](x)
        film = film[..., None, None]
        if self.predict_scale:
            scale, bias = film.chunk(2, dim=1)
            out = torch.addcmul(bias, scale, out)
        else:
            out = out + film
        return cast(Tensor, self.blocks[1](out) + self.residual_conv(x))


class ConditionalUnet1D(nn.Module):
    """Denoiser of action chunks: convolutions over time, conditioned on the step and the observation.

    Args:
        input_dim: A, number of values of a noisy action.
        global_cond_dim: D, number of features of the observation; 0 for none.
        diffusion_step_embed_dim: number of features of the step's embedding.
        down_dims: channels of each level; each level but the last halves the time axis.
        kernel_size: size of the kernels, odd.
        n_groups: number of groups of each GroupNorm, a divisor of each of ``down_dims``. The last block always has 8
            groups, as in the original code.
        cond_predict_scale: the condition scales and shifts channels; if false, it only shifts channels.
        output_dim: number of values of a predicted action; A by default.
    """

    def __init__(
        self,
        input_dim: int,
        global_cond_dim: int = 0,
        *,
        diffusion_step_embed_dim: int = 256,
        down_dims: Sequence[int] = (256, 512, 1024),
        kernel_size: int = 5,
        n_groups: int = 8,
        cond_predict_scale: bool = True,
        output_dim: int | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(down_dims, kernel_size, n_groups)
        self.step_dim = diffusion_step_embed_dim
        self.num_levels = len(down_dims)
        condition_dim = diffusion_step_embed_dim + global_cond_dim

        def residual(inputs: int, outputs: int) -> ConditionalResidualBlock:
            return ConditionalResidualBlock(
                inputs, outputs, condition_dim, kernel_size, n_groups, cond_predict_scale
            )

        self.diffusion_step_encoder = step_encoder(
            diffusion_step_embed_dim, diffusion_step_embed_dim
        )
        dims = [input_dim, *down_dims]
        self.down_modules = nn.ModuleList(
            nn.ModuleList(
                [
                    residual(dims[i], dims[i + 1]),
                    residual(dims[i + 1], dims[i + 1]),
                    Downsample(dims[i + 1]) if i + 1 < self.num_levels else nn.Identity(),
                ]
            )
            for i in range(self.num_levels)
        )
        self.mid_modules = nn.ModuleList(residual(dims[-1], dims[-1]) for _ in range(2))
        self.up_modules = nn.ModuleList(
            nn.ModuleList(
                [
                    residual(dims[i + 1] * 2, dims[i]),
                    residual(dims[i], dims[i]),
                    Upsample(dims[i]),
                ]
            )
            for i in reversed(range(1, self.num_levels))
        )
        self.final_conv = nn.Sequential(
            ConvBlock(dims[1], dims[1], kernel_size, 8),
            Conv1d(dims[1], output_dim or input_dim, 1),
        )

    def check_horizon(self, steps: int) -> None:
        """Raise an error if a chunk length cannot be halved at each level."""
        factor = 2 ** (self.num_levels - 1)
        if steps % factor:
            raise ConfigError(
                f"U-Net: a chunk of {steps} steps cannot be halved {self.num_levels - 1} times; expected a multiple of "
                f"{factor} (nearest {max(factor, round(steps / factor) * factor)}), or fewer down_dims"
            )

    def forward(
        self, sample: Tensor, timestep: Tensor | float, global_cond: Tensor | None = None
    ) -> Tensor:
        """Predict from noisy actions.

        Args:
            sample: (B, T, A) noisy actions.
            timestep: (B,) or one number for all rows.
            global_cond: (B, D) features of the observation.

        Returns:
            (B, T, output_dim) predictions.
        """
        features = self.diffusion_step_encoder(steps_like(timestep, sample))
        if global_cond is not None:
            features = torch.cat([features, global_cond], dim=-1)
        films = [block.cond_encoder(features) for block in self._residuals()]
        return self.denoise(sample, films)

    def films(self, timesteps: Sequence[float], global_cond: Tensor | None) -> list[Tensor]:
        """Return the conditions of all S steps of one sampling for :meth:`denoise`: (S, B, D) per residual block.

        All steps share the observation, and all rows share the step, so this costs about as much as one step in
        :meth:`forward`.
        """
        device = next(self.parameters()).device
        steps = torch.tensor(list(timesteps), dtype=torch.float32, device=device)
        of_steps = F.mish(self.diffusion_step_encoder(steps))
        of_obs = None if global_cond is None else F.mish(global_cond)
        per_block = []
        for block in self._residuals():
            linear = cast(nn.Linear, block.cond_encoder[1])
            film = F.linear(of_steps, linear.weight[:, : self.step_dim], linear.bias).unsqueeze(1)
            if of_obs is not None:
                film = film + F.linear(of_obs, linear.weight[:, self.step_dim :])
            per_block.append(film)
        return per_block

    def denoise(self, sample: Tensor, condition: Condition) -> Tensor:
        """Predict from a condition of :meth:`films`: ``(B, T, A)`` to ``(B, T, output_dim)``."""
        self.check_horizon(sample.shape[1])
        films = iter(condition)
        x = sample.transpose(1, 2).unsqueeze(2)
        skips = []
        for first, second, down in _levels(self.down_modules):
            x = second(first(x, next(films)), next(films))
            skips.append(x)
            x = down(x)
        for block in self.mid_modules:
            x = block(x, next(films))
        for first, second, up in _levels(self.up_modules):
            x = torch.cat((x, skips.pop()), dim=1)
            x = up(second(first(x, next(films)), next(films)))
        return cast(Tensor, self.final_conv(x).squeeze(2).transpose(1, 2))

    def _residuals(self) -> list[ConditionalResidualBlock]:
        """Return the residual blocks in the order in which they are computed."""
        down = [block for level in _levels(self.down_modules) for block in level[:2]]
        up = [block for level in _levels(self.up_modules) for block in level[:2]]
        return [*down, *cast(Iterable[ConditionalResidualBlock], self.mid_modules), *up]


_Level = tuple[ConditionalResidualBlock, ConditionalResidualBlock, nn.Module]


def _levels(modules: nn.ModuleList) -> list[_Level]:
    return [cast(_Level, tuple(cast(nn.ModuleList, level))) for level in modules]


def _check_sizes(down_dims: Sequence[int], kernel_size: int, n_groups: int) -> None:
    if not down_dims:
        raise ConfigError("U-Net: down_dims is empty; expected the channels of one level or more")
    if kernel_size % 2 == 0:
        raise ConfigError(f"U-Net: kernel_size is {kernel_size}; expected an odd number")
    wrong = [dim for dim in down_dims if dim % n_groups]
    if wrong:
        raise ConfigError(
            f"U-Net: n_groups is {n_groups}, which does not divide {wrong[0]} of down_dims {list(down_dims)}; "
            f"expected a divisor of each"
        )
    if down_dims[0] % 8:
        raise ConfigError(
            f"U-Net: down_dims begins with {down_dims[0]}; expected a multiple of 8, the groups of the last block"
        )
