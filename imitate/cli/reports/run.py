"""Report on a run folder."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from imitate.cli.reports.layout import Report, number, pairs, percent, table, whole
from imitate.config.experiment import EarlyStoppingConfig
from imitate.errors import CheckpointError, UserError
from imitate.policy.checkpoint import load_checkpoint
from imitate.system.plain_files import read_json
from imitate.system.recognition import diagnosis
from imitate.system.run_folder import RunFolder
from imitate.train.metrics import MetricsFile
from imitate.train.outcomes import outcome_words, rollout_entry
from imitate.train.resume import resuming
from imitate.train.state import History
from imitate.train.summary import KeptCheckpoint, kept_checkpoints

_CURVE_POINTS = 8


class _Run(BaseModel):
    """Entries of ``config.json`` that the report uses."""

    algo_name: str
    experiment: dict[str, Any] = {}
    train: dict[str, Any] = {}


class _Part(BaseModel, extra="allow"):
    """Section of ``results.json``; entries that are not declared here are kept unchanged."""


class _Kept(_Part):
    name: str
    epoch: int


class _Best(_Part):
    epoch: int
    success_rate: float | None
    success_rate_95: list[float] | None = None
    mean_return: float | None = None
    return_std: float | None = None
    mean_return_95: list[float] | None = None


class _Times(_Part):
    train_wall_s: float
    train_cpu_s: float
    evaluation_wall_s: float


class _Results(_Part):
    """Entries of ``results.json`` that the report uses."""

    algo: str | None = None
    status: str = "unfinished"
    epoch: int | None = None
    best: _Best | None = None
    times: _Times | None = None
    checkpoints: list[_Kept] = []


def describe(path: Path) -> Report:
    """Describe a run: its progress, best evaluation, checkpoints, and points of its curve."""
    folder = RunFolder(path)
    config = _read_json(folder.config)
    if "algo_name" not in config:
        raise UserError(
            f"{path}: config.json has no algo_name, so this is not a run folder: name a run "
            "(<output_dir>/<name>/<time>), a dataset or a checkpoint"
        )
    try:
        run = _Run.model_validate(config)
        results = _Results.model_validate(
            _read_json(folder.results) if folder.results.is_file() else {}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{path}: {'.'.join(map(str, first['loc']))} in config.json or results.json: {first['msg']}: "
            "copy the file from the run again"
        ) from None
    metrics = MetricsFile(folder.metrics)
    epochs = [record for record in metrics.read() if record.get("kind") == "epoch"]
    if results.epoch is not None and epochs and epochs[-1]["epoch"] > results.epoch:
        # results.json is older than the metrics: the run was resumed later and was interrupted before its end
        results = _Results()
    history = History(EarlyStoppingConfig())
    for record in metrics.records():
        history.add(record)
    rollouts, best = history.rollouts, history.best
    return {
        "kind": "run",
        "path": str(path),
        "name": run.experiment.get("name"),
        "algo": results.algo or run.algo_name,
        "status": results.status,
        "epoch": epochs[-1]["epoch"] if epochs else 0,
        "num_epochs": run.train.get("num_epochs"),
        "best": results.best.model_dump()
        if results.best
        else best and rollout_entry(rollouts[best[-1]]),
        "data": run.train.get("data"),
        "times": results.times.model_dump() if results.times else {},
        "checkpoints": sorted(p.name for p in folder.checkpoints.glob("*.pth")),
        "kept": [checkpoint.to_dict() for checkpoint in _kept(folder, history, results)],
        "curve": [
            {
                "epoch": record["epoch"],
                "loss": record.get("Train/Loss"),
                "valid_loss": record.get("Valid/Loss"),
                "env_steps": record.get("Metrics/EnvironmentSteps"),
                "training_return": record.get("Metrics/AverageReturn"),
                "success_rate": rollouts.get(record["epoch"], {}).get("Rollout/Success_Rate"),
                "mean_return": rollouts.get(record["epoch"], {}).get("Rollout/Return"),
            }
            for record in _spread(epochs, set(rollouts))
        ],
    }


def _kept(folder: RunFolder, history: History, results: _Results) -> list[KeptCheckpoint]:
    """Return the checkpoints with their epochs and the reasons why they are kept.

    The epoch of last.pth is read from the results, or else from the checkpoint.
    """
    known = {entry.name: entry.epoch for entry in results.checkpoints}
    last = known.get(folder.last.name)
    if last is None and folder.last.is_file():
        with contextlib.suppress(CheckpointError):
            last = load_checkpoint(folder.last).get("train_state", {}).get("epoch")
    return kept_checkpoints(folder, history, last)


def _read_json(path: Path) -> Report:
    try:
        value = read_json(path)
    except (OSError, ValueError) as error:
        words = diagnosis(path) or f"{path}: cannot be read as JSON ({error})"
        raise UserError(words) from None
    if not isinstance(value, dict):
        raise UserError(
            f"{path}: contains no JSON object, so its folder is not a run folder: name another folder"
        )
    return value


def _spread(records: Sequence[Report], keep: set[int]) -> list[Report]:
    """Return the evaluated epochs, the last epoch, and some others evenly spread."""
    stride = max(1, len(records) // _CURVE_POINTS)
    return [
        record
        for i, record in enumerate(records)
        if i % stride == 0 or i == len(records) - 1 or record["epoch"] in keep
    ]


def lay_out(report: Report) -> Iterator[str]:
    """Format the report as text."""
    rows = [
        ("run", report["path"]),
        ("name", f"{report['name']} ({report['algo']})"),
        ("status", f"{report['status']}, epoch {report['epoch']} of {report['num_epochs']}"),
    ]
    if report["best"]:
        best = report["best"]
        rows.append(("best", f"{outcome_words(best)} in epoch {best['epoch']}"))
    times = report["times"]
    if times:
        words = f"{times['train_wall_s']:.0f} s (CPU {times['train_cpu_s']:.0f} s)"
        rows.append(("training", f"{words}, evaluation {times['evaluation_wall_s']:.0f} s"))
    if not report["kept"]:
        rows.append(("checkpoints", "none yet"))
    for place, entry in enumerate(report["kept"]):
        words = f"{entry['name']}: {KeptCheckpoint(**entry).words}"
        rows.append(("" if place else "checkpoints", words))
    if report["status"] != "finished":
        rows.append(("to resume", resuming(RunFolder(Path(report["path"])))))
    yield from pairs(rows)
    if report["curve"]:
        yield ""
        yield from table(*_curve(report["curve"]))


def _curve(points: Sequence[Report]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of the curve.

    The last column is the success rate of evaluations, or their mean return if the success rate is unknown.
    """
    shown: dict[str, tuple[str, Callable[[Any], str]]] = {
        "loss": ("loss", number),
        "valid loss": ("valid_loss", number),
    }

    def known(key: str) -> bool:
        return any(point[key] is not None for point in points)

    if known("env_steps"):
        shown = {"env steps": ("env_steps", whole), "loss": ("loss", number)}
    if known("training_return"):
        shown["return in training"] = ("training_return", number)
    if known("success_rate"):
        shown["success"] = ("success_rate", percent)
    elif known("mean_return"):
        shown["return"] = ("mean_return", number)
    rows = [(str(p["epoch"]), *(words(p[key]) for key, words in shown.values())) for p in points]
    return ("epoch", *shown), rows
