"""Record the files of pretrained weights in a configuration before a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from imitate.config import Config
from imitate.models.pretrained import checksum

_TRUNK = "backbone_kwargs"


def with_checksums(config: Config) -> Config:
    """Return the configuration with absolute paths of pretrained weights, and the checksum of each file.

    A run that reads the file again refuses it if its content has changed; checkpoints contain the weights themselves. A
    missing file is no error here, because a checkpoint may contain the weights.
    """
    values: dict[str, Any] = {}
    for path, trunk in _trunks(config.observation.to_dict(), "observation"):
        source = trunk.get("pretrained")
        if not isinstance(source, str):
            continue
        file = Path(source).expanduser()
        if file.is_file():
            values[f"{path}.pretrained"] = str(file.resolve())
            if trunk.get("pretrained_sha256") is None:
                values[f"{path}.pretrained_sha256"] = checksum(file)
    return config.with_overrides(values) if values else config


def _trunks(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (dotted key, content) of each section with arguments of a pretrained trunk."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            if name == _TRUNK:
                yield f"{path}.{name}", value
            else:
                yield from _trunks(value, f"{path}.{name}")
