"""Record the frames of a running episode, with the policy's plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from imitate.evaluation.episode_plan import EpisodePlan
from imitate.evaluation.frames import FrameSender, OnFrames
from imitate.evaluation.overlay import Overlay
from imitate.policy.rollout_policy import RolloutPolicy


class FrameRecorder:
    """Draws an episode's frames and sends them; a context manager.

    Args:
        plan: plan of the episodes.
        index: index of the episode.
        policy: policy that acts in it.
        on_frames: receives the frames, or None to draw nothing.

    Attributes:
        error: reason why rendering stopped, or None if nothing failed.
    """

    def __init__(
        self, plan: EpisodePlan, index: int, policy: RolloutPolicy, on_frames: OnFrames | None
    ) -> None:
        drawn = on_frames is not None and index < plan.video_episodes
        self._sender = FrameSender(index, on_frames) if on_frames is not None and drawn else None
        self.error: str | None = None
        self._plan = plan
        self._overlay = Overlay(policy) if plan.overlay and drawn else None

    @property
    def wanted(self) -> bool:
        """True if the episode is drawn."""
        return self._sender is not None

    @property
    def count(self) -> int:
        """Number of frames so far."""
        return 0 if self._sender is None else self._sender.count

    def __enter__(self) -> FrameRecorder:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._sender is not None:
            self._sender.flush()

    def add(
        self, env: Any, step: int, obs: Mapping[str, Any] | None = None, *, last: bool = False
    ) -> None:
        """Render if this step has a frame; a failing renderer ends the video, not the episode.

        Args:
            env: environment in the state to show.
            step: number of steps so far.
            obs: observation on which the policy has just acted, or None if it has not acted on this state.
            last: true for the last state, which always gets a frame.
        """
        plan = self._plan
        if self._sender is None or self.error is not None:
            return
        if step % plan.video_skip and not last:
            return
        try:
            frame = env.render(
                height=plan.frame_size, width=plan.frame_size, camera_name=plan.camera
            )
            frame = np.ascontiguousarray(frame, dtype=np.uint8)
            if frame.shape != (plan.frame_size, plan.frame_size, 3):
                raise ValueError(f"the renderer returned an image of shape {frame.shape}")
            if self._overlay is not None and obs is not None:
                frame = self._overlay.draw(frame, env, plan.camera, obs)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            return
        self._sender.add(frame)
