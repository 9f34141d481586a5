"""``imitate dataset doctor``: find faults of a demonstration file and write a repaired copy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from imitate.cli.dataset.curate import File, InPlace, Out, names_of, progress, target_of
from imitate.cli.options import AsJson, Overwrite
from imitate.data.quality.doctor.diagnosis import diagnose
from imitate.data.quality.doctor.diagnosis import fix as fix_file
from imitate.data.quality.doctor.finding import DoctorReport, Finding, Place, counted
from imitate.errors import UserError, printable

_MAX_PLACES = 4


def mount(app: typer.Typer) -> None:
    """Add the command to ``imitate dataset``."""
    app.command("doctor")(doctor)


def doctor(
    file: File,
    fix: Annotated[bool, typer.Option("--fix", help="Write a repaired copy.")] = False,
    only: Annotated[
        str | None,
        typer.Option("--only", help="Repair only these findings, such as nan,duplicate."),
    ] = None,
    out: Out = None,
    in_place: InPlace = False,
    overwrite: Overwrite = False,
    json_: AsJson = False,
) -> None:
    """Examine a file. Exit codes: 0 no findings; 1 warnings; 2 wrong usage; 3 errors.

    With --fix, report and exit code describe the repaired copy.
    """
    start = time.perf_counter()
    repaired: list[Finding] = []
    if fix:
        target = target_of(file, out, in_place, overwrite)
        with progress("doctor") as on_demo:
            repaired, report = fix_file(file, target, only=names_of(only) or (), on_demo=on_demo)
    elif only or out or in_place:
        raise UserError(f"{file}: --only, --out and --in-place need --fix: add it")
    else:
        with progress("doctor") as on_demo:
            report = diagnose(file, on_demo)
    seconds = time.perf_counter() - start
    if json_:
        found = [finding.to_dict(file) for finding in repaired]
        typer.echo(json.dumps({**report.to_dict(), "seconds": seconds, "repaired": found}))
    else:
        typer.echo(printable("\n".join(_lines(report, repaired, seconds))))
    raise typer.Exit(report.exit_code)


def _lines(report: DoctorReport, repaired: list[Finding], seconds: float) -> Iterator[str]:
    for finding in repaired:
        yield f"repaired {finding.code}: {finding.what}"
    size = report.read_bytes / 1e6
    yield f"{report.path}: {counted(report.demos)}, {report.steps} steps, {size:.0f} MB read in {seconds:.1f} s"
    for finding in report.findings:
        yield f"{finding.level.value:<8} {finding.code}: {finding.what}"
        if finding.places:
            yield f"         where:  {_where(finding)}"
        command = finding.command(report.path)
        if command:
            yield f"         repair: {command}"
        advice = finding.alternative(report.path)
        if advice:
            yield f"         {'or:    ' if command else 'advice:'} {advice}"
    if report.exit_code == 0:
        yield "no warnings, no errors"


def _where(finding: Finding) -> str:
    words = [_words(place) for place in finding.places[:_MAX_PLACES]]
    more = len(finding.places) - len(words)
    return "; ".join(words) + (f"; and {more} more" if more > 0 else "")


def _words(place: Place) -> str:
    steps = ", ".join(f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in place.steps[:3])
    parts = [place.demo or "all demos", place.key or "", steps and f"steps {steps}"]
    return " ".join(filter(None, parts)) + (" ..." if len(place.steps) > 3 else "")
