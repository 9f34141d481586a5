"""Report on a demonstration file."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from imitate.cli.reports.layout import (
    Report,
    environment_words,
    pairs,
    shape_words,
    success_words,
    table,
)
from imitate.config.from_data import UNBOUNDED_ACTIONS
from imitate.data import DatasetFile
from imitate.data.file.features import dimension_words, names_in
from imitate.data.file.hdf5_format import outcomes
from imitate.data.formats.base import files_below
from imitate.system.statistics import rate_of
from imitate.system.text import counted


def describe(path: Path) -> Report:
    """Describe a demonstration file: demos, lengths, keys, masks, environment, actions and success."""
    files = files_below(path) if path.is_dir() else [path]
    with DatasetFile(path) as file:
        demos = file.demos()
        lengths = np.array([file.length(demo) for demo in demos], dtype=np.int64)
        env = file.env_meta
        return {
            "kind": "dataset",
            "path": str(path),
            "size_mb": sum(file.stat().st_size for file in files) / 1e6,
            "demos": len(demos),
            "steps": int(lengths.sum()),
            "length": {
                "mean": float(lengths.mean()),
                "min": int(lengths.min()),
                "max": int(lengths.max()),
            }
            if demos
            else None,
            "env_name": env.get("env_name"),
            "env_type": env.get("type"),
            "env_version": env.get("env_version"),
            "robots": env.get("env_kwargs", {}).get("robots"),
            "control_freq": file.control_freq,
            "success": _successes(file, demos),
            "actions": _action_range(file, demos),
            "number_names": names_in(file),
            "filter_keys": {name: len(names) for name, names in file.filter_keys().items()},
            "keys": _keys(file, demos),
        }


def _keys(file: DatasetFile, demos: Sequence[str]) -> list[Report]:
    """List the arrays of the demos: shape of one step, dtype, and number of demos that have it.

    Arrays with a single row per demo are marked by ``once``.
    """
    found: dict[str, Counter[tuple[tuple[int, ...], str, bool]]] = {}
    for demo in demos:
        length = file.length(demo)
        for name in file.keys(demo):
            shape = file.shape(demo, name)
            form = (shape[1:], str(file.dtype(demo, name)), shape[:1] == (1,) and length > 1)
            found.setdefault(name, Counter())[form] += 1
    return [
        {"key": name, "shape": list(shape), "dtype": dtype, "demos": count}
        | ({"once": True} if once else {})
        for name, forms in sorted(found.items())
        for (shape, dtype, once), count in forms.items()
    ]


def _action_range(file: DatasetFile, demos: Sequence[str]) -> Report | None:
    if not demos:
        return None
    widths = {file.shape(demo, "actions")[1:] for demo in demos}
    if len(widths) > 1 or any(file.dtype(demo, "actions").kind not in "fiub" for demo in demos):
        return None
    pieces = (actions for demo in demos for _, actions in file.pieces(demo, "actions"))
    ranges = [(piece.min(axis=0), piece.max(axis=0)) for piece in pieces if piece.size]
    if not ranges:
        return None
    low, high = (
        np.min([low for low, _ in ranges], axis=0),
        np.max([high for _, high in ranges], axis=0),
    )
    return {
        "low": np.atleast_1d(low).tolist(),
        "high": np.atleast_1d(high).tolist(),
        "within_1": bool(np.abs(np.array([low, high], dtype=np.float64)).max() <= 1.0),
    }


def _successes(file: DatasetFile, demos: Sequence[str]) -> Report | None:
    """Count the demos that solve their task; return None if the success of some demos is unknown."""
    found = outcomes(file, demos)
    rate = rate_of(found.values()) if None not in found.values() else None
    if rate is None:
        return None
    by = "rewards" if any(file.success(demo) is None for demo in demos) else "success"
    return {"demos": rate.successes, "of": rate.n, "by": by}


def lay_out(report: Report) -> Iterator[str]:
    """Format the report as text."""
    length, success = report["length"], report["success"]
    rows = [
        ("file", f"{report['path']} ({report['size_mb']:.1f} MB)"),
        ("demos", f"{report['demos']}, {counted(report['steps'], 'step')}"),
    ]
    if length:
        rows.append(("length", f"{length['mean']:.1f} ({length['min']} - {length['max']})"))
    rows.append(("success", success_words(success)))
    rows += [
        ("environment", environment_words(report)),
        (
            "control rate",
            "not said" if not report["control_freq"] else f"{report['control_freq']:g} Hz",
        ),
    ]
    masks = report["filter_keys"]
    rows.append(
        ("filter keys", ", ".join(f"{name} ({count})" for name, count in masks.items()) or "none")
    )
    yield from pairs(rows)
    yield ""
    entries = [e for e in report["keys"] if not _repeats_obs(e, report["keys"])]
    yield from table(
        ("key", "one step", "type", "demos"),
        [(e["key"], _size(e), e["dtype"], str(e["demos"])) for e in entries],
    )
    if len(entries) < len(report["keys"]):
        yield "next_obs/...   as obs/..."
    if report["actions"]:
        yield ""
        yield from _action_lines(report["actions"], report["number_names"].get("actions", ()))


def _size(entry: Report) -> str:
    return shape_words(entry["shape"]) + (", one value per demo" if "once" in entry else "")


def _repeats_obs(entry: Report, entries: Sequence[Report]) -> bool:
    """Return True for a next observation with the shape, dtype and number of demos of its observation."""
    group, _, name = entry["key"].partition("/")
    return group == "next_obs" and {**entry, "key": f"obs/{name}"} in entries


def _action_lines(actions: Report, names: Sequence[str]) -> Iterator[str]:
    rows = [
        (dimension_words([i], names), f"{low:+.3f}", f"{high:+.3f}")
        for i, (low, high) in enumerate(zip(actions["low"], actions["high"], strict=True))
    ]
    yield from table(("action", "lowest", "highest"), rows)
    if not actions["within_1"]:
        yield UNBOUNDED_ACTIONS
