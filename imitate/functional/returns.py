"""Returns: sums of the remaining rewards of an episode."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def returns_to_go(
    rewards: NDArray[np.float32],
    terminals: NDArray[np.float32],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    discount: float,
    *,
    continue_truncated: bool = False,
) -> NDArray[np.float32]:
    """Discounted sum of the rewards from each step to the end of its episode.

    Args:
        rewards: (N,) rewards of several episodes, one after another.
        terminals: (N,) 1 where the task ended; later rewards of the episode do not count.
        starts: (M,) index of the first row of each episode.
        ends: (M,) index after the last row of each episode.
        discount: in [0, 1].
        continue_truncated: if the last step of an episode is not terminal, assume that its last reward is repeated
            forever, with the sum ``reward / (1 - discount)``; false: assume no further rewards. Needs a discount below
            1.

    Returns:
        (N,) float32; computed in float64.
    """
    values = np.zeros(len(rewards), dtype=np.float64)
    goes_on = 1.0 - terminals.astype(np.float64)
    after = np.zeros(len(ends), dtype=np.float64)
    if continue_truncated:
        after = rewards[ends - 1].astype(np.float64) / (1.0 - discount)
    # process all episodes together, from their last step backwards
    row, running = ends - 1, np.arange(len(ends))
    while len(running):
        now = row[running]
        after[running] = rewards[now] + discount * goes_on[now] * after[running]
        values[now] = after[running]
        row = row - 1
        running = running[row[running] >= starts[running]]
    return values.astype(np.float32)
