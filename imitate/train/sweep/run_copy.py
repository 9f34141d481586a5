"""Copy a run's folder from another machine by messages whose order makes interruptions harmless.

A checkpoint never arrives without the metrics up to it: the sender reads checkpoints first, and the receiver writes
them last. Files of a run are either appended to or replaced as a whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from imitate.errors import TrainingError
from imitate.system.plain_files import edited, fresh, link, replaced
from imitate.system.run_folder import runs_in


@dataclass(frozen=True)
class Part:
    """Change of one file: new content, the content of another file, or deletion.

    Attributes:
        path: path relative to the folder, with slashes.
        offset: number of bytes of the file that stay.
        data: bytes to write after them.
        same_as: path of a file with the same content.
    """

    path: str
    offset: int = 0
    data: bytes | None = None
    same_as: str | None = None


@dataclass(frozen=True)
class FolderChanges:
    """Changes in the order in which they must be made.

    Attributes:
        root: the sender's folder; in ``.json`` files it is replaced by the receiver's folder.
        parts: the changes, in order.
    """

    root: str
    parts: tuple[Part, ...]


_State = tuple[int, int, int]
"""Inode, size and time of a file."""


class Sender:
    """Finds the changes in a folder to send; the receiver already has its initial content."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sent = {path: _state(os.stat(root / path)) for path in _files(root)}

    def changes(self) -> FolderChanges:
        """Return the changes since the last call."""
        present, parts = _files(self._root), []
        sources: dict[int, str] = {}  # by inode, path of a file whose content the receiver has
        for path in sorted(present, key=lambda path: (not _is_checkpoint(path), path)):
            with suppress(FileNotFoundError):  # the run may replace or remove files meanwhile
                part = self._part(path, sources)
                if part is not None:
                    parts.append(part)
        parts.sort(key=lambda part: (_is_checkpoint(part.path), part.same_as is not None))
        gone = [Part(path) for path in self._sent if path not in present]
        for part in gone:
            del self._sent[part.path]
        return FolderChanges(str(self._root), (*parts, *gone))

    def _part(self, path: str, sources: dict[int, str]) -> Part | None:
        with (self._root / path).open("rb") as file:
            state = _state(os.fstat(file.fileno()))
            inode, size, _ = state
            before = self._sent.get(path)
            self._sent[path] = state
            if before == state:
                sources.setdefault(inode, path)
                return None
            if inode in sources:
                return Part(path, same_as=sources[inode])
            sources[inode] = path
            offset = 0
            if before and _is_appended(path) and before[0] == inode and before[1] <= size:
                offset = before[1]
            file.seek(offset)
            return Part(path, offset, file.read(size - offset))


def received(changes: FolderChanges, folder: Path) -> None:
    """Make changes in a folder; files are replaced atomically.

    Raises:
        TrainingError: a path leads out of the folder, or a change does not fit the existing files.
    """
    for part in changes.parts:
        target = _inside(folder, part.path)
        if part.same_as is not None:
            _link(target, _inside(folder, part.same_as))
        elif part.data is None:
            target.unlink(missing_ok=True)
        elif part.offset == 0:
            _write(target, _with_root(part, changes.root, folder))
        elif not target.is_file() or target.stat().st_size < part.offset:
            raise TrainingError(
                f"{target}: received the bytes from {part.offset} on without the earlier ones"
            )
        else:
            with edited(target) as file:
                file.truncate(part.offset)
                file.seek(part.offset)
                file.write(part.data)


def content_to_resume(folder: Path) -> dict[str, bytes]:
    """Return by path the files that another machine needs to resume the newest run below a folder.

    Videos and TensorBoard events are left out. The output of earlier tries is included, so that new output is appended.
    """
    wanted = [*folder.glob("*")]
    for run in runs_in(folder)[-1:]:
        wanted += [*run.glob("*"), *(run / "checkpoints").glob("*.pth")]
    names = {path.relative_to(folder).as_posix() for path in wanted if path.is_file()}
    return {name: (folder / name).read_bytes() for name in sorted(names & set(_files(folder)))}


def lay_out(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        target = _inside(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with fresh(target) as file:
            file.write(data)


def _files(root: Path) -> list[str]:
    """Return the paths of all files except temporary files and the folder's lock."""
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if not path.name.startswith(".") and path.is_file()
    ]


def _state(stat: os.stat_result) -> _State:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_checkpoint(path: str) -> bool:
    return path.endswith(".pth")


def _is_appended(path: str) -> bool:
    """Return true for files that only grow; a replaced file may by chance get the inode of an old one."""
    return path.endswith((".jsonl", ".txt")) or "tfevents" in path


def _inside(folder: Path, path: str) -> Path:
    named = PurePosixPath(path)
    if named.is_absolute() or ".." in named.parts or not named.parts:
        raise TrainingError(f"'{path}' is not a path inside a run's folder")
    return folder / named


def _with_root(part: Part, root: str, folder: Path) -> bytes:
    data = part.data or b""
    if not part.path.endswith(".json"):
        return data
    there, here = Path(root), folder
    for old, new in ((there, here), (there.parent, here.parent)):
        data = data.replace(_as_json(old), _as_json(new))
    return data


def _as_json(path: Path) -> bytes:
    return json.dumps(str(path))[1:-1].encode()


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced(target) as new, fresh(new) as file:
        file.write(data)


def _link(target: Path, source: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    link(source, target)
