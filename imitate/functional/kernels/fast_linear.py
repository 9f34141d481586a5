"""Linear layers whose products, and those of their gradients, are computed by the faster library of torch."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from imitate.functional.kernels.products import linear, onednn_is_faster

Net = TypeVar("Net", bound=nn.Module)


class FastLinear(nn.Linear):
    """An ``nn.Linear`` that multiplies by :func:`imitate.functional.kernels.products.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """``(*B, D)`` to ``(*B, E)``."""
        return linear(x, self.weight, self.bias)


def with_fast_linears(net: Net) -> Net:
    """Make each ``nn.Linear`` a :class:`FastLinear`, where that is faster on this CPU; return the network.

    The layers stay the same objects with another class, so that they keep parameters, hooks (as of
    ``torch.nn.utils.spectral_norm``), and their places in other lists.
    """
    if onednn_is_faster():
        for module in net.modules():
            if type(module) is nn.Linear and module.weight.device.type == "cpu":
                module.__class__ = FastLinear
    return net
