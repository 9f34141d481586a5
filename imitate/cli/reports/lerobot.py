"""Report on a LeRobot dataset from its metadata, without converting it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imitate.cli.reports.layout import Report, pairs, shape_words, table
from imitate.data.file.features import dimension_names
from imitate.errors import DatasetError
from imitate.system.plain_files import read_json
from imitate.system.recognition import diagnosis
from imitate.system.text import counted

_AUTOMATIC = {"timestamp", "frame_index", "episode_index", "index", "task_index"}


def describe(path: Path) -> Report:
    """Describe a dataset folder: version, episodes, frames, rate, robot and features."""
    file = path / "meta" / "info.json"
    info: dict[str, Any] = read_json(file)
    features = info["features"]
    if not isinstance(features, dict) or not all(isinstance(f, dict) for f in features.values()):
        raise DatasetError(
            f"{file}: 'features' is not an object of features: download the dataset again"
        )
    from imitate.data.formats.base import first_pointer
    from imitate.data.formats.lerobot_layout import keys_of, unusual_names

    keys, pointer = keys_of(features), first_pointer(path)
    return {
        "kind": "lerobot",
        "path": str(path),
        "version": info["codebase_version"],
        "size_mb": sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) / 1e6,
        "demos": info.get("total_episodes"),
        "steps": info.get("total_frames"),
        "tasks": info.get("total_tasks"),
        "control_freq": info.get("fps"),
        "robot": info.get("robot_type"),
        "features": [
            {
                "feature": name,
                "key": keys[name],
                "shape": _shape(feature.get("shape"), file),
                "dtype": feature.get("dtype"),
                "names": [] if _is_image(feature) else dimension_names(feature.get("names")),
            }
            for name, feature in features.items()
            if name not in _AUTOMATIC
        ],
        "unusual_names": unusual_names(keys.items()),
        "pointer": None if pointer is None else diagnosis(pointer),
        "missing": "" if pointer else _missing_parts(path, info),
    }


def _missing_parts(path: Path, info: dict[str, Any]) -> str:
    """Describe missing tables or videos of a dataset, or why its episodes cannot be listed; "" if it is complete.

    Args:
        path: the dataset's folder.
        info: content of ``meta/info.json``.
    """
    from imitate.data.formats.base import ConversionReport, reading
    from imitate.data.formats.lerobot_tables import Tables
    from imitate.data.formats.lerobot_video import VideoCameras

    if not any((path / "data").rglob("*.parquet")):
        return "there are no tables of episodes in data/: download the dataset again"
    if not any(feature.get("dtype") == "video" for feature in info["features"].values()):
        return ""
    try:
        with reading(path):
            tables = Tables(path, info)
            return VideoCameras(tables, ConversionReport("", "", "", "")).missing().words
    except DatasetError as error:
        return str(error)


def _is_image(feature: dict[str, Any]) -> bool:
    return feature.get("dtype") in ("image", "video")


def _shape(shape: Any, file: Path) -> list[int]:
    if isinstance(shape, list) and all(type(size) is int for size in shape):
        return shape
    if shape is None:
        return []
    raise DatasetError(
        f"{file}: a feature has the shape {str(shape)[:40]}, which is not a list of sizes: download the dataset again"
    )


def lay_out(report: Report) -> Iterator[str]:
    """Format the report as text."""
    yield from pairs(
        [
            ("folder", f"{report['path']} ({report['size_mb']:.1f} MB)"),
            ("format", f"LeRobot {report['version']}"),
            ("episodes", f"{report['demos']}, {counted(report['steps'], 'frame')}"),
            ("tasks", str(report["tasks"])),
            ("robot", str(report["robot"] or "not said")),
            ("control rate", f"{report['control_freq']} Hz"),
        ]
    )
    yield ""
    yield from table(
        ("feature", "key", "one step", "type", "names"),
        [
            (
                f["feature"],
                f["key"],
                shape_words(f["shape"]),
                str(f["dtype"]),
                ", ".join(f["names"]),
            )
            for f in report["features"]
        ],
    )
    missing = report["pointer"] or report["missing"]
    if missing:
        yield ""
        yield f"missing        {missing}"
    if report["pointer"]:
        return
    if report["unusual_names"]:
        yield ""
        yield f"names          not LeRobot's usual names; read as {report['unusual_names']}"
    yield ""
    yield f"to train       imitate config init {report['path']} --out my.json; imitate train --config my.json"
    yield f"to convert     imitate dataset convert {report['path']} NEW.hdf5"
