"""Checks of the types of a checkpoint's parts, made before the parts are used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from imitate.errors import CheckpointError
from imitate.system.plain_files import MAX_DEPTH, parsed_json

_TIMES = 16
"""Largest ratio of the number of values, with repetitions, to the number of stored values in a checkpoint."""
_ROOM = 2**16
"""Number of values that any checkpoint may have in addition to this ratio."""


def _no_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("is NaN")
    return value


def _is_object(text: str) -> str:
    tree = parsed_json(text, "the text")  # raises ValueError, as pydantic wants
    if not isinstance(tree, dict):
        raise ValueError("is not a JSON object")
    return text


Number = Annotated[float, AfterValidator(_no_nan)]
Limits = Annotated[list[Number], Field(min_length=1)]
Shape = list[PositiveInt] | tuple[PositiveInt, ...]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, arbitrary_types_allowed=True)


class _EnvArgs(_Part):
    env_name: str | None = None
    type: int | None = None
    env_kwargs: dict[str, Any] | None = None
    env_version: str | None = None


class _Shapes(_Part):
    all_shapes: dict[str, Shape]
    ac_dim: PositiveInt
    raw_shapes: dict[str, Shape] | None = None
    action_dims: dict[str, PositiveInt] | None = None
    action_low: Limits | None = None
    action_high: Limits | None = None


class _Model(_Part):
    nets: dict[str, torch.Tensor]
    omitted: NonNegativeInt = 0


class _Normalized(_Part):
    offset: torch.Tensor
    scale: torch.Tensor


class _Obs(_Normalized):
    raw_shape: Shape
    modality: str


class _Action(_Normalized):
    dim: PositiveInt
    rotation: str | None = None


class _Preprocess(_Part):
    obs: dict[str, _Obs]
    actions: dict[str, _Action]
    obs_clip: Number | None = None
    version: PositiveInt = 1
    steps: list[dict[str, Any]] = []
    tensors: dict[str, torch.Tensor] = {}


class _Language(_Part):
    instructions: list[str] = []


class DatasetStructure(_Part):
    """An entry of ``train.data`` in a checkpoint."""

    path: str | None = None
    weight: Number = 1.0


class _Provenance(_Part):
    datasets: list[DatasetStructure] = []


class _TrainState(_Part):
    epoch: NonNegativeInt | None = None
    step: NonNegativeInt | None = None
    cpu_s: Number | None = None


class _Calibration(_Part):
    values: torch.Tensor
    held_out: bool


class _Checkpoint(_Part):
    format_version: int
    algo_name: str
    config: Annotated[str, AfterValidator(_is_object)]
    env_metadata: _EnvArgs
    environments: list[_EnvArgs] | None = None
    language: _Language | None = None
    shape_metadata: _Shapes
    model: _Model
    preprocess: _Preprocess
    train_state: _TrainState = _TrainState()
    provenance: _Provenance = _Provenance()
    versions: dict[str, Any] = {}
    rename: dict[str, str] = {}
    calibration: _Calibration | None = None


def check_structure(ckpt: Mapping[str, Any]) -> None:
    """Raise CheckpointError, with a message of one line, if a part has another type than :mod:`.checkpoint` lists."""
    try:
        _Checkpoint.model_validate(dict(ckpt))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"'{where}' of the checkpoint: {first['msg']}") from error
    for name, tensor in named_tensors(ckpt):
        check_plain(name.removeprefix("model."), tensor)


def check_extent(ckpt: Any, name: str | Path) -> None:
    """Raise CheckpointError for parts that contain themselves, or repeat values until memory would run out."""
    sizes: dict[int, int] = {}
    stored = 0

    def size(value: Any, depth: int) -> int:
        nonlocal stored
        if not isinstance(value, Mapping | list | tuple | set):
            return 1
        if depth > MAX_DEPTH:
            raise CheckpointError(f"{name}: is nested deeper than {MAX_DEPTH} levels")
        if id(value) not in sizes:
            stored += len(value)
            parts = value.values() if isinstance(value, Mapping) else value
            sizes[id(value)] = 1 + sum(size(part, depth + 1) for part in parts)
        return sizes[id(value)]

    if (whole := size(ckpt, 0)) > _TIMES * stored + _ROOM:
        raise CheckpointError(
            f"{name}: has {stored:,} stored values, but repeats them to {whole:,}, which no "
            "checkpoint does: get the file again"
        )


def check_plain(name: str, tensor: torch.Tensor) -> None:
    """Raise CheckpointError for a tensor that is not an array of real numbers, or is larger than its stored data."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type == "meta":
        raise CheckpointError(f"'{name}' is not a plain tensor but a sparse, nested or meta tensor")
    if tensor.is_complex() or tensor.is_quantized:
        raise CheckpointError(f"'{name}' has dtype {tensor.dtype}; expected real numbers")
    stored = tensor.untyped_storage().nbytes()
    if tensor.numel() * tensor.element_size() > stored:
        raise CheckpointError(
            f"'{name}' of shape {tuple(tensor.shape)} has only {stored} stored bytes, which it "
            "repeats; expected a tensor with all its values"
        )


def check_kinds(saved: Mapping[str, Any], own: Mapping[str, torch.Tensor]) -> None:
    """Raise CheckpointError if a weight is stored as integers but used as floats, or the other way round."""
    for name, tensor in saved.items():
        wanted = own.get(name)
        if wanted is not None and tensor.is_floating_point() != wanted.is_floating_point():
            raise CheckpointError(
                f"'nets.{name}' has dtype {tensor.dtype}; expected {wanted.dtype}"
            )


def check_weights(model: Mapping[str, Any], preprocess: Mapping[str, Any]) -> None:
    """Raise CheckpointError, naming the tensor, if a weight or a statistic is NaN or infinite."""
    averages = {key: model[key] for key in ("ema", "emas") if key in model}
    for name, tensor in named_tensors(
        {"nets": model["nets"], **averages, "preprocess": preprocess}
    ):
        check_plain(name, tensor)
        # A float64 sum of finite numbers is finite, and computing it is many times as fast as checking each number.
        if not tensor.is_floating_point() or math.isfinite(tensor.sum(dtype=torch.float64)):
            continue
        count = int((~torch.isfinite(tensor)).sum())
        if count > 0:
            raise CheckpointError(
                f"{count} of {tensor.numel()} numbers of '{name}' are not finite; use a checkpoint "
                "from before the training diverged"
            )


def stored_numbers(model: Mapping[str, Any]) -> int:
    """Count the numbers that a checkpoint stores; tensors that share a storage count once.

    Raises:
        CheckpointError: a tensor is larger than its stored data, for example one that repeats a few numbers.
    """
    count, seen = 0, set()
    for name, tensor in named_tensors(model):
        check_plain(name, tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            count += storage.nbytes() // tensor.element_size()
    return count


def named_tensors(tree: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested dicts with their dotted names; skip a dict that occurred before."""
    waiting: list[tuple[str, Any]] = [("", tree)]
    seen: set[int] = set()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Mapping) and id(value) not in seen:
            seen.add(id(value))
            waiting += [(f"{name}.{key}" if name else str(key), x) for key, x in value.items()]
        elif isinstance(value, list | tuple) and id(value) not in seen:
            seen.add(id(value))
            waiting += [(f"{name}.{number}", x) for number, x in enumerate(value)]
