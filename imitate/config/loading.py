"""From a JSON file, a JSON text or a dict to a `Config`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from imitate.config.config import Config
from imitate.config.migration import migrate
from imitate.config.overrides import parse_override, put
from imitate.config.ready_configs import bundled, names
from imitate.errors import ConfigError, nearest
from imitate.recognition import diagnosis, recognise

Source = str | os.PathLike[str] | Mapping[str, Any] | Config


def load_config(source: Source, overrides: Iterable[str] = ()) -> Config:
    """Read and check a configuration.

    Args:
        source: path of a JSON file, name of a bundled one (``robosuite/lift/bc``), JSON text that
            begins with ``{``, or a dict. robomimic's tree; what is absent has its default.
        overrides: ``"a.b=value"``, laid over it in turn.

    Raises:
        ConfigError: one line per problem: the file, the key, what was found, what is wanted.
    """
    tree, label, folder = _read(source)
    tree = migrate(tree)
    for text in overrides:
        algo_name = tree.get("algo_name")
        path, value = parse_override(
            text, Config, algo_name if isinstance(algo_name, str) else None
        )
        put(tree, path, value)
    return Config.build(tree, label=label, folder=folder)


def read_tree(source: Source) -> dict[str, Any]:
    """The tree as written, moved to today's keys but not checked."""
    tree, _, folder = _read(source)
    data = (tree.get("train") or {}).get("data")
    if folder is not None and isinstance(data, str) and not Path(data).expanduser().is_absolute():
        # A path beside the JSON file, as load_config finds it.
        beside = folder / data
        if beside.exists() and not Path(data).exists():
            tree["train"]["data"] = str(beside)
    return migrate(tree)


def _read(source: Source) -> tuple[dict[str, Any], str, Path | None]:
    """The tree (a private copy), the words for error messages, the folder of the file."""
    if isinstance(source, Config):
        return source.to_dict(), "", source.folder
    if isinstance(source, Mapping):
        return deepcopy(dict(source)), "", None
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return _parse(source, "JSON text"), "", None
    path = Path(source)
    if not path.is_file():
        found = bundled(str(source))
        if found is None:
            known = diagnosis(path) if path.exists() else None
            if known is not None:
                raise ConfigError(known)
            what = "is a folder" if path.is_dir() else "there is no such file"
            raise ConfigError(
                f"{path}: {what}, nor a bundled configuration of that name; "
                f"{nearest(str(source), names())}"
            )
        path = found
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}") from None
    kind = recognise(path)
    if kind is not None and kind.kind != "configuration":
        raise ConfigError(f"{path}: is {kind.what}: {kind.advice}")
    return _parse(text, str(path)), str(path), path.resolve().parent


def _parse(text: str, label: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in pairs:
            if key in out:
                raise ConfigError(f"{label}: key '{key}' stands twice in one object: remove one")
            out[key] = value
        return out

    try:
        tree = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{label}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{label}: wanted a JSON object {{...}}, got a {type(tree).__name__}")
    return tree
