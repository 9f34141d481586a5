"""Preparation of raw observations: steps process some vectors together, and other values one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from imitate.errors import UserError, nearest
from imitate.functional.transfer import to_device
from imitate.models.layout import Shape
from imitate.models.preprocessing.step import PreprocessStep

Raw = Mapping[str, "Tensor | np.ndarray[Any, Any]"]

LARGEST = float(np.finfo(np.float32).max)


class ObsPlan(NamedTuple):
    """Plan of :meth:`~imitate.models.preprocess.Preprocess.prepare_obs` for one selection of keys.

    Attributes:
        keys: the selected keys.
        packed: vectors that are concatenated and prepared together.
        sizes: number of values of each vector in ``packed``.
        together: functions applied to the concatenated vectors, in order.
        device: device of the result.
        one_by_one: for each other key, the steps that change it, in order.
    """

    keys: tuple[str, ...]
    packed: tuple[str, ...]
    sizes: list[int]
    together: list[Callable[[Tensor], Tensor]]
    device: torch.device
    one_by_one: dict[str, list[PreprocessStep]]

    def prepared(self, raw: Raw, features: Collection[str]) -> dict[str, Tensor]:
        """Prepare checked values. Keys in ``features`` contain features, which are only converted to float32."""
        prepared: dict[str, Tensor] = {}
        if self.packed:
            prepared = self._split(_joined([raw[key] for key in self.packed], self.device))
        for key, steps in self.one_by_one.items():
            value = _tensor(raw[key])
            if key in features:
                prepared[key] = to_device(value, self.device, torch.float32)
                continue
            for step in steps:
                value = step.forward_obs(key, value)
            prepared[key] = value
        return prepared

    def of_vectors(
        self, raw: Mapping[str, Any], names: Mapping[str, str]
    ) -> dict[str, Tensor] | None:
        """Prepare one observation, ``{key: (1, D)}``, in as few operations as possible.

        Args:
            raw: the observation, under the caller's names of the keys.
            names: the caller's name of each key.

        Returns:
            the prepared vectors; None if a value is not an array (D,) of finite numbers, so that :meth:`prepared` must
            be used, which checks each value.
        """
        if self.one_by_one:
            return None
        values = []
        for key, size in zip(self.packed, self.sizes, strict=True):
            value = raw.get(names[key])
            if type(value) is not np.ndarray or value.shape != (size,):
                return None
            values.append(value)
        joined = np.concatenate(values)
        # If the sum of squares is below LARGEST, each value is finite in float32; with NaN, the comparison is false.
        if joined.dtype.kind != "f" or not np.vdot(joined, joined) < LARGEST:
            return None
        x = torch.from_numpy(joined.astype(np.float32, copy=False)[None])
        return self._split(x if self.device.type == "cpu" else to_device(x, self.device))

    def _split(self, x: Tensor) -> dict[str, Tensor]:
        """Prepare concatenated vectors (*B, D)."""
        for function in self.together:
            x = function(x)
        return dict(zip(self.packed, x.split_with_sizes(self.sizes, -1), strict=True))


def obs_plan(
    steps: Sequence[PreprocessStep],
    raw_shapes: Mapping[str, Shape],
    modalities: Mapping[str, str],
    keys: tuple[str, ...] | None,
    device: torch.device,
) -> ObsPlan:
    """Plan the preparation of some observations.

    Args:
        steps: all steps of the pipeline, the layout first.
        raw_shapes: shape of one step of each observation as stored.
        modalities: modality of each observation.
        keys: the selected keys; None: all.
        device: device of the result.

    Raises:
        UserError: a selected key is not an observation.
    """
    chosen = tuple(raw_shapes) if keys is None else keys
    for key in chosen:
        if key not in raw_shapes:
            raise UserError(f"unknown observation '{key}'; {nearest(key, raw_shapes)}")
    vectors = [key for key in chosen if modalities[key] == "low_dim" and len(raw_shapes[key]) == 1]
    packed, together = _packed(steps, vectors)
    return ObsPlan(
        keys=chosen,
        packed=packed,
        sizes=[raw_shapes[key][0] for key in packed],
        together=together,
        device=device,
        one_by_one={
            key: [step for step in steps if step.acts_on(key)]
            for key in chosen
            if key not in packed
        },
    )


def check_raw(
    raw: Raw, keys: Sequence[str], raw_shapes: Mapping[str, Shape], modalities: Mapping[str, str]
) -> None:
    """Raise UserError if an observation is missing or its shape differs from the stored one."""
    for key in keys:
        shape = raw_shapes[key]
        if key not in raw:
            raise UserError(
                f"observation '{key}' is missing; expected {', '.join(keys)}, "
                f"got {', '.join(raw) or 'nothing'}"
            )
        got = raw[key].shape
        if got[len(got) - len(shape) :] != shape:
            raise UserError(
                f"observation '{key}' has shape {tuple(got)}; expected (..., "
                f"{', '.join(map(str, shape))}) with modality '{modalities[key]}'"
            )


def _packed(
    steps: Sequence[PreprocessStep], keys: Sequence[str]
) -> tuple[tuple[str, ...], list[Callable[[Tensor], Tensor]]]:
    """Return the vectors that all steps can prepare together, and the functions of these steps."""
    together: list[Callable[[Tensor], Tensor]] = []
    # the first step, the layout, is left out: concatenation already makes a float32 vector
    for step in steps[1:]:
        acted_on = [key for key in keys if step.acts_on(key)]
        if not acted_on:
            continue
        function = step.packed(keys) if len(acted_on) == len(keys) else None
        if function is None:
            return _packed(steps, [key for key in keys if key not in acted_on])
        together.append(function)
    return tuple(keys), together


def _joined(values: Sequence[Tensor | np.ndarray[Any, Any]], device: torch.device) -> Tensor:
    """Concatenate vectors ``(*B, D)`` as a float32 tensor."""
    if not [value for value in values if isinstance(value, Tensor)]:
        arrays: Any = values
        joined = np.concatenate(arrays, axis=-1, dtype=np.float32, casting="same_kind")
        here = torch.from_numpy(joined)
        return here if device.type == "cpu" else to_device(here, device)
    tensors = [_tensor(value) for value in values]
    packed = torch.cat(tensors, -1) if len(tensors) > 1 else tensors[0]
    return to_device(packed, device, torch.float32)


def _tensor(value: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """Convert to a tensor; copy arrays with negative strides, such as ``frame[..., ::-1]``, which torch refuses."""
    if isinstance(value, np.ndarray) and min(value.strides, default=0) < 0:
        value = value.copy()
    return torch.as_tensor(value)
