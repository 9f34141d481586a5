"""Reading of robomimic's checkpoint files without running code in them."""

from __future__ import annotations

import codecs
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from imitate.errors import CheckpointError

PARTS = ("model", "config", "algo_name", "shape_metadata")
"""Entries that every release writes."""

OUR_PARTS = ("format_version", "preprocess")

_KINDS = ("bool_", "int32", "int64", "uint8", "float32", "float64", "str_")


def is_robomimic(ckpt: object) -> bool:
    """Return true if a loaded object has the parts of robomimic's checkpoints, and no part that only ours have."""
    return (
        isinstance(ckpt, Mapping)
        and not any(part in ckpt for part in OUR_PARTS)
        and all(part in ckpt for part in PARTS)
    )


def read(
    source: str | Path | BinaryIO,
    map_location: str | torch.device = "cpu",
    *,
    name: str | Path | None = None,
) -> Any:
    """Read a file of tensors, numbers, strings, lists, dicts, and numpy's numbers and arrays.

    Args:
        source: the file.
        map_location: device of the tensors.
        name: name of the file for messages, or None for ``source``.

    Raises:
        CheckpointError: the file contains other objects.
    """
    called = str(source) if name is None else name
    try:
        return torch.load(source, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        allowed = getattr(torch.serialization, "safe_globals", None)  # since torch 2.5
        if allowed is None:
            raise _refusal(called, error) from error
    if not isinstance(source, (str, Path)):
        source.seek(0)
    try:
        with allowed(_harmless()):
            return torch.load(source, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise _refusal(called, error) from error


def _harmless() -> list[Any]:
    """Return the types of numpy's numbers and arrays, under the names of numpy 1 and 2."""
    scalar, rebuild = (value.__reduce__()[0] for value in (np.float64(0.0), np.zeros(0)))
    kinds = [type(np.dtype(getattr(np, name))) for name in _KINDS]
    named = [
        (function, f"numpy.{package}.multiarray.{name}")
        for package in ("core", "_core")
        for function, name in ((scalar, "scalar"), (rebuild, "_reconstruct"))
    ]
    return [np.ndarray, np.dtype, *kinds, *named, (codecs.encode, "_codecs.encode")]


def _refusal(path: str | Path, error: Exception) -> CheckpointError:
    """Return the error, with the name of the refused class from torch's message."""
    _, found, rest = str(error).partition("GLOBAL ")
    what = rest.split()[0] if found else "an object of another class"
    return CheckpointError(
        f"{path}: refused, because it contains Python objects that could run code when loaded ({what}); "
        "a checkpoint holds only tensors, numbers, arrays, strings, lists and dicts"
    )
