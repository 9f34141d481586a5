"""Ensembles of value networks, computed as one batched module.

The E members share one batched matrix product per layer and are initialized independently. The weights have these
names; the right column is for toolkits with one network per member (robomimic's ``critic.<e>.nets``):

    layers.<i>.weight[e].T     mlp._model.<2 i>.weight      bias[e]: bias; i counts hidden layers
    head.weight[e].T           decoder.nets.value.weight
    norms.<i>.weight[e]        only with ``layer_norm``
    encoders.<e>               encoder; one for all members (``encoders.0``) or one per member

Weights have the layout (E, in, out), so that the gradients of the products have the same layout. In the input, features
come before actions, as in robomimic.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from imitate.functional.kernels import linears
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.mlp import gelu

Module = TypeVar("Module", bound=nn.Module)

PIECE_ROWS = 512
"""Number of rows processed at a time on a CPU, so that they fit in its cache; 1.4 times as fast as 8,000 at once."""


class EnsembleLinear(nn.Module):
    """E linear maps, each with torch's default initialization.

    Args:
        size: E, number of maps.
        input_dim: number of input features.
        output_dim: number of output features.
    """

    def __init__(self, size: int, input_dim: int, output_dim: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(input_dim)
        self.weight = nn.Parameter(torch.empty(size, input_dim, output_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(size, output_dim).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(E, N, input_dim)`` to ``(E, N, output_dim)``."""
        size, _, output_dim = self.weight.shape
        if output_dim == 1 < size and x.device.type == "cpu":
            # on a CPU, a batched matrix product with a single column takes five times as long as a product and a sum
            column = self.weight.transpose(1, 2)
            return (x * column).sum(-1, keepdim=True) + self.bias.unsqueeze(1)
        return linears(x, self.weight, self.bias)


NORM_EPS = 1e-6
"""Number that flax's layer normalization adds to variances."""
Activation = Literal["relu", "gelu"]
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "gelu": gelu}


class EnsembleLayerNorm(nn.Module):
    """E layer normalizations, each with its own scale and shift; ``eps`` is added to variances."""

    def __init__(self, size: int, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size, dim))
        self.bias = nn.Parameter(torch.zeros(size, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``(E, N, dim)``."""
        normalized = nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps)
        return torch.addcmul(self.bias.unsqueeze(1), normalized, self.weight.unsqueeze(1))


class CriticEnsemble(nn.Module):
    """Q(s, a), or V(s) with ``ac_dim`` 0, for E members.

    By default the members share one encoder, which is the identity for vectors and most of the cost for images.
    robomimic has one encoder per member, which is possible with a sequence of encoders.

    Args:
        encoders: encoder of observation and goal for all members, or a sequence with one encoder per member.
        ac_dim: action dimensions; 0 for a value of states.
        layer_dims: widths of the hidden layers, each followed by the activation.
        size: E, number of members.
        layer_norm: normalize after each activation.
        num_atoms: K; if K > 0, outputs are logits of a distribution over K values instead of a value.
        num_choices: C; if C > 0, outputs are values of C choices, and actions are not needed as input.
        value_bounds: lowest and highest value, enforced by a tanh; not with atoms.
        num_values: V; if V > 0, each action, choice or atom has V values.
        activation: activation of the hidden layers. ``gelu`` also uses the smaller ``eps`` of flax's normalization, for
            critics as in JAX code.
    """

    def __init__(
        self,
        encoders: GroupEncoder | Sequence[GroupEncoder],
        ac_dim: int,
        layer_dims: Sequence[int],
        size: int = 2,
        *,
        layer_norm: bool = False,
        num_atoms: int = 0,
        num_choices: int = 0,
        value_bounds: tuple[float, float] | None = None,
        num_values: int = 0,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self._activation = _ACTIVATIONS[activation]
        own = [encoders] if isinstance(encoders, GroupEncoder) else list(encoders)
        if len(own) not in (1, size):
            raise ValueError(f"{len(own)} encoders for {size} critics: expected 1 or {size}")
        self.encoders = nn.ModuleList(own)
        self.size, self.ac_dim, self.num_atoms, self.num_choices = (
            size,
            ac_dim,
            num_atoms,
            num_choices,
        )
        widths = [own[0].output_dim + ac_dim, *layer_dims]
        self.layers = nn.ModuleList(
            EnsembleLinear(size, n, m) for n, m in zip(widths[:-1], widths[1:], strict=True)
        )
        self.norms = nn.ModuleList(
            EnsembleLayerNorm(size, width, **({"eps": NORM_EPS} if activation == "gelu" else {}))
            for width in layer_dims
            if layer_norm
        )
        outputs = max(1, num_atoms, num_choices) * max(1, num_values)
        self.head = EnsembleLinear(size, widths[-1], outputs)
        self.value_bounds, self.num_values = value_bounds, num_values

    def forward(self, obs: Obs, actions: Tensor | None = None, goal: Obs | None = None) -> Tensor:
        """Return values of states, or of actions in states.

        Args:
            obs: (B, ...), or (B, F, ...) if frames are stacked.
            actions: (B, A), or (B, N, A): N actions in each state, which is encoded once.
            goal: (B, ...).

        Returns:
            (E, B), or (E, B, N); with atoms logits (E, B, [N,] K); with choices (E, B, [N,] C). With V values of each
            action, choice or atom, one more dimension V at the end.
        """
        features = torch.stack([encoder(obs, goal) for encoder in self.encoders])
        shape = features.shape[1:-1]
        if actions is not None:
            if actions.dim() == 3:
                features = features.unsqueeze(-2).expand(-1, -1, actions.shape[1], -1)
            shape = actions.shape[:-1]
            each = actions.expand(len(features), *actions.shape)
            features = torch.cat([features, each], dim=-1)
        x = features.reshape(len(features), -1, features.shape[-1]).expand(self.size, -1, -1)
        on_cpu = x.device.type == "cpu"
        pieces = torch.split(x, PIECE_ROWS, dim=1) if on_cpu else (x,)
        rows = [self._rows(piece) for piece in pieces]
        values = (rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)).reshape(
            self.size, *shape, -1
        )
        parts = self.num_atoms or self.num_choices
        if self.num_values and parts:
            values = values.reshape(*values.shape[:-1], parts, self.num_values)
        if self.num_atoms:
            return values
        return self._bounded(values if self.num_choices or self.num_values else values.squeeze(-1))

    def _rows(self, x: Tensor) -> Tensor:
        """Map features ``(E, N, D)`` of all or some rows to outputs ``(E, N, K)``."""
        for number, layer in enumerate(self.layers):
            x = self._activation(layer(x))
            if self.norms:
                x = self.norms[number](x)
        values: Tensor = self.head(x)
        return values

    def _bounded(self, values: Tensor) -> Tensor:
        if self.value_bounds is None:
            return values
        low, high = self.value_bounds
        return 0.5 * (low + high) + 0.5 * (high - low) * values.tanh()


def target_of(net: Module) -> Module:
    """Return a copy of a network without gradients, as a target network for :func:`polyak_update_`."""
    return copy.deepcopy(net).requires_grad_(False)


@torch.no_grad()
def polyak_update_(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Move a target network towards the online one: ``target += rate (online - target)``, in place.

    Buffers, such as statistics of BatchNorm, are copied.
    """
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), rate)
    for old, new in zip(target.buffers(), online.buffers(), strict=True):
        old.copy_(new)
