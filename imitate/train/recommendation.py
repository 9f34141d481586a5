"""List a run's checkpoints with epoch and reason, and recommend one, with a caution if needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from imitate.system.run_folder import BEST_FIRST, RunFolder
from imitate.train.state import History

COMPARE = "compare checkpoints with imitate eval, or on the robot"


@dataclass(frozen=True)
class KeptCheckpoint:
    """A checkpoint file of a run.

    Attributes:
        name: file name.
        epoch: epoch of its weights, or None if unknown.
        reason: reason why it was kept.
    """

    name: str
    epoch: int | None
    reason: str

    @property
    def words(self) -> str:
        """Describe it: best by success rate (epoch 50, 68 % of 50 episodes)."""
        reason, _, number = self.reason.partition(": ")
        epoch = "epoch unknown" if self.epoch is None else f"epoch {self.epoch}"
        return f"{reason} ({', '.join(filter(None, (epoch, number)))})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def kept_checkpoints(
    folder: RunFolder, history: History, last_epoch: int | None
) -> list[KeptCheckpoint]:
    """Return the checkpoints of a run, in order of preference.

    Args:
        folder: folder of the run.
        history: records of its metrics.
        last_epoch: epoch of last.pth, or None if unknown.
    """
    present = {path.name for path in folder.checkpoints.glob("*.pth")}
    found: dict[str, KeptCheckpoint] = {}
    for kept in (*_bests(history), KeptCheckpoint("last.pth", last_epoch, "the last")):
        found[kept.name] = kept
    for name in BEST_FIRST:
        found.setdefault(name, KeptCheckpoint(name, None, "kept as a best one"))
    numbered = [name for name in present if _number(name) is not None]
    for name in sorted(numbered, key=lambda name: _number(name) or 0):
        found[name] = KeptCheckpoint(name, _number(name), "kept by its epoch")
    order = [*BEST_FIRST, *(name for name in found if name not in BEST_FIRST)]
    return [found[name] for name in order if name in present]


def recommended(kept: list[KeptCheckpoint]) -> KeptCheckpoint | None:
    """Return the checkpoint to use if a run folder is given, or None if it has none."""
    return next((checkpoint for checkpoint in kept if checkpoint.name in BEST_FIRST), None)


def caution(kept: list[KeptCheckpoint]) -> str | None:
    """Return a caution if the policies were not compared by success rate."""
    chosen = recommended(kept)
    if chosen is None or chosen.name != "last.pth":
        return None
    valid = next((checkpoint for checkpoint in kept if checkpoint.name == "best_valid.pth"), None)
    if valid is None:
        return f"no success rate was measured: {COMPARE}"
    return (
        f"{valid.name} (epoch {valid.epoch}) has the lowest validation loss, which is a "
        f"poor measure of success: {COMPARE}"
    )


def _bests(history: History) -> list[KeptCheckpoint]:
    found = []
    if history.best_success is not None:
        rate, _, epoch = history.best_success
        episodes = history.rollouts.get(epoch, {}).get("Rollout/Episodes")
        of = "" if episodes is None else f" of {int(episodes)} episodes"
        words = f"best by success rate: {100 * rate:.0f} %{of}"
        found.append(KeptCheckpoint("best.pth", epoch, words))
    if history.best_return is not None:
        value, epoch = history.best_return
        found.append(KeptCheckpoint("best_return.pth", epoch, f"best by return: {value:.4g}"))
    if history.best_valid is not None:
        value, epoch = history.best_valid
        words = f"best by validation loss: {value:.4g}"
        found.append(KeptCheckpoint("best_valid.pth", epoch, words))
    return found


def _number(name: str) -> int | None:
    prefix, _, digits = Path(name).stem.rpartition("_")
    return int(digits) if prefix == "epoch" and digits.isdigit() else None


def recommendation(
    folder: RunFolder, history: History, last_epoch: int | None
) -> Mapping[str, Any]:
    """Return entries for ``results.json``: the ``recommended`` checkpoint (or null) and all ``checkpoints``."""
    kept = kept_checkpoints(folder, history, last_epoch)
    chosen = recommended(kept)
    if chosen is None:
        return {"recommended": None, "checkpoints": []}
    return {
        "recommended": {**chosen.to_dict(), "words": chosen.words, "note": caution(kept)},
        "checkpoints": [checkpoint.to_dict() for checkpoint in kept],
    }
