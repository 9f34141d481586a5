"""Settings of evaluation episodes."""

from __future__ import annotations

from dataclasses import dataclass

from imitate.evaluation.late import Lateness


@dataclass(frozen=True)
class EpisodePlan:
    """Settings of evaluation episodes; episode i starts from `seed + i`, for every checkpoint and number of workers.

    Attributes:
        video_episodes: episodes 0 .. video_episodes - 1 are rendered.
        video_skip: a frame every so many environment steps.
        overlay: draw what the policy plans and looks at onto the frames.
        step_timeout_s: one call of the environment that takes longer ends its process; None: no limit.
        late: predictions take time, during which the world goes on; None: they take none.
    """

    horizon: int
    seed: int
    terminate_on_success: bool = True
    video_episodes: int = 0
    video_skip: int = 5
    camera: str | None = "agentview"
    frame_size: int = 256
    overlay: bool = False
    step_timeout_s: float | None = None
    late: Lateness | None = None
