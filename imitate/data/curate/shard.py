"""Splitting of demonstration files into shards with an index."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py

from imitate.config.data_paths import INDEX_NAME
from imitate.data.curate.merge import check_alike, new_names
from imitate.data.curate.rewrite import (
    Changes,
    copy_attrs,
    copy_demo,
    copying,
    read_masks,
    write_masks,
)
from imitate.data.curate.shard_places import ShardPlace, place_of
from imitate.data.dataset_file import DatasetFile
from imitate.data.file.confined import ConfinedFile
from imitate.data.shards.describe import describe_shard, index_of
from imitate.data.shards.index import DescribedShard, ShardIndex
from imitate.errors import DatasetError
from imitate.system.plain_files import cleared, sync

PARTIAL_NAME = f"{INDEX_NAME}.partial"
"""File beside the shards until the index is written; contains the plan and the entries of finished shards."""
Part = list[tuple[Path, str, str]]
"""Demos of a shard: their file, the name there, and the new name."""


def shard_files(
    sources: Sequence[Path],
    out: str | Path,
    demos_per_shard: int,
    *,
    on_demo: Callable[[int, int], None] = lambda done, total: None,
) -> ShardIndex:
    """Write the demos of files into shards, and finally an index.

    Arrays, attributes and filter keys are copied unchanged. Demos keep their order, and their names unless two are
    equal, in which case all are numbered anew. The next call with the same arguments keeps the shards that a killed
    call has finished. Nothing is overwritten.

    Args:
        sources: one or more files with the same arrays.
        out: folder of the shards, or its URL; created if it does not exist.
        demos_per_shard: number of demos per shard; the last shard may have fewer.
        on_demo: called with the number of copied demos and the number of all demos.

    Returns:
        the index.

    Raises:
        DatasetError: the files do not fit together, or the folder contains other shards or cannot be written.
    """
    with place_of(out) as place:
        return _shard_into(place, sources, demos_per_shard, on_demo)


def _shard_into(
    place: ShardPlace,
    sources: Sequence[Path],
    demos_per_shard: int,
    on_demo: Callable[[int, int], None],
) -> ShardIndex:
    check_alike(sources, common_keys=False, any_env=False)
    demos = [
        (path, old, new)
        for path, names in zip(sources, new_names(sources), strict=True)
        for old, new in names.items()
    ]
    parts = [demos[i : i + demos_per_shard] for i in range(0, len(demos), demos_per_shard)]
    plan = {
        "sources": [[str(path.resolve()), path.stat().st_mtime_ns] for path in sources],
        "demos_per_shard": demos_per_shard,
    }
    finished = _begin(place, plan)
    digits = max(3, len(str(len(parts) - 1)))
    try:
        for number, part in enumerate(parts):
            if number >= len(finished):
                path = place.workplace() / f"{number:0{digits}}.hdf5"
                _write_shard(part, path)
                finished.append(describe_shard(path))
                place.keep(path)
                _note(place, plan, finished)
            on_demo(min((number + 1) * demos_per_shard, len(demos)), len(demos))
        index = index_of(finished)
        place.put(INDEX_NAME, index.to_json())
    except OSError as error:
        raise DatasetError(
            f"{place.name}: cannot be written ({error.strerror or error}): free some space; the "
            f"same command then continues after {len(finished)} finished shards"
        ) from error
    place.remove(PARTIAL_NAME)
    return index


def _begin(place: ShardPlace, plan: dict[str, Any]) -> list[DescribedShard]:
    """Return the shards that an unfinished call with this plan has written; refuse a folder with other shards."""
    if place.text(INDEX_NAME) is not None:
        raise DatasetError(
            f"{place.name}/{INDEX_NAME}: exists already: name another folder with --out"
        )
    notes = place.text(PARTIAL_NAME)
    if notes is None:
        found = place.shards()
        if found:
            raise DatasetError(
                f"{place.name}/{found[0]}: exists already: name an empty folder with --out, or index the files that "
                f"are there with `imitate dataset index {place.name}`"
            )
        _note(place, plan, [])
        return []
    with suppress(ValueError, LookupError, TypeError):  # written by another version, or damaged
        tree = json.loads(notes)
        if tree["plan"] == plan:
            return [DescribedShard.model_validate(entry) for entry in tree["finished"]]
    raise DatasetError(
        f"{place.name}: holds unfinished shards of other files or another number of demos: name another folder with "
        "--out, or remove it"
    )


def _note(place: ShardPlace, plan: dict[str, Any], finished: Sequence[DescribedShard]) -> None:
    notes = {"plan": plan, "finished": [entry.model_dump() for entry in finished]}
    place.put(PARTIAL_NAME, json.dumps(notes))


def _write_shard(part: Part, path: Path) -> None:
    """Write one shard atomically."""
    unfinished = path.with_name(f".{path.name}.part")
    steps = 0
    masks: dict[str, list[str]] = {}
    with h5py.File(cleared(unfinished), "w") as new:
        data = new.create_group("data")
        for source in dict.fromkeys(source for source, *_ in part):
            names = {old: name for file, old, name in part if file == source}
            with DatasetFile(source) as file, ConfinedFile(file.hdf5_path, "r") as old_file:
                if source == part[0][0]:
                    copy_attrs(old_file, new)
                    copy_attrs(old_file["data"], data)
                for old, name in names.items():
                    with copying(file, old):
                        steps += copy_demo(old_file["data"][old], data, name, Changes())
                for key, members in read_masks(file).items():
                    masks.setdefault(key, []).extend(names[d] for d in members if d in names)
        write_masks(new, masks)
        data.attrs["total"] = steps
    sync(unfinished)
    os.replace(unfinished, path)
