"""Description of a replayed demonstration, in one line."""

from __future__ import annotations

from imitate.simulation.replay_check import Replay
from imitate.system.wording import counted


def replay_line(replay: Replay) -> str:
    """Describe a replay: its distance from the recording, and the success of both."""
    solved = {True: "solved", False: "not solved", None: "unknown"}
    observed = "" if replay.obs_error_m is None else f" (observations {_mm(replay.obs_error_m)} mm)"
    return (
        f"{counted(replay.steps, 'step')} played, hand at most {_mm(replay.hand_error_m)} mm off{observed}; "
        f"recorded: {solved[replay.was_solved]}, now: {solved[replay.is_solved]}"
    )


def _mm(distance_m: float) -> str:
    return f"{distance_m * 1000:.2g}"
