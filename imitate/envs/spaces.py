"""Convert observations of gymnasium and PettingZoo to dicts of arrays, and vectors to actions of their spaces."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from imitate.envs.env import Array, Obs
from imitate.errors import EnvError, nearest, offered
from imitate.system.images import image_layout, in_layout, nested_name
from imitate.system.text import ACTION_MASK

FLAT, IMAGE = "flat", "image"


class ActionSpace:
    """Converts vectors to the actions of a space: Box, Discrete, or a Tuple or Dict of one each.

    Args:
        name: name of the environment, for messages.
        space: space of one action.

    Attributes:
        low, high: (A,) limits of the vector; 0 and 1 for scores of a choice.
        num_choices: number of leading values that are scores of a choice; 0 if there is no choice.
    """

    def __init__(self, name: str, space: Any) -> None:
        self._name, self._space = name, space
        parts = _action_parts(name, space)
        low, high = zip(*map(_limits, parts), strict=True)
        self.low, self.high = np.concatenate(low), np.concatenate(high)
        self.num_choices = int(getattr(parts[0], "n", 0))
        self._convert = _converter(space, self.num_choices)

    @property
    def dim(self) -> int:
        """Size A of an action."""
        return len(self.low)

    def native(self, action: Array) -> Any:
        """Convert a vector (A,), or the index of a choice, to an action of the space.

        Raises:
            EnvError: the action has another shape.
        """
        values = np.asarray(action, dtype=np.float64)
        if values.shape == self.low.shape:
            return self._convert(values)
        if isinstance(self._space, spaces.Discrete) and values.size == 1:
            return int(self._space.start) + int(np.clip(round(values.item()), 0, self.dim - 1))
        raise EnvError(
            f"{self._name}: the action has shape {values.shape}, but the environment takes ({self.dim},); use a policy "
            "trained for this environment"
        )


class ObservationSpace:
    """Converts observations of a Box, Discrete or MultiBinary space, or of a Dict of these, to dicts of arrays.

    Args:
        name: name of the environment, for messages.
        space: space of one observation; in a Dict within a Dict ``{"pixels": {"top": ...}}`` is called ``pixels_top``.
        keys: observation keys to return; None returns all.

    Attributes:
        has_images: true if some observations are images.
        gives_mask: true if an observation or info has contained ``action_mask`` so far.
    """

    def __init__(self, name: str, space: Any, keys: Sequence[str] | None = None) -> None:
        self._name = name
        self._keys = None if keys is None else tuple(keys)
        leaves = (
            list(_leaves(space))
            if isinstance(space, spaces.Dict)
            else [(FLAT if _layout(space) is None else IMAGE, (), space)]
        )
        names = [key for key, _, _ in leaves]
        both = sorted({key for key in names if names.count(key) > 1})
        if both:
            raise EnvError(
                f"{name}: after flattening, two observations have the name '{both[0]}': rename one in a wrapper"
            )
        if keys is not None:  # spaces that cannot be converted are skipped
            leaves = [leaf for leaf in leaves if leaf[0] in keys or _can_be_read(leaf[2])]
        # Stored, because reading types and shapes of spaces takes as long as a step of a small environment.
        self._readers = [(key, path, _reader(name, key, leaf)) for key, path, leaf in leaves]
        self.has_images = any(_layout(leaf) is not None for _, _, leaf in leaves)
        self.gives_mask = False

    def observe(
        self, raw: Any, info: Mapping[str, Any], further: Mapping[str, Array] | None = None
    ) -> Obs:
        """Return the chosen observations, the ``further`` ones, and the action mask if ``info`` contains it.

        Raises:
            EnvError: a chosen observation is missing.
        """
        obs: Obs = {}
        for key, path, read in self._readers:
            value = raw
            for name in path:
                value = value[name]
            obs[key] = read(value)
        if ACTION_MASK in info and ACTION_MASK not in obs:
            obs[ACTION_MASK] = np.asarray(info[ACTION_MASK], dtype=np.float32).reshape(-1)
        self.gives_mask = self.gives_mask or ACTION_MASK in obs
        obs |= further or {}
        if self._keys is None:
            return obs
        missing = [key for key in self._keys if key not in obs]
        if missing:
            raise no_observation(self._name, missing[0], obs)
        return {key: obs[key] for key in self._keys}


def _action_parts(name: str, space: Any) -> list[Any]:
    """Return the Discrete and Box spaces of an action, the Discrete space first."""
    parts = [space]
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        inside = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        parts = sorted(inside, key=lambda part: not isinstance(part, spaces.Discrete))
    kinds = [type(part).__name__ for part in parts]
    if kinds in (["Discrete"], ["Box"], ["Discrete", "Box"]):
        return parts
    inner = "" if parts == [space] else f" ({', '.join(kinds)})"
    raise EnvError(
        f"{name}: the action space is {type(space).__name__}{inner}, but only Box, Discrete, and a Tuple or Dict of "
        "one each are supported: wrap the environment, for example with one Discrete choice for each combination"
    )


def _leaves(
    space: Any, before: str = "", path: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield for each observation, also within nested Dicts, the name, the path of keys and the space."""
    for key, part in space.spaces.items():
        name = nested_name(before, key)
        if isinstance(part, spaces.Dict):
            yield from _leaves(part, name, (*path, key))
        else:
            yield name, (*path, key), part


