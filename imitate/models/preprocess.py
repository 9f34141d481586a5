"""The one object between raw values and networks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from imitate.errors import ConfigError, UserError, nearest
from imitate.models.action_layout import ActionLayout
from imitate.models.fitting import Affine, Stats, fit_actions, fit_obs
from imitate.models.layout import IMAGE_MODALITIES, Shape, processed_shape, raw_shape_of

_OVERSHOOT = 0.1
"""Resized images may go so far beyond black and white."""


class _Plan(NamedTuple):
    """What :meth:`Preprocess.prepare_obs` needs for one choice of keys."""

    keys: tuple[str, ...]
    packed: tuple[str, ...]  # flat low_dim keys
    sizes: list[int]
    offset: Tensor
    scale: Tensor
    others: tuple[str, ...]


class Preprocess(nn.Module):
    """Layout and normalization of observations and actions, in training, rollout and serving.

    Observations: float32 on the module's device; images uint8 (H, W, C) to (C, H, W) in [0, 1],
    float images are taken as in [0, 1] already; scans (L, C) to (C, L). Then
    ``(x - offset) / scale``, per channel for images, and low_dim numbers are clipped to
    +-``obs_clip``. Actions: the concatenation of the action keys, in their given order, rotations
    as :class:`~imitate.models.action_layout.ActionLayout` says, normalized the same
    way and back. Where nothing is normalized, offset is 0 and scale is 1.

    Args:
        raw_shapes: shape of one step of each observation key as stored.
        modalities: 'low_dim', 'rgb', 'depth' or 'scan' for each key.
        actions: the action keys, or the size of each; their order is the order of concatenation.
        obs_affine: offset and scale of the keys to normalize, shaped like one step, or per channel.
        action_affine: offset and scale of the action keys to normalize.
        obs_clip: greatest magnitude of a prepared low_dim number; None: any.
    """

    offset: Tensor
    scale: Tensor
    action_offset: Tensor
    action_scale: Tensor

    def __init__(
        self,
        raw_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        actions: ActionLayout | Mapping[str, int],
        obs_affine: Mapping[str, Affine] | None = None,
        action_affine: Mapping[str, Affine] | None = None,
        obs_clip: float | None = None,
    ) -> None:
        super().__init__()
        self.raw_shapes = {key: tuple(raw_shapes[key]) for key in sorted(raw_shapes)}
        self.modalities = {key: modalities[key] for key in self.raw_shapes}
        self.obs_shapes = {
            key: processed_shape(shape, self.modalities[key], key)
            for key, shape in self.raw_shapes.items()
        }
        self.actions = actions if isinstance(actions, ActionLayout) else ActionLayout(actions)
        self.obs_clip = obs_clip
        # One pair of buffers for all observation keys: an entry per value, or per channel of an image.
        self._ranges = _ranges({key: self._affine_size(key) for key in self.raw_shapes})
        self._register("offset", "scale", self._ranges, obs_affine or {})
        self._register(
            "action_offset",
            "action_scale",
            _ranges(self.actions.learned_dims),
            action_affine or {},
        )
        self._refresh()

    # ---- constructors ---------------------------------------------------------------------------

    @classmethod
    def layout_only(
        cls,
        raw_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        action_dims: Mapping[str, int],
    ) -> Self:
        """Without normalization."""
        return cls(raw_shapes, modalities, action_dims)

    @classmethod
    def layout_only_from_processed(
        cls,
        obs_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        action_dims: Mapping[str, int],
    ) -> Self:
        """Without normalization, from the shapes that networks see: images (C, H, W)."""
        raw = {key: raw_shape_of(shape, modalities[key], key) for key, shape in obs_shapes.items()}
        return cls(raw, modalities, action_dims)

    @classmethod
    def from_statistics(
        cls,
        raw_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        action_dims: Mapping[str, int],
        statistics: Mapping[str, Mapping[str, Stats]],
        obs_normalization: str | None = None,
        action_config: Mapping[str, Any] | None = None,
        unit_range_keys: Collection[str] = (),
        obs_clip: float | None = None,
    ) -> Self:
        """Normalization fitted to data.

        Args:
            raw_shapes: shape of one step of each observation key as stored.
            modalities: modality of each key.
            action_dims: size of each action key, in the order of concatenation.
            statistics: ``{"obs": {key: Stats}, "actions": {key: Stats}}``.
            obs_normalization: None; 'mean_std', the std not below 0.01; 'min_max', to [-1, 1].
            action_config: per action key a mapping with ``normalization``: None; 'min_max', to
                +-0.999999; 'gaussian', to mean 0 and std 1; and ``format`` and ``convert_at_runtime``, see
                :class:`~imitate.models.action_layout.ActionLayout`.
            unit_range_keys: images that are not normalized further and stay in [0, 1].
            obs_clip: see the class.
        """
        obs_affine: dict[str, Affine] = {}
        if obs_normalization is not None:
            for key in [key for key in raw_shapes if key not in unit_range_keys]:
                offset, scale = fit_obs(obs_normalization, statistics["obs"][key])
                if modalities[key] == "scan":  # statistics are in the layout of the file
                    offset, scale = offset.mT, scale.mT
                obs_affine[key] = (offset, scale)
        layout = ActionLayout.from_config(action_dims, action_config or {})
        action_affine: dict[str, Affine] = {}
        for name, action_key in layout.keys.items():
            mode = (action_config or {}).get(name, {}).get("normalization", None)
            if mode is None:
                continue
            if action_key.learned != action_key.stored:
                raise ConfigError(
                    f"train.action_config.{name}.normalization is '{mode}', but rotations that are converted to 6d are "
                    "within [-1, 1] already; set it to null"
                )
            action_affine[name] = fit_actions(mode, statistics["actions"][name], name)
        return cls(raw_shapes, modalities, layout, obs_affine, action_affine, obs_clip)

    # ---- observations ----------------------------------------------------------------------------

    def prepare_obs(
        self, raw: Mapping[str, Tensor | np.ndarray[Any, Any]], keys: Iterable[str] | None = None
    ) -> dict[str, Tensor]:
        """Network inputs from raw observations.

        Args:
            raw: (*B, ...) arrays or tensors with the same leading dimensions; other keys are ignored.
            keys: the keys wanted, all of them by default.

        Returns:
            (*B, ...) float32 tensors on the module's device, which may share one storage.

        Raises:
            UserError: a key is missing or has another shape, or an image has values beyond its range.
        """
        plan = self._plan(None if keys is None else tuple(keys))
        self._check(raw, plan.keys)
        prepared: dict[str, Tensor] = {}
        if plan.packed:
            x = _joined([raw[key] for key in plan.packed], self.offset.device)
            if self.normalizes_obs:
                x = (x - plan.offset).div_(plan.scale)
            parts = torch.split(self._clipped(x), plan.sizes, -1)
            prepared = dict(zip(plan.packed, parts, strict=True))
        for key in plan.others:
            prepared[key] = self._prepare_one(key, torch.as_tensor(raw[key]))
        return prepared

    def _prepare_one(self, key: str, value: Tensor) -> Tensor:
        """An image, a scan, or low_dim values that are not a vector."""
        modality = self.modalities[key]
        if modality == "rgb" and value.dtype is not torch.uint8:
            self._check_pixels(key, value)
        value = value.to(self.offset.device, non_blocking=True)
        # A copy of its own, so that it can be changed in place: five times as fast for images.
        x = value.to(torch.float32, copy=True)
        if modality in IMAGE_MODALITIES:
            x = x.movedim(
                -1, -3
            )  # a view: the channels stay last in memory, as convolutions like them
            if not value.is_floating_point():
                x = x.div_(255.0)
        elif modality == "scan":
            x = x.movedim(-1, -2)
        if self.normalizes_obs:
            start, stop = self._ranges[key]
            shape = self._affine_shape(key)
            x.sub_(self.offset[start:stop].view(shape)).div_(self.scale[start:stop].view(shape))
        return self._clipped(x) if modality == "low_dim" else x

    def _check_pixels(self, key: str, value: Tensor) -> None:
        """Refuse floats beyond [0, 1] and integers beyond [0, 255], unless the normalization was fitted to such."""
        highest = 1 if value.is_floating_point() else 255
        offset = self.offset[slice(*self._ranges[key])]
        if value.numel() == 0 or bool((offset > 1).any()):
            return
        low, high = (float(limit) for limit in value.aminmax())
        if low < -_OVERSHOOT or high > highest + _OVERSHOOT:
            raise UserError(
                f"image '{key}' has {str(value.dtype).removeprefix('torch.')} values from {low:.4g} to {high:.4g}; "
                "wanted uint8 from 0 to 255, or floats from 0 to 1: give pixels as uint8, or divide floats by 255"
            )

    def _clipped(self, x: Tensor) -> Tensor:
        return x if self.obs_clip is None else x.clamp(-self.obs_clip, self.obs_clip)

    def _check(self, raw: Mapping[str, Tensor | np.ndarray[Any, Any]], keys: Sequence[str]) -> None:
        for key in keys:
            shape = self.raw_shapes[key]
            if key not in raw:
                raise UserError(
                    f"observation '{key}' is missing; wanted {', '.join(keys)}, "
                    f"got {', '.join(raw) or 'nothing'}"
                )
            got = raw[key].shape
            if got[len(got) - len(shape) :] != shape:
                raise UserError(
                    f"observation '{key}' has shape {tuple(got)}; wanted (..., "
                    f"{', '.join(map(str, shape))}) with modality '{self.modalities[key]}'"
                )

    def _plan(self, keys: tuple[str, ...] | None) -> _Plan:
        plan = self._plans.get(keys)
        if plan is not None:
            return plan
        chosen = tuple(self.raw_shapes) if keys is None else keys
        for key in chosen:
            if key not in self.raw_shapes:
                raise UserError(f"unknown observation '{key}'; {nearest(key, self.raw_shapes)}")
        packed = tuple(
            key
            for key in chosen
            if self.modalities[key] == "low_dim" and len(self.raw_shapes[key]) == 1
        )
        ranges = [self._ranges[key] for key in packed]
        index = [i for start, stop in ranges for i in range(start, stop)]
        plan = _Plan(
            keys=chosen,
            packed=packed,
            sizes=[stop - start for start, stop in ranges],
            offset=self.offset[index],
            scale=self.scale[index],
            others=tuple(key for key in chosen if key not in packed),
        )
        self._plans[keys] = plan
        return plan

    def unnormalize_obs(self, key: str, value: Tensor) -> Tensor:
        """A prepared observation ``(*B, ...)`` in the units of the data; images stay (C, H, W) in [0, 1]."""
        start, stop = self._ranges[key]
        shape = self._affine_shape(key)
        return value * self.scale[start:stop].view(shape) + self.offset[start:stop].view(shape)

    def normalize_obs(self, key: str, value: Tensor) -> Tensor:
        """The inverse of :meth:`unnormalize_obs`, within the limits of :meth:`prepare_obs`."""
        start, stop = self._ranges[key]
        shape = self._affine_shape(key)
        x = (value - self.offset[start:stop].view(shape)) / self.scale[start:stop].view(shape)
        return self._clipped(x) if self.modalities[key] == "low_dim" else x

    def set_obs_normalization(self, key: str, offset: Tensor, scale: Tensor) -> None:
        """Another offset and scale of an observation, shaped like one step, or per channel of an image."""
        start, stop = self._ranges[key]
        self.offset[start:stop] = offset.flatten()
        self.scale[start:stop] = scale.flatten()
        self._refresh()

    # ---- actions ---------------------------------------------------------------------------------

    @property
    def action_dim(self) -> int:
        """Numbers that networks predict."""
        return self.actions.learned_dim

    def normalize_actions(self, actions: Tensor) -> Tensor:
        """Actions ``(*B, D)`` as stored to what networks predict, ``(*B, A)`` float32 on the module's device."""
        actions = self.actions.to_learned(actions.to(self.action_offset))
        if not self.normalizes_actions:
            return actions
        return (actions - self.action_offset) / self.action_scale

    def unnormalize_actions(self, actions: Tensor) -> Tensor:
        """What networks predict, ``(*B, A)``, to what the robot takes."""
        if self.normalizes_actions:
            actions = actions * self.action_scale + self.action_offset
        return self.actions.to_sent(actions)

    # ---- saving ----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Everything, as tensors on the CPU, numbers, strings, lists and dicts."""
        obs = {
            key: {
                "raw_shape": list(shape),
                "modality": self.modalities[key],
                **self._affine_dict(self.offset, self.scale, *self._ranges[key]),
            }
            for key, shape in self.raw_shapes.items()
        }
        actions = {
            key: {
                "dim": self.actions.keys[key].stored,
                "rotation": self.actions.keys[key].rotation,
                **self._affine_dict(self.action_offset, self.action_scale, start, stop),
            }
            for key, (start, stop) in _ranges(self.actions.learned_dims).items()
        }
        return {"obs": obs, "actions": actions, "obs_clip": self.obs_clip}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`, on the CPU."""
        obs, actions = saved["obs"], saved["actions"]
        return cls(
            {key: entry["raw_shape"] for key, entry in obs.items()},
            {key: entry["modality"] for key, entry in obs.items()},
            ActionLayout(
                {key: entry["dim"] for key, entry in actions.items()},
                {key: entry["rotation"] for key, entry in actions.items() if entry.get("rotation")},
            ),
            _affine_of(obs),
            _affine_of(actions),
            saved.get("obs_clip"),  # absent from files of before there was one
        )

    # ---- buffers ---------------------------------------------------------------------------------

    def _affine_shape(self, key: str) -> Shape:
        """Shape of a key's offset such that it broadcasts over the processed value."""
        shape = self.obs_shapes[key]
        return (shape[0], 1, 1) if self.modalities[key] in IMAGE_MODALITIES else shape

    def _affine_size(self, key: str) -> int:
        return math.prod(self._affine_shape(key))

    def _register(
        self,
        offset_name: str,
        scale_name: str,
        ranges: Mapping[str, tuple[int, int]],
        affine: Mapping[str, Affine],
    ) -> None:
        total = max((stop for _, stop in ranges.values()), default=0)
        offset, scale = torch.zeros(total), torch.ones(total)
        for key, (key_offset, key_scale) in affine.items():
            start, stop = ranges[key]
            for buffer, value in ((offset, key_offset), (scale, key_scale)):
                flat = torch.as_tensor(value).flatten()
                if flat.numel() != stop - start:
                    raise UserError(
                        f"normalization of '{key}' has {flat.numel()} values; wanted {stop - start}"
                    )
                buffer[start:stop] = flat
        self.register_buffer(offset_name, offset)
        self.register_buffer(scale_name, scale)

    def _refresh(self) -> None:
        """What is derived from the buffers; to be called whenever they change."""
        self._plans: dict[tuple[str, ...] | None, _Plan] = {}
        self.normalizes_obs = not _is_identity(self.offset, self.scale)
        self.normalizes_actions = not _is_identity(self.action_offset, self.action_scale)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._refresh()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._refresh()

    @staticmethod
    def _affine_dict(offset: Tensor, scale: Tensor, start: int, stop: int) -> dict[str, Tensor]:
        return {
            "offset": offset[start:stop].detach().cpu().clone(),
            "scale": scale[start:stop].detach().cpu().clone(),
        }


def _ranges(sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Start and end of each key in the concatenation."""
    ranges, start = {}, 0
    for key, size in sizes.items():
        ranges[key] = (start, start + size)
        start += size
    return ranges


def _is_identity(offset: Tensor, scale: Tensor) -> bool:
    return bool((offset == 0).all()) and bool((scale == 1).all())


def _joined(values: Sequence[Tensor | np.ndarray[Any, Any]], device: torch.device) -> Tensor:
    """Vectors ``(*B, D)`` side by side, as a float32 tensor."""
    if all(isinstance(value, np.ndarray) for value in values):
        arrays: Any = values
        joined = np.concatenate(arrays, axis=-1, dtype=np.float32, casting="same_kind")
        return torch.from_numpy(joined).to(device)
    tensors = [torch.as_tensor(value) for value in values]
    packed = torch.cat(tensors, -1) if len(tensors) > 1 else tensors[0]
    return packed.to(device, torch.float32, non_blocking=True)


def _affine_of(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Affine]:
    return {key: (entry["offset"], entry["scale"]) for key, entry in entries.items()}
