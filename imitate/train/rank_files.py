"""Files beside an online RL checkpoint with the state of a single rank, such as its replay buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from imitate.policy.checkpoint import save_checkpoint
from imitate.system.torch_archive import check_archive


class RankFiles:
    """Files ``rank<r>_<step>.pt`` of one rank, of which the two newest are kept.

    The checkpoint before the last may still be the one to resume from: rank 0 writes it after all parts.

    Args:
        folder: folder of the checkpoints, on storage shared by all ranks.
        rank: rank that owns the files.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._named: list[str] = []

    def path(self, step: int) -> Path:
        """Return the path of the file for a step."""
        return self._folder / f"rank{self._rank}_{step}.pt"

    def save(self, state: dict[str, Any], step: int) -> None:
        """Write the file for a step, and remove older ones."""
        path = self.path(step)
        self._folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(state, path)
        if path.name not in self._named:
            self._named = [*self._named[-1:], path.name]
        for file in self._folder.glob(f"rank{self._rank}_*.pt"):
            if file.name not in self._named:
                file.unlink(missing_ok=True)

    def load(self, step: int) -> dict[str, Any]:
        """Read the file for a step.

        Raises:
            Exception: it is missing or damaged; torch raises many kinds of errors.
        """
        state = read_whole(self.path(step))
        self._named = [self.path(step).name]
        return state


def read_whole(path: Path) -> dict[str, Any]:
    """Read a file of tensors and plain data after checking its sizes, checksums and calls (torch does not).

    Raises:
        Exception: it is missing or damaged; torch raises many kinds of errors.
    """
    check_archive(path, path, path.stat().st_size)
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state
