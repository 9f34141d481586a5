"""``imitate diagnose``: find out why a policy does not succeed."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imitate.cli.options import ActingDevice, AsJson, RenameObs
from imitate.errors import UserError, printable

if TYPE_CHECKING:
    from imitate.checks.causes import Cause
    from imitate.checks.diagnosis import Diagnosis

FOUND = 1
_SHOWN = 6


def command(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, or a checkpoint.", show_default=False),
    ],
    dataset: Annotated[
        Path | None,
        typer.Option(
            "--dataset",
            help="Demonstrations on which the policy was trained; by default the file named in its configuration.",
        ),
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option(
            "--recording",
            help="Recorded episodes in which the policy failed. `imitate run --record FILE` records them on a robot, "
            "`imitate collect --agent RUN --out FILE` in a simulator.",
        ),
    ] = None,
    max_demos: Annotated[
        int,
        typer.Option(
            "--max-demos",
            min=2,
            help="Number of demonstrations to examine, evenly spread over the file.",
        ),
    ] = 20,
    rename: RenameObs = None,
    device: ActingDevice = None,
    json_: AsJson = False,
) -> None:
    """Find out why a policy does not succeed: measure possible causes, and rank them.

    The policy acts on demonstrations of its training, and on a recording of its failures if there is one. Each
    cause has a score: the measured value divided by the largest value of healthy runs. A cause with a score of
    at least 1 is named, with the evidence and the next command.

    Causes in the demonstrations: units, shift (motion before its action), sign,
    gain, limits (cut actions), few demonstrations, failed demonstrations,
    inconsistent, unobserved (actions depend on what the policy does not see),
    images of other episodes. In the training: normalization, undertrained,
    horizon, clipping, copying (of the last action), blind (images change no
    action). In a recording: missing, not finite, shape, order, exchanged,
    exchanged vectors, rate, delay, late actions, shortened (by limits),
    unreached, other policy, sensor, dropped frames, constant, offset, frame
    (of a goal), outside (of the training's range), other starts, drift,
    coverage (few demonstrations there), image channels, image border,
    image turned, image late.

    Exit codes: 0 no cause found; 1 a cause is named; 2 invalid input.
    """
    from imitate.checks.diagnosis import diagnose
    from imitate.checks.subject import subject_of
    from imitate.data.dataset_file import DatasetFile
    from imitate.policy.renaming import parse_rename

    subject, named = subject_of(run, device)
    dataset = dataset or named
    with ExitStack() as stack:
        data = None if dataset is None else stack.enter_context(DatasetFile(dataset))
        failed = None if recording is None else stack.enter_context(DatasetFile(recording))
        if data is None and failed is None:
            raise UserError(
                f"{run}: the demonstrations of the training are not found: name them by --dataset, or record episodes "
                f"by `imitate collect --agent {shlex.quote(str(run))} --out failed.hdf5` and add --recording "
                "failed.hdf5"
            )
        report = diagnose(
            subject,
            data,
            failed,
            most=max_demos,
            rename=parse_rename(rename or ()),
        )
    report.causes = [_with_paths(cause, run, dataset) for cause in report.causes]
    shown = json.dumps(report.to_dict(), indent=2) if json_ else "\n".join(_lines(report))
    typer.echo(printable(shown))
    if report.named:
        raise typer.Exit(FOUND)


def _with_paths(cause: Cause, run: Path, dataset: Path | None) -> Cause:
    """Fill the run's and the demonstrations' paths into the command that a cause advises."""
    advice = re.sub(r"\bRUN\b", lambda _: shlex.quote(str(run)), cause.advice)
    if dataset is not None:
        advice = re.sub(r"\bFILE\b", lambda _: shlex.quote(str(dataset)), advice)
    return replace(cause, advice=advice)


def _lines(report: Diagnosis) -> list[str]:
    named = report.named
    lines = []
    if report.success is not None:
        lines.append(f"success rate of {report.success_of}: {report.success:.0%}")
    for number, cause in enumerate(named, start=1):
        lines += [f"{number}. {cause.kind} (score {cause.score:.1f})", f"   {cause.words}"]
        lines += [f"   next: {cause.advice}"] if cause.advice else []
    if not named:
        succeeds = report.success is not None and any(cause.is_named for cause in report.causes)
        lines.append("no cause is named" + (", because the policy succeeds" if succeeds else ""))
    others = [cause for cause in report.causes if cause not in named][:_SHOWN]
    if others:
        lines.append("measured, and as in healthy runs:")
        lines += [f"   {_below(cause):4.2f}  {cause.kind}: {cause.words}" for cause in others]
    return lines + [f"note: {note}" for note in report.notes]


def _below(cause: Cause) -> float:
    """Return a score rounded down, so that 0.996 is not shown as 1.00, the lowest score of a named cause."""
    return int(cause.score * 100) / 100
