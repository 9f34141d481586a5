"""Preprocessing steps of single values: two-valued or padded vectors, images, and instructions as tokens."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from imitate.errors import ConfigError
from imitate.models.fitting import Statistics
from imitate.models.preprocessing.step import Observations, PreprocessStep, Space, Spec, columns
from imitate.system.images import IMAGE_MODALITIES
from imitate.system.instructions import LANGUAGE_KEY

_TOLERANCE = 0.02
"""Relative tolerance when the variance of data is compared with that of two-valued data."""


class BinaryActions(PreprocessStep):
    """Step for numbers with two values: networks learn -1 and 1, and the nearer value is sent to the robot.

    Args:
        dims: indices of the numbers in the whole action.
        values: the lower and the higher value; None: the smallest and the largest value of the data, which must have no
            others.

    Attributes:
        low, high: (len(dims),) the two values of each number.
    """

    changes_actions = True
    imitates = True
    invertible = False
    side = "before"
    low: Tensor
    high: Tensor

    def __init__(self, dims: Sequence[int], values: Sequence[float] | None = None) -> None:
        super().__init__()
        self._dims = [int(dim) for dim in dims]
        self._values = None if values is None else [float(value) for value in values]
        if self._values is not None and not (
            len(self._values) == 2 and self._values[0] < self._values[1]
        ):
            raise ConfigError(
                f"binary_actions: values is {self._values}; expected [low, high], the lower first"
            )
        low, high = self._values or (-1.0, 1.0)
        self.register_buffer("low", torch.full((len(self._dims),), low))
        self.register_buffer("high", torch.full((len(self._dims),), high))
        self._spec = Spec({}, {})

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        total = sum(spec.actions.values())
        if not self._dims or sorted(set(self._dims)) != sorted(
            dim for dim in self._dims if dim in range(total)
        ):
            raise ConfigError(
                f"{self.name}: dims is {self._dims}; expected distinct indices from 0 to {total - 1}"
            )
        self._spec = spec
        return Spec(spec.obs, spec.actions, spec.unscaled | frozenset(self._dims))

    def fit(self, statistics: Statistics) -> None:
        """Fit the step to the statistics of the incoming values."""
        if self._values is not None:
            return
        found = [statistics["actions"][key] for key in self._spec.actions]
        low, high, mean, std = (
            np.concatenate([np.asarray(getattr(stats, name), np.float64) for stats in found])
            for name in ("min", "max", "mean", "std")
        )
        for place, dim in enumerate(self._dims):
            ends = low[dim], high[dim]
            # The variance equals (mean - low) (high - mean) only if every value is either low or high.
            widest = (mean[dim] - ends[0]) * (ends[1] - mean[dim])
            if ends[0] == ends[1] or std[dim] ** 2 < (1 - _TOLERANCE) * widest:
                raise ConfigError(
                    f"{self.name}: number {dim} of the action goes from {ends[0]:g} to "
                    f"{ends[1]:g}, but does not have exactly two values; give the two values as 'values': [low, high], "
                    "or omit the number"
                )
            self.low[place], self.high[place] = ends

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn."""
        is_high = columns(actions, self._dims) > (self.low + self.high) / 2
        return self._replaced(actions, is_high.to(actions) * 2 - 1)

    def inverse_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Invert :meth:`forward_actions`."""
        is_high = columns(actions, self._dims) > 0
        return self._replaced(actions, torch.where(is_high, self.high, self.low).to(actions))

    def _replaced(self, actions: Tensor, values: Tensor) -> Tensor:
        parts = list(actions.unbind(-1))
        for dim, value in zip(self._dims, values.unbind(-1), strict=True):
            parts[dim] = value
        return torch.stack(parts, dim=-1)


class Pad(PreprocessStep):
    """Step that pads an observation or the action with zeros, so that several robots can share a network.

    Args:
        dim: length of the padded vector.
        observation: key of the observation; None: the action.

    Attributes:
        mask: (dim,) bool, true for real numbers, false for padding.
    """

    side = "after"
    mask: Tensor

    def __init__(self, dim: int, observation: str | None = None) -> None:
        super().__init__()
        self.dim = int(dim)
        self._key = observation
        self.changes_actions = observation is None
        self.register_buffer("mask", torch.ones(self.dim, dtype=torch.bool))
        self._real = self.dim

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        if self._key is None:
            self._set_real(sum(spec.actions.values()), "the action")
            missing = self.dim - self._real
            padding = {PADDING: missing} if missing else {}
            return spec._replace(actions={**spec.actions, **padding})
        space = spec.space(self._key, self.name)
        if space.modality != "low_dim" or len(space.shape) != 1:
            raise ConfigError(
                f"{self.name}: observation '{self._key}' is {space.modality} of shape {space.shape}; expected a vector"
            )
        self._set_real(space.shape[0], f"observation '{self._key}'")
        return spec.with_obs({self._key: space._replace(shape=(self.dim,))})

    def _set_real(self, size: int, what: str) -> None:
        if size > self.dim:
            raise ConfigError(
                f"{self.name}: dim is {self.dim}, but {what} has {size} numbers; expected at least {size}"
            )
        self._real = size
        self.mask[size:] = False

    def acts_on(self, key: str) -> bool:
        """Return true for the chosen observation."""
        return key == self._key

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Convert an observation ``(*B, ...)`` that the step acts on."""
        return self._padded(value)

    def inverse_obs(self, key: str, value: Tensor) -> Tensor:
        """Invert :meth:`forward_obs`."""
        return value[..., : self._real]

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn."""
        return self._padded(actions)

    def inverse_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Invert :meth:`forward_actions`."""
        return actions[..., : self._real]

    def _padded(self, value: Tensor) -> Tensor:
        return pad(value, (0, self.dim - self._real))


