"""Evaluation with delayed predictions: the environment continues for some control steps during each prediction.

The delay is counted in control steps, so that an evaluation is the same on every machine. While the policy has no
action, the robot holds its pose. There are five modes of inference:

    sync     the robot executes its chunk, then waits for the next one
    async    the next chunk is predicted while the present one is executed; both are blended where they overlap
    rtc      as async, and the new chunk is guided towards the old one (real-time chunking, identity guidance)
    rtc-vjp  the same with the true vector-Jacobian product
    prefix   as async, and the new chunk is given the actions that are executed meanwhile (training-time real-time
             chunking), by a policy that is trained so
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from imitate.errors import UserError
from imitate.policy.asynchronous import GUIDANCE
from imitate.policy.chunks import ChunkCounts, ChunkPlayer, Ticket
from imitate.policy.rollout_policy import RolloutPolicy, not_trained

Vector = NDArray[np.float64]
Inference = Literal["sync", "async", "rtc", "rtc-vjp", "prefix"]
_ROBOSUITE = 1


@dataclass(frozen=True)
class Lateness:
    """Delay of predictions.

    Attributes:
        latency_ms: time of a prediction, at least 0.
        inference: mode of inference, see the module.
        execute: smallest number of actions executed before the next prediction begins, or None for the policy's own.
    """

    latency_ms: float
    inference: Inference = "sync"
    execute: int | None = None


class LatePolicy:
    """One episode of a policy whose predictions are late.

    Args:
        policy: policy at the beginning of an episode; it predicts chunks or single actions (then every action is late).
        late: the delay.
        env_meta: env_args, with the control rate and the action that keeps the robot still.

    Raises:
        UserError: the control rate is not known, or the chunk is too short for the delay.
    """

    def __init__(self, policy: RolloutPolicy, late: Lateness, env_meta: Mapping[str, Any]) -> None:
        rate = policy.control_freq or (env_meta.get("env_kwargs") or {}).get("control_freq")
        if rate is None:
            raise UserError(
                "--latency-ms: neither the checkpoint nor the environment contains the control rate"
            )
        self._policy, self._late = policy, late
        self._delay = math.ceil(late.latency_ms * float(rate) / 1000.0 - 1e-9)
        execution = policy.algo.execution
        self._execute = late.execute or (1 if execution is None else execution.execute)
        size = 1 if execution is None else execution.size
        if late.inference != "sync" and self._delay + 1 > size:
            raise UserError(
                f"a delay of {self._delay} control steps is longer than the chunk of {size} "
                "actions, so nothing of it would be left: use --inference sync, or a policy "
                "with longer chunks"
            )
        self._guidance = GUIDANCE.get(late.inference)
        if self._guidance == "prefix":
            self._check_prefix()
        self._player = ChunkPlayer("blend" if late.inference == "async" else "replace")
        self._history: deque[Mapping[str, Any]] = deque(maxlen=policy.history)
        self._coming: tuple[int, Ticket, Vector] | None = None
        self._step = self._since = 0
        low, high = policy.limits
        self._rest = np.clip(np.zeros(len(low)), low, high)
        self._keeps_gripper = env_meta.get("type") == _ROBOSUITE

    @property
    def counts(self) -> ChunkCounts:
        """Number of chunks by outcome."""
        return self._player.counts

    def __call__(self, ob: Mapping[str, Any]) -> Vector:
        """Return the robot's action (A,) in this control step."""
        self._history.append(ob)
        self._receive()
        if self._coming is None and self._is_due():
            self._predict()
            self._receive()
        self._step += 1
        action = self._player.next()
        if action is None:
            return self._rest.copy()
        self._since += 1
        if self._keeps_gripper:
            self._rest[-1] = action[-1]
        return action

    def _check_prefix(self) -> None:
        most = self._policy.max_prefix
        if not most:
            raise UserError(not_trained(self._policy.algo.global_config.algo_name))
        if self._delay > most:
            raise UserError(
                f"a delay of {self._delay} control steps is longer than the training's "
                f"algo.prefix.max_delay {most}: train the policy with {self._delay}, or use "
                "--inference rtc"
            )

    def _is_due(self) -> bool:
        if self._late.inference == "sync" or self._player.planned == 0:
            return self._player.planned == 0
        return self._since >= self._execute or self._player.planned <= self._delay

    def _predict(self) -> None:
        """Begin a prediction from the current observation; its result arrives later."""
        self._since = 0
        history = list(self._history)
        planned = self._player.remaining()
        ticket = self._player.request()
        if planned is None or self._guidance is None:
            chunk = self._policy.predict_chunk(history)
        else:
            chunk = self._policy.predict_chunk(history, planned, self._delay, self._guidance)
        if self._late.inference == "sync":
            chunk = chunk[: self._execute]
        self._coming = (self._step + self._delay, ticket, chunk)

    def _receive(self) -> None:
        if self._coming is not None and self._step >= self._coming[0]:
            _, ticket, chunk = self._coming
            self._coming = None
            self._player.accept(chunk, ticket)


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
