"""Networks of latent models: simplices as latent states, normalized layers, and numbers as distributions over atoms.

Hansen, Su, Wang, "TD-MPC2: Scalable, Robust World Models for Continuous Control", ICLR 2024 (arXiv:2310.16828), after
the simplicial embeddings of Lavoie et al. (arXiv:2204.00616) and the symlog of DreamerV3 (arXiv:2301.04104).
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from imitate.functional.kernels import group_softmax, linears, mish
from imitate.functional.losses import expected_value, make_atoms, project_categorical
from imitate.models.critics import EnsembleLayerNorm, EnsembleLinear

FIRST_STD = 0.02
"""Standard deviation of the weights before training."""


def symlog(x: Tensor) -> Tensor:
    """Return ``sign(x) log(1 + |x|)``."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """Return the inverse of :func:`symlog`."""
    return x.sign() * x.abs().expm1()


class SimNorm(nn.Module):
    """Softmax in each group of V numbers, so that each group is a point of a simplex (arXiv:2204.00616)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (*B, D)."""
        return group_softmax(x, self.size)


class NormedLayer(nn.Module):
    """Linear map, layer normalization, activation."""

    def __init__(
        self, inputs: int, outputs: int, activation: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, outputs), nn.LayerNorm(outputs)
        self.activation = activation or mish

    def forward(self, x: Tensor) -> Tensor:
        """Map (*B, inputs) to (*B, outputs)."""
        return self.activation(self.norm(self.linear(x)))


def normed_mlp(
    inputs: int, hidden: Sequence[int], outputs: int, last: nn.Module | None = None
) -> nn.Sequential:
    """Return an MLP with normalized layers; the output layer has the activation ``last``, or is linear for None."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = [NormedLayer(n, m) for n, m in zip(widths[:-1], hidden, strict=True)]
    layers.append(
        nn.Linear(widths[-1], outputs) if last is None else NormedLayer(widths[-1], outputs, last)
    )
    net = nn.Sequential(*layers)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=FIRST_STD)
            nn.init.zeros_(module.bias)
    return net


class LogitEnsemble(nn.Module):
    """E networks that map features to logits of K atoms; the weights of the last layer begin at 0.

    Args:
        size: E.
        inputs: number of features.
        hidden: widths of the hidden layers.
        num_atoms: K.
        dropout: probability of dropping a unit of the first layer, in training.
    """

    def __init__(
        self, size: int, inputs: int, hidden: Sequence[int], num_atoms: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden, num_atoms]
        self.size, self.dropout = size, dropout
        self.layers = nn.ModuleList(
            EnsembleLinear(size, n, m) for n, m in zip(widths[:-1], widths[1:], strict=True)
        )
        self.norms = nn.ModuleList(EnsembleLayerNorm(size, width) for width in hidden)
        layers = [cast(EnsembleLinear, layer) for layer in self.layers]
        for layer in layers:
            nn.init.trunc_normal_(layer.weight, std=FIRST_STD)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(layers[-1].weight)

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Map (M, N, inputs) to logits (M, N, K) by the networks ``members`` (M); by default by all E networks."""

        def of(weight: Tensor) -> Tensor:
            return weight if members is None else weight[members]

        *hidden, last = (cast(EnsembleLinear, layer) for layer in self.layers)
        norms = (cast(EnsembleLayerNorm, norm) for norm in self.norms)
        for number, (layer, norm) in enumerate(zip(hidden, norms, strict=True)):
            x = linears(x, of(layer.weight), of(layer.bias))
            if number == 0:
                x = F.dropout(x, self.dropout, self.training)
            x = F.layer_norm(x, x.shape[-1:])
            x = mish(torch.addcmul(of(norm.bias).unsqueeze(1), x, of(norm.weight).unsqueeze(1)))
        return linears(x, of(last.weight), of(last.bias))


class Atoms(nn.Module):
    """Numbers as distributions over atoms that are evenly spaced in symlog units.

    Args:
        low: lowest atom, in symlog units.
        high: highest atom, in symlog units.
        number: K, number of atoms.
    """

    values: Tensor

    def __init__(self, low: float, high: float, number: int) -> None:
        super().__init__()
        self.register_buffer("values", make_atoms(low, high, number))

    def mean(self, logits: Tensor) -> Tensor:
        """Return the numbers (*B) whose symlogs are the means of distributions with logits (*B, K)."""
        return symexp(expected_value(logits, self.values))

    def two_hot(self, numbers: Tensor) -> Tensor:
        """Distribute each number (*B) over its two neighbouring atoms (*B, K); beyond the limits, to the end atom."""
        one = torch.ones_like(numbers).unsqueeze(-1)
        return project_categorical(one, symlog(numbers).unsqueeze(-1), self.values)
