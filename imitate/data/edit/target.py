"""Target of a tool: a new file that is written atomically, or the old file, which is replaced and kept as a backup."""

import os
import platform
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import h5py

from imitate.data.formats.cached import convertible_format
from imitate.errors import DatasetError
from imitate.system.plain_files import cleared, give_name, sync


@dataclass(frozen=True)
class Target:
    """File that a tool writes.

    Attributes:
        out: the new file; None to replace ``source``.
        source: the file that is replaced if ``out`` is None; the old file is kept as ``<name>.bak``.
        overwrite: true to replace ``out`` if it exists.
    """

    out: Path | None
    source: Path | None = None
    overwrite: bool = False

    @property
    def path(self) -> Path:
        """Path of the finished file."""
        path = self.out or self.source
        if path is None:
            raise DatasetError("no file to write: name a new file, or a file to replace")
        return path.expanduser()

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """Yield a path to write to; it becomes the file if the block succeeds, and is removed otherwise.

        Raises:
            DatasetError: the file exists, is the source, or cannot be written.
        """
        path = self.path
        self._check_free(path)
        part = path.with_name(f"{path.name}.part-{os.getpid()}-{_machine()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path)
            yield cleared(part)
            sync(part)  # flushed to disk before the old file is renamed
            if self.out is None:
                keep_backup(path, backup_of(path))
            give_name(part, path)
        except OSError as error:
            reason = error.strerror or str(error).splitlines()[0]
            raise DatasetError(
                f"{path}: cannot be written ({reason}): free some space, or choose another folder"
            ) from error
        finally:
            with suppress(OSError):
                part.unlink()

    def _check_free(self, path: Path) -> None:
        if self.out is None:
            check_is_hdf5(path)
        if self.out is None or not path.exists():
            return
        if self.source is not None and path.samefile(self.source):
            raise DatasetError(
                f"{path}: is also the input file: name another with --out, or add --in-place"
            )
        if not self.overwrite:
            raise DatasetError(
                f"{path}: exists already: name another with --out, or add --overwrite"
            )


def _machine() -> str:
    """Return eight digits that identify this machine; PIDs of other machines have no meaning here."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def remove_leftovers(path: Path) -> None:
    """Remove unfinished copies of a file, left by killed processes of this machine."""
    pattern = re.compile(re.escape(f"{path.name}.part-") + rf"([0-9]+)(-{_machine()})?(-[0-9])?")
    for found in path.parent.iterdir():
        match = pattern.fullmatch(found.name)
        if match and not _is_alive(int(match[1])):
            found.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # the process belongs to another user
    return True


def check_is_hdf5(path: Path) -> None:
    """Refuse to change a dataset of another format in place.

    Raises:
        DatasetError: the file has another format.
    """
    if not path.exists() or h5py.is_hdf5(path):
        return
    if path.is_dir() or convertible_format(path) is not None:
        raise DatasetError(
            f"{path}: is not an HDF5 file, so it is not changed in place: name a new file with --out"
        )


def backup_of(path: Path) -> Path:
    """Return the first unused name among ``<name>.bak``, ``<name>.bak1`` ..."""
    number = 0
    while (found := path.with_name(f"{path.name}.bak{number or ''}")).exists():
        number += 1
    return found


def keep_backup(path: Path, backup: Path) -> None:
    """Give the old file its backup name too, so that a complete file always exists under the first name."""
    try:
        os.link(path, backup)
    except OSError:
        shutil.copy2(path, backup)
        sync(backup)
