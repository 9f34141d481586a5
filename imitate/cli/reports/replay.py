"""One line about a demonstration that was played again."""

from __future__ import annotations

from imitate.simulation.replay_check import Replay


def told(replay: Replay) -> str:
    """How far it went from the recorded one, and whether it solved the task."""
    solved = {True: "solved", False: "not solved", None: "unknown"}
    observed = "" if replay.obs_error_m is None else f" (observations {_mm(replay.obs_error_m)} mm)"
    return (
        f"{replay.steps} steps played, hand at most {_mm(replay.hand_error_m)} mm off{observed}; "
        f"recorded: {solved[replay.was_solved]}, now: {solved[replay.is_solved]}"
    )


def _mm(distance_m: float) -> str:
    return f"{distance_m * 1000:.2g}"
