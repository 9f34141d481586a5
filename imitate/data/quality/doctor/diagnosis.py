"""Examination of a file, first its layout, then its values in one pass, and the repaired copy of ``--fix``."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imitate.config.observation import ROBOT_STATE
from imitate.data.dataset_file import DatasetFile
from imitate.data.edit.rewrite import FileChanges, Rows, Values, read_masks, rewrite
from imitate.data.edit.target import Target
from imitate.data.file.extents import Extents
from imitate.data.file.features import names_in
from imitate.data.file.hdf5_format import DemoFile
from imitate.data.quality.doctor.actions import Clipping, ObservedOrder, Ranges, Representations
from imitate.data.quality.doctor.alignment import Lag, Motions, NextObs, States
from imitate.data.quality.doctor.finding import DoctorReport, Finding, Level, Place, Remedy, counted
from imitate.data.quality.doctor.motion import Idle, Jumps, LostSteps
from imitate.data.quality.doctor.observations import ActionCopies, ImageChecks, Orientation
from imitate.data.quality.doctor.structure import CHECKS, Duplicates, check_masks
from imitate.data.quality.doctor.survey import Check, DemoLayout, FileLayout, Survey, layout_of
from imitate.errors import DatasetError, nearest

Progress = Callable[[int, int], None]
_SAYS_MORE = {"misaligned": "lag", "rescaled_actions": "action_range"}
_ORDER = [Level.error, Level.warning, Level.info]


def diagnose(path: str | Path, on_demo: Progress = lambda done, total: None) -> DoctorReport:
    """Examine a file; nothing is changed.

    Args:
        path: the HDF5 file.
        on_demo: called after each demo with the number of examined demos and the number of all demos.

    Raises:
        DatasetError: the file does not exist or is not an HDF5 file.
    """
    path = Path(path).expanduser()
    try:
        with DatasetFile(path) as file, Extents(file) as extents:
            return examine(layout_of(extents), on_demo)
    except DatasetError as error:
        if not _is_hdf5(path):
            raise
        what = str(error).removeprefix(f"{path}: ")
        return DoctorReport(path, 0, 0, 0, [Finding("file", Level.error, what)])


def _is_hdf5(path: Path) -> bool:
    if not path.is_file() or not os.access(path, os.R_OK):
        return False
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def examine(
    layout: FileLayout,
    on_demo: Progress = lambda done, total: None,
    demos: Sequence[DemoLayout] | None = None,
) -> DoctorReport:
    """Examine a file whose layout is known.

    Args:
        layout: layout of the open file.
        on_demo: called after each demo with the number of examined demos and the number of all demos.
        demos: demos whose values are read; None for all.
    """
    found = [finding for check in (*CHECKS, check_masks) for finding in check(layout)]
    survey = Survey(layout)
    checks = _value_checks(layout)
    looked_at = layout.demos if demos is None else demos
    for number, demo in enumerate(looked_at, 1):
        with np.errstate(
            invalid="ignore", over="ignore"
        ):  # no warnings of numpy: values that are not finite are reported as findings
            for piece in survey.pieces(demo):
                for check in checks:
                    check.see(piece)
        on_demo(number, len(looked_at))
    found += _unreadable(survey, layout)
    found += [finding for check in checks for finding in check.findings()]
    found = _once(found)
    found.sort(key=lambda finding: _ORDER.index(finding.level))
    steps = sum(demo.length for demo in layout.demos)
    count = len(layout.demos) + len(layout.broken)
    return DoctorReport(layout.file.path, count, steps, survey.read_bytes, found)


def _value_checks(layout: FileLayout) -> list[Check]:
    motions, names = Motions(), names_in(layout.file)
    return [
        motions,
        Ranges(_clips_itself(layout), names),
        Clipping(motions, names),
        States(layout),
        NextObs(),
        ActionCopies(),
        Lag(layout, motions),
        ObservedOrder(motions, names),
        Idle(),
        Jumps(),
        Representations(names, _chosen_by_default(layout)),
        LostSteps(layout),
        Duplicates(),
        ImageChecks(layout),
        Orientation(layout),
    ]


def _clips_itself(layout: FileLayout) -> bool:
    """Return true for a robosuite file, because its environment clips actions at +-1."""
    try:
        return layout.file.env_meta.get("type") == 1
    except DatasetError:
        return False


def _chosen_by_default(layout: FileLayout) -> tuple[str, ...] | None:
    """Return robosuite's usual observations, which a new configuration takes, if the file has them; else None."""
    has = all(f"obs/{key}" in layout.steps for key in ROBOT_STATE)
    return ROBOT_STATE if has and _clips_itself(layout) else None


def _once(found: list[Finding]) -> list[Finding]:
    """Remove findings that another finding includes completely."""
    codes = {finding.code for finding in found}
    said = {less for exact, less in _SAYS_MORE.items() if exact in codes}
    return [finding for finding in found if finding.code not in said]


def _unreadable(survey: Survey, layout: FileLayout) -> Iterator[Finding]:
    if not survey.unreadable:
        return
    places = list(survey.unreadable)
    demos = list(dict.fromkeys(place.demo or "" for place in places))
    keys = list(dict.fromkeys(place.key or "" for place in places))
    all_demos = len(demos) == len(layout.demos) and "actions" not in keys
    yield Finding(
        "unreadable",
        Level.error,
        f"{len(places)} stretches of {counted(len(demos))} cannot be read: {survey.unreadable[places[0]]}",
        [Place(place.demo, place.key, place.steps) for place in places],
        Remedy(drop_keys=keys) if all_demos else Remedy(drop_demos=demos),
    )


_MAX_PASSES = 4


def fix(
    source: Path,
    target: Target,
    *,
    only: Collection[str] = (),
    on_demo: Progress = lambda done, total: None,
) -> tuple[list[Finding], DoctorReport]:
    """Write a copy without the warnings and errors that can be repaired.

    If two remedies select rows of one demo, or a repair reveals another fault, the copy is examined and repaired again.

    Args:
        source: the file, which is not changed.
        target: the copy.
        only: codes of the findings to repair, of any severity; empty to repair all warnings and errors.
        on_demo: called with the number of processed demos and the number of all demos.

    Returns:
        the repaired findings, and the report of the copy.

    Raises:
        DatasetError: there is no finding to repair, or none with a code in ``only``.
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
    return repaired, DoctorReport(
        target.path, report.demos, report.steps, report.read_bytes, report.findings
    )


def _wanted(report: DoctorReport, only: Collection[str]) -> list[Finding]:
    return [
        finding
        for finding in report.findings
        if finding.remedy is not None
        and (finding.code in only if only else finding.level is not Level.info)
    ]


def _nothing(report: DoctorReport, only: Collection[str]) -> str:
    codes = {finding.code for finding in report.findings if finding.remedy is not None}
    if not only:
        return f"{report.path}: nothing to repair: no file is written"
    missing = next((code for code in only if code not in codes), "")
    return f"{report.path}: no finding '{missing}' that can be repaired; {nearest(missing, codes)}"


def _changes(path: Path, findings: Sequence[Finding]) -> FileChanges:
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
    return FileChanges(demos, drop_keys, {}, rows, values, masks, attrs)


def _masks(file: DemoFile) -> dict[str, list[str]]:
    try:
        return read_masks(file)
    except DatasetError:
        return {}  # an unreadable array cannot be kept


def _after(
    first: Callable[[Values], Values], second: Callable[[Values], Values]
) -> Callable[[Values], Values]:
    return lambda values: second(first(values))