def _can_be_read(space: Any) -> bool:
    kinds = (spaces.Box, spaces.MultiBinary, spaces.Discrete)
    return isinstance(space, kinds) and _layout(space) != "unknown"


def _reader(name: str, key: str, space: Any) -> Callable[[Any], Array]:
    """Return a function from a native observation to a copied array, because environments may reuse theirs."""
    layout = _layout(space)
    if layout == "unknown":
        return partial(_refuse_layout, name, key, space)
    if layout in ("CHW", "HW"):
        return partial(_image, layout)
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return np.array if layout == "HWC" else _vector
    if isinstance(space, spaces.Discrete):
        return partial(_one_hot, int(space.n), int(space.start))
    return partial(_refuse, name, key, type(space).__name__)


def _image(layout: str, value: Any) -> Array:
    return in_layout(np.array(value), layout)


def _vector(value: Any) -> Array:
    return np.array(value).reshape(-1)


def _one_hot(size: int, start: int, value: Any) -> Array:
    one_hot = np.zeros(size, dtype=np.float32)
    one_hot[int(value) - start] = 1.0
    return one_hot


def _refuse(name: str, key: str, kind: str, value: Any) -> Array:
    raise EnvError(
        f"{name}: observation '{key}' is a {kind}; supported are Box, Discrete, MultiBinary and a Dict of them; wrap "
        "the "
        "environment, for example in gymnasium.wrappers.FlattenObservation"
    )


def _refuse_layout(name: str, key: str, space: Any, value: Any) -> Array:
    raise EnvError(
        f"{name}: observation '{key}' has shape {space.shape} of {space.dtype}, which is not a supported layout of "
        "images: (H, W, C) or (C, H, W) with 1, 3 or 4 channels, or (H, W); wrap the environment, for example in "
        "gymnasium.wrappers.ReshapeObservation, or FlattenObservation for a vector"
    )


def _limits(part: Any) -> tuple[Array, Array]:
    if isinstance(part, spaces.Discrete):
        return np.zeros(int(part.n)), np.ones(int(part.n))
    size = math.prod(part.shape)
    return part.low.reshape(size).astype(np.float64), part.high.reshape(size).astype(np.float64)


def _converter(space: Any, choices: int) -> Callable[[Array], Any]:
    """Return a function that converts a vector (scores of choices, then numbers) to an action of the space."""
    if isinstance(space, spaces.Dict):
        named = {key: _converter(part, choices) for key, part in space.spaces.items()}
        return lambda values: {key: convert(values) for key, convert in named.items()}
    if isinstance(space, spaces.Tuple):
        parts = [_converter(part, choices) for part in space.spaces]
        return lambda values: tuple(convert(values) for convert in parts)
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda values: start + int(values[:choices].argmax())
    shape, dtype = space.shape, space.dtype
    return lambda values: values[choices:].reshape(shape).astype(dtype)


def _layout(space: Any) -> str | None:
    return image_layout(space.shape, space.dtype) if isinstance(space, spaces.Box) else None


def no_observation(env_name: str, key: str, obs: Mapping[str, Any]) -> EnvError:
    """Return an error for an observation that an environment lacks, with the option of the command that may help.

    Args:
        env_name: name of the environment.
        key: the missing observation.
        obs: the observations of the environment.
    """
    words = f"{env_name}: the environment has no observation '{key}'; {nearest(key, obs)}"
    if offered("--rename"):
        return EnvError(f"{words} (if it has another name there, use --rename NEW={key})")
    if offered("--set"):
        vectors = [name for name, value in obs.items() if np.ndim(value) == 1]
        images = [name for name, value in obs.items() if np.ndim(value) == 3]
        own = {kind: names for kind, names in (("low_dim", vectors), ("rgb", images)) if names}
        words += f"; to take its own, add --set 'observation.modalities.obs={json.dumps(own)}'"
    return EnvError(words)
