"""HDF5 files that are read without access to other files.

An HDF5 file can refer to other files by external links, soft links to external links, virtual datasets and external raw
storage. So a file from another person could load any file of this machine into the observations. Every file that this
package did not just write itself is opened as :class:`ConfinedFile`, which checks each object when it is opened.
"""

import math
import mmap
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5i, h5l, h5o, h5t, h5z

from imitate.errors import DatasetError
from imitate.system.memory import ALWAYS_BYTES, gigabytes

_MOST_SOFT_LINKS = 16
DEEPEST = 16
_LARGER_PIECES = 16
MOST_GROUPS = 10_000
_MOST_NAMES = 16
"""Largest number of names of one group or array, because an object is read once under each name."""
MOST_TEXT = 2**30
"""Largest possible size in bytes of the texts in an object's attributes, which may repeat one stored text."""
_HEAP = b"GCOL\x01\x00\x00\x00"
_SAME_SIZE = (h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)
"""HDF5 filters whose output has the size of their input."""
_WITH_LENGTH = (h5z.FILTER_NBIT, h5z.FILTER_SCALEOFFSET)
"""HDF5 filters whose parameters contain the number and the size of the unpacked values."""
_GROWTH = 1.1
"""Largest factor by which packing enlarges random data."""
_PIECE_HEADER = 64
"""Number of bytes that a compression filter may add to each chunk."""


class OutsideFileError(DatasetError):
    """Error for an object of an HDF5 file that is stored outside of the file."""


class _Confined:
    """Common base of groups and files: objects are checked before they are opened."""

    id: h5g.GroupID
    _links: dict[Any, set[bytes]] | None = None
    _has_checked_texts = False

    def __getitem__(self, name: Any) -> Any:
        if self._links is None:
            self._links = {}
        if isinstance(name, str | bytes):
            check_path(self.id, _encoded(name), links=self._links)
        found = super().__getitem__(_encoded(name) if isinstance(name, str) else name)  # type: ignore[misc]
        if isinstance(found, h5py.Dataset):
            check_storage(found.id)
        elif type(found) is h5py.Group:
            check_names(found.id)
            found = ConfinedGroup(found.id)
            found._links = self._links
        return found

    @property
    def attrs(self) -> Any:
        """Attributes of the group.

        Raises:
            DatasetError: the texts of the attributes could take far more memory than the file.
        """
        if not self._has_checked_texts:
            check_texts(self.id)
            self._has_checked_texts = True
        return super().attrs  # type: ignore[misc]

    def __contains__(self, name: Any) -> bool:
        check_path(self.id, _encoded(name))
        return bool(super().__contains__(_encoded(name)))  # type: ignore[misc]

    def __iter__(self) -> Iterator[str]:
        for name in self.id:
            yield name.decode("utf-8", "surrogateescape")

    def get(self, name: Any, default: Any = None, **options: Any) -> Any:
        """Return the object ``name``, or ``default`` if it does not exist."""
        if options:
            return super().get(name, default, **options)  # type: ignore[misc]
        try:
            return self[name]
        except KeyError:
            return default


class ConfinedGroup(_Confined, h5py.Group):  # type: ignore[misc]
    """Group of a :class:`ConfinedFile`."""


class ConfinedFile(_Confined, h5py.File):  # type: ignore[misc]
    """HDF5 file whose objects must all be stored inside it.

    Raises:
        OutsideFileError: an accessed object is stored outside of the file.
    """


