"""The deployment check, which calls a policy with the recorded observations of a file and returns a report.

The policy is called as a control loop calls it. The check measures the errors of its actions, and compares the
durations of its calls with the control period.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.dataset_file import DatasetFile
from imitate.data.file.features import dimension_words, names_in
from imitate.deploy.check.inputs import (
    DeployFinding,
    Severity,
    image_findings,
    vector_findings,
    verdict,
)
from imitate.deploy.check.statistics import TrainingObservations
from imitate.deploy.resizing import IMAGE_KINDS
from imitate.deploy.robot.loop import LoopPolicy, Safety
from imitate.deploy.schema import ObservedKey, Schema
from imitate.errors import DatasetError, UserError
from imitate.system.instructions import TASK_ATTRS, instruction_of
from imitate.system.memory import check_room
from imitate.system.text import counted

_STEP_BYTES = 256
"""Bytes of memory for a step, in addition to its arrays."""
_NUMBER_BYTES = 24
"""Bytes of memory for each number of a step's vectors, which are copied as float64."""

MARKS = {"p50": 50, "p95": 95, "p99": 99, "max": 100}


def latency_of(calls_ms: NDArray[np.float64]) -> dict[str, float]:
    """Return quantiles of the calls' durations: ``p50``, ``p95``, ``p99``, ``max``."""
    return {name: float(np.percentile(calls_ms, mark)) for name, mark in MARKS.items()}


def latency_findings(
    calls_ms: NDArray[np.float64], rate_hz: float, safety: Safety | None = None
) -> list[DeployFinding]:
    """Return a finding if calls take longer than the control period.

    Args:
        calls_ms: (N,) durations in order.
        rate_hz: control steps per second.
        safety: settings with the number of late steps that ends an episode.
    """
    rules = safety or Safety()
    period = 1e3 / rate_hz
    late = calls_ms > period
    of = min(rules.late_of, len(late))
    most = int(np.convolve(late, np.ones(of), mode="valid").max()) if of else 0
    period_text = f"the period at {rate_hz:g} Hz is {period:.3g} ms"
    if rules.late and most >= rules.late:
        words = (
            f"{most} of {of} successive calls take longer than a control step ({period_text}): imitate run would stop; "
            "use imitate run --async, a smaller policy, or demonstrations at a lower rate"
        )
        return [DeployFinding(Severity.problem, "slow", "", words)]
    if late.any():
        words = f"{late.mean():.1%} of the calls take longer than a control step ({period_text})"
        return [DeployFinding(Severity.warning, "slow", "", words)]
    return []


_SMALL = 0.01
"""Action dimensions whose standard deviation is below this fraction of the largest one are not judged."""


@dataclass(frozen=True)
class CheckedDemo:
    """One recorded demonstration.

    Attributes:
        name: name of the demo in the file.
        obs: (T, ...) observations by key.
        actions: (T, A) recorded actions.
        lang: instruction of the demo, or None.
    """

    name: str
    obs: Mapping[str, NDArray[Any]]
    actions: NDArray[np.float64]
    lang: str | None = None


@dataclass(frozen=True)
class Predictions:
    """A policy's actions for some demos, and the durations of its calls.

    Attributes:
        demos: recorded demos with which the policy was called.
        actions: (T, A) the policy's actions for each demo.
        first_ms: duration of the first call, which is slower.
        calls_ms: durations of all other calls.
    """

    demos: Sequence[CheckedDemo]
    actions: Sequence[NDArray[np.float64]]
    first_ms: float
    calls_ms: NDArray[np.float64]


def predict(policy: LoopPolicy, demos: Sequence[CheckedDemo]) -> Predictions:
    """Call a policy with each observation of some demos; each demo is one episode.

    Raises:
        UserError: the policy refuses an observation, or the instruction.
        ConnectionError: the policy's server does not answer in time.
    """
    policy.start_episode(demos[0].lang)
    began = time.perf_counter()
    policy({key: values[0] for key, values in demos[0].obs.items()})
    first_ms = 1e3 * (time.perf_counter() - began)
    calls, predicted = [], []
    for demo in demos:
        policy.start_episode(demo.lang)
        actions = []
        for step in range(len(demo.actions)):
            seen = {key: values[step] for key, values in demo.obs.items()}
            began = time.perf_counter()
            actions.append(policy(seen))
            calls.append(1e3 * (time.perf_counter() - began))
        predicted.append(np.array(actions, dtype=np.float64))
    return Predictions(demos, predicted, first_ms, np.array(calls))


