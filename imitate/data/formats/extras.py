"""Optional packages that only some formats need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from imitate.errors import DatasetError
from imitate.system.extras import missing


def extra(module: str, name: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: module to import.
        name: name of our extra that installs it.

    Raises:
        DatasetError: the module is not installed, or is incompatible with another package.
    """
    try:
        return import_module(module)
    except ImportError as error:
        error.name = error.name or module
        raise DatasetError(
            f"this format cannot be read or written: {missing(name, error)}"
        ) from error
