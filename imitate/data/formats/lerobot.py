"""LeRobot's datasets: versions 2.0, 2.1 and 3.0 are read, 3.0 is written.

A dataset is a folder with ``meta/info.json``, parquet tables, and camera images as videos or as PNGs in the tables.
``info.json`` contains the patterns of the paths. The task of an episode is looked up by ``task_index``.

    observation.state -> obs/state            observation.images.<camera> -> obs/<camera>_image
    observation.<x>   -> obs/<x>              action -> actions           task -> attribute language
    next.reward -> rewards                    next.success, next.done, next.truncated -> terminals, timeouts

Other names of features are assigned by :mod:`imitate.data.formats.lerobot_layout`. The features' original names, types
and names of components are stored in the attribute ``features`` (:mod:`imitate.data.file.features`). For writing see
:mod:`imitate.data.formats.lerobot_writer`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.episode import Episode
from imitate.data.file.features import FEATURES, as_attribute
from imitate.data.file.step_times import TimeArray, contradicted_hz, is_coarse, ticks_of
from imitate.data.formats.base import (
    ConversionReport,
    Format,
    NamedDemo,
    OpenedDataset,
    Options,
    robot_meta,
)
from imitate.data.formats.lerobot_layout import AUTOMATIC, ENDS, action_of, from_features, keys_of
from imitate.data.formats.lerobot_missing import COMPLETE, INCOMPLETE, few
from imitate.data.formats.lerobot_tables import Tables
from imitate.data.formats.lerobot_video import VideoCameras
from imitate.data.formats.lerobot_writer import LAYOUT, write
from imitate.data.formats.sidecar import Sidecar, beside
from imitate.errors import DatasetError
from imitate.system.plain_files import json_value, read_json
from imitate.system.text import counted

VERSIONS = ("v2.0", "v2.1", "v3.0")


def _recognises(path: Path) -> bool:
    file = path / "meta" / "info.json"
    if not file.is_file():
        return False
    tree = read_json(file)
    return isinstance(tree, dict) and "codebase_version" in tree


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    info = _info(path)
    tables = Tables(path, info, skip=bool(options.skip_incomplete))
    with beside(path / "meta", tables.count) as sidecar:
        source = OpenedDataset(
            env_meta=robot_meta(str(info.get("robot_type") or "unknown")),
            demos=iter(()),
            count=len(tables.numbers),
            control_freq=float(options.fps or info["fps"]),
            images="as-source",
            lossy_images=any(f.get("dtype") == "video" for f in tables.features.values()),
        )
        report.synthesised["env_args"] = "a real robot: the dataset names no environment"
        layout: dict[str, Any] | None = None
        if sidecar is not None:
            sidecar.complete(source, report)
            source.control_freq = options.fps or source.control_freq
            layout = json_value(source.attrs.pop(LAYOUT))
        else:
            _keep_features(tables.features, options.action, source, report)
        cameras = VideoCameras(tables, report, encoded=options.images in (None, "as-source"))
        without = {} if sidecar else _without(cameras, tables, source, options, report)
        source.demos = _demos(tables, cameras, without, sidecar, layout, options, report)
        yield source


def _without(
    videos: VideoCameras,
    tables: Tables,
    source: OpenedDataset,
    options: Options,
    report: ConversionReport,
) -> dict[int, list[str]]:
    """Return the cameras to leave out by episode; if incomplete episodes are skipped, remove them from ``tables``."""
    if options.skip_incomplete is None:
        return {}
    missing = videos.missing()
    if options.skip_incomplete:
        tables.skip(missing.episodes)
        source.count = len(tables.numbers)
        if tables.skipped:
            total = counted(source.count + len(tables.skipped), "episode")
            report.note(
                f"{len(tables.skipped)} of {total} incomplete and left out: {few(tables.skipped)}"
            )
    elif missing.words:
        source.attrs[INCOMPLETE] = missing.words
        whole = [number for number in tables.numbers if number not in missing.episodes]
        source.masks[COMPLETE] = [f"demo_{number}" for number in whole]
        keys = keys_of(tables.features)
        source.optional = frozenset(
            keys[name] for cameras in missing.episodes.values() for name in cameras
        )
        report.doubts["videos"] = missing.words
    return {
        number: [*missing.cameras, *missing.episodes.get(number, ())] for number in tables.numbers
    }


def _keep_features(
    features: dict[str, Any], action: str | None, source: OpenedDataset, report: ConversionReport
) -> None:
    keys = keys_of(features, action)
    entries = {keys[name]: {"feature": name, **entry} for name, entry in features.items()}
    text = as_attribute(entries)
    if text is None:
        report.note(
            "the names of the features are too long for an attribute of HDF5: they are left out"
        )
        return
    source.attrs[FEATURES] = text
    report.keep("names of features")


def _info(path: Path) -> dict[str, Any]:
    file = path / "meta" / "info.json"
    if not file.is_file():
        raise DatasetError(f"{path}: has no 'meta/info.json': it is not a dataset of LeRobot")
    info: dict[str, Any] = read_json(file)
    if info.get("codebase_version") not in VERSIONS:
        raise DatasetError(
            f"{file}: codebase_version is {info.get('codebase_version')!r}; {', '.join(VERSIONS)} are read: "
            "convert it with LeRobot's own scripts first"
        )
    if info.get("storage_format", "parquet") != "parquet":
        raise DatasetError(
            f"{file}: storage_format is {info['storage_format']!r}; only 'parquet' is read: export it "
            "with LeRobot first"
        )
    return info


def _demos(
    tables: Tables,
    cameras: VideoCameras,
    without: Mapping[int, list[str]],
    sidecar: Sidecar | None,
    layout: dict[str, Any] | None,
    options: Options,
    report: ConversionReport,
) -> Iterator[NamedDemo]:
    encoded = options.images in (None, "as-source")
    clocks = {"timestamp": TimeArray(None), "frame_index": TimeArray(None)}
    try:
        for number, rows in tables.episodes():
            length = len(rows["episode_index"])
            values: dict[str, Any] = {}
            for key, column in rows.items():
                found = tables.decoded(key, column, encoded=encoded)
                if found is None:
                    _drop_text(key, column, report)
                else:
                    values[key] = found
            for key in clocks.keys() & values.keys():
                _check_times(key, values[key], number, tables, options, report)
                clocks[key].see(values[key], f"episode {number}")
            times = _row_times(values, length, tables.fps)
            values.update(cameras.frames(number, times, without.get(number, ())))
            if sidecar is not None and layout is not None:
                yield sidecar.demo(number, from_features(values, layout), report)
                continue
            yield NamedDemo(f"demo_{number}", _episode(values, number, tables, options, report))
        report.dropped.update(dict.fromkeys(sorted(tables.unread), "lists of texts"))
        doubts = {key: clock.doubt() for key, clock in clocks.items()}
        report.doubts.update({key: doubt for key, doubt in doubts.items() if doubt is not None})
    finally:
        cameras.close()


def _check_times(
    key: str,
    times: NDArray[Any],
    number: int,
    tables: Tables,
    options: Options,
    report: ConversionReport,
) -> None:
    """Refuse times of an episode that run backwards, or that contradict the dataset's rate."""
    if len(times) < 2:
        return
    if key == "timestamp" and is_coarse(times, tables.fps):
        report.doubts[key] = (
            f"{times.dtype} is too coarse to distinguish its times: they were not checked"
        )
        return
    ticks = ticks_of(times)
    where = f"{tables.path}: '{key}' of episode {number}"
    if len(ticks.back):
        at = int(ticks.back[0])
        raise DatasetError(
            f"{where} does not advance: row {at} is at {times[at]:g}, the one before at {times[at - 1]:g}: put its "
            "rows in order, or take the episode out of the dataset"
        )
    hz = None if key != "timestamp" else contradicted_hz(ticks.interval, tables.fps)
    if hz is not None and options.fps is None:
        raise DatasetError(
            f"{where} runs at {hz:.4g} Hz, but 'meta/info.json' says fps {tables.fps:g}: correct "
            "one of the two, or give the rate to `imitate dataset convert` with --fps"
        )


