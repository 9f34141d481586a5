"""A folder with one ``.npz`` for each episode, as many scripts write them: ``ep_000.npz``, ``ep_001.npz`` ...

    actions                          (T, A) or (T,); also action, acts, act
    obs, observations, observation   (T, ...), or T + 1 rows; the last row is only a next observation
    rewards                          (T,); also reward, rews; may be missing
    terminals, timeouts              (T,); also terminal, dones, done, truncated; may be missing
    next_obs, next_observations      (T, ...) of the only observation; may be missing
    success, language                one value for the episode, success also of each step; may be missing
    any other array of T rows, or of T + 1 if obs has them, such as images or qpos, is an observation of that name

Demos have the order of the files' numbers. Discrete actions become one-hot rows. Pickled objects are never read.
"""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.episode import Episode
from imitate.data.file.hdf5_format import natural_key
from imitate.data.formats.base import (
    UNKNOWN_ENV,
    ConversionReport,
    Format,
    NamedDemo,
    OpenedDataset,
    Options,
    gymnasium_meta,
    reading,
    robot_meta,
)
from imitate.data.formats.gym_arrays import action_rows, choices_of, named_obs, turned
from imitate.data.formats.sidecar import plain_episode
from imitate.errors import DatasetError
from imitate.system.images import image_layout
from imitate.system.memory import read_arrays
from imitate.system.recognition import npz_names

Arrays = dict[str, NDArray[Any]]
NAMES = {
    "actions": ("actions", "action", "acts", "act"),
    "obs": ("obs", "observations", "observation"),
    "rewards": ("rewards", "reward", "rews"),
    "terminals": ("terminals", "terminal", "dones", "done"),
    "timeouts": ("timeouts", "timeout", "truncated", "truncations"),
    "next_obs": ("next_obs", "next_observations", "next_observation"),
}
"""Accepted names of arrays in files, by the name in a demonstration file."""
_HEADER = 512
"""Number of bytes at the beginning of an array that contain its type."""
_PREFIXES = ("obs/", "observations/", "observation/", "observation.")


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.npz"), key=lambda file: natural_key(file.name))


def _recognises(path: Path) -> bool:
    files = _files(path) if path.is_dir() else []
    if not files or (path / "meta").exists():
        return False
    names = npz_names(files[0])
    return len(names) > 1 and any(name in names for name in NAMES["actions"])


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    files = _files(path)
    if not files:
        raise DatasetError(f"{path}: has no file '*.npz', so it has no episodes in this format")
    meta = gymnasium_meta(options.env, report) if options.env else robot_meta(UNKNOWN_ENV)
    if not options.env:
        report.synthesised["env_args"] = "a real robot: the files name no environment"
    yield OpenedDataset(
        env_meta=meta,
        demos=_demos(files, options, report),
        count=len(files),
        control_freq=options.fps,
    )


def _demos(files: list[Path], options: Options, report: ConversionReport) -> Iterator[NamedDemo]:
    choices = _choices(files)
    for number, file in enumerate(files):
        with reading(file):
            episode = _episode(file, choices, options, report)
        yield NamedDemo(f"demo_{number}", episode)


def _choices(files: list[Path]) -> int | None:
    """Return the number of discrete actions in all files, or None if actions are continuous."""
    most: list[int | None] = []
    for file in files:
        with reading(file):
            most.append(choices_of(_taken(read_arrays(file, NAMES["actions"]), file)[1], str(file)))
    return max(filter(None, most), default=None) if all(most) else None


def _taken(arrays: Mapping[str, NDArray[Any]], file: Path) -> tuple[str, NDArray[Any]]:
    """Return the name and the values of the actions."""
    found = [name for name in NAMES["actions"] if name in arrays]
    if not found:
        raise DatasetError(
            f"{file}: has no array 'actions' (found: {', '.join(npz_names(file)) or 'nothing'}): give "
            "the array of actions this name"
        )
    values = arrays[found[0]]
    if values.ndim == 0 or len(values) == 0:
        raise DatasetError(
            f"{file}: '{found[0]}' has shape {values.shape}; expected (T, A) with T at least 1"
        )
    return found[0], values


