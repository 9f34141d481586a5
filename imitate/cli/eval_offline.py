"""``imitate eval --fqe`` and ``--uncertainty``: measure policies on demonstrations, without a simulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from imitate.cli.eval_jobs import short_name
from imitate.cli.options import save
from imitate.errors import ConfigError
from imitate.system.text import counted

if TYPE_CHECKING:
    from imitate.evaluate.uncertainty import Separation
    from imitate.train.fqe import FQEResult


def rank(
    agents: Sequence[Path],
    data: Path | None,
    *,
    discount: float | None,
    updates: int,
    seed: int,
    as_json: bool,
    out: Path | None,
    quiet: bool,
) -> None:
    """Rank checkpoints by fitted Q evaluation, and print the table; a run folder stands for all its checkpoints."""
    from imitate.system.text import ProgressBar
    from imitate.train.fqe import FQEPlan, evaluate_checkpoint, ranked

    checkpoints = [path for agent in agents for path in checkpoints_of(agent)]
    file = data or data_of(checkpoints[0])
    plan = FQEPlan(updates=updates, seed=seed)
    results = []
    # disable=None: no bar where stderr is not a terminal.
    total = updates * len(checkpoints)
    with ProgressBar(total=total, unit="update", disable=True if quiet else None) as bar:
        for path in checkpoints:
            bar.set_postfix_str(path.name, refresh=False)
            results.append(
                evaluate_checkpoint(path, file, discount=discount, plan=plan, on_update=bar.update)
            )
    results = ranked(results)
    for line in table(results) if not as_json else ():
        typer.echo(line)
    report = {"data": str(file), "discount": discount, "updates": updates, "seed": seed}
    save({"fqe": [as_dict(result) for result in results], **report}, as_json=as_json, out=out)
    for warning in dict.fromkeys(result.warning for result in results if result.warning):
        typer.echo(f"warning: {warning}", err=True)


def checkpoints_of(agent: Path) -> list[Path]:
    """Return the checkpoints of an agent: the file itself, or all in a run folder or in the newest run of a folder.

    Only the checkpoints ``epoch_N.pth`` are returned, in the order of N; if there are none, all others (``best.pth``,
    ``last.pth``) in the order of their names.

    Raises:
        CheckpointError: the folder has no checkpoint.
    """
    from imitate.system.run_folder import existing, find_checkpoint

    place = existing(agent, "checkpoint")
    if not place.is_dir():
        return [place]
    own = [folder for folder in (place / "checkpoints", place) if any(folder.glob("*.pth"))]
    folder = own[0] if own else find_checkpoint(place).parent
    numbered = {int(n): p for p in folder.glob("epoch_*.pth") if (n := p.stem[6:]).isdecimal()}
    return [path for _, path in sorted(numbered.items())] or sorted(folder.glob("*.pth"))


def data_of(checkpoint: Path) -> Path:
    """Return the demonstrations that a checkpoint was trained on.

    Raises:
        ConfigError: the training data are missing, or are several files.
    """
    from imitate.policy.checkpoint import config_of, load_checkpoint

    entries = config_of(load_checkpoint(checkpoint)).train.data or ()
    paths = [Path(entry.path) for entry in entries]
    if len(paths) != 1 or not paths[0].exists():
        named = ", ".join(map(str, paths)) or "none"
        raise ConfigError(
            f"{checkpoint}: was trained on {named}: name the demonstrations to evaluate it on with --data FILE"
        )
    return paths[0]


def table(results: Sequence[FQEResult]) -> list[str]:
    """Return the lines of the table of estimated returns, one row per checkpoint, best first."""
    rows = [("checkpoint", "value", "interval", "behind the best")]
    for result in results:
        low, high = result.interval
        near, far = result.behind_interval
        behind = "" if result is results[0] else f"{near:.3g} to {far:.3g}"
        rows.append(
            (
                short_name(result.checkpoint),
                f"{result.value:.3g}",
                f"{low:.3g} to {high:.3g}",
                behind,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.append(f"the demonstrations themselves: {results[0].demo_return:.3g}")
    lines.append(
        "value: estimated discounted return; intervals: two standard deviations of an ensemble on resampled demos"
    )
    return lines


def as_dict(result: FQEResult) -> dict[str, Any]:
    """Return a result as plain values, for JSON."""
    return {
        "checkpoint": result.checkpoint,
        "value": result.value,
        "interval": result.interval,
        "behind": result.behind_interval,
        "members": result.members,
        "demo_return": result.demo_return,
        "warning": result.warning,
    }


def measure(
    checkpoints: Sequence[Path],
    other: Path,
    data: Path | None,
    *,
    device: str | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """Print the AUROC with which each checkpoint's uncertainty distinguishes its usual demonstrations from others.

    Args:
        checkpoints: checkpoint files.
        other: file of the other demonstrations.
        data: file of the usual demonstrations; None for the held-out demonstrations of each checkpoint's training.
        device: device of the policies; None for the CPU.
        as_json: true to print JSON instead of text.
        out: JSON file to write, or None.
    """
    from imitate.evaluate.uncertainty import separation, uncertainties
    from imitate.policy.loading import policy_from_checkpoint

    rows = []
    for path in checkpoints:
        policy, _ = policy_from_checkpoint(device or "cpu", path)
        file = data or data_of(path)
        key = _held_out(file) if data is None else None
        usual, others = uncertainties(policy, file, key), uncertainties(policy, other)
        if policy.calibration is not None and not as_json:
            typer.echo(f"{path}: {policy.calibration.words(0.95)}")
        kind = f"{file}, filter key '{key}'" if key else str(file)
        for name in usual:
            found = separation(policy, name, usual[name], others[name])
            if not as_json:
                typer.echo(_line(found, kind, other))
            rows.append({"checkpoint": str(path), **found.to_dict()})
        if data is None and key is None:
            typer.echo(
                f"warning: {file} has no held-out demonstrations (filter key 'valid'), so its training demonstrations "
                "were used: name others by --data",
                err=True,
            )
    save({"uncertainty": rows}, as_json=as_json, out=out)


def _held_out(file: Path) -> str | None:
    """Return the filter key of a file's held-out demonstrations, if it has them."""
    from imitate.data import DatasetFile
    from imitate.data.batches.build import VALID_MASK

    with DatasetFile(file) as opened:
        return VALID_MASK if VALID_MASK in opened.filter_keys() else None


def _line(found: Separation, usual: str, other: Path) -> str:
    made = found.auroc
    interval = "" if made.low is None else f" ({made.low:.3f} to {made.high:.3f})"
    above = ""
    if found.usual_above is not None:
        above = f"; above the threshold: {found.usual_above:.1%} and {found.other_above:.1%} of the steps"
    return (
        f"{found.measure}: AUROC {made.value:.3f}{interval}, "
        f"{counted(found.usual, 'demo')} with {counted(found.usual_steps, 'step')} of {usual} against "
        f"{counted(found.other, 'demo')} with {counted(found.other_steps, 'step')} of {other}{above}"
    )
