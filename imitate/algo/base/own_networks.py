"""Networks of the user in place of an encoder, an actor's layers or critics: ``algo.networks``.

Each name ``module:function`` is a function of the shapes of the observations and the size A of an action. It returns a
new module at each call:

    encoder   {key: (N, ...)} -> features (N, D), in each network that sees observations
    actor     {key: (N, ...)} -> features (N, D), in place of encoder and hidden layers; the algorithm adds its head
    critic    {key: (N, ...)}, actions (N, A) -> values (N,); the function is called for each member of the ensemble

Observations are prepared: float, normalized, images (C, H, W). A name in a configuration is code that will be run, so a
name in a checkpoint or run folder is used only if :mod:`imitate.system.trust` allows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.models.actor import Obs

Shapes = Mapping[str, tuple[int, ...]]


class OwnNetworks:
    """Builds the user's networks that ``algo.networks`` names.

    Args:
        names: section ``networks``, or None.
        ac_dim: A, action dimensions.

    Raises:
        EnvError: a name is not trusted.
    """

    def __init__(self, names: Mapping[str, Any] | None, ac_dim: int) -> None:
        self._names = {role: name for role, name in (names or {}).items() if name is not None}
        if self._names:
            # imported here, because the package of environments imports gymnasium, which acting does not need
            from imitate.system.trust import in_networks, refuse, unknown

            refuse("algo", unknown(in_networks({"networks": self._names})))
        self._ac_dim = ac_dim
        self._unused = set(self._names)

    def has(self, role: str) -> bool:
        """Return true if ``algo.networks`` names a network for this role: 'encoder', 'actor' or 'critic'."""
        return role in self._names

    def encoder(self, role: str, shapes: Shapes) -> OwnEncoder:
        """Build the user's network for the role 'encoder' or 'actor', for observations of these shapes."""
        return OwnEncoder(self._made(role, shapes), shapes, f"algo.networks.{role}")

    def critics(self, size: int, shapes: Shapes) -> OwnCritics:
        """Build ``size`` critics of the user as an ensemble."""
        return OwnCritics([self._made("critic", shapes) for _ in range(size)], shapes)

    def check_used(self, algo_name: str) -> None:
        """Raise ConfigError if ``algo.networks`` names a network that the algorithm did not use."""
        for role in sorted(self._unused):
            remedy = "leave it out" if role == "encoder" else "name an encoder"
            raise ConfigError(
                f"algo.networks.{role}: {algo_name} cannot use this network here: {remedy}"
            )

    def _made(self, role: str, shapes: Shapes) -> nn.Module:
        key, name = f"algo.networks.{role}", self._names[role]
        self._unused.discard(role)
        net = own_object(key, name)(dict(shapes), self._ac_dim)
        if not isinstance(net, nn.Module):
            raise ConfigError(f"{key}: '{name}' returned {type(net).__name__}: return an nn.Module")
        return net


def own_object(key: str, name: str) -> Any:
    """Import the user's function ``module:function`` that a key of the configuration names.

    Raises:
        ConfigError: the function cannot be imported.
        EnvError: the name is not trusted.
    """
    from imitate.system.trust import Named, refuse, typed_object, unknown

    refuse("algo", unknown([Named(name, "network", key)]))
    try:
        return typed_object(name)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise ConfigError(
            f"{key}: '{name}' cannot be loaded ({error}): it has to be importable where the policy is trained "
            "and where it acts"
        ) from error


class OwnEncoder(nn.Module):
    """Network of the user that maps observations to features.

    Args:
        net: the network.
        shapes: shape of one step of each observation.
        key: configuration key that names the network, for messages.
    """

    def __init__(self, net: nn.Module, shapes: Shapes, key: str) -> None:
        super().__init__()
        self.net, self.obs_shapes = net, dict(shapes)
        net.eval()
        with torch.no_grad():
            found = net({name: torch.zeros(2, *shape) for name, shape in self.obs_shapes.items()})
        net.train()
        if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != 2:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(f"{key}: returned {got} for two observations: return features (2, D)")
        self.output_dim = found.shape[1]

    def forward(self, obs: Obs) -> Tensor:
        """Encode observations (*B, ...) to (*B, D)."""
        leading, rows = _rows(obs, self.obs_shapes)
        features: Tensor = self.net(rows)
        return features.reshape(*leading, self.output_dim)


class OwnCritics(nn.Module):
    """Critics of the user as an ensemble that is called like :class:`CriticEnsemble`."""

    def __init__(self, members: list[nn.Module], shapes: Shapes) -> None:
        super().__init__()
        self.members, self.obs_shapes = nn.ModuleList(members), dict(shapes)
        self.size = len(members)

    def forward(self, obs: Obs, actions: Tensor, goal: Obs | None = None) -> Tensor:
        """Return values (E, B) of actions (B, A), or (E, B, N) of N actions (B, N, A) in each state."""
        _, rows = _rows(obs, self.obs_shapes)
        shape, flat = actions.shape[:-1], actions.flatten(0, -2)
        if actions.dim() == 3:
            rows = {key: x.repeat_interleave(shape[1], dim=0) for key, x in rows.items()}
        return torch.stack([member(rows, flat).reshape(shape) for member in self.members])


def _rows(obs: Obs, shapes: Shapes) -> tuple[torch.Size, Obs]:
    """Return the leading dimensions of observations, and the observations with these flattened to one."""
    first, shape = next(iter(shapes.items()))
    leading = obs[first].shape[: obs[first].dim() - len(shape)]
    return leading, {key: obs[key].reshape(math.prod(leading), *shapes[key]) for key in shapes}
