"""Sidecar of a dataset: an HDF5 file with everything that a foreign format cannot store, so that nothing is lost.

/data     attrs  env_args (JSON), control_freq, and the source's attributes of the whole dataset
/<i>    attrs  name, and the demo's attributes;  arrays with their names
/mask/<filter key>

If ``next_obs`` equal the observations of the next steps, only the last one is stored, in ``final_obs/<key>``.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.file.encoded_frames import EncodedFrames, encode_image
from imitate.data.file.episode import Episode, arrays_of, attrs_of
from imitate.data.file.journal import JournaledFile
from imitate.data.formats import hdf5_tree
from imitate.data.formats.base import ConversionReport, NamedDemo, OpenedDataset
from imitate.data.formats.robomimic import episode_from, masks_of
from imitate.errors import DatasetError
from imitate.system.plain_files import MAX_SETTINGS, json_value
from imitate.system.text import counted

NAME = "imitate.hdf5"
_NEXT, _FINAL = "next_obs/", "final_obs/"


class SidecarWriter:
    """Writer of the file, demo by demo.

    Raises:
        OSError: the disk is full; all methods may raise this error.
    """

    def __init__(self, path: Path, source: OpenedDataset) -> None:
        self._source = source
        self._journal = JournaledFile(path)  # HDF5 itself cannot close a file that it cannot write
        self._file = h5py.File(self._journal, "w")
        self._names: list[str] = []
        data = self._file.create_group("data")
        data.attrs["env_args"] = json.dumps(source.env_meta)
        if source.control_freq is not None:
            data.attrs["control_freq"] = source.control_freq
        for key, value in source.attrs.items():
            data.attrs[key] = value

    def append(self, demo: NamedDemo, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the next demo: its name, its attributes, and the arrays that the format cannot store."""
        group = self._file["data"].create_group(str(len(self._names)))
        group.attrs.update(attrs_of(demo.episode, f"demo '{demo.name}'"))
        group.attrs["name"] = demo.name
        obs = {key: np.asarray(value) for key, value in demo.episode.obs.items()}
        for key, values in arrays.items():
            name = key.removeprefix(_NEXT)
            if key.startswith(_NEXT) and _follows(values, obs.get(name)):
                group[f"{_FINAL}{name}"] = values[-1:]
            else:
                group[key] = values
        self._names.append(demo.name)
        self._file.flush()
        self._journal.commit()

    def finish(self) -> None:
        """Write the masks, after the last demo; then call :meth:`close`."""
        known = set(self._names)
        for key, demos in self._source.masks.items():
            kept = [name.encode() for name in demos if name in known]
            self._file[f"mask/{key}"] = np.array(kept, dtype=np.bytes_)
        self._file.close()
        self._journal.commit()

    def close(self) -> None:
        """Close the file, which is incomplete unless :meth:`finish` was called before."""
        if self._file:
            self._journal.stop()
            self._file.close()
        self._journal.close()


def _follows(following: NDArray[Any], obs: NDArray[Any] | None) -> bool:
    return (
        obs is not None
        and following.dtype == obs.dtype
        and following.shape == obs.shape
        and bool((following[:-1] == obs[1:]).all())
    )


def arrays_to_write(demo: NamedDemo, where: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a demo after checking them, without ``dones``, which equals ``terminals``."""
    given = arrays_of(demo.episode, f"{where}: demo '{demo.name}'")
    arrays = {key: np.asarray(values) for key, values in given.items()}
    del arrays["dones"]
    return arrays


class Sidecar:
    """An opened sidecar.

    Args:
        file: the open file.
        count: number of demos of the dataset.

    Raises:
        DatasetError: the sidecar has another number of demos.
    """

    def __init__(self, file: h5py.File, count: int) -> None:
        self._data = file["data"]
        if len(self._data) != count:
            raise DatasetError(
                f"{file.filename}: has {counted(len(self._data), 'demo')}, but the dataset has {count}: "
                "the dataset was changed; remove this file"
            )
        self._file = file
        self._names = [str(hdf5_tree.plain(self._data[str(i)].attrs["name"])) for i in range(count)]

    def complete(self, source: OpenedDataset, report: ConversionReport) -> None:
        """Add the stored attributes of the whole dataset to an opened dataset."""
        attrs = hdf5_tree.attributes(self._data)
        source.env_meta = json_value(attrs.pop("env_args"), MAX_SETTINGS)
        report.synthesised.pop("env_args", None)
        report.keep("env_args")
        source.control_freq = attrs.pop("control_freq", None)
        source.attrs = attrs
        source.masks = masks_of(self._file, self._names, report)

    def demo(self, number: int, arrays: Mapping[str, Any], report: ConversionReport) -> NamedDemo:
        """Return a demo with the arrays of the dataset and of the sidecar."""
        group = self._data[str(number)]
        attrs = hdf5_tree.attributes(group)
        name = str(attrs.pop("name"))
        own = {key: hdf5_tree.rows(dataset) for key, dataset in hdf5_tree.leaves(group).items()}
        found = {**arrays, **own}
        for key in [key for key in found if key.startswith(_FINAL)]:
            seen = key.removeprefix(_FINAL)
            found[f"{_NEXT}{seen}"] = _following(found[f"obs/{seen}"], found.pop(key))
        report.keep(*found, *(f"attribute {key}" for key in attrs))
        return NamedDemo(name, episode_from(found, attrs, report))


def _following(obs: Any, final: NDArray[Any]) -> Any:
    """Return the next observations of a demo; compressed frames stay compressed."""
    if isinstance(obs, EncodedFrames) and obs.encoding == "png":
        last = encode_image(final[0], "png").tobytes()
        return EncodedFrames("png", [*obs.cells[1:], last], obs.frame)
    return np.concatenate([np.asarray(obs)[1:], final])


@contextmanager
def beside(folder: Path, count: int) -> Iterator[Sidecar | None]:
    """Open the sidecar of a folder; yield None if there is no sidecar."""
    path = folder / NAME
    if not path.exists():
        yield None
        return
    with hdf5_tree.opened(path) as file:
        yield Sidecar(file, count)


def plain_episode(
    obs: Mapping[str, NDArray[Any]],
    actions: NDArray[Any],
    attrs: Mapping[str, Any],
    report: ConversionReport,
) -> Episode:
    """Return an episode without rewards and terminals, which times out at its last step."""
    length = len(actions)
    report.synthesised["rewards"] = "0: the dataset has none"
    report.synthesised["timeouts"] = (
        "at the last step: the dataset does not record ends of episodes"
    )
    return Episode(
        obs=dict(obs),
        actions=actions,
        rewards=np.zeros(length, dtype=np.float32),
        terminals=np.zeros(length, dtype=bool),
        timeouts=np.arange(length) == length - 1,
        attrs=dict(attrs),
    )
