"""GPUs for trainings that run at the same time on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from imitate.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


class GpuShares:
    """Assigns GPUs to processes.

    Args:
        names: GPU names as in ``CUDA_VISIBLE_DEVICES``.
        each: GPUs per process, used by it alone; 0 gives each process the GPU with the fewest users.
    """

    def __init__(self, names: Sequence[str], each: int = 0) -> None:
        self._users = dict.fromkeys(names, 0)
        self._each = each

    @property
    def places(self) -> int | None:
        """Return the number of processes for which there are GPUs, or None if there is no limit.

        Raises:
            ConfigError: there are too few GPUs for one process.
        """
        if not self._each:
            return None
        if len(self._users) < self._each:
            raise ConfigError(
                f"--gpus {self._each}: this machine has {len(self._users)} visible GPUs; ask "
                f"for fewer, or check {VISIBLE}"
            )
        return len(self._users) // self._each

    def take(self, device: str | None = None) -> dict[str, str]:
        """Assign GPUs to a process; return its additional environment variables.

        Args:
            device: ``train.device`` of the process; if it has a number or is ``cpu``, nothing is assigned.
        """
        if device not in (None, "cuda") or (len(self._users) < 2 and not self._each):
            return {}
        by_users = sorted(self._users, key=self._users.__getitem__)
        taken = by_users[: self._each or 1]
        for name in taken:
            self._users[name] += 1
        return {VISIBLE: ",".join(taken)}

    def give_back(self, variables: Mapping[str, str]) -> None:
        """Release the GPUs that :meth:`take` assigned."""
        for name in variables.get(VISIBLE, "").split(","):
            if name in self._users:
                self._users[name] -= 1


def visible_gpus(variables: Mapping[str, str] = os.environ) -> list[str]:
    """Return the GPUs that this process may use, named as in ``CUDA_VISIBLE_DEVICES``."""
    named = variables.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
