"""``imitate eval --fqe``: rank checkpoints by fitted Q evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from imitate.cli.reports.evaluation import short_name
from imitate.errors import ConfigError

if TYPE_CHECKING:
    from imitate.train.fqe import FQEResult


def rank(
    agents: Sequence[Path],
    data: Path | None,
    *,
    discount: float | None,
    updates: int,
    seed: int,
    json_file: Path | None,
    quiet: bool,
) -> None:
    """Rank checkpoints, including all of a run folder, and print the table."""
    from imitate.system.run_folder import to_json, write_text
    from imitate.system.text import ProgressBar
    from imitate.train.fqe import FQEPlan, evaluate_checkpoint, ranked

    checkpoints = [path for agent in agents for path in checkpoints_of(agent)]
    file = data or data_of(checkpoints[0])
    plan = FQEPlan(updates=updates, seed=seed)
    results = []
    # disable=None: no bar where stderr is no terminal.
    total = updates * len(checkpoints)
    with ProgressBar(total=total, unit="update", disable=True if quiet else None) as bar:
        for path in checkpoints:
            bar.set_postfix_str(path.name, refresh=False)
            results.append(
                evaluate_checkpoint(path, file, discount=discount, plan=plan, on_update=bar.update)
            )
    results = ranked(results)
    for line in table(results):
        typer.echo(line)
    if json_file is not None:
        report = {"data": str(file), "discount": discount, "updates": updates, "seed": seed}
        rows = [as_dict(result) for result in results]
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(json_file, to_json({"fqe": rows, **report}, indent=2) + "\n")
    for warning in dict.fromkeys(result.warning for result in results if result.warning):
        typer.echo(f"warning: {warning}", err=True)


def checkpoints_of(agent: Path) -> list[Path]:
    """Return a checkpoint, or all of a run (the newest of a name): of the epochs in order, or the best and the last.

    Raises:
        CheckpointError: the folder has no checkpoint.
    """
    from imitate.system.run_folder import existing, find_checkpoint

    place = existing(agent, "checkpoint")
    if not place.is_dir():
        return [place]
    own = [folder for folder in (place / "checkpoints", place) if any(folder.glob("*.pth"))]
    folder = own[0] if own else find_checkpoint(place).parent
    numbered = {int(n): p for p in folder.glob("epoch_*.pth") if (n := p.stem[6:]).isdigit()}
    return [path for _, path in sorted(numbered.items())] or sorted(folder.glob("*.pth"))


def data_of(checkpoint: Path) -> Path:
    """Return the demonstrations that a checkpoint was trained on.

    Raises:
        ConfigError: they are missing, or are several files.
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
    """Return the table's lines: a row per checkpoint, best first."""
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
