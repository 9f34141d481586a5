"""``imitate dataset doctor`` finds and repairs faults of a demonstration file; ``report`` describes the file."""

import json
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.dataset.curate import File, InPlace, Out, names_of, progress, target_of
from imitate.cli.options import NAMES, AsJson, FilterKey, Overwrite
from imitate.data.edit.target import Target
from imitate.data.quality.doctor.diagnosis import diagnose
from imitate.data.quality.doctor.diagnosis import fix as fix_file
from imitate.data.quality.doctor.finding import DoctorReport, Finding, Place
from imitate.data.quality.report.page import write_report
from imitate.data.quality.report.section import size
from imitate.errors import UserError, printable
from imitate.system.text import counted

_MAX_PLACES = 4


def doctor(
    file: File,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Repair the findings, in a copy (--out) or in the file itself (--in-place).",
        ),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar=NAMES,
            help="With --fix: repair only findings of these names, such as nan,duplicate.",
        ),
    ] = None,
    out: Out = None,
    in_place: InPlace = False,
    overwrite: Overwrite = False,
    json_: AsJson = False,
) -> None:
    """Examine a demonstration file for faults. Exit codes: 0 no findings; 1 warnings; 2 wrong usage; 3 errors.

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
    yield f"{report.path}: {counted(report.demos, 'demo')}, {report.steps} steps, {size:.0f} MB read in {seconds:.1f} s"
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


def report(
    file: File,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="HTML file to write; default: FILE_report.html in the file's folder.",
        ),
    ] = None,
    filter_key: FilterKey = None,
    max_demos: Annotated[
        int,
        typer.Option(
            "--max-demos",
            min=1,
            help="Largest number of demos whose values are read; fewer demos make the "
            "report faster.",
        ),
    ] = 200,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write one HTML page with numbers, plots, thumbnails and the doctor's findings.

    The page is self-contained: it can be mailed, printed, and opened without a network.
    """
    target = Target(
        out or file.with_name(f"{file.stem}_report.html"), source=file, overwrite=overwrite
    )
    with progress("report") as on_demo:
        subject = write_report(
            file, target, filter_key=filter_key, max_demos=max_demos, on_demo=on_demo
        )
    counts = counted(len(subject.demos), "demo")
    if not subject.is_whole:
        counts += f", values of {len(subject.sample)}"
    typer.echo(f"{target.path}: {counts}, {size(target.path.stat().st_size)}")
    if open_:
        webbrowser.open(target.path.resolve().as_uri())


def mount(app: typer.Typer) -> None:
    """Add the commands of this file to ``imitate dataset``."""
    app.command("doctor")(doctor)
    app.command("report")(report)
