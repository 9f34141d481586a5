"""Linear layers that are fast on the CPU: in training, and for the few rows that a policy acts on.

For the few rows of a window, oneDNN multiplies by a matrix stored in blocks up to twice as fast as torch's default
does; the results are equal up to the order of sums. A single row takes as long as reading the matrix, in any layout. In
bfloat16 half as much is read, and weights and inputs are rounded to 8 binary digits. In int8 a quarter is read: each
row of weights is rounded to 255 steps of its own size, and the inputs of each call to 256 steps between their least and
their greatest value (dynamic quantization), or to 128 steps if the processor has no instruction for such sums.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from imitate.functional.kernels.products import linear, onednn_is_faster
from imitate.functional.kernels.switch import switched_on

Net = TypeVar("Net", bound=nn.Module)
MOST_ROWS = 64
FEWEST_WEIGHTS = 2**16
"""Smallest number of weights for which the blocks outweigh the overhead of torch's call."""


class FastLinear(nn.Linear):
    """An ``nn.Linear`` that multiplies by :func:`~imitate.functional.kernels.products.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: ``(*B, D)`` to ``(*B, E)``."""
        return linear(x, self.weight, self.bias)


def with_fast_linears(net: Net) -> Net:
    """Make each ``nn.Linear`` a :class:`FastLinear` if that is faster on this CPU; return the network.

    The layers stay the same objects with another class, so that they keep parameters, hooks (as of
    ``torch.nn.utils.spectral_norm``), and their places in other lists.
    """
    if onednn_is_faster():
        for module in net.modules():
            if type(module) is nn.Linear and module.weight.device.type == "cpu":
                module.__class__ = FastLinear
    return net


class PackedLinear(nn.Linear):
    """An ``nn.Linear`` with a second copy of its weights, in blocks for few rows; made by :func:`pack_linears`.

    The copy is made at the first call without gradients, and again whenever the weights have changed. It is not
    included in copies and pickles of the layer.

    Attributes:
        dtype: dtype of the copy: float32, bfloat16, or int8 if :func:`has_int8`. With int8, all rows of a call share
            one scale, so that a row's result depends a little on the others; and inputs must be finite: with NaN or
            infinity among them, torch raises RuntimeError, or the result is finite and wrong.
        fewest_rows: rows from which the copy is faster; one row of float32 is not.
    """

    dtype = torch.float32
    fewest_rows = 2
    _blocks: Any = None
    _copied: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_blocks", "_copied")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: ``(*B, D)`` to ``(*B, E)``."""
        rows = x.numel() // self.in_features
        if torch.is_grad_enabled() or rows > MOST_ROWS:
            return linear(x, self.weight, self.bias)
        if rows < self.fewest_rows:
            return nn.functional.linear(x, self.weight, self.bias)
        if self.dtype is torch.int8:
            quantized: Tensor = torch.ops.quantized.linear_dynamic(
                x.float(), self._packed(rows), needs_reduced_range()
            )
            return quantized.to(x.dtype)
        weight, bias = self._packed(rows)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self.dtype), weight, bias, "none", [], ""
        )
        return y.to(x.dtype)

    def _packed(self, rows: int) -> Any:
        state = (self.weight._version, self.weight.data_ptr())
        if self._blocks is None or state != self._copied:
            weight = self.weight.detach()
            bias = None if self.bias is None else self.bias.detach()
            if self.dtype is torch.int8:
                self._blocks = _quantized(weight, bias)
            else:
                blocks = torch.ops.mkldnn._reorder_linear_weight(weight.to(self.dtype), rows)
                self._blocks = blocks, None if bias is None else bias.to(self.dtype)
            self._copied = state
        return self._blocks


def has_int8() -> bool:
    """Return True if torch can multiply in int8: with fbgemm, on x86 processors."""
    return _available() and torch.backends.quantized.engine in ("fbgemm", "x86")


def pack_linears(net: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Make each large ``nn.Linear`` a :class:`PackedLinear`, on a CPU if torch has oneDNN.

    The layers stay the same objects with another class, so that they keep parameters and hooks. Layers whose weight is
    recomputed in each call, as by ``torch.nn.utils.spectral_norm``, are not changed.

    Args:
        net: the network that contains the layers.
        dtype: dtype of the copies, see :class:`PackedLinear`.
    """
    if not _available() or (dtype is torch.float32 and not switched_on()):
        return
    for module in net.modules():
        is_plain = type(module) in (nn.Linear, FastLinear)
        if isinstance(module, nn.Linear) and is_plain and _is_large(module.weight):
            module.__class__ = PackedLinear
            packed = cast(PackedLinear, module)
            packed.dtype, packed.fewest_rows = dtype, 2 if dtype is torch.float32 else 1


def _is_large(weight: Tensor) -> bool:
    """Return True if blocks are faster and a change of the weights can be detected."""
    on_cpu = weight.device.type == "cpu" and weight.dtype is torch.float32
    return (
        isinstance(weight, nn.Parameter)
        and on_cpu
        and not weight.is_inference()
        and weight.numel() >= FEWEST_WEIGHTS
    )


def _available() -> bool:
    # torch's own compiler uses this function; older builds, and those for other processors, may lack it.
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def _quantized(weight: Tensor, bias: Tensor | None) -> Any:
    """Return weights (E, D) in int8, each row with its own scale, in the layout of ``linear_dynamic``."""
    scales = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with (
        warnings.catch_warnings()
    ):  # torch marks its quantized tensors as deprecated, but offers no other way
        warnings.simplefilter("ignore")
        rounded = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(rounded, bias)


@cache
def needs_reduced_range() -> bool:
    """Return True if sums of two products would overflow 16 bits, so that inputs must have only 7 bits."""
    capability: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return not capability.get("avx512_vnni")
