"""Spaces of gymnasium and PettingZoo: native observations to dicts of arrays, vectors to native actions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from imitate.config.observation import ACTION_MASK
from imitate.envs.env import Array, Obs
from imitate.errors import EnvError, nearest

FLAT, IMAGE = "flat", "image"


class ActionSpace:
    """Vectors for the actions of a space: Box, Discrete, or a Tuple or Dict of one each.

    Args:
        name: of the environment, for messages.
        space: of one action.

    Attributes:
        low, high: (A,) limits; 0 and 1 of choices.
        num_choices: the first so many numbers are scores of a choice; 0: there is none.
    """

    def __init__(self, name: str, space: Any) -> None:
        self._name, self._space = name, space
        parts = _action_parts(name, space)
        low, high = zip(*map(_limits, parts), strict=True)
        self.low, self.high = np.concatenate(low), np.concatenate(high)
        self.num_choices = int(getattr(parts[0], "n", 0))

    @property
    def dim(self) -> int:
        """A."""
        return len(self.low)

    def native(self, action: Array) -> Any:
        """Return the action (A,), or one index of a choice, as the environment takes it.

        Raises:
            EnvError: it has another shape.
        """
        values = np.asarray(action, dtype=np.float64)
        space = self._space
        if isinstance(space, spaces.Discrete) and values.size == 1 and self.dim > 1:
            return int(space.start) + int(np.clip(round(values.item()), 0, self.dim - 1))
        if values.shape != (self.dim,):
            raise EnvError(
                f"{self._name}: the action has shape {values.shape}, the environment takes ({self.dim},); "
                "is the policy trained for another environment?"
            )
        return _in_space(space, values[: self.num_choices], values[self.num_choices :])


class ObservationSpace:
    """Dicts of arrays for the observations of a space: Box, Discrete, MultiBinary, or a Dict of them.

    Args:
        name: of the environment, for messages.
        space: of one observation; in a Dict within a Dict ``{"pixels": {"top": ...}}`` is called ``pixels_top``.
        keys: the observations to return; None returns all.

    Attributes:
        gives_mask: an observation or info had ``action_mask`` so far.
    """

    def __init__(self, name: str, space: Any, keys: Sequence[str] | None = None) -> None:
        self._name, self._space = name, space
        self._keys = None if keys is None else tuple(keys)
        self.gives_mask = False

    def observe(
        self, raw: Any, info: Mapping[str, Any], further: Mapping[str, Array] | None = None
    ) -> Obs:
        """Return the chosen observations, with the mask of actions that ``info`` may hold and those ``further`` ones.

        Raises:
            EnvError: a chosen one is missing.
        """
        space = self._space
        if isinstance(space, spaces.Dict):
            obs = {key: self._leaf(value, leaf, key) for key, value, leaf in _leaves(raw, space)}
        else:
            key = IMAGE if _is_image(space) else FLAT
            obs = {key: self._leaf(raw, space, key)}
        if ACTION_MASK in info and ACTION_MASK not in obs:
            obs[ACTION_MASK] = np.asarray(info[ACTION_MASK], dtype=np.float32).reshape(-1)
        self.gives_mask = self.gives_mask or ACTION_MASK in obs
        obs |= further or {}
        if self._keys is None:
            return obs
        missing = [key for key in self._keys if key not in obs]
        if missing:
            raise EnvError(
                f"{self._name}: the environment has no observation '{missing[0]}'; {nearest(missing[0], obs)} "
                f"(where it has another name, a policy is played with --rename NEW={missing[0]})"
            )
        return {key: obs[key] for key in self._keys}

    def _leaf(self, value: Any, space: Any, key: str) -> Array:
        if isinstance(space, (spaces.Box, spaces.MultiBinary)):
            return np.array(value) if _is_image(space) else np.array(value).reshape(-1)
        if isinstance(space, spaces.Discrete):
            one_hot = np.zeros(int(space.n), dtype=np.float32)
            one_hot[int(value) - int(space.start)] = 1.0
            return one_hot
        raise EnvError(
            f"{self._name}: observation '{key}' is a {type(space).__name__}; Box, Discrete, MultiBinary and a Dict of "
            "them are read; wrap the environment, for example in gymnasium.wrappers.FlattenObservation"
        )


def _action_parts(name: str, space: Any) -> list[Any]:
    """Return the Discrete and Box that an action consists of, the choice first."""
    parts = [space]
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        inside = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        parts = sorted(inside, key=lambda part: not isinstance(part, spaces.Discrete))
    kinds = [type(part).__name__ for part in parts]
    if kinds in (["Discrete"], ["Box"], ["Discrete", "Box"]):
        return parts
    raise EnvError(
        f"{name}: its actions are a {type(space).__name__} ({', '.join(kinds)}); Box, Discrete, and a Tuple or Dict "
        "of one each are supported"
    )


def _leaves(raw: Any, space: Any, before: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield name, value and space of each observation of a Dict and of those within it."""
    for key, part in space.spaces.items():
        name = before + key.replace(" ", "_") if before else key
        if isinstance(part, spaces.Dict):
            yield from _leaves(raw[key], part, f"{name}_")
        else:
            yield name, raw[key], part


def _limits(part: Any) -> tuple[Array, Array]:
    if isinstance(part, spaces.Discrete):
        return np.zeros(int(part.n)), np.ones(int(part.n))
    size = math.prod(part.shape)
    return part.low.reshape(size).astype(np.float64), part.high.reshape(size).astype(np.float64)


def _in_space(space: Any, choice: Array, numbers: Array) -> Any:
    """Return an action as the environment takes it, from scores of its choices and its numbers."""
    if isinstance(space, spaces.Dict):
        return {key: _in_space(part, choice, numbers) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_in_space(part, choice, numbers) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return int(space.start) + int(choice.argmax())
    return numbers.reshape(space.shape).astype(space.dtype)


def _is_image(space: Any) -> bool:
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) == 3
        and space.shape[-1] == 3
        and space.dtype == np.uint8
    )