def check_path(
    group: h5g.GroupID,
    path: bytes,
    soft_links: int = 0,
    links: dict[Any, set[bytes]] | None = None,
) -> None:
    """Follow a path link by link, and raise an error before following a link to another file; ignore missing links.

    Args:
        group: group in which the path begins.
        path: path of an object.
        soft_links: number of soft links that were followed so far.
        links: soft links that were followed before, by their target; None to count no links.

    Raises:
        OutsideFileError: a link leads to another file.
        DatasetError: more than :data:`_MOST_NAMES` soft links lead to one object.
        ValueError: soft links form a loop.
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
            return  # opening the path will raise the error
        if kind == h5l.TYPE_HARD:
            continue
        if kind != h5l.TYPE_SOFT:
            raise _link_error(group, at, kind)
        target = group.links.get_val(at)
        folder = b"" if target.startswith(b"/") else at[: at.rfind(b"/") + 1]
        check_path(group, folder + target, soft_links + 1, links)
        if links is not None:
            with suppress(KeyError, ValueError, RuntimeError, OSError):
                names = links.setdefault(h5o.get_info(group, at).addr, set())
                names.add((h5i.get_name(group) or b"") + b"/" + at)
                if len(names) > _MOST_NAMES:
                    raise _repeated(group, at, len(names))


def check_names(item: h5g.GroupID | h5d.DatasetID) -> None:
    """Refuse a group or array with so many names (hard links) that reading a small file would take forever.

    Raises:
        DatasetError: the object has more than :data:`_MOST_NAMES` names.
    """
    if (count := h5o.get_info(item).rc) > _MOST_NAMES:
        raise _repeated(item, h5i.get_name(item), count)


def _repeated(item: Any, name: bytes | None, count: int) -> DatasetError:
    return DatasetError(
        f"{_file_of(item)}: {_shown(name)} has {count} names or more, at most {_MOST_NAMES} are read: copy it instead "
        "of linking to it"
    )


def check_texts(item: h5g.GroupID | h5d.DatasetID) -> None:
    """Refuse attributes whose texts could repeat one text of the file so often that they take too much memory.

    Raises:
        DatasetError: the texts could take too much memory.
    """
    count = 0
    for number in range(h5a.get_num_attrs(item)):
        found = h5a.open(item, index=number)
        count += math.prod(found.shape or ()) * _texts_in(found.get_type(), item)
    _check_repeats(item, "attributes", count)


def _texts_in(kind: h5t.TypeID, item: Any) -> int:
    """Return the largest number of values of variable length in one value of a type."""
    if isinstance(kind, h5t.TypeStringID):
        return int(kind.is_variable_str())
    if isinstance(
        kind, h5t.TypeVlenID
    ):  # the values in it are stored in the file, each with a reference
        return (
            1 + _texts_in(kind.get_super(), item) * int(h5i.get_file_id(item).get_filesize()) // 16
        )
    if isinstance(kind, h5t.TypeArrayID):
        return int(math.prod(kind.get_array_dims())) * _texts_in(kind.get_super(), item)
    if isinstance(kind, h5t.TypeCompoundID):
        return sum(_texts_in(kind.get_member_type(n), item) for n in range(kind.get_nmembers()))
    return 0


def _check_repeats(item: Any, what: str, count: int) -> None:
    size = h5i.get_file_id(item).get_filesize()
    if count <= _MOST_NAMES or count * size <= MOST_TEXT:
        return
    if (most := count * _largest_text(Path(_file_of(item)), size)) > MOST_TEXT:
        raise DatasetError(
            f"{_file_of(item)}: {_shown(h5i.get_name(item))} has {count} texts in {what}, which could take "
            f"{gigabytes(most)} because many may refer to one stored text: the file is damaged; copy it again"
        )


def _largest_text(path: Path, size: int) -> int:
    """Return the size of the file's largest heap of texts; ``size`` if the file cannot be searched."""
    if not path.is_file():  # opened through a journal, which has no path
        return size
    largest = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(_HEAP)
        while at >= 0:
            length = int.from_bytes(data[at + 8 : at + 16], "little")
            largest = max(largest, length if length <= len(data) - at else 0)
            at = data.find(_HEAP, at + len(_HEAP))
    return largest


def check_storage(array: h5d.DatasetID) -> None:
    """Check that the values of an array are stored in its file, in chunks that are not far larger than the array.

    Raises:
        OutsideFileError: the values are stored in another file.
        DatasetError: a chunk, which is unpacked as a whole, is much larger than the array; or :func:`check_names` or
            :func:`check_texts` refuse the array.
    """
    plist = array.get_create_plist()
    check_names(array)
    check_texts(array)
    if plist.get_layout() == h5d.CHUNKED:
        size = array.get_type().get_size()
        piece, whole = (math.prod(shape) * size for shape in (plist.get_chunk(), array.shape))
        if piece > max(ALWAYS_BYTES, _LARGER_PIECES * whole):
            raise DatasetError(
                f"{_file_of(array)}: {_shown(h5i.get_name(array))} is stored in chunks of "
                f"{gigabytes(piece)}, but has only {gigabytes(whole)}: the file is damaged; copy it again"
            )
        _check_packed(array, plist, piece)
    _check_lengths(array, plist)
    if plist.get_layout() == h5d.VIRTUAL:
        kind = "is a virtual dataset: its values are in other files"
    elif plist.get_external_count():
        kind = f"has its values in another file ({_shown(plist.get_external(0)[0])})"
    else:
        return
    raise OutsideFileError(
        f"{_file_of(array)}: {_shown(h5i.get_name(array))} {kind}, and other files are not read: "
        "copy the values into this file, or leave the array out"
    )