PADDING = "padding"
"""Name of the action key for padding numbers, which are not sent to a robot."""


class Resize(PreprocessStep):
    """Resize images by bilinear interpolation between the centres of pixels.

    Args:
        size: height and width in pixels.
        antialias: average over all pixels that a pixel of the smaller image covers, as image libraries do; False: use
            the four nearest pixels, as OpenCV does.
        observations: image keys; None: all of them.
    """

    invertible = False
    # statistics per channel stay valid, apart from the smoothing by interpolation
    keeps_statistics = True

    def __init__(
        self,
        size: Sequence[int],
        antialias: bool = True,
        observations: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if len(size) != 2 or any(int(side) < 1 for side in size):
            raise ConfigError(f"resize: size is {size}; expected [height, width] in pixels")
        self.size = (int(size[0]), int(size[1]))
        self.antialias = bool(antialias)
        self._chosen = None if observations is None else tuple(observations)
        self._resized: frozenset[str] = frozenset()

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        images = [key for key, space in spec.obs.items() if space.modality in IMAGE_MODALITIES]
        for key in self._chosen or ():
            space = spec.space(key, self.name)
            if key not in images:
                raise ConfigError(
                    f"{self.name}: observation '{key}' is {space.modality}; expected one of "
                    f"{', '.join(IMAGE_MODALITIES)}"
                )
        if not images:
            raise ConfigError(
                f"{self.name}: no observation is an image; list one under rgb or depth in observation.modalities"
            )
        resized = images if self._chosen is None else self._chosen
        changed = {key: spec.obs[key].shape for key in resized}
        self._resized = frozenset(key for key, shape in changed.items() if shape[1:] != self.size)
        return spec.with_obs(
            {
                key: Space((shape[0], *self.size), spec.obs[key].modality)
                for key, shape in changed.items()
            }
        )

    def acts_on(self, key: str) -> bool:
        """Return true for the chosen images that do not have the wanted size already."""
        return key in self._resized

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Resize images ``(*B, C, H, W)``."""
        flat = value.flatten(0, -4) if value.dim() > 3 else value[None]
        resized = interpolate(flat, self.size, mode="bilinear", antialias=self.antialias)
        return resized.view(*value.shape[:-2], *self.size)

    def inverse_obs(self, key: str, value: Tensor) -> Tensor:
        """Return the image unchanged, because lost pixels cannot be restored."""
        return value


class Tokenize(PreprocessStep):
    """Base class of tokenizers: convert the UTF-8 bytes of an instruction (``train.language_bytes``) to tokens.

    Tokens are integers stored as floats, for an encoder such as TokenCore; 0 is padding. A subclass implements its
    tokenizer in :meth:`encode` and sets the number of its tokens in :attr:`vocabulary`.

    Args:
        length: number of tokens of an instruction; shorter instructions are padded with zeros, longer instructions
            truncated.
        observation: key of the observation with the bytes.
    """

    invertible = False
    side = "before"
    vocabulary: int

    def __init__(self, length: int = 16, observation: str = LANGUAGE_KEY) -> None:
        super().__init__()
        if int(length) < 1:
            raise ConfigError(f"tokenize: length is {length}; expected at least 1")
        self.length = int(length)
        self._key = observation
        self._known: dict[bytes, list[int]] = {}

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text: integers from 1 to ``vocabulary`` - 1."""

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        space = spec.space(self._key, self.name)
        if space.modality != "low_dim" or len(space.shape) != 1 or space.is_token:
            raise ConfigError(
                f"{self.name}: observation '{self._key}' is {space.modality} of shape {space.shape}; expected "
                "the bytes of a text, as train.language_bytes gives them"
            )
        return spec.with_obs({self._key: Space((self.length,), "low_dim", is_token=True)})

    def acts_on(self, key: str) -> bool:
        """Return true for the observation with the text."""
        return key == self._key

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Convert bytes ``(*B, N)`` to tokens ``(*B, length)``."""
        rows = value.reshape(-1, value.shape[-1]).to("cpu", torch.uint8)
        kinds, places = torch.unique(rows, dim=0, return_inverse=True)
        tokens = torch.tensor([self._row(bytes(row.tolist())) for row in kinds])
        return tokens[places].view(*value.shape[:-1], self.length).to(value)

    def _row(self, data: bytes) -> list[int]:
        if data not in self._known:
            tokens = self.encode(data.rstrip(b"\0").decode(errors="replace"))[: self.length]
            self._known[data] = tokens + [0] * (self.length - len(tokens))
        return self._known[data]


class HashTokens(Tokenize):
    """Tokenizer without a table: each word's token is a hash of its letters, so that any word has a token.

    Args:
        length: number of tokens of an instruction.
        vocabulary: number of tokens; two of W different words have the same token with probability about W^2 / (2
            vocabulary).
        observation: key of the observation with the bytes.
    """

    def __init__(
        self, length: int = 16, vocabulary: int = 4096, observation: str = LANGUAGE_KEY
    ) -> None:
        super().__init__(length, observation)
        if int(vocabulary) < 2:
            raise ConfigError(f"tokenize: vocabulary is {vocabulary}; expected at least 2")
        self.vocabulary = int(vocabulary)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of the words; capitals and punctuation are ignored."""
        digests = (
            hashlib.sha256(word.encode()).digest() for word in re.findall(r"\w+", text.lower())
        )
        return [1 + int.from_bytes(digest[:8], "big") % (self.vocabulary - 1) for digest in digests]
