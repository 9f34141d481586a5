"""Demonstrations together with the steps of a replay buffer in which a person acted."""

from __future__ import annotations

from typing import Any

import numpy as np

from imitate.online.learners import joined
from imitate.online.memory import Memory
from imitate.online.replay import ReplayBuffer


class Corrected:
    """Samples from the union of all demonstrated steps and all steps in which a person intervened.

    The latter are stored only in the replay buffer, and are overwritten there like all others. Without any, samples
    and random numbers are the same as for the demonstrations alone.

    Args:
        demos: buffer of demonstrations.
        memory: replay buffer of the same form of samples; its random numbers draw the corrections.
    """

    def __init__(self, demos: Memory, memory: ReplayBuffer) -> None:
        self._demos, self._memory = demos, memory

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Draw ``batch_size`` samples: the corrections, then the demonstrations."""
        memory = self._memory
        rows = np.flatnonzero(memory.intervened[: memory.filled * memory.num_envs])
        if not len(rows):
            return self._demos.sample(batch_size)
        share = len(rows) / (len(rows) + len(self._demos))
        count = int(memory.generator.binomial(batch_size, share))
        drawn = memory.generator.choice(rows, count)
        parts = [memory.at(drawn)] if count else []
        parts += [self._demos.sample(batch_size - count)] if count < batch_size else []
        return joined(parts)