def _episode(
    file: Path, choices: int | None, options: Options, report: ConversionReport
) -> Episode:
    arrays = read_arrays(file, _plain_names(file, report))
    name, given = _taken(arrays, file)
    actions, length = action_rows(arrays.pop(name), choices, report), len(given)
    if name != "actions":
        report.renamed[name] = "actions"
    steps = {key: _first(arrays, key, report) for key in ("rewards", "terminals", "timeouts")}
    after = _first(arrays, "next_obs", report)
    attrs = _attributes(arrays, options)
    obs = _observations(arrays, length, file, report)
    seen = {key: values[:length] for key, values in obs.items()}
    episode = plain_episode(seen, actions, attrs, report)
    changes: dict[str, Any] = {
        key: found.ravel().astype(float if key == "rewards" else bool)
        for key, found in steps.items()
        if found is not None and found.size == length
    }
    for key in changes:
        report.synthesised.pop(key, None)
    if "terminals" in changes and "timeouts" not in changes:
        changes["timeouts"] = np.asarray(episode.timeouts) & ~changes["terminals"][-1]
    if after is not None and [values.size for values in seen.values()] == [after.size]:
        form = _observation("obs", after, ConversionReport())[1]
        changes["next_obs"] = dict.fromkeys(seen, form)
    elif {len(values) for values in obs.values()} == {length + 1}:
        changes["next_obs"] = {key: values[1:] for key, values in obs.items()}
    return replace(episode, **changes)


def _attributes(arrays: Arrays, options: Options) -> dict[str, Any]:
    """Remove the attributes of an episode from its arrays and return them."""
    found: dict[str, Any] = {} if options.language is None else {"language": options.language}
    if "language" in arrays and arrays["language"].size == 1:
        found.setdefault("language", str(arrays.pop("language").item()))
    if "success" in arrays:
        found["success"] = bool(arrays.pop("success").any())
    return found


def _observations(arrays: Arrays, length: int, file: Path, report: ConversionReport) -> Arrays:
    """Return the observations, arrays with ``length`` or ``length + 1`` rows; report all other arrays.

    Raises:
        DatasetError: no array is an observation.
    """
    found: Arrays = {}
    for key, values in arrays.items():
        if values.ndim == 0 or len(values) not in (length, length + 1):
            words = f"shape {values.shape} in {file.name}, whose actions have {length} rows"
            report.dropped[key] = words
        elif values.dtype.kind not in "fiub":
            report.dropped[key] = "not numbers"
        else:
            short, form = _observation(key, values, report)
            found[short] = form
    if not found:
        raise DatasetError(
            f"{file}: has no observation with one row for each of its {length} actions: add an array of observations"
        )
    return found


def _plain_names(file: Path, report: ConversionReport) -> list[str]:
    """Return the names of a file's arrays; arrays of pickled objects are left out and reported."""
    names = npz_names(file)
    with zipfile.ZipFile(file) as archive:
        for name in list(names):
            with archive.open(f"{name}.npy") as stream:
                if b"'|O'" in stream.read(_HEADER):
                    report.dropped[name] = "pickled objects, which may run code when read"
                    names.remove(name)
    return names


def _first(arrays: Arrays, key: str, report: ConversionReport) -> NDArray[Any] | None:
    """Remove the array with one of the accepted names of a key from the arrays and return it; None if there is none."""
    for name in NAMES[key]:
        if name in arrays:
            if name != key:
                report.renamed[name] = key
            else:
                report.keep(key)
            return arrays.pop(name)
    return None


def _observation(
    key: str, values: NDArray[Any], report: ConversionReport
) -> tuple[str, NDArray[Any]]:
    """Return the new name and the values of an observation: vectors (T, D), or images (T, H, W, C)."""
    if key in NAMES["obs"]:
        return named_obs(values, key, report)
    short = next((key[len(p) :] for p in _PREFIXES if key.startswith(p)), key)
    report.renamed[key] = f"obs/{short}"
    layout = image_layout(values.shape[1:], values.dtype)
    if layout is not None:
        return short, turned(values, layout, f"obs/{short}", report)
    return short, values.reshape(len(values), -1)


FORMAT = Format(
    name="npz-episodes",
    summary="a folder with one .npz for each episode",
    recognises=_recognises,
    read=_read,
    options=frozenset({"env", "fps", "language"}),
)
