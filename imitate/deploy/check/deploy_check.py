"""The deployment check: a policy, a file of demonstrations, a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.dataset_file import DatasetFile
from imitate.data.language import TASK_ATTRS, instruction_of
from imitate.deploy.check.finding import Finding, Level, verdict
from imitate.deploy.check.images import image_findings
from imitate.deploy.check.predictions import (
    ActionErrors,
    Demo,
    Predictions,
    limit_findings,
    predict,
)
from imitate.deploy.check.statistics import Training
from imitate.deploy.check.timing import latency_findings, latency_of
from imitate.deploy.check.vectors import vector_findings
from imitate.deploy.loop import Actor
from imitate.deploy.resizing import IMAGE_KINDS
from imitate.deploy.schema import Observed, Schema
from imitate.errors import DatasetError, UserError
from imitate.system.wording import counted

_UNUSABLE = frozenset({"missing", "shape", "not finite", "goals"})
"""Kinds of findings after which the policy cannot be called or its actions cannot be compared."""


@dataclass
class CheckReport:
    """Result of a check.

    Attributes:
        demos: names of the demos that were used.
        steps: number of their control steps.
        training: description of the source of the training statistics; empty if there are none.
        rate_hz: control rate of the policy, or else of the file; None if neither contains it.
        findings: problems, warnings, and notes on what could not be checked.
        errors: errors of the actions, or None if the policy could not be called.
        first_ms: duration of the first call.
        latency_ms: quantiles of the other calls' durations.
    """

    demos: list[str]
    steps: int = 0
    training: str = ""
    rate_hz: float | None = None
    findings: list[Finding] = field(default_factory=list)
    errors: ActionErrors | None = None
    first_ms: float | None = None
    latency_ms: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """``ok``, ``warnings`` or ``fails``."""
        return verdict(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "verdict": self.verdict,
            "findings": [
                {**vars(finding), "level": finding.level.value} for finding in self.findings
            ],
            "demos": self.demos,
            "steps": self.steps,
            "training": self.training,
            "rate_hz": self.rate_hz,
            "actions": None if self.errors is None else self.errors.to_dict(),
            "first_call_ms": self.first_ms,
            "latency_ms": self.latency_ms,
        }


def check(
    policy: Actor,
    schema: Schema,
    file: DatasetFile,
    demos: Sequence[str],
    training: Training,
    *,
    action_keys: Sequence[str] = ("actions",),
    lang: str | None = None,
    tolerance: float = 1.0,
    resizes: bool = False,
    on_demo: Callable[[int], None] = lambda done: None,
) -> CheckReport:
    """Feed recorded observations to a policy as a control loop would, and compare.

    Args:
        policy: local or remote policy.
        schema: its observations and actions.
        file: open demonstration file.
        demos: names of demos in it, at least one.
        training: statistics of the training data.
        action_keys: arrays that form the policy's actions, used if their sizes add up; otherwise ``actions``.
        lang: instruction, or None for each demo's own.
        tolerance: largest error of the actions, relative to the best constant action.
        resizes: true if the policy accepts images of other sizes.
        on_demo: called with the number of demos read so far.

    Raises:
        DatasetError: the file is damaged.
    """
    demos = [name for name in demos if file.length(name)]
    if not demos:
        raise DatasetError(f"{file.path}: the demos have no steps; give a file with recorded steps")
    report = CheckReport(demos, training=training.origin)
    report.rate_hz = schema.rate_hz or file.control_freq
    report.findings += _rate(schema.rate_hz, file.control_freq)
    report.findings += _shapes(schema, file, demos[0], resizes)
    read = _observations(report, schema, file, training, on_demo)
    actions = _actions(file, demos, schema, action_keys)
    if actions is None:
        size = _size(file.shape(demos[0], "actions")[1:])
        words = f"the file's actions have {size} numbers, but the policy's have {schema.action_dim}"
        report.findings.append(Finding(Level.problem, "action size", "", words))
    if schema.goals:
        words = f"the policy has goals ({', '.join(schema.goals)}): the control loop provides none"
        report.findings.append(Finding(Level.problem, "goals", "", words))
    if actions is not None and not {found.kind for found in report.findings} & _UNUSABLE:
        taught = bool(schema.languages)
        episodes = [
            Demo(name, obs, acted, _lang(file, name, lang) if taught else None)
            for name, obs, acted in zip(demos, read, actions, strict=True)
        ]
        _act(report, policy, schema, episodes, tolerance)
    return report


def _observations(
    report: CheckReport,
    schema: Schema,
    file: DatasetFile,
    training: Training,
    on_demo: Callable[[int], None],
) -> list[dict[str, NDArray[Any]]]:
    """Read the observations of each demo, and add findings about them to the report."""
    faulty = {finding.key for finding in report.findings}
    keys = [key for key in schema.observations if key not in faulty]
    read = []
    for done, name in enumerate(report.demos):
        read.append({key: file.read(name, f"obs/{key}") for key in keys})
        on_demo(done + 1)
    for key in keys:
        values = [obs[key] for obs in read]
        report.findings += _observed(key, schema.observations[key], values, training)
    if not training.origin:
        words = (
            "the policy contains no statistics of its training: give --training FILE to "
            "compare with them"
        )
        report.findings.append(Finding(Level.note, "statistics", "", words))
    return read


def _act(
    report: CheckReport,
    policy: Actor,
    schema: Schema,
    demos: Sequence[Demo],
    tolerance: float,
) -> None:
    """Call the policy and add the results to the report."""
    report.steps = sum(len(demo.actions) for demo in demos)
    try:
        predictions: Predictions = predict(policy, demos)
    except (UserError, ConnectionError) as error:
        words = f"the policy cannot be called: {error}"
        report.findings.append(Finding(Level.problem, "refused", "", words))
        return
    report.errors = ActionErrors(predictions)
    report.findings += report.errors.findings(tolerance)
    low, high = (np.array(limit, dtype=float) for limit in (schema.action_low, schema.action_high))
    report.findings += limit_findings(predictions, low, high)
    report.first_ms = predictions.first_ms
    report.latency_ms = latency_of(predictions.calls_ms)
    if report.rate_hz is not None:
        report.findings += latency_findings(predictions.calls_ms, report.rate_hz)


def _rate(policy_hz: float | None, file_hz: float | None) -> list[Finding]:
    if policy_hz is None or file_hz is None:
        lacking = "the policy" if policy_hz is None else "the file"
        words = f"{lacking} contains no control rate, so the rates could not be compared"
        return [Finding(Level.note, "rate", "", words)]
    if abs(policy_hz - file_hz) <= 0.01 * policy_hz:
        return []
    words = f"the file has {file_hz:g} Hz, but the policy was trained at {policy_hz:g} Hz"
    return [Finding(Level.problem, "rate", "", words)]


def _shapes(schema: Schema, file: DatasetFile, demo: str, resizes: bool) -> list[Finding]:
    """Find observations that the file lacks or that have another size."""
    findings = []
    for key, wanted in schema.observations.items():
        if not file.has(demo, f"obs/{key}"):
            words = (
                f"the observation '{key}' is missing; the file has {', '.join(file.obs_keys(demo))}"
            )
            findings.append(Finding(Level.problem, "missing", key, words))
            continue
        shape = file.shape(demo, f"obs/{key}")[1:]
        fits = resizes and wanted.kind in IMAGE_KINDS and shape[2:] == tuple(wanted.shape[2:])
        if shape != tuple(wanted.shape) and not fits:
            words = (
                f"'{key}' is {_size(shape)} in the file, but the policy expects "
                f"{_size(wanted.shape)}"
            )
            if len(shape) == 3 and (*shape[1:], shape[0]) == tuple(wanted.shape):
                words += ": channels must be last"
            findings.append(Finding(Level.problem, "shape", key, words))
    return findings


def _size(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _observed(
    key: str, spec: Observed, values: Sequence[NDArray[Any]], training: Training
) -> list[Finding]:
    """Compare one observation with its statistics in training."""
    known = training.ranges.get(key)
    findings = []
    bad = sum(
        int((~np.isfinite(value.reshape(len(value), -1))).any(axis=1).sum())
        for value in values
        if value.dtype.kind == "f"
    )
    if bad:
        words = f"'{key}' is not finite in {counted(bad, 'step')}: the policy refuses them"
        return [Finding(Level.problem, "not finite", key, words)]
    if spec.kind == "rgb":
        findings += image_findings(key, values, known)
    elif spec.kind == "low_dim" and known is not None:
        joined = np.concatenate(list(values))
        if known.mean.size == np.prod(spec.shape, dtype=int):
            findings += vector_findings(key, joined, known)
    if training.origin and known is None and spec.kind in ("rgb", "low_dim"):
        words = f"'{key}': {training.origin} has no statistics of it, so it could not be compared"
        findings.append(Finding(Level.note, "statistics", key, words))
    return findings


def _actions(
    file: DatasetFile, demos: Sequence[str], schema: Schema, keys: Sequence[str]
) -> list[NDArray[np.float64]] | None:
    """Return the recorded actions (T, A) of each demo, or None if they do not have the policy's size."""
    for chosen in (tuple(keys), ("actions",)):
        if not all(file.has(demos[0], key) for key in chosen):
            continue
        sizes = [int(np.prod(file.shape(demos[0], key)[1:])) for key in chosen]
        if sum(sizes) == schema.action_dim:
            return [
                np.concatenate(
                    [file.read(demo, key).reshape(file.length(demo), -1) for key in chosen], axis=1
                ).astype(np.float64)
                for demo in demos
            ]
    return None


def _lang(file: DatasetFile, demo: str, given: str | None) -> str | None:
    attrs: Mapping[str, Any] = file.attrs(demo, TASK_ATTRS)
    return instruction_of(attrs, given)
