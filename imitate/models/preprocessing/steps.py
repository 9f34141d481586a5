"""Preprocessing steps that ``train.preprocess`` names: their table, and the form of the pipeline in checkpoints.

The module also contains some of the steps: two-valued actions, padding, resizing of images, and tokens of instructions.
"""

import hashlib
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from imitate.errors import CheckpointError, ConfigError, nearest
from imitate.models.fitting import Affine, Statistics
from imitate.models.layout import ActionLayout, Shape
from imitate.models.options import arguments, chosen_or_installed
from imitate.models.preprocessing.coordinates import (
    DeltaActions,
    ObservedRotation6d,
    RelativeActions,
    RelativePose,
    Rotation6d,
    SinCos,
)
from imitate.models.preprocessing.standard import Clip, Normalize
from imitate.models.preprocessing.step import Observations, PreprocessStep, Space, Spec, columns
from imitate.system.images import IMAGE_MODALITIES
from imitate.system.instructions import LANGUAGE_KEY

_TOLERANCE = 0.02
"""Relative tolerance when the variance of data is compared with that of two-valued data."""


class BinaryActions(PreprocessStep):
    """Step for numbers with two values: networks learn -1 and 1, and the nearer value is sent to the robot.

    Args:
        dims: indices of the numbers in the whole action.
        values: the lower and the higher value; None for the smallest and the largest value of the data, which must have
            no other values.

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
        observation: key of the observation; None for the action.

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
        antialias: average over all pixels that a pixel of the smaller image covers, as image libraries do; if false,
            use the four nearest pixels, as OpenCV does.
        observations: image keys; None for all of them.
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


ENTRY_POINTS = "imitate.preprocess"
NORMALIZE = "normalize"
"""Step name that marks the position of the normalization in ``train.preprocess``."""

STEPS: dict[str, type[PreprocessStep]] = {
    "binary_actions": BinaryActions,
    "clip": Clip,
    "delta_actions": DeltaActions,
    "observed_rotation_6d": ObservedRotation6d,
    "pad": Pad,
    "relative_actions": RelativeActions,
    "relative_pose": RelativePose,
    "resize": Resize,
    "rotation_6d": Rotation6d,
    "sin_cos": SinCos,
    "tokenize": HashTokens,
}


def make_step(entry: Mapping[str, Any], place: str = "train.preprocess") -> PreprocessStep:
    """Make the step that an entry of the configuration describes.

    Args:
        entry: the name under ``step``, and the options of the step.
        place: dotted key of the entry, for messages.

    Raises:
        ConfigError: the step's name is unknown, or an option is unknown or missing.
    """
    options = {key: value for key, value in entry.items() if key != "step"}
    name = str(entry.get("step", ""))
    kind = chosen_or_installed(STEPS, name, f"{place}.step", ENTRY_POINTS)
    known = arguments(kind)
    for key in options:
        if key not in known:
            raise ConfigError(
                f"{place}.{key}: step '{name}' has no such key; {nearest(key, known)}"
            )
    try:
        step = kind(**options)
    except TypeError as error:
        raise ConfigError(f"{place}: step '{name}' cannot be made: {error}") from error
    if not isinstance(step, PreprocessStep):
        raise ConfigError(
            f"{place}: step '{name}' is a {type(step).__name__}; expected a class derived from PreprocessStep"
        )
    step.name, step.options = name, options
    return step


def make_steps(
    entries: Sequence[Mapping[str, Any]],
) -> tuple[list[PreprocessStep], list[PreprocessStep]]:
    """Make the steps before the normalization, and the steps after it.

    The normalization is at the entry ``{"step": "normalize"}``; without this entry, it is before the first step that
    must follow the normalization, or at the end.

    Raises:
        ConfigError: a step cannot be made from its entry, or is on the wrong side of the normalization.
    """
    before: list[PreprocessStep] = []
    after: list[PreprocessStep] = []
    marked = any(entry.get("step") == NORMALIZE for entry in entries)
    passed = False
    for number, entry in enumerate(entries):
        place = f"train.preprocess.{number}"
        if entry.get("step") == NORMALIZE:
            if passed or len(entry) > 1:
                raise ConfigError(
                    f'{place}: expected {{"step": "normalize"}} once, without other keys: it marks the place of '
                    "train.obs_normalization and train.action_config"
                )
            passed = True
            continue
        step = make_step(entry, place)
        passed = passed or (step.side == "after" and not marked)
        if step.side == ("before" if passed else "after"):
            raise ConfigError(
                f"{place}: step '{step.name}' is {'after' if passed else 'before'} the normalization; move it "
                f"{'before' if passed else 'after'} the entry 'normalize'"
            )
        (after if passed else before).append(step)
    return before, after


VERSION = 2
"""Version of the saved format. The first version has no number and contains only the standard steps."""


def saved_form(
    raw_shapes: Mapping[str, Shape],
    modalities: Mapping[str, str],
    actions: ActionLayout,
    steps: Sequence[PreprocessStep],
    normalization: Normalize,
    obs_clip: float | None,
    image_types: Mapping[str, str],
) -> dict[str, Any]:
    """Return all parts of a pipeline as tensors on the CPU, numbers, strings, lists and dicts.

    The arguments are attributes of :class:`~imitate.models.preprocess.Preprocess`.
    """
    obs = {
        key: {
            "raw_shape": list(shape),
            "modality": modalities[key],
            **({"image_type": image_types[key]} if key in image_types else {}),
            **_affine_dict(*normalization.obs_affine(key)),
        }
        for key, shape in raw_shapes.items()
    }
    stored_actions = {
        key: {
            "dim": action.stored,
            "rotation": action.rotation,
            **_affine_dict(*normalization.action_affine(key)),
        }
        for key, action in actions.keys.items()
    }
    entries = [
        {"step": NORMALIZE} if step is normalization else {"step": step.name, **step.options}
        for step in steps
        if step.name or step is normalization
    ]
    tensors = {
        f"{number}.{name}": tensor.detach().cpu().clone()
        for number, step in enumerate(step for step in steps if step.name)
        for name, tensor in step.state_dict().items()
    }
    return {
        "version": VERSION,
        "obs": obs,
        "actions": stored_actions,
        "obs_clip": obs_clip,
        "steps": entries,
        "tensors": tensors,
    }


def saved_arguments(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the result of :func:`saved_form`, of this or an earlier version, to arguments of ``Preprocess``.

    Raises:
        CheckpointError: the pipeline was saved by a later version.
    """
    version = saved.get("version", 1)
    if version > VERSION:
        raise CheckpointError(
            f"preprocess: saved in version {version}, but this imitate reads versions up to {VERSION}: upgrade imitate"
        )
    obs, actions = saved["obs"], saved["actions"]
    return {
        "raw_shapes": {key: entry["raw_shape"] for key, entry in obs.items()},
        "modalities": {key: entry["modality"] for key, entry in obs.items()},
        "actions": ActionLayout(
            {key: entry["dim"] for key, entry in actions.items()},
            {key: entry["rotation"] for key, entry in actions.items() if entry.get("rotation")},
        ),
        "obs_affine": _affine_of(obs),
        "action_affine": _affine_of(actions),
        # checkpoints of the first version do not have this entry
        "obs_clip": saved.get("obs_clip"),
        "steps": saved.get("steps", ()),
        "image_types": {
            key: entry["image_type"] for key, entry in obs.items() if "image_type" in entry
        },
    }


def load_tensors(steps: Sequence[PreprocessStep], saved: Mapping[str, Any]) -> None:
    """Load the saved buffers of the steps that ``train.preprocess`` lists."""
    for number, step in enumerate(steps):
        prefix = f"{number}."
        step.load_state_dict(
            {
                name.removeprefix(prefix): torch.as_tensor(tensor)
                for name, tensor in saved.get("tensors", {}).items()
                if name.startswith(prefix)
            }
        )


def _affine_dict(offset: Tensor, scale: Tensor) -> dict[str, Tensor]:
    return {"offset": offset.detach().cpu().clone(), "scale": scale.detach().cpu().clone()}


def _affine_of(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Affine]:
    return {key: (entry["offset"], entry["scale"]) for key, entry in entries.items()}
