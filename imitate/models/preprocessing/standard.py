"""Steps of every pipeline: layout, rotations, normalization, and limits of the networks' inputs."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imitate.errors import ConfigError, UserError
from imitate.functional.normalization import is_constant
from imitate.functional.transfer import to_device
from imitate.models.fitting import Affine, Statistics, fit_actions, fit_obs
from imitate.models.layout import ActionLayout, Shape, processed_shape
from imitate.models.preprocessing.step import (
    Observations,
    PackedStep,
    PreprocessStep,
    Space,
    Spec,
)
from imitate.system.images import IMAGE_MODALITIES, image_divisor, image_type
from imitate.system.text import MASK

_OVERSHOOT = 0.1
"""Largest amount by which resized images may exceed black and white."""


class Layout(PreprocessStep):
    """Convert values to float32 on the module's device.

    Images (H, W, C) become (C, H, W) in [0, 1], scans (L, C) become (C, L).
    """

    keeps_statistics = True
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._modalities: dict[str, str] = {}
        self.beyond_unit_range: frozenset[str] = frozenset()
        """Images that were recorded with values outside [0, 1]; the range of their values is not checked."""
        self.image_types: Mapping[str, str] = {}
        """Types of recorded image values by key, where known, see :func:`~imitate.system.images.image_type`."""
        self.register_buffer("place", torch.empty(0), persistent=False)

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        self._modalities = {key: space.modality for key, space in spec.obs.items()}
        return spec.with_obs(
            {
                key: space._replace(shape=processed_shape(space.shape, space.modality, key))
                for key, space in spec.obs.items()
            }
        )

    def acts_on(self, key: str) -> bool:
        """Return true for all observations."""
        return True

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Return a copy in the networks' layout, which the steps that follow may change in place."""
        modality = self._modalities[key]
        divisor = 1.0
        if modality in IMAGE_MODALITIES:
            recorded = self.image_types.get(key)
            divisor = image_divisor(modality, recorded, image_type(value.dtype), key)
            if value.dtype is not torch.uint8 and (modality == "rgb" or recorded == "uint8"):
                self._check_pixels(key, value)
        device = self.place.device
        value = to_device(value, device)
        # copied, so that later steps can change it in place, which is five times as fast for images
        x = value.to(torch.float32, copy=True)
        if modality in IMAGE_MODALITIES:
            # A view, so that channels remain last in memory, which suits convolutions. Dimensions are counted from the
            # front, because negative ones would stay negative in an ONNX file.
            x = x.movedim(x.dim() - 1, x.dim() - 3)
            if divisor != 1.0:
                x = x.div_(divisor)
        elif modality == "scan":
            x = x.movedim(x.dim() - 1, x.dim() - 2)
        return x

    def _check_pixels(self, key: str, value: Tensor) -> None:
        """Raise UserError for an image of floats outside [0, 1] or integers outside [0, 255].

        Images that were recorded with such values are accepted, because the normalization was fitted to them.
        """
        if value.numel() == 0 or key in self.beyond_unit_range:
            return
        highest = 1 if value.is_floating_point() else 255
        low, high = (float(limit) for limit in value.aminmax())
        if low < -_OVERSHOOT or high > highest + _OVERSHOOT:
            raise UserError(
                f"image '{key}' has {str(value.dtype).removeprefix('torch.')} values from {low:.4g} to {high:.4g}; "
                "expected uint8 from 0 to 255, or floats from 0 to 1: give pixels as uint8, or divide floats by 255"
            )


class Rotations(PreprocessStep):
    """Convert rotations of actions to rotation-6d and back, see :class:`~imitate.models.layout.ActionLayout`.

    Rotations are converted back to the robot's form, which may differ from the stored form. Converted numbers are never
    normalized, so that the statistics of the data stay valid for the other numbers.
    """

    keeps_statistics = True

    def __init__(self, layout: ActionLayout) -> None:
        super().__init__()
        self._layout = layout
        self.changes_actions = any(key.rotation for key in layout.keys.values())

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        return Spec(spec.obs, self._layout.learned_dims)

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn."""
        return self._layout.to_learned(actions)

    def inverse_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Invert :meth:`forward_actions`."""
        return self._layout.to_sent(actions)


