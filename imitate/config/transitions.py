"""What algorithms ask of the data beside windows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transitions:
    """Samples are transitions: an action, the rewards that follow, and the state from which the rest is estimated.

    Attributes:
        discount: of a reward one step later.
        n_step: steps whose rewards are summed before the rest is estimated; fewer where the demo ends before.
        next_actions: whether the action that was taken in that state is wanted too.
        infinite_horizon: a reward at a terminal counts as if it were received for ever, 1 / (1 - discount) times.
    """

    discount: float = 0.99
    n_step: int = 1
    next_actions: bool = False
    infinite_horizon: bool = False


@dataclass(frozen=True)
class Returns:
    """What is asked of returns: the rewards from each step of a window to the end of its demo.

    Attributes:
        discount: of a reward one step later.
        continue_truncated: a demo whose last step is no terminal goes on for ever with its last reward, rather than
            with nothing.
        scaled: of the rewards as ``train.reward`` makes them; false: as the file has them.
    """

    discount: float
    continue_truncated: bool = False
    scaled: bool = True


@dataclass(frozen=True)
class Subgoals:
    """What is asked of the future: observations that a sample's step leads to, of the demo's last step where it ends.

    Attributes:
        keys: the observations.
        horizon: steps ahead.
        every: all of them, 1 to ``horizon`` steps ahead; false: the last alone.
    """

    keys: tuple[str, ...]
    horizon: int
    every: bool = False
