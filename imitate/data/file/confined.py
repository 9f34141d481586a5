"""HDF5 files that are read alone: whatever would take values from another file is refused.

An HDF5 file can name others: by external links, soft links that lead to one, virtual datasets and external raw storage.
Somebody else's file could so put any file of this machine among the observations. Every file that this package did not
just make itself is opened as :class:`ConfinedFile`; each object is checked when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
from h5py import h5d, h5f, h5g, h5i, h5l, h5o

from imitate.errors import DatasetError

_MOST_SOFT_LINKS = 16
_DEEPEST = 16
_MOST_GROUPS = 10_000


class OutsideFileError(DatasetError):
    """An object of an HDF5 file is outside that file."""


class _Confined:
    """Common part of groups and files: objects are checked before they are opened."""

    id: h5g.GroupID

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, str | bytes):
            check_path(self.id, _encoded(name))
        return _checked(super().__getitem__(_encoded(name) if isinstance(name, str) else name))  # type: ignore[misc]

    def __contains__(self, name: Any) -> bool:
        check_path(self.id, _encoded(name))
        return bool(super().__contains__(_encoded(name)))  # type: ignore[misc]

    def __iter__(self) -> Iterator[str]:
        for name in self.id:
            yield name.decode("utf-8", "surrogateescape")

    def get(self, name: Any, default: Any = None, **options: Any) -> Any:
        """The object ``name``, or ``default`` if there is none."""
        if options:
            return super().get(name, default, **options)  # type: ignore[misc]
        try:
            return self[name]
        except KeyError:
            return default


class ConfinedGroup(_Confined, h5py.Group):  # type: ignore[misc]
    """A group of a :class:`ConfinedFile`."""


class ConfinedFile(_Confined, h5py.File):  # type: ignore[misc]
    """An HDF5 file none of whose objects is outside it.

    Raises:
        OutsideFileError: at the access of an object that does.
    """


def check_path(group: h5g.GroupID, path: bytes, soft_links: int = 0) -> None:
    """Follow a path link by link, and raise before one that leaves the file; a missing one is no error here.

    Raises:
        OutsideFileError: a link on the way leads to another file.
        ValueError: soft links lead to each other without end.
    """
    if soft_links > _MOST_SOFT_LINKS:
        raise ValueError("soft links form a loop")
    at = b"/" if path.startswith(b"/") else b""
    for part in path.split(b"/"):
        if part in (b"", b"."):
            continue
        at = at + part if at in (b"", b"/") else at + b"/" + part
        try:
            kind = group.links.get_info(at).type
        except (KeyError, ValueError, RuntimeError, OSError):
            return  # opening it fails in the same way
        if kind == h5l.TYPE_HARD:
            continue
        if kind != h5l.TYPE_SOFT:
            raise _link_error(group, at, kind)
        target = group.links.get_val(at)
        folder = b"" if target.startswith(b"/") else at[: at.rfind(b"/") + 1]
        check_path(group, folder + target, soft_links + 1)


def check_storage(array: h5d.DatasetID) -> None:
    """Make sure that the values of an array lie in the file of the array.

    Raises:
        OutsideFileError: they lie elsewhere.
    """
    plist = array.get_create_plist()
    if plist.get_layout() == h5d.VIRTUAL:
        kind = "is a virtual dataset: its values lie in other files"
    elif plist.get_external_count():
        kind = f"has its values in another file ({_shown(plist.get_external(0)[0])})"
    else:
        return
    raise OutsideFileError(
        f"{_file_of(array)}: {_shown(h5i.get_name(array))} {kind}, which is not read: "
        "write them into this file, or leave the array out"
    )


def arrays_below(group: h5g.GroupID, prefix: str = "") -> Iterator[tuple[str, h5d.DatasetID]]:
    """Return all arrays below a group with their paths; soft links are left out, and all links are checked.

    Raises:
        OutsideFileError: an array, or a link, leads out of the file.
        ValueError: groups lie within groups without end.
    """
    waiting = [(group, prefix)]
    seen = 0
    while waiting:
        inside, path = waiting.pop()
        seen += 1
        if seen > _MOST_GROUPS or path.count("/") > _DEEPEST:
            raise ValueError("groups are nested without end")
        for name in inside:
            check_path(inside, name)
            if inside.links.get_info(name).type != h5l.TYPE_HARD:
                continue
            item = h5o.open(inside, name)
            key = path + name.decode("utf-8", "surrogateescape")
            if isinstance(item, h5g.GroupID):
                waiting.append((item, f"{key}/"))
            elif isinstance(item, h5d.DatasetID):
                check_storage(item)
                yield key, item


def check_below(item: Any) -> None:
    """Check a group with all that is below it, or an array, before it is copied as it is.

    Raises:
        OutsideFileError: something of it leads out of the file.
    """
    if isinstance(item, h5py.Group):
        for _ in arrays_below(item.id):
            pass


def check_file(path: Path) -> None:
    """Check a whole file that another library is going to read.

    Raises:
        OSError: it cannot be opened.
        OutsideFileError: something of it leads out of the file.
    """
    with ConfinedFile(path, "r") as file:
        check_below(file)


def _checked(found: Any) -> Any:
    if isinstance(found, h5py.Dataset):
        check_storage(found.id)
    elif type(found) is h5py.Group:
        return ConfinedGroup(found.id)
    return found


def _encoded(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")


def _link_error(group: h5g.GroupID, path: bytes, kind: int) -> OutsideFileError:
    to = ""
    if kind == h5l.TYPE_EXTERNAL:
        to = f" ({_shown(group.links.get_val(path)[0])})"
    place = (h5i.get_name(group) or b"/").rstrip(b"/") + b"/" + path.lstrip(b"/")
    return OutsideFileError(
        f"{_file_of(group)}: {_shown(place)} is a link to another file{to}, which is not followed: "
        "copy the data into this file, or leave it out"
    )


def _file_of(item: Any) -> str:
    return bytes(h5f.get_name(item)).decode("utf-8", "surrogateescape")


def _shown(name: bytes | None) -> str:
    return repr((name or b"?").decode("utf-8", "backslashreplace"))