class Normalize(PreprocessStep):
    """Normalization ``(x - offset) / scale``, per number, or per channel of an image.

    Without normalization, offset is 0 and scale is 1.

    Args:
        obs_mode: None, or a name of :func:`~imitate.models.fitting.fit_obs` for all observations.
        action_modes: per action key None, or a name of :func:`~imitate.models.fitting.fit_actions`.
        unit_range_keys: images that are not normalized.

    Attributes:
        offset, scale: offset and scale of all observations, concatenated.
        action_offset, action_scale: offset and scale of the whole action.
        normalizes_obs, normalizes_actions: True if any number is changed.
        constant: indices of numbers that do not vary in the data, by key; empty before :meth:`fit`.
    """

    offset: Tensor
    scale: Tensor
    action_offset: Tensor
    action_scale: Tensor

    def __init__(
        self,
        obs_mode: str | None = None,
        action_modes: Mapping[str, str | None] | None = None,
        unit_range_keys: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._obs_mode = obs_mode
        self._action_modes = dict(action_modes or {})
        self._unit_range_keys = frozenset(unit_range_keys)
        self._spaces: dict[str, Space] = {}
        self._ranges: dict[str, tuple[int, int]] = {}
        self._action_ranges: dict[str, tuple[int, int]] = {}
        self._unscaled: list[int] = []
        self.constant: dict[str, list[int]] = {}
        self.normalizes_obs = self.normalizes_actions = False

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        self._spaces = dict(spec.obs)
        self._ranges = _ranges({key: math.prod(self._shape(key)) for key in spec.obs})
        self._action_ranges = _ranges(spec.actions)
        self._unscaled = sorted(spec.unscaled)
        for prefix, ranges in (("", self._ranges), ("action_", self._action_ranges)):
            total = max((stop for _, stop in ranges.values()), default=0)
            self.register_buffer(f"{prefix}offset", torch.zeros(total))
            self.register_buffer(f"{prefix}scale", torch.ones(total))
        return spec

    def fit(self, statistics: Statistics) -> None:
        """Fit the step to the statistics of the incoming values."""
        if self._obs_mode is not None:
            for key, space in self._spaces.items():
                if key in self._unit_range_keys or space.is_token or space.modality == MASK:
                    continue
                offset, scale = fit_obs(self._obs_mode, statistics["obs"][key], key)
                # statistics of scans have the layout (L, C) of the file
                if space.modality == "scan":
                    offset, scale = offset.mT, scale.mT
                self.set_obs(key, offset, scale)
        for key, mode in self._action_modes.items():
            if mode is not None:
                self.set_actions(key, *fit_actions(mode, statistics["actions"][key], key))
        self._find_constant(statistics)
        self.action_offset[self._unscaled], self.action_scale[self._unscaled] = 0.0, 1.0
        self.refresh()

    def _find_constant(self, statistics: Statistics) -> None:
        vectors = [key for key, space in self._spaces.items() if len(space.shape) <= 1]
        normalized = vectors if self._obs_mode is not None else []
        for group, keys in (("obs", normalized), ("actions", list(self._action_modes))):
            for key in keys:
                stats = statistics[group].get(key)
                if stats is None or (group == "actions" and self._action_modes[key] is None):
                    continue
                low, high = (
                    torch.as_tensor(np.asarray(end)).ravel() for end in (stats.min, stats.max)
                )
                if found := is_constant(low, high).nonzero().flatten().tolist():
                    self.constant[key] = found

    def refresh(self) -> None:
        """Update attributes that depend on the buffers; must be called whenever the buffers change."""
        self.normalizes_obs = not _is_identity(self.offset, self.scale)
        self.normalizes_actions = not _is_identity(self.action_offset, self.action_scale)
        self.changes_actions = self.normalizes_actions

    def set_obs(self, key: str, offset: Tensor, scale: Tensor) -> None:
        """Set offset and scale of an observation, with the shape of one step, or per channel of an image."""
        _write(key, self._ranges[key], (self.offset, offset), (self.scale, scale))
        self.refresh()

    def set_actions(self, key: str, offset: Tensor, scale: Tensor) -> None:
        """Set offset and scale of an action key."""
        _write(
            key, self._action_ranges[key], (self.action_offset, offset), (self.action_scale, scale)
        )
        self.refresh()

    def obs_affine(self, key: str) -> Affine:
        """Return offset and scale of an observation, as views of the buffers."""
        part = slice(*self._ranges[key])
        return self.offset[part], self.scale[part]

    def action_affine(self, key: str) -> Affine:
        """Return offset and scale of an action key, as views of the buffers."""
        part = slice(*self._action_ranges[key])
        return self.action_offset[part], self.action_scale[part]

    def acts_on(self, key: str) -> bool:
        """Return true for every observation if the normalization changes any number of any observation."""
        return self.normalizes_obs

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Convert an observation ``(*B, ...)`` that the step acts on."""
        offset, scale = self._broadcast(key)
        return value.sub_(offset).div_(scale)

    def inverse_obs(self, key: str, value: Tensor) -> Tensor:
        """Invert :meth:`forward_obs`."""
        offset, scale = self._broadcast(key)
        return value * scale + offset

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn."""
        return (actions - self.action_offset) / self.action_scale

    def inverse_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Invert :meth:`forward_actions`."""
        return actions * self.action_scale + self.action_offset

    def packed(self, keys: Sequence[str]) -> PackedStep | None:
        """Return a function that applies the step to several concatenated vectors at once, or None if impossible."""
        index = [i for key in keys for i in range(*self._ranges[key])]
        offset, scale = self.offset[index], self.scale[index]
        offsets, scales = offset.cpu().numpy(), scale.cpu().numpy()

        def normalized(x: Any) -> Any:
            if isinstance(x, np.ndarray):
                return (x - offsets) / scales
            return (x - offset).div_(scale)

        return normalized

    def _shape(self, key: str) -> Shape:
        """Return the shape with which a key's offset broadcasts over its values."""
        space = self._spaces[key]
        return (space.shape[0], 1, 1) if space.modality in IMAGE_MODALITIES else space.shape

    def _broadcast(self, key: str) -> Affine:
        offset, scale = self.obs_affine(key)
        shape = self._shape(key)
        return offset.view(shape), scale.view(shape)


class Clip(PreprocessStep):
    """Clip values to +- ``limit``.

    Args:
        limit: largest magnitude.
        observations: keys of vectors; None for all low_dim observations.
        actions: True to clip also the actions that networks learn; predicted actions are not clipped.
    """

    invertible = False

    def __init__(
        self, limit: float, observations: Sequence[str] | None = None, actions: bool = False
    ) -> None:
        super().__init__()
        if not limit > 0:
            raise ConfigError(f"clip: limit is {limit}; expected more than 0")
        self.limit = float(limit)
        self.changes_actions = bool(actions)
        self._chosen = None if observations is None else tuple(observations)
        self._keys: frozenset[str] = frozenset()

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        for key in self._chosen or ():
            space = spec.space(key, self.name)
            if space.modality != "low_dim" or space.is_token:
                kind = "tokens" if space.is_token else space.modality
                raise ConfigError(f"{self.name}: observation '{key}' is {kind}; expected low_dim")
        every = [k for k, s in spec.obs.items() if s.modality == "low_dim" and not s.is_token]
        self._keys = frozenset(every if self._chosen is None else self._chosen)
        return spec

    def acts_on(self, key: str) -> bool:
        """Return true for the chosen observations."""
        return key in self._keys

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Convert an observation ``(*B, ...)`` that the step acts on."""
        return value.clamp(-self.limit, self.limit)

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn."""
        return actions.clamp(-self.limit, self.limit)

    def packed(self, keys: Sequence[str]) -> PackedStep | None:
        """Return a function that applies the step to several concatenated vectors at once, or None if impossible."""
        limit = self.limit
        return (lambda x: x.clip(-limit, limit)) if self._keys.issuperset(keys) else None


def _write(key: str, place: tuple[int, int], *pairs: tuple[Tensor, Any]) -> None:
    start, stop = place
    for buffer, value in pairs:
        flat = torch.as_tensor(value).flatten()
        if flat.numel() != stop - start:
            raise UserError(
                f"normalization of '{key}' has {flat.numel()} values; expected {stop - start}"
            )
        buffer[start:stop] = flat


def _ranges(sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the first index and the end of each key in the concatenated vector."""
    ranges, start = {}, 0
    for key, size in sizes.items():
        ranges[key] = (start, start + size)
        start += size
    return ranges


def _is_identity(offset: Tensor, scale: Tensor) -> bool:
    return bool((offset == 0).all()) and bool((scale == 1).all())
