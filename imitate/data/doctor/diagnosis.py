"""Examination of a file by the doctor: first the layout, then one pass over the values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from imitate.data.dataset_file import DatasetFile
from imitate.data.doctor.actions import Clipping
from imitate.data.doctor.alignment import NextObs, States
from imitate.data.doctor.duplicates import Duplicates
from imitate.data.doctor.finding import Finding, Level, Place, Remedy, Report, counted
from imitate.data.doctor.following import Motions
from imitate.data.doctor.images import Images
from imitate.data.doctor.lag import Lag
from imitate.data.doctor.layout import DemoLayout, Layout, layout_of
from imitate.data.doctor.mask_checks import check_masks
from imitate.data.doctor.motion import Clock, Idle, Jumps
from imitate.data.doctor.orientation import Orientation
from imitate.data.doctor.ranges import Ranges
from imitate.data.doctor.representation import Representations
from imitate.data.doctor.structure import CHECKS
from imitate.data.doctor.survey import Check, Survey
from imitate.data.file.extents import Extents
from imitate.errors import DatasetError

Progress = Callable[[int, int], None]
_SAYS_MORE = {"misaligned": "lag", "rescaled_actions": "action_range"}
_ORDER = [Level.error, Level.warning, Level.info]


def diagnose(path: str | Path, on_demo: Progress = lambda done, total: None) -> Report:
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
        return Report(path, 0, 0, 0, [Finding("file", Level.error, what)])


def _is_hdf5(path: Path) -> bool:
    if not path.is_file() or not os.access(path, os.R_OK):
        return False
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


def examine(
    layout: Layout,
    on_demo: Progress = lambda done, total: None,
    demos: Sequence[DemoLayout] | None = None,
) -> Report:
    """Examine a file whose layout is known.

    Args:
        layout: layout of the open file.
        on_demo: called after each demo with the number of examined demos and the number of all demos.
        demos: demos whose values are read; None: all.
    """
    found = [finding for check in (*CHECKS, check_masks) for finding in check(layout)]
    survey = Survey(layout)
    checks = _value_checks(layout)
    looked_at = layout.demos if demos is None else demos
    for number, demo in enumerate(looked_at, 1):
        with np.errstate(
            invalid="ignore", over="ignore"
        ):  # values that are not finite are reported as findings, without numpy's warnings
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
    return Report(layout.file.path, count, steps, survey.read_bytes, found)


def _value_checks(layout: Layout) -> list[Check]:
    motions = Motions()
    return [
        motions,
        Ranges(_clips_itself(layout)),
        Clipping(motions),
        States(layout),
        NextObs(),
        Lag(layout, motions),
        Idle(),
        Jumps(),
        Representations(),
        Clock(layout),
        Duplicates(),
        Images(layout),
        Orientation(layout),
    ]


def _clips_itself(layout: Layout) -> bool:
    """Return true for a robosuite file, because its environment clips actions at +-1."""
    try:
        return layout.file.env_meta.get("type") == 1
    except DatasetError:
        return False


def _once(found: list[Finding]) -> list[Finding]:
    """Remove findings that another one covers completely."""
    codes = {finding.code for finding in found}
    said = {less for exact, less in _SAYS_MORE.items() if exact in codes}
    return [finding for finding in found if finding.code not in said]


def _unreadable(survey: Survey, layout: Layout) -> Iterator[Finding]:
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
