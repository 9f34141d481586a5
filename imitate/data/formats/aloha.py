"""ALOHA's and ACT's files: a folder with one HDF5 file per episode, ``episode_<i>.hdf5``, or a single file.

    attrs  sim, compress
    /observations/{qpos, qvel, effort} (T, 14), /observations/images/<camera> (T, H, W, 3) uint8
    /action (T, 14), /base_action (T, 2)

* On the robot, an observation belongs to the action recorded one step earlier (as in ACT's own loader), in simulation
  to the action of the same step: ``--action-shift`` 1 and 0. Observations without an action are dropped.
* With ``compress`` an image is a row of JPEG bytes, padded with zeros. They were encoded from RGB arrays by a function
  that expects BGR, so the decoded channels are swapped, and compressed and uncompressed files have the same colours.
* Actions are joint positions in radians. There are no rewards and no terminals; the last step is a timeout.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.file.episode import Episode
from imitate.data.file.hdf5_format import natural_key
from imitate.data.formats import hdf5_tree
from imitate.data.formats.base import (
    ConversionReport,
    Format,
    NamedDemo,
    OpenedDataset,
    Options,
    robot_meta,
    same_length,
)
from imitate.data.formats.frames import decoded, stacked
from imitate.errors import DatasetError

RATE_HZ = 50.0
_IMAGES = "images/"


def _recognises(path: Path) -> bool:
    files = _files(path)
    if not files:
        return False
    with hdf5_tree.peeked(files[0]) as file:
        return "action" in file and isinstance(file.get("observations"), h5py.Group)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(path.glob("episode_*.hdf5"), key=lambda file: natural_key(file.name))


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    files = _files(path)
    if not files:
        raise DatasetError(f"{path}: there is no episode_<number>.hdf5 in this folder")
    with hdf5_tree.opened(files[0]) as file:
        simulated = bool(file.attrs.get("sim", False))
    if options.fps is None:
        report.synthesised["control_freq"] = f"{RATE_HZ:g} Hz, ALOHA's; give --fps if yours differs"
    yield OpenedDataset(
        env_meta=robot_meta("aloha_sim" if simulated else "aloha"),
        demos=_demos(files, options, report),
        count=len(files),
        control_freq=options.fps or RATE_HZ,
    )


def _demos(files: list[Path], options: Options, report: ConversionReport) -> Iterator[NamedDemo]:
    for number, path in enumerate(files):
        with hdf5_tree.opened(path) as file:
            shift = options.action_shift
            if shift is None:
                shift = 0 if bool(file.attrs.get("sim", False)) else 1
            episode = _episode(file, path, shift, options, report)
        if episode is None:
            report.dropped[path.name] = f"has no step after the shift of {shift}"
            continue
        yield NamedDemo(f"demo_{number}", episode)


def _episode(
    file: h5py.File, path: Path, shift: int, options: Options, report: ConversionReport
) -> Episode | None:
    seen = hdf5_tree.leaves(file["observations"])
    actions = hdf5_tree.rows(hdf5_tree.wanted(file, "action", str(path)))
    total = same_length({"action": len(actions), **{k: len(v) for k, v in seen.items()}}, str(path))
    length = total - shift
    if length < 1:
        return None
    report.renamed["action"] = "actions"
    if shift:
        report.changed["time"] = f"observation t with action t - {shift} (--action-shift)"
        report.dropped[f"first {shift} observations of each episode"] = (
            "their action is not recorded"
        )
    obs = {}
    for key, dataset in seen.items():
        name = f"{key[len(_IMAGES) :]}_image" if key.startswith(_IMAGES) else key
        report.renamed[f"observations/{key}"] = f"obs/{name}"
        obs[name] = (
            _frames(dataset, shift, report) if name != key else hdf5_tree.rows(dataset, shift)
        )
    steps = {}
    if "base_action" in file:
        steps["base_action"] = hdf5_tree.rows(file["base_action"])[:length]
        report.keep("base_action")
    for key in set(file) - {"action", "observations", "base_action"}:
        report.dropped[key] = (
            "the lengths of JPEG frames" if key == "compress_len" else "unknown array"
        )
    report.synthesised["rewards"] = "0: the file has none"
    report.synthesised["timeouts"] = "at the last step: the file does not record ends of episodes"
    last = np.arange(length) == length - 1
    return Episode(
        obs=obs,
        actions=actions[:length],
        rewards=np.zeros(length, dtype=np.float32),
        terminals=np.zeros(length, dtype=bool),
        timeouts=last,
        attrs={} if options.language is None else {"language": options.language},
        steps=steps,
    )


def _frames(dataset: h5py.Dataset, start: int, report: ConversionReport) -> NDArray[Any]:
    values = hdf5_tree.rows(dataset, start)
    if values.ndim == 4:
        return values
    where = f"{dataset.file.filename}: '{dataset.name}'"
    if values.ndim > 2 or not (values.dtype == np.uint8 or values.dtype == object):
        raise DatasetError(f"{where} has shape {values.shape}: neither frames nor JPEG bytes")
    report.changed["images"] = "JPEG -> (T, H, W, 3), channels as in uncompressed files"
    frames = (decoded(np.asarray(row, dtype=np.uint8).tobytes(), where) for row in values)
    return stacked((frame[..., ::-1] for frame in frames), len(values), where)


FORMAT = Format(
    name="aloha",
    summary="ALOHA's and ACT's HDF5 files, one per episode: the folder, or one of them",
    recognises=_recognises,
    read=_read,
    options=frozenset({"action_shift", "fps", "language"}),
)
