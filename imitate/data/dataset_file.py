"""Datasets of every format, read as demonstration files, and the schema check of a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imitate.data.file.faults import (
    check_bounded,
    check_finite,
    check_length,
    check_modality,
    check_numeric,
    check_shape,
)
from imitate.data.file.fields import SCALARS
from imitate.data.file.fingerprint import fingerprint
from imitate.data.file.hdf5_format import DemoFile, NoDemosError, is_hdf5
from imitate.data.formats.cached import as_demonstration_file, convertible_format
from imitate.errors import DatasetError


class DatasetFile(DemoFile):
    """Dataset opened for reading; also a context manager.

    A dataset of another format, such as a LeRobot folder, is converted to a file in the cache and read from there
    (:mod:`imitate.data.formats.cached`).

    Args:
        path: the HDF5 file, or a dataset of another format.
        swmr: true to open the file in HDF5's SWMR mode, so that another process can write to it.

    Attributes:
        path: the path as given, used in error messages.
        hdf5_path: the HDF5 file that is read: ``path``, or the converted file.

    Raises:
        DatasetError: something is missing or damaged; the message names it with file and demo. All methods may raise
            this error.
    """

    def __init__(self, path: str | Path, *, swmr: bool = False) -> None:
        path = Path(path).expanduser()
        foreign = path.exists() and not is_hdf5(path)
        try:
            converted = as_demonstration_file(path) if foreign else None
            super().__init__(path, swmr=swmr, hdf5_path=converted)
        except NoDemosError:
            found = None if foreign else convertible_format(path)
            if found is None:
                raise
            # an HDF5 file in the layout of another toolkit
            super().__init__(path, swmr=swmr, hdf5_path=as_demonstration_file(path, found))

    def fingerprint(self) -> dict[str, Any]:
        """Return digests that identify the content of the file, see :mod:`imitate.data.file.fingerprint`."""
        return fingerprint(self)


def check_dataset(
    path: str | Path,
    *,
    filter_key: str | None = None,
    modalities: Mapping[str, str] | None = None,
    action_keys: Sequence[str] = ("actions",),
    bounded_actions: bool = True,
) -> None:
    """Read a whole file and raise an error for the first fault.

    Args:
        path: the HDF5 file.
        filter_key: mask of the demos to check; None for all demos.
        modalities: modality of each observation key that a policy needs; None for the keys of the first demo, with any
            modality.
        action_keys: arrays that contain actions.
        bounded_actions: true if actions must be in [-1, 1].

    Raises:
        DatasetError: the first fault, in one line with the file, the demo, the key and the remedy.
    """
    with DatasetFile(path) as file:
        _ = file.env_meta
        for mask in file.filter_keys():
            file.demos(mask)
        demos = file.demos(filter_key)
        if not demos:
            raise no_demos(file, filter_key)
        check_length(file, demos[0])
        keys = _keys_of(file, demos[0], modalities, action_keys)
        steps = {key: file.shape(demos[0], key)[1:] for key in keys}
        for demo in demos:
            length = check_length(file, demo)
            for key, modality in (modalities or {}).items():
                check_modality(file, demo, key, modality)
            for key, step in steps.items():
                check_numeric(file, demo, key)
                check_shape(file, demo, key, length, step, f"demo '{demos[0]}'")
                _check_values(file, demo, key, bounded=bounded_actions and key in action_keys)


def _keys_of(
    file: DatasetFile, demo: str, modalities: Mapping[str, str] | None, action_keys: Sequence[str]
) -> list[str]:
    """Return the names of the arrays to check: all arrays of a demo, and the required ones."""
    obs = file.obs_keys(demo) if modalities is None else list(modalities)
    keys = ["actions", *action_keys, *(key for key in SCALARS if file.has(demo, key))]
    keys += [f"obs/{key}" for key in obs]
    if file.obs_keys(demo, "next_obs"):
        keys += [f"next_obs/{key}" for key in obs]
    return list(dict.fromkeys(keys))


def no_demos(file: DatasetFile, filter_key: str | None) -> DatasetError:
    """Return the error for a file or a mask without demos."""
    if filter_key is None:
        return DatasetError(f"{file.path}: there is no demo under 'data': collect some first")
    return DatasetError(
        f"{file.path}: filter key '{filter_key}' selects no demo: name another filter key, or fill this one"
    )


def _check_values(file: DatasetFile, demo: str, key: str, *, bounded: bool) -> None:
    for start, values in file.pieces(demo, key):
        check_finite(values, file, demo, key, start)
        if bounded:
            check_bounded(values, file, demo, key, start)