def _check_packed(array: h5d.DatasetID, plist: Any, piece: int) -> None:
    """Refuse compression with which a chunk could unpack to far more data than are stored."""
    filters = map(plist.get_filter, range(plist.get_nfilters()))
    packing = [(name, values) for name, _, values, _ in filters if name not in _SAME_SIZE]
    if not packing:
        return
    shape, size = plist.get_chunk(), array.get_type().get_size()
    pieces = math.prod(-(-n // side) for n, side in zip(array.shape, shape, strict=True))
    lengths = [
        values[2] * values[4] for name, values in packing if name in _WITH_LENGTH and values[4:]
    ]
    if (
        len(packing) > 1
        or any(length > math.prod(shape) * size for length in lengths)
        or array.get_storage_size() > pieces * (_GROWTH * piece + _PIECE_HEADER)
    ):
        raise DatasetError(
            f"{_file_of(array)}: {_shown(h5i.get_name(array))} has a compression that no program writes, and "
            "could unpack without end: the file is damaged; copy it again"
        )


def _check_lengths(array: h5d.DatasetID, plist: Any) -> None:
    """Refuse values of variable length whose total size exceeds the file, because the file repeats some of them."""
    kind, count = array.get_type(), math.prod(array.shape)
    is_text = isinstance(kind, h5t.TypeStringID) and kind.is_variable_str()
    if not is_text and (not isinstance(kind, h5t.TypeVlenID) or _texts_in(kind, array) > 1):
        _check_repeats(array, "its values", count * _texts_in(kind, array))
        return
    if count < 2:
        return
    path = Path(_file_of(array))
    size = h5i.get_file_id(array).get_filesize()
    if count * size <= ALWAYS_BYTES:
        return
    width = 1 if is_text else kind.get_super().get_size()
    total = sum(_stored_lengths(array, plist, path)) * width
    if total > size:
        raise DatasetError(
            f"{path}: {_shown(h5i.get_name(array))} has {gigabytes(total)} in a file of {gigabytes(size)}, because it "
            "repeats values: the file is damaged; copy it again"
        )


def _stored_lengths(array: h5d.DatasetID, plist: Any, path: Path) -> Iterator[int]:
    """Yield the lengths of values of variable length, or sums of them.

    A value is stored as its length (4 bytes) and a reference. If the lengths cannot be read directly, the values
    themselves are read one at a time, because each is smaller than the file.
    """
    in_chunks, form = plist.get_layout() == h5d.CHUNKED, h5i.get_file_id(array).get_create_plist()
    filters = {plist.get_filter(n)[0] for n in range(plist.get_nfilters())}
    if (
        plist.get_layout() == h5d.COMPACT
        or not filters <= {h5z.FILTER_DEFLATE}
        or form.get_userblock()
        or not path.is_file()  # opened through a journal, which has no path
    ):
        values = h5py.Dataset(array)
        yield from (len(values[place]) for place in np.ndindex(array.shape))
        return
    if plist.get_layout() == h5d.VIRTUAL or plist.get_external_count():
        return
    infos = map(array.get_chunk_info, range(array.get_num_chunks())) if in_chunks else ()
    pieces = [(info.byte_offset, info.size) for info in infos]
    if not in_chunks:
        pieces = [(array.get_offset() or 0, array.get_storage_size())]
    width = 8 + form.get_sizes()[0]
    with path.open("rb") as file:
        for offset, size in pieces:
            file.seek(offset)
            data = file.read(size)
            if filters:
                with suppress(zlib.error):  # reading the values will raise the error
                    data = zlib.decompressobj().decompress(
                        data, math.prod(plist.get_chunk()) * width
                    )
            lengths = np.frombuffer(data[: len(data) // width * width], "u1").reshape(-1, width)
            yield int(lengths[:, :4].copy().view("<u4").sum(dtype=np.uint64))


def arrays_below(group: h5g.GroupID, prefix: str = "") -> Iterator[tuple[str, h5d.DatasetID]]:
    """Yield all arrays below a group with their paths; soft links are skipped, and all links are checked.

    Raises:
        OutsideFileError: an array or a link leads to another file.
        ValueError: the nesting of groups is endless.
    """
    waiting = [(group, prefix)]
    seen = 0
    while waiting:
        inside, path = waiting.pop()
        seen += 1
        if seen > MOST_GROUPS or path.count("/") > DEEPEST:
            raise ValueError("groups are nested without end")
        for name in inside:
            check_path(inside, name)
            if inside.links.get_info(name).type != h5l.TYPE_HARD:
                continue
            item = h5o.open(inside, name)
            key = path + name.decode("utf-8", "surrogateescape")
            if isinstance(item, h5g.GroupID):
                check_names(item)
                check_texts(item)
                waiting.append((item, f"{key}/"))
            elif isinstance(item, h5d.DatasetID):
                check_storage(item)
                yield key, item


def check_below(item: Any) -> None:
    """Check an array, or a group with everything below it, before it is copied unchanged.

    Raises:
        OutsideFileError: a part of it leads to another file.
    """
    if isinstance(item, h5py.Group):
        for _ in arrays_below(item.id):
            pass


def check_file(path: Path) -> None:
    """Check a whole file before another library reads it.

    Raises:
        OSError: the file cannot be opened.
        OutsideFileError: a part of it leads to another file.
    """
    with ConfinedFile(path, "r") as file:
        check_below(file)


def _encoded(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")


def _link_error(group: h5g.GroupID, path: bytes, kind: int) -> OutsideFileError:
    to = ""
    if kind == h5l.TYPE_EXTERNAL:
        to = f" ({_shown(group.links.get_val(path)[0])})"
    inside = (h5i.get_name(group) or b"").rstrip(b"/") + b"/"
    place = path if path.startswith(b"/") else inside + path
    return OutsideFileError(
        f"{_file_of(group)}: {_shown(place)} is a link to another file{to}, which is not followed: "
        "copy the data into this file, or leave it out"
    )


def _file_of(item: Any) -> str:
    return bytes(h5f.get_name(item)).decode("utf-8", "surrogateescape")


def _shown(name: bytes | None) -> str:
    return repr((name or b"?").decode("utf-8", "backslashreplace"))
