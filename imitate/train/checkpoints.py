"""Checkpoint files of a run.

    last.pth                 state to resume from
    epoch_<n>.pth            every n epochs, or the listed ones; `experiment.save.keep_last` keeps the newest
    best.pth, best_return.pth, best_valid.pth
    rollout_epoch_<n>.pth    kept until its evaluation has ended

A state is written once, as last.pth; the other names are hard links to it (copies where the file system has none).
"""

import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from imitate.errors import CheckpointError, TrainingError
from imitate.policy.checkpoint import save_checkpoint
from imitate.system.plain_files import link
from imitate.system.run_folder import RunFolder
from imitate.train.resume import resuming

# Largest share of the training time spent on saving: last.pth is written at the end of each epoch unless this share
# would be exceeded.
SAVING_SHARE = 0.05


class Checkpoints:
    """Writes, links and prunes the checkpoints of one run."""

    def __init__(self, folder: RunFolder, save: Any, make: Callable[[], Mapping[str, Any]]) -> None:
        self._folder = folder
        self._save = save
        self._make = make
        self._saved_at = time.monotonic()
        self._cost_s = 0.0
        self._saved_step = -1

    @property
    def last(self) -> Path:
        """Path of the checkpoint to resume from."""
        return self._folder.last

    @property
    def saved_step(self) -> int | None:
        """Step of the state in last.pth; None before it is written."""
        return self._saved_step if self._saved_step >= 0 else None

    def write_last(self, step: int) -> None:
        """Write last.pth, unless it holds this step already.

        Raises:
            TrainingError: the file could not be written; the previous one is intact.
        """
        if step == self._saved_step:
            return
        start = time.monotonic()
        self._write(self.last)
        self._saved_at = time.monotonic()
        self._cost_s = self._saved_at - start
        self._saved_step = step

    def write_candidate(self, epoch: int, step: int) -> None:
        """Write a copy of the current state for an evaluation."""
        if self._save.enabled:
            self.write_last(step)
            self.link(self.last, self.candidate(epoch))
        else:
            self._write(self.candidate(epoch))

    def _write(self, path: Path) -> None:
        try:
            save_checkpoint(self._make(), path)
        except (CheckpointError, OSError) as error:
            raise TrainingError(self._could_not_save(error)) from error

    def saved_elsewhere(self, step: int) -> None:
        """Record after a resume that last.pth holds the state at `step`."""
        self._saved_step = step

    def last_is_due(self) -> bool:
        """Return true if last.pth should be written at the end of this epoch."""
        if not self._save.enabled:
            return False
        passed = time.monotonic() - self._saved_at
        if self._save.every_n_seconds is not None:
            return bool(passed >= self._save.every_n_seconds)
        return passed >= self._cost_s / SAVING_SHARE

    def epoch_is_due(self, epoch: int) -> bool:
        """Return true if ``epoch_<n>.pth`` is to be kept for this epoch."""
        every = self._save.every_n_epochs
        return self._save.enabled and (
            (every is not None and epoch % every == 0) or epoch in self._save.epochs
        )

    def keep_epoch(self, epoch: int) -> None:
        """Link last.pth as ``epoch_<n>.pth``; remove the oldest periodic ones, so that `keep_last` of them remain."""
        self.link(self.last, self._folder.checkpoints / f"epoch_{epoch}.pth")
        if self._save.keep_last is None:
            return
        periodic = sorted(self._numbered("epoch_"))
        listed = set(self._save.epochs)
        excess = [n for n in periodic if n not in listed][: -self._save.keep_last]
        for number in excess:
            (self._folder.checkpoints / f"epoch_{number}.pth").unlink(missing_ok=True)

    def candidate(self, epoch: int) -> Path:
        """Return the path of the copy that an evaluation of this epoch reads."""
        return self._folder.checkpoints / f"rollout_epoch_{epoch}.pth"

    def candidates(self) -> list[int]:
        """Return the epochs whose evaluation has not ended."""
        return sorted(self._numbered("rollout_epoch_"))

    def keep_best(self, source: Path, kinds: set[str]) -> None:
        """Link `source` as best checkpoint of the kinds ("best", "return", "valid") that the configuration keeps."""
        wanted = {
            "valid": self._save.on_best_validation,
            "return": self._save.on_best_rollout_return,
            "best": self._save.on_best_rollout_success_rate,
        }
        for kind in kinds:
            if self._save.enabled and wanted[kind]:
                name = "best.pth" if kind == "best" else f"best_{kind}.pth"
                self.link(source, self._folder.checkpoints / name)

    def link(self, source: Path, target: Path) -> None:
        """Make `target` a hard link to `source`, or a copy of it, atomically."""
        try:
            link(source, target)
        except OSError as error:
            raise TrainingError(self._could_not_save(error)) from error

    def _numbered(self, prefix: str) -> list[int]:
        pattern = re.compile(rf"{prefix}(\d+)\.pth")
        matches = (pattern.fullmatch(path.name) for path in self._folder.checkpoints.iterdir())
        return [int(match.group(1)) for match in matches if match]

    def _could_not_save(self, error: Exception) -> str:
        cause = error.__cause__ or error
        free = shutil.disk_usage(self._folder.path).free / 1e6
        intact = f"{self.last} is intact" if self.last.is_file() else "there was none before it"
        return (
            f"a checkpoint could not be written ({cause}; {free:.0f} MB free at {self._folder.checkpoints}); {intact}. "
            f"Make room, then: {resuming(self._folder)}"
        )
