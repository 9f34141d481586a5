"""Sampling functions: torch's random numbers with less overhead, one random stream per row, bootstrap counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


@cache
def _poisson(device: torch.device) -> Tensor:
    """Cumulative probabilities of Poisson(1) for 0, 1, ... 9, in float32, because MPS lacks float64."""
    exactly = torch.tensor([1.0 / math.factorial(k) for k in range(10)], dtype=torch.float64)
    return (exactly.cumsum(0) / math.e).float().to(device)


_GOLDEN = -0x61C8864680B583EB
"""Increment of SplitMix64: 2^64 divided by the golden ratio, as an int64."""


class RowGenerator(torch.Generator):
    """Generator with a separate random stream for each row of a batch, independent of the other rows.

    The functions of this module that take a generator give row b the stream of ``seeds[b]``. For torch's own functions,
    this is an ordinary generator with the first seed.

    Args:
        seeds: (B,) int64 seeds, on the CPU.
        device: device of tensors that torch's own functions fill.
    """

    def __new__(cls, seeds: Tensor, device: torch.device | str = "cpu") -> RowGenerator:
        """Create the generator; torch's constructor takes only the device."""
        return super().__new__(cls, device)  # type: ignore[call-arg]

    def __init__(self, seeds: Tensor, device: torch.device | str = "cpu") -> None:
        self.manual_seed(int(seeds[0]) & 0x7FFFFFFF)
        self._seeds, self._drawn = seeds, 0

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Return the next uniform numbers in (0, 1): float64 (B, ...) on the CPU."""
        size = math.prod(shape[1:])
        if shape[0] != len(self._seeds):
            raise ValueError(
                f"the shape {tuple(shape)} has {shape[0]} rows; wanted {len(self._seeds)}, one for each seed"
            )
        count = torch.arange(self._drawn + 1, self._drawn + size + 1)
        self._drawn += size
        # Seeds are hashed before the counter is added, so that streams of similar seeds are not shifted copies of each
        # other.
        bits = split_mix(split_mix(self._seeds).unsqueeze(-1) + count * _GOLDEN)
        return (((bits >> 11) & (2**53 - 1)).double() + 0.5).mul_(2.0**-53).view(*shape)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Return the next standard normal numbers: float64 (B, ...) on the CPU (Box and Muller 1958)."""
        pair = self.uniform((*shape, 2))
        return (-2.0 * pair[..., 0].log()).sqrt() * (2.0 * math.pi * pair[..., 1]).cos()


def split_mix(bits: Tensor) -> Tensor:
    """Mix the bits of int64 numbers as in SplitMix64 (Steele, Lea, Flood 2014), with wrap-around arithmetic."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        # a right shift of int64 fills the left with copies of the sign bit, which are masked out
        bits = (bits ^ ((bits >> shift) & (2 ** (64 - shift) - 1))) * factor
    return bits


def fill_normal(out: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a tensor (B, ...) in place with the standard normal numbers that ``out.normal_()`` would draw."""
    if isinstance(generator, RowGenerator):
        return out.copy_(generator.normal(out.shape))
    return out.normal_(generator=generator)


