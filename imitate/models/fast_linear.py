"""Linear layers whose products, and those of their gradients, are computed by the faster library of torch."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from imitate.functional.products import linear, onednn_is_faster

Net = TypeVar("Net", bound=nn.Module)


class FastLinear(nn.Linear):
    """An ``nn.Linear`` with the parameters of another one, see :mod:`imitate.functional.products`."""

    def __init__(self, original: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = original.in_features, original.out_features
        self.weight, self.bias = original.weight, original.bias
        self.training = original.training

    def forward(self, x: Tensor) -> Tensor:
        """``(*B, D)`` to ``(*B, E)``."""
        return linear(x, self.weight, self.bias)


def with_fast_linears(net: Net) -> Net:
    """Put a :class:`FastLinear` in the place of each ``nn.Linear``, where it gains on this CPU; return the network.

    Parameters, their order and the names of the state stay.
    """
    if onednn_is_faster():
        for module in list(net.modules()):
            for name, child in module.named_children():
                if type(child) is nn.Linear and child.weight.device.type == "cpu":
                    setattr(module, name, FastLinear(child))
    return net
