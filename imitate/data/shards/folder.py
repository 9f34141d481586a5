"""Datasets of shards: the index at a place, and the files that it names."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imitate.config.data_paths import INDEX_NAME
from imitate.data.file.fingerprint import CONTENT_VERSION
from imitate.data.shards.index import Shard, ShardIndex
from imitate.errors import DatasetError


@dataclass(frozen=True)
class ShardFolder:
    """A folder of shards.

    Attributes:
        place: the folder; errors name it.
        index: its index.
    """

    place: str
    index: ShardIndex

    def local(self, shard: Shard) -> Path:
        """Return the path of a shard's file on this machine.

        Raises:
            DatasetError: the file is not there, or is not the one that the index describes.
        """
        path = Path(self.place) / shard.file
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DatasetError(
                f"{path}: cannot be read ({error.strerror}), but {INDEX_NAME} names it: copy the whole folder again"
            ) from None
        if size != shard.bytes:
            raise DatasetError(
                f"{path}: has {size} bytes, but {shard.bytes} by {INDEX_NAME}: it was changed or cut short: copy it "
                f"again, or write the index again with `imitate dataset index {self.place} --overwrite`"
            )
        return path

    def parts(
        self, filter_key: str | None = None, demo_limit: int | None = None
    ) -> list[tuple[Shard, list[str]]]:
        """Return the shards with chosen demos, and these demos.

        Args:
            filter_key: mask of the demos; None: all.
            demo_limit: the first so many of them in the whole folder; None: all.

        Raises:
            DatasetError: no shard has the filter key.
        """
        if filter_key is not None:
            self.index.check_filter_key(filter_key, self.place)
        found: list[tuple[Shard, list[str]]] = []
        left = demo_limit
        for shard in self.index.shards:
            demos = shard.chosen(filter_key)[:left]
            if left is not None:
                left -= len(demos)
            if demos:
                found.append((shard, demos))
        return found

    def fingerprint(self) -> dict[str, Any]:
        """Return digests that tell the content from another's, as of one file."""
        digest = hashlib.sha256()
        for shard in self.index.shards:
            digest.update(f"{shard.file} {shard.sha256}\n".encode())
        lengths = list(self.index.lengths())
        return {
            "size_bytes": sum(shard.bytes for shard in self.index.shards),
            "num_demos": len(lengths),
            "num_steps": sum(lengths),
            "sha256": digest.hexdigest(),
            "content_version": CONTENT_VERSION,
            "content_sha256": digest.hexdigest(),
        }


def shards_at(place: str | Path) -> ShardFolder | None:
    """Return the dataset of shards at a place; None where there is another dataset, or nothing.

    Raises:
        DatasetError: its index is damaged.
    """
    folder = Path(place).expanduser()
    folder = folder.parent if folder.name == INDEX_NAME else folder
    try:
        status = (folder / INDEX_NAME).stat()
    except OSError:
        return None
    return _read(str(folder), status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read(folder: str, size: int, changed_ns: int) -> ShardFolder | None:
    """Read an index once; ``size`` and ``changed_ns`` tell a later one of this name."""
    path = Path(folder, INDEX_NAME)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error
    return ShardFolder(folder, ShardIndex.parse(content, str(path)))