def fill_uniform(out: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a tensor (B, ...) in place with the uniform numbers in [0, 1) that ``out.uniform_()`` would draw."""
    if isinstance(generator, RowGenerator):
        # a double just below 1 would be rounded to 1 as a float
        return out.copy_(generator.uniform(out.shape)).clamp_(max=1.0 - 2.0**-24)
    return out.uniform_(generator=generator)


def fill_exponential(out: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a tensor (B, ...) in place with the exponential numbers of rate 1 that ``out.exponential_()`` would draw."""
    if isinstance(generator, RowGenerator):
        return out.copy_(-generator.uniform(out.shape).log())
    return out.exponential_(generator=generator)


def draw_class(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one class from each categorical distribution.

    The result equals that of ``torch.multinomial`` on the probabilities, without its checks, which would wait for a
    GPU.

    Args:
        logits: (*B, C), unnormalized.
        generator: source of randomness; None: the default generator.

    Returns:
        (*B) class indices.
    """
    weights = logits.detach().softmax(-1)
    # Among exponential waiting times with rates p_c, that of class c is the shortest with probability p_c.
    waits = fill_exponential(torch.empty_like(weights), generator)
    return (weights / waits).argmax(-1)


def draw_normal(mean: Tensor, std: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one normal number per element, without gradient, as ``torch.normal`` would."""
    mean = mean.detach()
    return fill_normal(torch.empty_like(mean), generator).mul_(std.detach()).add_(mean)


def smoothed_actions(actions: Tensor, noise_std: float, noise_clip: float) -> Tensor:
    """Target-policy smoothing of TD3 (Fujimoto et al. 2018, arXiv:1802.09477): ``clip(a + clip(noise, -c, c), -1, 1)``.

    Args:
        actions: (B, A) in [-1, 1].
        noise_std: standard deviation of the normal noise.
        noise_clip: c, largest magnitude of the noise.

    Returns:
        (B, A) in [-1, 1].
    """
    noise = torch.randn_like(actions) * noise_std
    return (actions + noise.clamp(-noise_clip, noise_clip)).clamp(-1.0, 1.0)


def bootstrap_counts(index: Tensor, members: int) -> Tensor:
    """Count how often each sample is in each ensemble member's bootstrap: Poisson(1), the same counts in every call.

    Oza and Russell, "Online Bagging and Boosting" (AISTATS 2001), with a hash of the sample's number in place of a
    generator, so that the samples of a member never change.

    Args:
        index: (B,) int64 numbers of the samples.
        members: M, number of ensemble members.

    Returns:
        (M, B) int64.
    """
    member = torch.arange(1, members + 1, device=index.device).unsqueeze(-1)
    bits = index * _GOLDEN + member * -0x4B47D0C5A1A6B4B3
    # SplitMix64 with arithmetic instead of logical right shifts: the copies of the sign bit that they shift in do not
    # reach the low bits used here.
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        bits = (bits ^ (bits >> shift)) * factor
    uniform = ((bits ^ (bits >> 31)) & 0xFFFFFF).to(torch.float32) / 2.0**24
    return torch.searchsorted(_poisson(index.device), uniform, right=True)


def pick_class(values: Tensor, index: Tensor) -> Tensor:
    """Select from ``(*B, M, A)`` the rows with the indices ``(*B)``: ``(*B, A)``."""
    rows = index[..., None, None].expand(*index.shape, 1, values.shape[-1])
    return values.gather(-2, rows).squeeze(-2)


def draw_dirichlet(like: Tensor, alpha: float, generator: torch.Generator | None = None) -> Tensor:
    """Draw a vector from the symmetric Dirichlet distribution for each row of a tensor (B, C).

    Gamma numbers of Marsaglia and Tsang (2000), of shape alpha + 1, times u^(1 / alpha). Each number is the first
    accepted one of four candidates; if none is accepted (probability below 1e-5), it is the first candidate.

    Returns:
        (B, C), rows that sum to 1.
    """
    d = alpha + 2.0 / 3.0
    shape = (*like.shape, 4)
    x, u = (
        fill_normal(like.new_empty(shape), generator),
        fill_uniform(like.new_empty(shape), generator),
    )
    v = (1.0 + x / math.sqrt(9.0 * d)).pow(3).clamp(min=1e-12)
    accepted = u.log() < 0.5 * x.square() + d * (1.0 - v + v.log())
    first = v.gather(-1, accepted.int().argmax(-1, keepdim=True)).squeeze(-1)
    gamma = first * fill_uniform(torch.empty_like(like), generator).pow(1.0 / alpha)
    gamma = gamma.clamp(min=1e-30)
    return gamma / gamma.sum(-1, keepdim=True)
