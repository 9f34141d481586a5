"""Report on a bundle."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from imitate.cli.reports.layout import Report, pairs, shape_words, table
from imitate.deploy.bundle.archive import read_bundle
from imitate.deploy.bundle.spec import BundleSpec
from imitate.system.text import counted


def describe(path: Path) -> Report:
    """Describe a bundle from its file; its networks are not run."""
    bundle = read_bundle(path)
    spec = BundleSpec.from_dict(bundle.description)
    execution = spec.execution
    return {
        "kind": "bundle",
        "path": str(path),
        "size_mb": path.stat().st_size / 1e6,
        "imitate_version": bundle.description.get("imitate_version"),
        "schema": spec.to_dict()["schema"],
        "frames": spec.frames,
        "execution": None if execution is None else dataclasses.asdict(execution),
        "memory": sorted(spec.memory),
        "noise": dataclasses.asdict(spec.noise),
        "environment": dict(spec.environment),
        "checks": len(bundle.description.get("checks") or ()),
    }


def lay_out(report: Report) -> Iterator[str]:
    """Format the report as text."""
    schema, execution = report["schema"], report["execution"]
    rate = "not said" if schema["rate_hz"] is None else f"{schema['rate_hz']:g} Hz"
    plan = "one at a time"
    if execution is not None:
        plan = f"chunks of {execution['size']}, a new one every {counted(execution['execute'], 'step')}"
    yield from pairs(
        [
            ("file", f"{report['path']} ({report['size_mb']:.1f} MB), a bundle without torch"),
            ("algorithm", schema["algorithm"]),
            ("written by", f"imitate {report['imitate_version']}"),
            ("control rate", rate),
            ("actions", f"{schema['action_dim']}, {plan}"),
            ("draws noise", "yes" if any(report["noise"].values()) else "no"),
            ("sees", f"{report['frames']} observation{'s' if report['frames'] > 1 else ''}"),
        ]
    )
    for instruction in schema["languages"]:
        yield from pairs([("instruction", instruction)])
    yield ""
    rows = [
        (group, key, shape_words(seen["shape"]))
        for group in ("observations", "goals")
        for key, seen in schema[group].items()
    ]
    yield from table(("group", "key", "shape"), rows)
