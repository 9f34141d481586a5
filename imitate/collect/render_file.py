"""Output file of rendering: demos of another file with other observations, saved one by one."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
from typing_extensions import Self

from imitate.collect.drawing import Drawn
from imitate.data.dataset_file import DatasetFile
from imitate.data.edit.rewrite import (
    FileChanges,
    copy_attrs,
    copy_demo,
    copying,
    read_masks,
    write_masks,
)
from imitate.data.file.confined import ConfinedFile
from imitate.data.file.image_codec import ImageStorage, write_images
from imitate.data.file.journal import JournaledFile, is_being_written, partial_of, roll_back
from imitate.errors import DatasetError
from imitate.system.plain_files import give_name

SETTINGS = "rendered"
"""Attribute of ``data``: settings of the rendering, as JSON."""


@dataclass(frozen=True)
class RenderedLayout:
    """Settings of the file to write.

    Attributes:
        settings: all settings that a demo's content depends on, as JSON. A file is resumed only with the same settings.
        env_meta: ``env_args`` of the new file.
        drop: arrays and groups of the source that are left out.
        storage: storage of images.
        quality: quality of JPEGs.
    """

    settings: dict[str, Any]
    env_meta: dict[str, Any]
    drop: Collection[str] = ()
    storage: ImageStorage = "raw"
    quality: int = 95


class RenderedFile:
    """A file that grows demo by demo under ``<path>.partial``; a context manager.

    Leaving the context with an exception, or a kill -9, leaves the partial file with whole demos.

    Args:
        path: the file to write.
        source: the file with the states.
        layout: settings.
        overwrite: true to replace an existing file at the end, and the rest of an interrupted run at once.
        resume: true to keep the demos of an interrupted run.

    Attributes:
        done: names of the finished demos.

    Raises:
        DatasetError: the file exists, or belongs to a run with other settings, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        source: DatasetFile,
        layout: RenderedLayout,
        *,
        overwrite: bool,
        resume: bool,
    ) -> None:
        self.path = path.expanduser()
        self._partial = partial_of(self.path)
        self._earlier = self.path.with_name(f"{self.path.name}.earlier")
        self._source, self._layout = source, layout
        self.done: list[str] = []
        self._check_free(overwrite, resume)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._set_aside(resume)
            self._journal = JournaledFile(self._partial)
        except OSError as error:
            raise self._unwritable(error) from error
        self._old = ConfinedFile(source.path, "r")
        self._file = h5py.File(self._journal, "w")
        try:
            data = self._file.create_group("data")
            copy_attrs(self._old["data"], data)
            data.attrs["env_args"] = json.dumps(layout.env_meta)
            data.attrs[SETTINGS] = json.dumps(layout.settings)
            data.attrs["total"] = 0
            self._commit()
            self._take_over()
        except BaseException:
            self._abandon()
            raise

    # ---- files of an interrupted run ------------------------------------------------------------

    def _check_free(self, overwrite: bool, resume: bool) -> None:
        if is_being_written(self._partial):
            raise DatasetError(
                f"{self.path}: another process is writing it: wait for it or choose another name"
            )
        if self.path.exists() and self.path.samefile(self._source.path):
            raise DatasetError(f"{self.path}: is the file that is read: name another with --out")
        if self.path.exists() and not overwrite:
            raise DatasetError(
                f"{self.path}: exists already: choose another name, or replace it with --overwrite"
            )
        if not (overwrite or resume) and (self._partial.exists() or self._earlier.exists()):
            raise DatasetError(
                f"{self._partial}: is left from an interrupted run: --resume continues it, --overwrite starts again"
            )

    def _set_aside(self, resume: bool) -> None:
        """Rename the file of an interrupted run, so that its demos can be copied from it."""
        if not resume:
            self._earlier.unlink(missing_ok=True)
            return
        if self._earlier.exists():  # the resumed run was interrupted before it had copied all demos
            _check_settings(self._earlier, self._layout)
        elif self._partial.exists():
            roll_back(self._partial)
            _check_settings(self._partial, self._layout)
            os.replace(self._partial, self._earlier)

    def _take_over(self) -> None:
        if not self._earlier.exists():
            return
        with ConfinedFile(self._earlier, "r") as earlier:
            for name, demo in earlier["data"].items():
                self._file["data"].copy(demo, name)
                self._counted(name)
        self._earlier.unlink()

    # ---- demos -----------------------------------------------------------------------------------

    def add(self, demo: str, drawn: Drawn) -> None:
        """Write a demo; safe on disk when this returns.

        Raises:
            DatasetError: the source is damaged in this demo, which is not written then.
        """
        data = self._file["data"]
        arrays = {f"obs/{key}": values for key, values in drawn.obs.items()}
        arrays |= {f"next_obs/{key}": values for key, values in (drawn.next_obs or {}).items()}
        drop = {*self._layout.drop, *arrays}
        try:
            with copying(self._source, demo):
                copy_demo(self._old["data"][demo], data, demo, FileChanges(drop=drop))
        except DatasetError:
            if demo in data:
                del data[demo]
            raise
        group = data[demo]
        for key, values in arrays.items():
            storage = self._layout.storage if values.ndim >= 3 else "raw"
            write_images(group, key, values, storage, self._layout.quality)
        group.attrs["camera_info"] = json.dumps(drawn.camera_info)
        self._counted(demo)

    def _counted(self, demo: str) -> None:
        data = self._file["data"]
        data.attrs["total"] = int(data.attrs["total"]) + int(data[demo].attrs["num_samples"])
        self._commit()
        self.done.append(demo)

    def _commit(self) -> None:
        self._file.flush()
        self._journal.commit()

    # ---- end -------------------------------------------------------------------------------------

    def _finish(self) -> None:
        masks = read_masks(self._source)
        write_masks(
            self._file,
            {key: [demo for demo in demos if demo in self.done] for key, demos in masks.items()},
        )
        self._commit()
        self._file.close()
        self._old.close()
        self._journal.close()
        give_name(self._partial, self.path)

    def _abandon(self) -> None:
        """Close the file and keep the saved demos; remove it if there is none."""
        self._journal.stop()
        with suppress(Exception):
            self._file.close()
        self._old.close()
        self._journal.close(roll_back=True)
        if not self.done and not self._earlier.exists():
            self._partial.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> DatasetError:
        reason = error.strerror or str(error).splitlines()[0]
        return DatasetError(
            f"{self.path}: cannot be written ({reason}): make room on the disk or choose another folder, then --resume"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._abandon()
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            return
        try:
            self._finish()
        except OSError as failure:
            self._abandon()
            raise self._unwritable(failure) from failure


def finished_demos(path: Path, layout: RenderedLayout) -> list[str]:
    """Return the demos of a finished file, for a resumed run that has nothing left to do.

    Raises:
        DatasetError: the file was not written by rendering, or has other settings.
    """
    with DatasetFile(path) as file:
        if SETTINGS not in file.file_attrs:
            raise DatasetError(
                f"{path}: exists already and was not rendered: choose another name, or replace it with --overwrite"
            )
        demos = list(file.demos())
    _check_settings(path, layout)
    return demos


def _check_settings(path: Path, layout: RenderedLayout) -> None:
    with DatasetFile(path) as file:
        found = json.loads(file.file_attrs.get(SETTINGS, "{}"))
    wanted = json.loads(json.dumps(layout.settings))
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            raise DatasetError(
                f"{path}: was started with {key} = {found.get(key)!r}, now it is {wanted.get(key)!r}: "
                "resume with the same options and source, or start again with --overwrite"
            )