def _row_times(values: dict[str, Any], length: int, fps: float) -> NDArray[np.float64]:
    """Return the times (T,) of an episode's rows in seconds.

    The times are the column ``timestamp``, or computed from the rate if this column is missing.
    """
    if "timestamp" in values:
        return np.asarray(values["timestamp"], dtype=np.float64).reshape(length)
    return np.arange(length) / fps


def _drop_text(key: str, column: Any, report: ConversionReport) -> None:
    texts = column.to_pylist()
    report.dropped[key] = "text"
    if any(text != texts[0] for text in texts):
        report.doubts[key] = (
            "its text changes within episodes, but an episode has one instruction: left out"
        )


def _episode(
    values: dict[str, Any], number: int, tables: Tables, options: Options, report: ConversionReport
) -> Episode:
    length = len(values["episode_index"])
    action = action_of(tables.features, options.action, str(tables.path))
    keys = keys_of(tables.features, action)
    attrs: dict[str, Any] = {}
    task = options.language or tables.task(values.get("task_index"), number)
    if task is not None:
        attrs["language"] = task
        report.renamed["task"] = "attribute language"
    obs = {}
    for key in [key for key in values if keys.get(key, "").startswith("obs/")]:
        report.renamed[key] = keys[key]
        obs[keys[key].removeprefix("obs/")] = _matrix(values.pop(key))
    actions = _matrix(values.pop(action))
    report.renamed[action] = "actions"
    rewards = values.pop("next.reward", None)
    if rewards is None:
        report.synthesised["rewards"] = "0: the dataset has none"
    else:
        report.renamed["next.reward"] = "rewards"
    terminals, timeouts = _ends(values, length, report)
    if "next.success" in values:
        success = np.ravel(values["next.success"]).astype(bool)
        attrs["success"] = bool(success.any())
        if attrs["success"] and not success[-1]:
            report.doubts["next.success"] = (
                f"true before the last row of episode {number} (and perhaps of other episodes), but false in that row: "
                "taken as success"
            )
    steps = {}
    for key in [key for key in values if key not in AUTOMATIC and key not in ENDS]:
        steps[keys.get(key, key)] = values.pop(key)
        report.keep(key)
    return Episode(
        obs=obs,
        actions=actions,
        rewards=np.zeros(length, np.float32) if rewards is None else rewards.reshape(length),
        terminals=terminals,
        timeouts=timeouts,
        attrs=attrs,
        steps=steps,
    )


def _matrix(values: Any) -> Any:
    return values[:, None] if values.ndim == 1 else values


def _ends(
    values: dict[str, NDArray[Any]], length: int, report: ConversionReport
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return terminals and timeouts; ``next.done`` is true for both."""
    flags = {key: values[key].reshape(length).astype(bool) for key in ENDS if key in values}
    none = np.zeros(length, dtype=bool)
    if "next.success" in flags:
        terminals, source = flags["next.success"], "next.success"
    elif "next.done" in flags:
        terminals, source = flags["next.done"] & ~flags.get("next.truncated", none), "next.done"
    else:
        terminals, source = none, "none: the dataset does not record ends of episodes"
    report.synthesised["terminals"] = source
    timeouts = none.copy()
    timeouts[-1] = not terminals[-1]
    report.synthesised["timeouts"] = (
        "at the last step of an episode that does not end with a terminal"
    )
    return terminals, timeouts


FORMAT = Format(
    name="lerobot",
    summary="LeRobot's datasets, 2.0 and 2.1 (read), 3.0 (needs the extra 'lerobot')",
    recognises=_recognises,
    read=_read,
    write=write,
    options=frozenset({"fps", "language", "action", "skip_incomplete"}),
    write_options=frozenset({"video"}),
)
