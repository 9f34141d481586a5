"""Change of the environment that a file names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imitate.data.curate.small_change import Progress, change
from imitate.data.curate.target import Target
from imitate.data.dataset_file import DatasetFile
from imitate.data.file.confined import ConfinedFile
from imitate.errors import DatasetError


def set_env_args(
    source: Path, target: Target, env_args: Mapping[str, Any], on_mb: Progress
) -> dict[str, Any]:
    """Write ``env_args``, an attribute of the group ``data``; demos and filter keys do not change.

    Args:
        source: the file.
        target: a copy, or the file itself.
        env_args: ``env_name``, ``type``, ``env_kwargs``.
        on_mb: called with the number of copied megabytes and the number of all megabytes.

    Returns:
        the former env_args.

    Raises:
        DatasetError: the description is incomplete, or the file cannot be written.
    """
    missing = [key for key in ("env_name", "type") if env_args.get(key) is None]
    if missing:
        raise DatasetError(f"{source}: env_args need '{missing[0]}': give it with --env or --type")
    with DatasetFile(source) as file:
        file.check_confined()
        before = file.env_meta
    text = json.dumps(dict(env_args), indent=4)

    def put(file: ConfinedFile) -> None:
        file["data"].attrs["env_args"] = text

    change(source, target, put, on_mb)
    return before
