"""Learning-rate schedules as pure functions of the step, without a state to save or resume."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

SCHEDULERS = ("constant", "multistep", "linear", "cosine")


def lr_factor(
    step: int,
    *,
    scheduler_type: str,
    warmup_steps: int = 0,
    total_steps: int = 0,
    num_cycles: float = 0.5,
    decay_factor: float = 0.1,
    epoch_schedule: Sequence[int] = (),
    steps_per_epoch: int = 1,
    every_batch: bool = True,
) -> float:
    """Return the factor on the initial learning rate for update ``step``, counted from 0.

    Args:
        step: number of updates done so far.
        scheduler_type: one of :data:`SCHEDULERS`.
        warmup_steps: number of updates during which the factor rises linearly from 0. The schedule's own step count
            continues meanwhile, except that of ``cosine``, which starts after the warm-up.
        total_steps: updates of the whole training (for cosine).
        num_cycles: number of cosine waves until ``total_steps``; with 0.5 the factor falls from 1 to 0.
        decay_factor: factor at each epoch of ``epoch_schedule`` (multistep), or reached at its
            first (linear).
        epoch_schedule: epochs of the decay (multistep, linear); if empty, the factor is constant.
        steps_per_epoch: updates per epoch.
        every_batch: linear and cosine change at every update; false: only between epochs. Multistep always changes
            between epochs, and the warm-up always at every update.
    """
    if scheduler_type not in SCHEDULERS:
        raise ValueError(f"unknown scheduler_type '{scheduler_type}'; wanted one of {SCHEDULERS}")
    warmup = step / warmup_steps if step < warmup_steps else 1.0
    steps_per_epoch = max(1, steps_per_epoch)
    if not every_batch:
        step -= step % steps_per_epoch
    if scheduler_type == "cosine":
        if warmup < 1.0:
            return warmup
        progress = max(0, step - warmup_steps) / max(1, total_steps - warmup_steps)
        return max(0.0, 0.5 * (1.0 + math.cos(2.0 * math.pi * num_cycles * progress)))
    if scheduler_type == "multistep":
        epoch = step // steps_per_epoch
        return warmup * float(decay_factor) ** bisect_right(sorted(epoch_schedule), epoch)
    if scheduler_type == "linear" and epoch_schedule:
        done = min(1.0, step / (steps_per_epoch * max(1, epoch_schedule[0])))
        return warmup * (1.0 + (decay_factor - 1.0) * done)
    return warmup
