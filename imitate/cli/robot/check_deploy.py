"""``imitate check-deploy``: run a policy on recorded demonstrations as in deployment."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from imitate.cli.dataset.curate import Names, names_of, progress
from imitate.cli.options import ActingDevice, ActingPrecision, AsJson, FilterKey, RenameObs
from imitate.cli.reports.layout import number, table
from imitate.cli.robot.policies import (
    FoundPolicy,
    PolicyName,
    PolicyOpener,
    ResizeImages,
    TlsCa,
    TokenFile,
)
from imitate.data.file.features import dimension_words
from imitate.errors import UserError, printable
from imitate.system.text import counted

if TYPE_CHECKING:
    from imitate.deploy.check.deploy_check import CheckReport
    from imitate.deploy.schema import Schema

FAILS = 1


def command(
    policy: PolicyName,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Demonstrations, ideally recorded on the robot itself."
        ),
    ],
    demos: Names = None,
    max_demos: Annotated[
        int,
        typer.Option(
            "--max-demos", min=1, help="Number of demos to check, evenly spread over the file."
        ),
    ] = 5,
    filter_key: FilterKey = None,
    training: Annotated[
        Path | None,
        typer.Option(
            "--training",
            help="Demonstrations of the training, with which observations are compared if the checkpoint has no "
            "statistics.",
        ),
    ] = None,
    lang: Annotated[
        str | None,
        typer.Option(
            "--lang", help="Language instruction for all demos; default: each demo's own."
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            min=0.0,
            help="Largest allowed action error, as a multiple of the error of the best constant action.",
        ),
    ] = 1.0,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    resize: ResizeImages = False,
    rename: RenameObs = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout-s",
            min=0.01,
            help="Seconds to wait for a server's answer before the check fails.",
        ),
    ] = 2.0,
    device: ActingDevice = None,
    precision: ActingPrecision = "fp32",
    json_: AsJson = False,
) -> None:
    """Check a policy on recorded demonstrations before a robot moves.

    The recorded observations are passed to the policy as in imitate run.
    The check compares keys and sizes, units and ranges, images (order of colours, range, blank or frozen
    pictures), control rate, actions against the recorded ones, and the time of
    the calls against the control period.

    Exit codes: 0 ok or warnings; 1 a problem was found; 2 invalid input.
    """
    from imitate.data.dataset_file import DatasetFile
    from imitate.data.edit.selection import Selection, select
    from imitate.deploy.check.deploy_check import check
    from imitate.deploy.check.statistics import training_of, training_of_schema

    with contextlib.ExitStack() as stack:
        data = stack.enter_context(DatasetFile(file))
        names = select(data, Selection(filter_key, names_of(demos)))
        if not names:
            raise UserError(
                f"{file}: the file has no demos" + (f" in '{filter_key}'" if filter_key else "")
            )
        spread = np.linspace(0, len(names) - 1, min(max_demos, len(names))).round().astype(int)
        found = PolicyOpener(
            token_file, timeout_s, device, None, tls_ca, resize, rename or (), precision
        ).open(policy, stack)
        schema = _schema(policy, found)
        kinds = {key: spec.kind for key, spec in schema.observations.items()}
        known = training_of(found.checkpoint, training, kinds)
        if not known.ranges and training is None:
            known = training_of_schema(schema.ranges, kinds)
        with progress("check-deploy") as on_demo:
            report = check(
                found.actor,
                schema,
                data,
                [names[index] for index in spread],
                known,
                action_keys=_action_keys(found.checkpoint),
                lang=lang,
                tolerance=tolerance,
                resizes=resize,
                on_demo=lambda done: on_demo(done, len(spread)),
            )
    shown = json.dumps(report.to_dict(), indent=2) if json_ else "\n".join(_lines(report))
    typer.echo(printable(shown))
    if report.verdict == "fails":
        raise typer.Exit(FAILS)


def _schema(name: str, found: FoundPolicy) -> Schema:
    """Return the observations and actions of a policy, as ``imitate serve`` would report them."""
    actor = found.actor
    if found.checkpoint is not None and not hasattr(actor, "schema"):
        from imitate.deploy.server.served import schema_of

        return schema_of(actor)
    schema: Schema | None = actor.schema
    if schema is None:
        raise UserError(
            f"{name}: the server (openpi's protocol) does not report its observations and actions, so nothing can be "
            "compared: serve the policy by imitate serve, or name its checkpoint"
        )
    return schema


def _action_keys(ckpt: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the arrays in a demonstration file with which the policy's actions are compared."""
    if ckpt is None or any(
        entry.get("rotation") for entry in ckpt["preprocess"]["actions"].values()
    ):
        return ("actions",)
    return tuple(ckpt["preprocess"]["actions"])


def _lines(report: CheckReport) -> list[str]:
    lines = [
        f"{counted(len(report.demos), 'demo')}, {counted(report.steps, 'step')}; "
        f"training: {report.training or 'not known'}"
    ]
    errors = report.errors
    if errors is not None:
        names = [dimension_words([dim], errors.names) for dim in range(len(errors.mean))]
        rows = zip(
            errors.mean, errors.p95, errors.std, errors.constant, errors.relative, strict=True
        )
        lines += table(
            ("action", "mean error", "p95", "std of the demos", "constant action", "relative"),
            [
                (name, *map(number, row[:-1]), "-" if math.isnan(row[-1]) else f"{row[-1]:.2f}")
                for name, row in zip(names, rows, strict=True)
            ],
        )
        demo, step, dim = errors.worst_step
        overall = "-" if math.isnan(errors.overall) else f"{errors.overall:.2f}"
        lines.append(
            f"overall {overall} (1: a constant action); worst demo {errors.worst_demo}; worst step {step} of {demo}, "
            f"action {names[dim]}"
        )
    if report.latency_ms:
        marks = ", ".join(f"{name} {value:.2f}" for name, value in report.latency_ms.items())
        period = (
            "" if report.rate_hz is None else f"; a control step has {1e3 / report.rate_hz:.4g}"
        )
        lines.append(f"calls in ms: first {report.first_ms:.2f}, then {marks}{period}")
    lines += [f"{finding.level.value}: {finding.words}" for finding in report.findings]
    return [*lines, f"verdict: {report.verdict}"]
