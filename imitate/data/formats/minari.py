"""Minari's datasets, read and written through the package ``minari``.

A dataset is a folder with ``data/metadata.json``, or that ``data`` folder. Each episode has T + 1 observations (and
infos): observations t and t + 1 are ``obs[t]`` and ``next_obs[t]``; the last row of infos becomes attributes
``final_infos.<key>``.

Writing is lossless: if the package's JPEG compression of uint8 arrays cannot be switched off, frames are stored as
int16 from 0 to 255 and converted back by the reader. Rewards and flags are part of the format; states, attributes,
masks and all other data are stored in a sidecar (:mod:`imitate.data.formats.sidecar`).

Nested values of gymnasium spaces are converted to flat arrays, and back.
"""

import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from imitate.data.file.confined import check_file
from imitate.data.file.episode import Episode
from imitate.data.formats.base import (
    GYMNASIUM,
    ConversionReport,
    Format,
    NamedDemo,
    OpenedDataset,
    Options,
    extra,
    gymnasium_meta,
    stored_bytes,
)
from imitate.data.formats.gym_arrays import named_obs, one_hot, turned
from imitate.data.formats.hdf5_tree import leaves as leaves_of
from imitate.data.formats.hdf5_tree import opened
from imitate.data.formats.sidecar import NAME, Sidecar, SidecarWriter, arrays_to_write, beside
from imitate.errors import DatasetError
from imitate.system.images import image_layout, nested_name
from imitate.system.memory import check_claim
from imitate.system.plain_files import MAX_SETTINGS, json_value, read_json


def leaves(
    value: Any, space: Any, report: ConversionReport, name: str = ""
) -> dict[str, NDArray[Any]]:
    """Return observations by name: 'flat' or 'image' for a single Box, else the keys; nested keys are joined by '_'."""
    found: dict[str, NDArray[Any]] = {}
    if isinstance(space, spaces.Dict):
        for key, below in space.spaces.items():
            part = leaves(value[key], below, report, nested_name(name, key))
            _check_apart(found, part)
            found.update(part)
    elif isinstance(space, spaces.Tuple):
        for number, below in enumerate(space.spaces):
            found.update(leaves(value[number], below, report, nested_name(name, str(number))))
    elif isinstance(space, spaces.Text):
        report.dropped[f"observations/{name}"] = "text"
    elif isinstance(space, spaces.Discrete):
        found[name or "flat"] = one_hot(np.asarray(value) - int(space.start), int(space.n))
        report.changed[f"obs/{name or 'flat'}"] = f"index -> one-hot of {space.n}"
    else:
        values = _frames(np.asarray(value), space)
        if name:
            layout = image_layout(values.shape[1:], values.dtype)
            found[name] = turned(values, layout, f"obs/{name}", report)
        else:
            key, values = named_obs(values, "observations", report)
            found[key] = values
    return found


