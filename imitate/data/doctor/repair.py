"""Repair by ``--fix``: a copy of a file without the findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from imitate.data.curate.rewrite import Changes, Rows, Values, read_masks, rewrite
from imitate.data.curate.target import Target
from imitate.data.dataset_file import DatasetFile
from imitate.data.doctor.diagnosis import Progress, diagnose
from imitate.data.doctor.finding import Finding, Level, Report
from imitate.data.file.hdf5_format import DemoFile
from imitate.errors import DatasetError, nearest

_MAX_PASSES = 4


def fix(
    source: Path,
    target: Target,
    *,
    only: Collection[str] = (),
    on_demo: Progress = lambda done, total: None,
) -> tuple[list[Finding], Report]:
    """Write a copy without the warnings and errors that can be repaired.

    If two remedies select rows of one demo, or a repair reveals another fault, the copy is examined and repaired again.

    Args:
        source: the file, which is not changed.
        target: the copy.
        only: codes of the findings to repair, which may include infos; empty: all warnings and errors.
        on_demo: called with the number of processed demos and the number of all demos.

    Returns:
        the repaired findings, and the report of the copy.

    Raises:
        DatasetError: there is nothing to repair, or nothing that ``only`` names.
    """
    report = diagnose(source, on_demo)
    wanted = _wanted(report, only)
    if not wanted:
        raise DatasetError(_nothing(report, only))
    repaired: list[Finding] = []
    with target.writing() as part:
        earlier = source
        for number in range(_MAX_PASSES):
            later = part.with_name(f"{part.name}-{number}")
            try:
                rewrite(earlier, later, _changes(earlier, wanted), on_demo)
                later.replace(part)
            finally:
                later.unlink(missing_ok=True)
            repaired += wanted
            earlier, report = part, diagnose(part, on_demo)
            wanted = _wanted(report, only)
            if not wanted:
                break
    return repaired, Report(
        target.path, report.demos, report.steps, report.read_bytes, report.findings
    )


def _wanted(report: Report, only: Collection[str]) -> list[Finding]:
    return [
        finding
        for finding in report.findings
        if finding.remedy is not None
        and (finding.code in only if only else finding.level is not Level.info)
    ]


def _nothing(report: Report, only: Collection[str]) -> str:
    codes = {finding.code for finding in report.findings if finding.remedy is not None}
    if not only:
        return f"{report.path}: nothing to repair: no file is written"
    missing = next((code for code in only if code not in codes), "")
    return f"{report.path}: no finding '{missing}' that can be repaired; {nearest(missing, codes)}"


def _changes(path: Path, findings: Sequence[Finding]) -> Changes:
    """Join all remedies for one copy; if two select rows of one demo, the first is used."""
    with DatasetFile(path) as file:
        demos = set(file.demos())
        masks = _masks(file)
    drop_keys: set[str] = set()
    rows: dict[str, Rows] = {}
    values: dict[str, Callable[[Values], Values]] = {}
    attrs: dict[str, Any] = {}
    for finding in findings:
        remedy = finding.remedy
        if remedy is None:
            continue
        demos.difference_update(remedy.drop_demos)
        drop_keys.update(remedy.drop_keys)
        rows = {**remedy.rows, **rows}
        for key, change in remedy.values.items():
            values[key] = _after(values[key], change) if key in values else change
        masks.update({key: list(names) for key, names in remedy.masks.items()})
        attrs.update(remedy.attrs)
    return Changes(demos, drop_keys, {}, rows, values, masks, attrs)


def _masks(file: DemoFile) -> dict[str, list[str]]:
    try:
        return read_masks(file)
    except DatasetError:
        return {}  # unreadable: there is nothing to keep


def _after(
    first: Callable[[Values], Values], second: Callable[[Values], Values]
) -> Callable[[Values], Values]:
    return lambda values: second(first(values))
