"""Packages that only some formats need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from imitate.errors import DatasetError


def extra(module: str, name: str) -> Any:
    """A module of an optional package.

    Args:
        module: what to import.
        name: the extra of this package that installs it.

    Raises:
        DatasetError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise DatasetError(
            f"this format needs the package '{module.partition('.')[0]}' ({error}): pip install 'imitate[{name}]'"
        ) from error