def _check_apart(found: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Refuse two observations with the same flat name, such as ``a_b`` and the key ``b`` in the dict ``a``."""
    both = sorted(found.keys() & others.keys())
    if both:
        raise DatasetError(
            f"two of its observations would be named '{both[0]}' after flattening: rename one"
        )


def _frames(values: NDArray[Any], space: Any) -> NDArray[Any]:
    """Restore frames that were stored as int16 to avoid a lossy encoder."""
    is_box = isinstance(space, spaces.Box) and space.dtype == np.int16
    if is_box and bool(np.all(space.low == 0)) and bool(np.all(space.high == 255)):
        return values.astype(np.uint8)
    return values


def action_columns(value: Any, space: Any, where: str, report: ConversionReport) -> NDArray[Any]:
    """Return actions (T, A): a Box is flattened, Discrete becomes one-hot, a Dict or Tuple is concatenated."""
    if isinstance(space, spaces.Dict):
        parts = [
            action_columns(value[key], below, where, report) for key, below in space.spaces.items()
        ]
        report.changed["actions"] = f"{', '.join(space.spaces)} side by side"
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Tuple):
        parts = [
            action_columns(v, below, where, report)
            for v, below in zip(value, space.spaces, strict=True)
        ]
        report.changed["actions"] = f"{len(parts)} parts side by side"
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Discrete):
        report.changed["actions"] = f"index -> one-hot of {space.n}"
        return one_hot(np.asarray(value) - int(space.start), int(space.n))
    if isinstance(space, spaces.Text):
        raise DatasetError(f"{where}: actions are texts, but only numbers can be imitated")
    values = np.asarray(value)
    return values.reshape(len(values), -1)


def space_of(values: NDArray[Any], frames: bool = False) -> spaces.Box:
    """Return the Box space of values (T, ...), with the range of the dtype.

    For ``frames``, which are uint8 stored as int16, the range is 0 to 255.
    """
    step, dtype = values.shape[1:], values.dtype
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, step, dtype.type)
    if frames:
        return spaces.Box(0, 255, step, dtype.type)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    low, high = (limits.min, limits.max) if limits is not None else (0, 1)
    return spaces.Box(low, high, step, dtype.type)


_PREFIX, _FINAL, _LINK = "minari.", "final_infos.", "minari.next_obs"
_STRUCTURE = {"total_episodes", "total_steps", "data_format", "observation_space", "action_space"}
_OURS = _STRUCTURE | {"minari_version", "dataset_id", "dataset_size", "jpeg_encoding", "env_spec"}


def _data_folder(path: Path) -> Path:
    return path / "data" if (path / "data").is_dir() else path


def _recognises(path: Path) -> bool:
    file = _data_folder(path) / "metadata.json"
    if not file.is_file():
        return False
    tree = read_json(file)
    return isinstance(tree, dict) and "data_format" in tree


# ---- reading -------------------------------------------------------------------------------------


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    storages = extra("minari.dataset.minari_storage", "minari")
    folder = _data_folder(path)
    if not (folder / "metadata.json").is_file():
        raise DatasetError(f"{path}: has no 'data/metadata.json': it is not a dataset of Minari")
    raw = read_json(folder / "metadata.json")
    if not isinstance(raw, dict):
        raise DatasetError(
            f"{folder / 'metadata.json'}: is not a JSON object: copy the dataset again"
        )
    stored = stored_bytes(folder)
    for file in sorted(folder.rglob("*.hdf5")):
        check_file(file)  # minari opens this file itself
        with opened(file) as content:
            for name, array in leaves_of(content).items():
                check_claim(f"{file}: '{name}'", (array.size or 0) * array.dtype.itemsize, stored)
    _check_spaces(raw, folder)
    storage = storages.MinariStorage.read(folder)
    count = int(storage.total_episodes)
    with beside(folder, count) as sidecar:
        source = OpenedDataset(
            env_meta=_env_meta(raw.get("env_spec"), options, report),
            demos=_demos(storage, count, sidecar, path, report),
            count=count,
            attrs={f"{_PREFIX}{key}": _as_text(raw[key]) for key in raw if key not in _STRUCTURE},
        )
        if sidecar is not None:
            sidecar.complete(source, report)
        yield source


def _check_spaces(raw: Mapping[str, Any], folder: Path) -> None:
    """Refuse metadata without a space, because minari would call the function that ``env_spec`` names."""
    for name in ("observation_space", "action_space"):
        if not isinstance(raw.get(name), str):
            raise DatasetError(
                f"{folder / 'metadata.json'}: has no '{name}', without which the package minari would run code that "
                "the dataset names: write the space there"
            )


def _as_text(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else json.dumps(value)


def _env_meta(spec: str | None, options: Options, report: ConversionReport) -> dict[str, Any]:
    if spec is None or options.env is not None:
        return gymnasium_meta(options.env, report)
    found = json_value(spec, MAX_SETTINGS)
    report.renamed["env_spec"] = "env_args"
    return {
        "env_name": found["id"],
        "type": GYMNASIUM,
        "env_kwargs": found.get("kwargs") or {},
    }


def _demos(
    storage: Any, count: int, sidecar: Sidecar | None, path: Path, report: ConversionReport
) -> Iterator[NamedDemo]:
    for number in range(count):
        raw = next(iter(storage.get_episodes([number])))
        where = f"{path}: episode {number}"
        seen = leaves(raw["observations"], storage.observation_space, report)
        actions = action_columns(raw["actions"], storage.action_space, where, report)
        for key, values in seen.items():
            if len(values) != len(actions) + 1:
                raise DatasetError(
                    f"{where}: {len(values)} observations '{key}' and {len(actions)} actions: there must be "
                    "one observation more; the dataset is damaged"
                )
        report.keep("actions", "rewards")
        report.renamed.update({"terminations": "terminals", "truncations": "timeouts"})
        report.renamed["observations"] = "obs and next_obs: " + ", ".join(seen)
        arrays = {f"obs/{key}": values[:-1] for key, values in seen.items()}
        arrays.update({f"next_obs/{key}": values[1:] for key, values in seen.items()})
        arrays["actions"] = actions
        arrays["rewards"] = np.asarray(raw["rewards"])[: len(actions)]
        arrays["terminals"] = np.asarray(raw["terminations"], dtype=bool)[: len(actions)]
        arrays["timeouts"] = np.asarray(raw["truncations"], dtype=bool)[: len(actions)]
        if sidecar is not None:
            yield _as_it_was(sidecar.demo(number, arrays, report))
            continue
        steps, final = _infos(raw.get("infos") or {}, len(actions), report)
        metadata = next(iter(storage.get_episode_metadata([number])))
        yield NamedDemo(
            f"demo_{number}",
            Episode(
                obs={key: values[:-1] for key, values in seen.items()},
                next_obs={key: values[1:] for key, values in seen.items()},
                actions=actions,
                rewards=arrays["rewards"],
                terminals=arrays["terminals"],
                timeouts=arrays["timeouts"],
                attrs={**_attrs(metadata), **final},
                steps=steps,
            ),
        )


def _as_it_was(demo: NamedDemo) -> NamedDemo:
    """Return a demo that this package wrote, without next observations that the original demo did not have."""
    attrs = dict(demo.episode.attrs)
    link = attrs.pop(_LINK, "following")
    next_obs = None if link == "missing" else demo.episode.next_obs
    return NamedDemo(demo.name, replace(demo.episode, attrs=attrs, next_obs=next_obs))


def _attrs(metadata: Mapping[str, Any]) -> dict[str, Any]:
    kept = {}
    for key, value in metadata.items():
        if key in ("id", "total_steps") or value is None:
            continue
        kept[key] = value.item() if isinstance(value, np.generic) else value
    return kept


def _infos(
    infos: Mapping[str, Any], length: int, report: ConversionReport, prefix: str = ""
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the infos at each step, and the infos after the last step."""
    steps: dict[str, NDArray[Any]] = {}
    final: dict[str, Any] = {}
    for key, value in infos.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            below = _infos(value, length, report, f"{name}/")
            steps.update(below[0])
            final.update(below[1])
            continue
        values = np.asarray(value)
        if values.dtype.kind not in "fiub" or len(values) != length + 1:
            report.dropped[f"infos/{name}"] = "not one number or array per observation"
            continue
        report.keep(f"infos/{name}")
        steps[f"infos/{name}"] = values[:-1]
        final[f"{_FINAL}{name}"] = values[-1]
    return steps, final


# ---- writing -------------------------------------------------------------------------------------


@contextmanager
def _write(
    path: Path, source: OpenedDataset, options: Options, report: ConversionReport
) -> Iterator[Callable[[NamedDemo], None]]:
    minari = extra("minari", "minari")
    storages = extra("minari.dataset.minari_storage", "minari")
    buffers = extra("minari.data_collector", "minari")
    dataset_id = _dataset_id(Path(report.target))
    folder = path.absolute() / "data"  # absolute, because minari joins a relative path twice
    folder.mkdir(parents=True)
    sidecar = SidecarWriter(folder / NAME, source)
    storage: Any = None
    keeps_frames = "jpeg_encoding" in inspect.signature(storages.MinariStorage.new).parameters

    def append(demo: NamedDemo) -> None:
        nonlocal storage
        arrays = arrays_to_write(demo, path)
        seen = _take_observations(arrays)
        frames = {
            key: values.astype(np.int16)
            for key, values in seen.items()
            if values.dtype == np.uint8 and not keeps_frames
        }
        seen.update(frames)
        actions = arrays.pop("actions")
        if storage is None:
            more = {"jpeg_encoding": False} if keeps_frames else {}
            space = spaces.Dict(
                {key: space_of(values, key in frames) for key, values in seen.items()}
            )
            storage = storages.MinariStorage.new(
                folder, observation_space=space, action_space=space_of(actions), **more
            )
            storage.update_metadata(_metadata(source, dataset_id, minari.__version__))
        storage.update_episodes(
            [
                buffers.EpisodeBuffer(
                    observations=seen,
                    actions=actions,
                    rewards=arrays.pop("rewards"),
                    terminations=arrays.pop("terminals").astype(bool),
                    truncations=arrays.pop("timeouts").astype(bool),
                    infos=_infos_of(arrays, demo.episode.attrs),
                )
            ]
        )
        link = arrays.pop(_LINK)
        episode = replace(demo.episode, attrs={**demo.episode.attrs, _LINK: str(link)})
        sidecar.append(NamedDemo(demo.name, episode), arrays)
        report.note(
            f"states, attributes and masks are kept in data/{NAME}, from which imitate reads them again"
        )

    try:
        yield append
        sidecar.finish()
    finally:
        sidecar.close()


def _take_observations(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return T + 1 observations; ``next_obs`` that differ from the observations of the next step stay in ``arrays``."""
    obs = {key[4:]: arrays.pop(key) for key in list(arrays) if key.startswith("obs/")}
    following = {key[9:]: arrays[key] for key in arrays if key.startswith("next_obs/")}
    link = "following" if following else "missing"
    for key, values in following.items():
        if (
            set(following) != set(obs)
            or (values[:-1] != obs[key][1:]).any()
            or values.dtype != obs[key].dtype
        ):
            link = "stored"
    if link == "following":
        for key in following:
            del arrays[f"next_obs/{key}"]
    arrays[_LINK] = np.array(link)
    return {
        key: np.concatenate([values, following.get(key, values)[-1:]])
        for key, values in obs.items()
    }


def _infos_of(
    arrays: dict[str, NDArray[Any]], attrs: Mapping[str, Any]
) -> dict[str, NDArray[Any]] | None:
    """Return the infos whose last row is known, as T + 1 rows; the sidecar also has them in their original type."""
    found = {}
    for key, values in arrays.items():
        name = key.removeprefix("infos/")
        if key.startswith("infos/") and "/" not in name and f"{_FINAL}{name}" in attrs:
            last = np.asarray(attrs[f"{_FINAL}{name}"], dtype=values.dtype)
            found[name] = np.concatenate([values, last[None]])
    return found or None


def _metadata(source: OpenedDataset, dataset_id: str, version: str) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in source.attrs.items():
        name = key.removeprefix(_PREFIX)
        if key.startswith(_PREFIX) and name not in _OURS:
            kept[name] = value
    for name in ("author", "author_email"):
        if isinstance(kept.get(name), str):
            kept[name] = set(json_value(kept[name])) if kept[name].startswith("[") else {kept[name]}
    if isinstance(kept.get("requirements"), str):
        kept["requirements"] = json_value(kept["requirements"])
    return {**kept, "dataset_id": dataset_id, "minari_version": version}


def _dataset_id(target: Path) -> str:
    if not re.fullmatch(r"[\w-]+-v\d+", target.name):
        raise DatasetError(
            f"{target}: a dataset of Minari is named <name>-v<number>: choose a name such as {target.stem}-v0"
        )
    default = Path.home() / ".minari" / "datasets"
    root = Path(os.environ.get("MINARI_DATASETS_PATH", default)).resolve()
    full = target.resolve()
    return str(full.relative_to(root)) if full.is_relative_to(root) else target.name


FORMAT = Format(
    name="minari",
    summary="Minari's datasets, a folder each (needs the extra 'minari')",
    recognises=_recognises,
    read=_read,
    write=_write,
    options=frozenset({"env"}),
)
