"""Multi-layer perceptron."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn


def gelu(x: Tensor) -> Tensor:
    """Return GELU in its tanh approximation, the default of JAX."""
    return nn.functional.gelu(x, approximate="tanh")


class MLP(nn.Module):
    """MLP in which every layer, including the last, is a linear map and an activation; linear heads may follow.

    With ``layer_dims=()`` the network is the identity.

    Args:
        input_dim: number of input features.
        layer_dims: width of each layer.
        activation: activation function; it may work in place.
        dropout: probability of dropping a hidden unit, after each activation.
    """

    def __init__(
        self,
        input_dim: int,
        layer_dims: Sequence[int],
        activation: Callable[[Tensor], Tensor] = torch.relu_,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        widths = [input_dim, *layer_dims]
        self.layers = nn.ModuleList(map(nn.Linear, widths[:-1], widths[1:]))
        self.activation = activation
        self.dropout = dropout
        self.input_dim = input_dim
        self.output_dim = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*B, input_dim)`` to ``(*B, output_dim)``."""
        for layer in self.layers:
            x = self.activation(layer(x))
            if self.dropout > 0.0:
                x = nn.functional.dropout(x, self.dropout, self.training)
        return x


class FullPrecisionLinear(nn.Linear):
    """Linear map that computes in float32 even under autocast, because densities need more than 8 bits of mantissa."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*B, in_features)`` to ``(*B, out_features)``."""
        y = super().forward(x)
        return y.float() if y.dtype in (torch.bfloat16, torch.float16) else y


class MultiHeadMLP(nn.Module):
    """An :class:`MLP` with one linear head per named output."""

    def __init__(
        self, input_dim: int, layer_dims: Sequence[int], output_dims: Mapping[str, int]
    ) -> None:
        super().__init__()
        self.mlp = MLP(input_dim, layer_dims)
        self.heads = nn.ModuleDict(
            {
                name: FullPrecisionLinear(self.mlp.output_dim, size)
                for name, size in output_dims.items()
            }
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Map ``(*B, input_dim)`` to ``(*B, size)`` for each output."""
        features = self.mlp(x)
        return {name: head(features) for name, head in self.heads.items()}
