"""Report on a folder of shards, from its index only."""

from collections.abc import Iterator
from pathlib import Path

from imitate.cli.reports.layout import (
    Report,
    environment_words,
    pairs,
    shape_words,
    success_words,
    table,
)
from imitate.config.from_data import UNBOUNDED_ACTIONS
from imitate.data.shards.folder import shards_at
from imitate.errors import DatasetError
from imitate.system.text import counted


def describe(path: str | Path) -> Report:
    """Describe a folder of shards: shards, demos, lengths, keys, masks, environment, actions and success."""
    shards = shards_at(path)
    if shards is None:
        raise DatasetError(
            f"{path}: the folder has no index of shards: make it with `imitate dataset index`"
        )
    index = shards.index
    lengths = list(index.lengths())
    success = [said for shard in index.shards for said in shard.success]
    env, actions = index.env_args, index.statistics().get("actions")
    return {
        "kind": "shards",
        "path": shards.place,
        "size_mb": sum(shard.bytes for shard in index.shards) / 1e6,
        "shards": len(index.shards),
        "demos": len(lengths),
        "steps": sum(lengths),
        "length": {
            "mean": sum(lengths) / len(lengths),
            "min": min(lengths),
            "max": max(lengths),
        },
        "env_name": env.get("env_name"),
        "env_type": env.get("type"),
        "env_version": env.get("env_version"),
        "robots": (env.get("env_kwargs") or {}).get("robots"),
        "control_freq": index.control_freq,
        "success": None
        if None in success
        else {"demos": sum(map(bool, success)), "of": len(success), "by": "success"},
        "actions": None
        if actions is None
        else {
            "low": actions.min.tolist(),
            "high": actions.max.tolist(),
            "within_1": bool(max(actions.max.max(), -actions.min.min()) <= 1.0),
        },
        "filter_keys": dict(sorted(index.filter_keys.items())),
        "keys": [
            {"key": key, "shape": form.shape, "dtype": form.dtype, "demos": len(lengths)}
            for key, form in sorted(index.arrays.items())
        ],
    }


def lay_out(report: Report) -> Iterator[str]:
    """Format the report as text."""
    length, success = report["length"], report["success"]
    rows = [
        (
            "folder",
            f"{report['path']} ({counted(report['shards'], 'shard')}, {report['size_mb']:.1f} MB)",
        ),
        ("demos", f"{report['demos']}, {counted(report['steps'], 'step')}"),
        ("length", f"{length['mean']:.1f} ({length['min']} - {length['max']})"),
        ("success", success_words(success)),
    ]
    rate_hz, masks = report["control_freq"], report["filter_keys"]
    rows += [
        ("environment", environment_words(report)),
        ("control rate", "not said" if not rate_hz else f"{rate_hz:g} Hz"),
        ("filter keys", ", ".join(f"{key} ({n})" for key, n in masks.items()) or "none"),
    ]
    yield from pairs(rows)
    yield ""
    entries = [e for e in report["keys"] if not e["key"].startswith("next_obs/")]
    cells = [(e["key"], shape_words(e["shape"]), e["dtype"]) for e in entries]
    yield from table(("key", "one step", "type"), cells)
    if report["actions"] and not report["actions"]["within_1"]:
        yield ""
        yield UNBOUNDED_ACTIONS
