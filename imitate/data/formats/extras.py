"""Packages that only some formats need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from imitate.errors import DatasetError
from imitate.system.extras import missing


def extra(module: str, name: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: what to import.
        name: the extra of this package that installs it.

    Raises:
        DatasetError: it is not installed, or does not fit another package.
    """
    try:
        return import_module(module)
    except ImportError as error:
        error.name = error.name or module
        raise DatasetError(
            f"this format cannot be read or written: {missing(name, error)}"
        ) from error
