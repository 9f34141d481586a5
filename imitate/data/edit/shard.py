"""Division of demonstration files into shards with an index, in a local folder or at a URL."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import h5py

from imitate.config.data_paths import url_of
from imitate.data.dataset_file import DatasetFile
from imitate.data.download.download import filesystem
from imitate.data.edit.merge import check_alike, new_names
from imitate.data.edit.rewrite import (
    FileChanges,
    copy_attrs,
    copy_demo,
    copying,
    read_masks,
    write_masks,
)
from imitate.data.file.confined import ConfinedFile
from imitate.data.shards.index import DescribedShard, ShardIndex, describe_shard, index_of
from imitate.errors import DatasetError
from imitate.system.plain_files import cleared, give_name, json_value, read_text, write_text
from imitate.system.recognition import INDEX_NAME


class ShardPlace(Protocol):
    """Destination of shards, to which files are written atomically.

    Attributes:
        name: path or URL of the destination, for error messages.
    """

    name: str

    def workplace(self) -> Path:
        """Return the local folder in which a shard is written before :meth:`keep`."""

    def keep(self, path: Path) -> None:
        """Store a finished file of the local folder."""

    def text(self, name: str) -> str | None:
        """Return the content of a text file, or None if it does not exist."""

    def put(self, name: str, text: str) -> None:
        """Write a text file; a file of that name is replaced."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def shards(self) -> list[str]:
        """Return the names of the existing HDF5 files, sorted."""


@contextmanager
def place_of(out: str | Path) -> Iterator[ShardPlace]:
    """Open the destination at a path or URL.

    Raises:
        DatasetError: the URL cannot be written to.
    """
    url = url_of(out)
    if url is None:
        yield FolderPlace(Path(out).expanduser())
        return
    if url.startswith(("http://", "https://")):
        raise DatasetError(
            f"{url}: HTTP servers are read only: name a folder, or a URL such as s3://bucket/demos"
        )
    with tempfile.TemporaryDirectory(prefix="imitate-shards-") as folder:
        yield UrlPlace(url, Path(folder))


class FolderPlace:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, str(folder)

    def workplace(self) -> Path:
        """Return the folder itself, and create it if needed; a shard is renamed when it is complete."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def keep(self, path: Path) -> None:
        """Do nothing, because the shard was written into its final folder."""

    def text(self, name: str) -> str | None:
        """Return the content of a text file, or None if it does not exist."""
        with suppress(FileNotFoundError):
            return read_text(self._folder / name)
        return None

    def put(self, name: str, text: str) -> None:
        """Write a text file."""
        write_text(self.workplace() / name, text)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self._folder / name).unlink()

    def shards(self) -> list[str]:
        """Return the names of the existing HDF5 files, sorted."""
        return sorted(path.name for path in self._folder.glob("*.hdf5"))


class UrlPlace:
    """Folder of a remote store that fsspec supports.

    Args:
        url: URL of the folder.
        folder: temporary folder for one shard at a time.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.name, self._folder = url, folder
        self._fs, self._path = filesystem(url)

    def workplace(self) -> Path:
        """Return the temporary folder."""
        return self._folder

    def keep(self, path: Path) -> None:
        """Upload a file, and remove it from this machine."""
        with self._writing():
            self._fs.makedirs(self._path, exist_ok=True)
            self._fs.put_file(str(path), self._at(path.name))
        path.unlink()

    def text(self, name: str) -> str | None:
        """Return the content of a text file, or None if it does not exist."""
        with self._writing():
            try:
                content: bytes = self._fs.cat_file(self._at(name))
            except FileNotFoundError:
                return None
        return content.decode()

    def put(self, name: str, text: str) -> None:
        """Write a text file."""
        with self._writing():
            self._fs.makedirs(self._path, exist_ok=True)
            self._fs.pipe_file(self._at(name), text.encode())

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._writing():
            self._fs.rm_file(self._at(name))

    def shards(self) -> list[str]:
        """Return the names of the existing HDF5 files, sorted."""
        with self._writing():
            try:
                found: list[Any] = self._fs.ls(self._path, detail=False)
            except FileNotFoundError:
                return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if name.endswith(".hdf5"))

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except DatasetError:
            raise
        except Exception as error:  # each store's package has its own exceptions
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DatasetError(
                f"{self.name}: cannot be written ({reason}): check the credentials of its store; "
                "the same command continues after the existing shards"
            ) from error


PARTIAL_NAME = f"{INDEX_NAME}.partial"
"""Name of a file that exists beside the shards until the index is written, with the plan and the finished shards."""
Part = list[tuple[Path, str, str]]
"""Demos of a shard: the file, the name in the file, and the new name of each."""


def shard_files(
    sources: Sequence[Path],
    out: str | Path,
    demos_per_shard: int,
    *,
    on_demo: Callable[[int, int], None] = lambda done, total: None,
) -> ShardIndex:
    """Write the demos of files into shards, and finally an index.

    Arrays, attributes and filter keys are copied unchanged. Demos keep their order. They also keep their names, but if
    two names are equal, all demos are renamed by number. After a killed call, the next call with the same arguments
    keeps the finished shards. Nothing is overwritten.

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
    digits = max(3, len(str(len(parts))))
    try:
        for number, part in enumerate(parts):
            if number >= len(finished):
                path = place.workplace() / f"{number:0{digits}}.hdf5"
                write_shard(part, path)
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
    """Return the shards that an unfinished call with the same plan has written; refuse a folder with other shards."""
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
        tree = json_value(notes)
        if tree["plan"] == plan:
            return [DescribedShard.model_validate(entry) for entry in tree["finished"]]
    raise DatasetError(
        f"{place.name}: contains unfinished shards of other files, or with another number of "
        "demos per shard: name another folder with "
        "--out, or remove it"
    )


def _note(place: ShardPlace, plan: dict[str, Any], finished: Sequence[DescribedShard]) -> None:
    notes = {"plan": plan, "finished": [entry.model_dump() for entry in finished]}
    place.put(PARTIAL_NAME, json.dumps(notes))


def write_shard(part: Part, path: Path) -> None:
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
                        steps += copy_demo(old_file["data"][old], data, name, FileChanges())
                for key, members in read_masks(file).items():
                    masks.setdefault(key, []).extend(names[d] for d in members if d in names)
        write_masks(new, masks)
        data.attrs["total"] = steps
    give_name(unfinished, path)
