"""The doctor's round: layout first, then one pass over the values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from imitate.data.doctor.actions import Clipping
from imitate.data.doctor.alignment import NextObs, States
from imitate.data.doctor.duplicates import Duplicates
from imitate.data.doctor.finding import Finding, Level, Place, Remedy, Report
from imitate.data.doctor.images import Images
from imitate.data.doctor.lag import Lag
from imitate.data.doctor.layout import Layout, layout_of
from imitate.data.doctor.mask_checks import check_masks
from imitate.data.doctor.motion import Clock, Idle, Jumps
from imitate.data.doctor.ranges import Ranges
from imitate.data.doctor.structure import CHECKS
from imitate.data.doctor.survey import Check, Survey
from imitate.data.hdf5_format import DatasetFile

Progress = Callable[[int, int], None]
_ORDER = [Level.error, Level.warning, Level.info]


def diagnose(path: str | Path, on_demo: Progress = lambda done, total: None) -> Report:
    """Examine a file; nothing is changed.

    Args:
        path: the HDF5 file.
        on_demo: called after each demo with how many are done, and how many there are.

    Raises:
        DatasetError: there is no such file, or it cannot be opened as a demonstration file at all.
    """
    path = Path(path).expanduser()
    with DatasetFile(path) as file:
        layout = layout_of(file)
        found = [finding for check in (*CHECKS, check_masks) for finding in check(layout)]
        survey = Survey(layout)
        checks = _value_checks(layout)
        for number, demo in enumerate(layout.demos, 1):
            for piece in survey.pieces(demo):
                for check in checks:
                    check.see(piece)
            on_demo(number, len(layout.demos))
        found += _unreadable(survey, layout)
        found += [finding for check in checks for finding in check.findings()]
        steps = sum(demo.length for demo in layout.demos)
    found.sort(key=lambda finding: _ORDER.index(finding.level))
    return Report(path, len(layout.demos) + len(layout.broken), steps, survey.read_bytes, found)


def _value_checks(layout: Layout) -> list[Check]:
    return [
        Ranges(),
        Clipping(),
        States(layout),
        NextObs(),
        Lag(layout),
        Idle(),
        Jumps(),
        Clock(layout),
        Duplicates(),
        Images(layout),
    ]


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
        f"{len(places)} stretches of {len(demos)} demos cannot be read: {survey.unreadable[places[0]]}",
        [Place(place.demo, place.key, place.steps) for place in places],
        Remedy(drop_keys=keys) if all_demos else Remedy(drop_demos=demos),
    )
