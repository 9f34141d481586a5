"""The configurations that come with the package."""

from __future__ import annotations

from pathlib import Path

SCHEMA = "schema"


def folder() -> Path:
    """Return the folder of bundled configurations: in the installed package, or at the root of a clone."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def names() -> list[str]:
    """Return the names of all bundled configurations, such as ``robosuite/lift/bc``."""
    root = folder()
    files = (path.relative_to(root) for path in root.rglob("*.json"))
    return sorted(path.with_suffix("").as_posix() for path in files if path.parts[0] != SCHEMA)


def bundled(name: str) -> Path | None:
    """Return the file of a bundled configuration, or None if there is none of this name.

    Args:
        name: ``configs/robosuite/lift/bc.json`` or ``robosuite/lift/bc``.
    """
    short = (
        name.replace("\\", "/").removeprefix("./").removeprefix("configs/").removesuffix(".json")
    )
    parts = short.split("/")
    if {"", ".", ".."} & set(parts) or parts[0] == SCHEMA:
        return None
    path = folder() / f"{short}.json"  # reading the file is faster than a search in names()
    return path if path.is_file() else None
