"""``imitate eval --uncertainty``: does a policy's uncertainty tell usual demonstrations from others?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from imitate.cli.eval_fqe import data_of
from imitate.system.text import counted

if TYPE_CHECKING:
    from imitate.evaluate.uncertainty import Separation


def measure(
    checkpoints: Sequence[Path],
    other: Path,
    data: Path | None,
    *,
    device: str | None,
    json_file: Path | None,
) -> None:
    """Print the AUROC of each checkpoint's uncertainty."""
    from imitate.evaluate.uncertainty import separation, uncertainties
    from imitate.policy.loading import policy_from_checkpoint
    from imitate.system.run_folder import to_json, write_text

    rows = []
    for path in checkpoints:
        policy, _ = policy_from_checkpoint(device or "cpu", path)
        file = data or data_of(path)
        key = _held_out(file) if data is None else None
        usual, others = uncertainties(policy, file, key), uncertainties(policy, other)
        if policy.calibration is not None:
            typer.echo(f"{path}: {policy.calibration.words(0.95)}")
        kind = f"{file}, filter key '{key}'" if key else str(file)
        for name in usual:
            found = separation(policy, name, usual[name], others[name])
            typer.echo(_line(found, kind, other))
            rows.append({"checkpoint": str(path), **found.to_dict()})
        if data is None and key is None:
            typer.echo(
                f"warning: {file} has no held-out demonstrations (filter key 'valid'), so the policy learned from the "
                "usual ones: name others by --data",
                err=True,
            )
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(json_file, to_json({"uncertainty": rows}, indent=2) + "\n")


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
