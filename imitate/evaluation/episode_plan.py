"""Settings of evaluation episodes."""

from __future__ import annotations

from dataclasses import dataclass

from imitate.evaluation.late import Lateness


@dataclass(frozen=True)
class EpisodePlan:
    """Settings of evaluation episodes; episode i starts from `seed + i`, for every checkpoint and number of workers.

    Attributes:
        video_episodes: episodes 0 .. video_episodes - 1 are rendered.
        video_skip: environment steps per frame.
        overlay: true to draw the policy's plan and keypoints onto the frames.
        step_timeout_s: longest time of one call of the environment, after which its process is ended; None for no
            limit.
        late: delay of predictions, during which the environment continues; None for no delay.
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