class ActionErrors:
    """Errors of predicted actions, in the units of the data.

    Args:
        predictions: predictions of the policy.
        names: names of the action dimensions, if the file contains them.

    Attributes:
        mean, p95: (A,) mean and 95 % quantile of the absolute error.
        std: (A,) standard deviation of the recorded actions.
        constant: (A,) mean absolute error of the best constant action, which is the median of the recorded actions.
        relative: (A,) ``mean / constant``: 1 is no better than a constant action, 0 is perfect; NaN if the recorded
            actions hardly vary.
        overall: mean of ``relative``; NaN if no dimension varies.
        worst_demo: name of the demo with the largest mean relative error.
        worst_step: demo, step and dimension of the error that is largest relative to ``std``.
    """

    def __init__(self, predictions: Predictions, names: Sequence[str] = ()) -> None:
        self.names = names
        recorded = np.concatenate([demo.actions for demo in predictions.demos])
        errors = [
            np.abs(actions - demo.actions)
            for demo, actions in zip(predictions.demos, predictions.actions, strict=True)
        ]
        every = np.concatenate(errors)
        self.mean, self.p95 = every.mean(axis=0), np.quantile(every, 0.95, axis=0)
        self.std = recorded.std(axis=0)
        self.constant = np.abs(recorded - np.median(recorded, axis=0)).mean(axis=0)
        varied = (self.std > _SMALL * self.std.max()) & (self.constant > 0)
        scale = np.where(varied, self.constant, np.inf)
        self.relative = np.where(varied, self.mean / scale, np.nan)
        self.overall = float(np.nanmean(self.relative)) if varied.any() else float("nan")
        std = np.where(varied, self.std, np.inf)
        demo = int(np.argmax([(error / scale).mean() for error in errors]))
        self.worst_demo = predictions.demos[demo].name
        demo = int(np.argmax([(error / std).max() for error in errors]))
        step, dim = np.unravel_index(np.argmax(errors[demo] / std), errors[demo].shape)
        self.worst_step = (predictions.demos[demo].name, int(step), int(dim))

    def findings(self, tolerance: float) -> list[DeployFinding]:
        """Return findings if the errors, relative to those of a constant action, are too large.

        Args:
            tolerance: largest allowed ``overall``.
        """
        if self.overall > tolerance:
            words = (
                f"the policy's action error is {self.overall:.2f} times that of the best "
                f"constant action (allowed: {tolerance:g}); the worst demo is {self.worst_demo}; check observations, "
                "units and actions"
            )
            return [DeployFinding(Severity.problem, "actions", "", words)]
        bad = np.flatnonzero(self.relative > max(tolerance, 1.0))
        if not len(bad):
            return []
        dims = dimension_words(bad, self.names, len(bad))
        words = f"actions[{dims}] have larger errors than the best constant action"
        return [DeployFinding(Severity.warning, "actions", "", words)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        demo, step, dim = self.worst_step
        return {
            "names": list(self.names),
            "mean": self.mean.tolist(),
            "p95": self.p95.tolist(),
            "std": self.std.tolist(),
            "constant": self.constant.tolist(),
            "relative": [None if np.isnan(value) else float(value) for value in self.relative],
            "overall": None if np.isnan(self.overall) else self.overall,
            "worst_demo": self.worst_demo,
            "worst_step": {"demo": demo, "step": step, "dimension": dim},
        }


def limit_findings(
    predictions: Predictions,
    low: NDArray[Any],
    high: NDArray[Any],
    more: float = 0.2,
    names: Sequence[str] = (),
) -> list[DeployFinding]:
    """Find action dimensions in which the policy is at its limits much more often than the demonstrations are.

    Args:
        predictions: predictions of the policy.
        low, high: (A,) limits of the policy's actions; infinite without limits.
        more: smallest difference between the shares of steps at the limits that is reported.
        names: names of the numbers, if they have names.
    """
    room = 1e-6 * np.where(np.isfinite(high - low), high - low, 0.0)

    def share(actions: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        x = np.concatenate(list(actions))
        at: NDArray[np.float64] = ((x <= low + room) | (x >= high - room)).mean(axis=0)
        return at

    acted, recorded = share(predictions.actions), share([d.actions for d in predictions.demos])
    bad = np.flatnonzero(acted > recorded + more)
    if not len(bad):
        return []
    named = ", ".join(
        f"{dimension_words([dim], names)}: {acted[dim]:.0%}, demos {recorded[dim]:.0%}"
        for dim in bad
    )
    words = (
        f"the policy's actions are at their limits in these shares of the steps: dimension {named}"
    )
    return [DeployFinding(Severity.warning, "limits", "", words)]


_HALF = 0.6
"""Two observations count as exchanged if the policy's error falls below this fraction when they are swapped."""
_MOST_PAIRS = 6
"""Largest number of pairs of observations that are swapped for a test."""


def exchange_findings(
    policy: LoopPolicy, demos: Sequence[CheckedDemo], overall: float
) -> Iterator[DeployFinding]:
    """Find two observations of the same shape whose swapping greatly reduces the policy's error.

    Args:
        policy: the policy.
        demos: recorded demonstrations.
        overall: relative error of the policy with the observations as they are.
    """
    seen = demos[0].obs
    alike = [(a, b) for a, b in combinations(seen, 2) if seen[a].shape == seen[b].shape]
    for a, b in alike[:_MOST_PAIRS]:
        other = [replace(demo, obs={**demo.obs, a: demo.obs[b], b: demo.obs[a]}) for demo in demos]
        error = ActionErrors(predict(policy, other)).overall
        if error < _HALF * overall:
            words = (
                f"'{a}' and '{b}' look exchanged: with each in the other's place the policy's action error falls from "
                f"{overall:.2f} to {error:.2f}"
            )
            yield DeployFinding(Severity.problem, "exchanged", f"{a}, {b}", words)


_UNUSABLE = frozenset({"missing", "shape", "not finite", "goals"})
"""Kinds of findings after which the policy cannot be called or its actions cannot be compared."""


@dataclass
class CheckReport:
    """Result of a deployment check.

    Attributes:
        demos: names of the demos that were used.
        steps: number of control steps in these demos.
        training: description of the source of the training statistics; empty without statistics.
        rate_hz: control rate of the policy, or else of the file, in Hz; None if neither contains it.
        findings: problems, warnings, and notes on what could not be checked.
        errors: errors of the actions, or None if the policy could not be called.
        first_ms: duration of the first call in milliseconds.
        latency_ms: quantiles of the durations of all other calls in milliseconds.
    """

    demos: list[str]
    steps: int = 0
    training: str = ""
    rate_hz: float | None = None
    findings: list[DeployFinding] = field(default_factory=list)
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


def check_memory(file: DatasetFile, demos: Sequence[str], keys: Iterable[str]) -> None:
    """Raise DatasetError for demos that would not fit into the free memory, before they are read.

    A small compressed file may contain large arrays.

    Args:
        file: open demonstration file.
        demos: names of demos in it, at least one.
        keys: names of the arrays that are read; missing arrays take no memory.

    Raises:
        DatasetError: there is not enough free memory.
    """
    steps, each = sum(map(file.length, demos)), _STEP_BYTES
    for key in keys:
        if file.has(demos[0], key):
            shape, size = file.shape(demos[0], key)[1:], file.dtype(demos[0], key).itemsize
            each += math.prod(shape) * (size if len(shape) > 1 else _NUMBER_BYTES)
    remedy = "give fewer or shorter demos (--max-demos)"
    check_room(f"{file.path}: comparing {steps} steps", steps * each, remedy)


def check(
    policy: LoopPolicy,
    schema: Schema,
    file: DatasetFile,
    demos: Sequence[str],
    training: TrainingObservations,
    *,
    action_keys: Sequence[str] = ("actions",),
    lang: str | None = None,
    tolerance: float = 1.0,
    resizes: bool = False,
    on_demo: Callable[[int], None] = lambda done: None,
) -> CheckReport:
    """Call a policy with recorded observations as a control loop would, and compare its actions with the recorded ones.

    Args:
        policy: local or remote policy.
        schema: observations and actions of the policy.
        file: open demonstration file.
        demos: names of demos in it, at least one.
        training: statistics of the training data.
        action_keys: arrays that together form the policy's actions; if their sizes do not add up to its action
            dimension, ``actions`` is used.
        lang: instruction, or None for each demo's own.
        tolerance: largest error of the actions, relative to the best constant action.
        resizes: true if the policy accepts images of other sizes.
        on_demo: called with the number of demos read so far.

    Raises:
        DatasetError: the file is damaged.
    """
    demos = [name for name in demos if file.length(name)]
    if not demos:
        raise DatasetError(
            f"{file.path}: the chosen demos have no steps: give a file with recorded steps"
        )
    check_memory(file, demos, [f"obs/{key}" for key in schema.observations] + [*action_keys])
    report = CheckReport(demos, training=training.origin)
    report.rate_hz = schema.rate_hz or file.control_freq
    report.findings += _rate(schema.rate_hz, file.control_freq)
    report.findings += shape_findings(schema.observations, file, demos[0], resizes)
    names = names_in(file)
    read = _observations(report, schema, file, training, on_demo, names)
    actions = _actions(file, demos, schema, action_keys)
    if actions is None:
        size = _size(file.shape(demos[0], "actions")[1:])
        words = f"the file's actions have {size} numbers, but the policy's have {schema.action_dim}"
        report.findings.append(DeployFinding(Severity.problem, "action size", "", words))
    if schema.goals:
        words = f"the policy has goals ({', '.join(schema.goals)}), which the control loop does not provide"
        report.findings.append(DeployFinding(Severity.problem, "goals", "", words))
    if actions is not None and not {found.kind for found in report.findings} & _UNUSABLE:
        taught = bool(schema.languages)
        episodes = [
            CheckedDemo(name, obs, acted, _lang(file, name, lang) if taught else None)
            for name, obs, acted in zip(demos, read, actions, strict=True)
        ]
        numbers = schema.names.get("actions") or names.get("actions") or ()
        _act(report, policy, schema, episodes, tolerance, numbers)
    return report


def _observations(
    report: CheckReport,
    schema: Schema,
    file: DatasetFile,
    training: TrainingObservations,
    on_demo: Callable[[int], None],
    names: Mapping[str, Sequence[str]],
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
        words = names.get(f"obs/{key}", ())
        report.findings += _observed(key, schema.observations[key], values, training, words)
    if not training.origin:
        words = (
            "the policy contains no statistics of its training: give --training FILE to "
            "compare with them"
        )
        report.findings.append(DeployFinding(Severity.note, "statistics", "", words))
    return read


def _act(
    report: CheckReport,
    policy: LoopPolicy,
    schema: Schema,
    demos: Sequence[CheckedDemo],
    tolerance: float,
    names: Sequence[str],
) -> None:
    """Call the policy and add the results to the report."""
    report.steps = sum(len(demo.actions) for demo in demos)
    try:
        predictions: Predictions = predict(policy, demos)
    except (UserError, ConnectionError) as error:
        words = f"the policy cannot be called: {error}"
        report.findings.append(DeployFinding(Severity.problem, "refused", "", words))
        return
    report.errors = ActionErrors(predictions, names)
    large = report.errors.findings(tolerance)
    report.findings += large
    if large:
        report.findings += exchange_findings(policy, demos, report.errors.overall)
    low, high = (np.array(limit, dtype=float) for limit in (schema.action_low, schema.action_high))
    report.findings += limit_findings(predictions, low, high, names=names)
    report.first_ms = predictions.first_ms
    report.latency_ms = latency_of(predictions.calls_ms)
    if report.rate_hz is not None:
        report.findings += latency_findings(predictions.calls_ms, report.rate_hz)


def _rate(policy_hz: float | None, file_hz: float | None) -> list[DeployFinding]:
    if policy_hz is None or file_hz is None:
        lacking = "the policy" if policy_hz is None else "the file"
        words = f"{lacking} contains no control rate, so the rates could not be compared"
        return [DeployFinding(Severity.note, "rate", "", words)]
    if abs(policy_hz - file_hz) <= 0.01 * policy_hz:
        return []
    words = f"the file has {file_hz:g} Hz, but the policy was trained at {policy_hz:g} Hz"
    return [DeployFinding(Severity.problem, "rate", "", words)]


def shape_findings(
    observations: Mapping[str, ObservedKey], file: DatasetFile, demo: str, resizes: bool = False
) -> list[DeployFinding]:
    """Find observations of a policy that are missing in a file or have another size in it.

    Args:
        observations: shape and modality of each observation of the policy.
        file: open file.
        demo: name of a demo in the file.
        resizes: true if images of another size with the same channels are accepted.
    """
    findings = []
    for key, wanted in observations.items():
        if not file.has(demo, f"obs/{key}"):
            words = (
                f"the observation '{key}' is missing; the file has {', '.join(file.obs_keys(demo))}"
            )
            findings.append(DeployFinding(Severity.problem, "missing", key, words))
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
            findings.append(DeployFinding(Severity.problem, "shape", key, words))
    return findings


def _size(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _observed(
    key: str,
    spec: ObservedKey,
    values: Sequence[NDArray[Any]],
    training: TrainingObservations,
    names: Sequence[str],
) -> list[DeployFinding]:
    """Compare an observation with its statistics in training."""
    known = training.ranges.get(key)
    findings = []
    bad = sum(
        int((~np.isfinite(value.reshape(len(value), -1))).any(axis=1).sum())
        for value in values
        if value.dtype.kind == "f"
    )
    if bad:
        words = f"'{key}' is not finite in {counted(bad, 'step')}: the policy refuses them"
        return [DeployFinding(Severity.problem, "not finite", key, words)]
    if spec.kind == "rgb":
        findings += image_findings(key, values, known)
    elif spec.kind == "low_dim" and known is not None:
        joined = np.concatenate(list(values))
        if known.mean.size == np.prod(spec.shape, dtype=int):
            findings += vector_findings(key, joined, known, names)
    if training.origin and known is None and spec.kind in ("rgb", "low_dim"):
        words = f"'{key}': {training.origin} has no statistics of it, so it could not be compared"
        findings.append(DeployFinding(Severity.note, "statistics", key, words))
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
