"""Settings of an evaluation, and the plan of its episodes that workers get."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from imitate.errors import UserError
from imitate.evaluate.named_rewards import RewardSpec
from imitate.policy.loading import PolicySource, Precision
from imitate.policy.renaming import Rename

Mode = Literal["auto", "processes", "vector"]
Inference = Literal["sync", "async", "rtc", "rtc-vjp", "prefix"]

_COUNTS = ("episodes", "horizon", "workers", "give_up_after", "video_episodes", "video_skip")
_LEAST = {"seed": 0, **dict.fromkeys(_COUNTS, 1)}
"""Smallest values of the settings that are numbers."""


@dataclass(frozen=True)
class Lateness:
    """Delay of predictions, during which the environment continues.

    The delay is counted in control steps, so that an evaluation is the same on every machine. While the policy has no
    action, the robot holds its pose. There are five modes of inference:

        sync     the robot executes its chunk, then waits for the next one
        async    the next chunk is predicted while the present one is executed; both are blended where they overlap
        rtc      as async, and the new chunk is guided towards the old one (real-time chunking, identity guidance)
        rtc-vjp  as rtc, with the true vector-Jacobian product
        prefix   as async, and the new chunk is given the actions that are executed meanwhile (training-time real-time
                 chunking), by a policy that is trained for this mode

    Attributes:
        latency_ms: time of a prediction, at least 0.
        inference: mode of inference.
        execute: smallest number of actions executed before the next prediction begins, or None for the policy's own.
    """

    latency_ms: float
    inference: Inference = "sync"
    execute: int | None = None


@dataclass(frozen=True)
class EvalSettings:
    """Settings of an evaluation.

    Attributes:
        episodes: number of episodes, at least 1; episode i starts from ``seed + i``.
        horizon: longest episode in steps, at least 1, or None for the value in the checkpoint's configuration.
        seed: seed of the first episode, at least 0.
        workers: number of processes, at least 1; one plays in this process unless a pool or ``step_timeout_s`` is
            given. In mode "vector" the number of environments.
        mode: "processes" (a policy copy in each worker), "vector" (environments in lockstep, batched calls), or
            "auto": vector on a GPU and for large policies.
        device: device of the policy; None means the CPU, or for policies with image encoders a GPU if there is one.
        terminate_on_success: true to end an episode at its first success.
        give_up_after: number of first episodes, at least 1; the evaluation stops if all of them failed.
        video: mp4 to write, a mosaic of the first ``video_episodes``, or None.
        video_episodes: number of episodes in the video, at least 1.
        video_skip: environment steps per frame of the video, at least 1.
        overlay: true to draw the policy's plan and its encoders' keypoints onto the video.
        step_timeout_s: seconds, above 0. A call of the environment (step, reset, render) that takes longer, or making
            one that takes five times as long, ends its process: the episode is tried once more and then counts as
            failed. None means 60 in worker processes, and no limit in this process, where a hanging simulator cannot
            be ended.
        late: delay of predictions, during which the environment continues; see :class:`Lateness`.
        rename: maps names of the environment's observations to the checkpoint's names, ``{"agent_pos": "state"}``.
        precision: precision of the policy's large linear layers, see
            :func:`imitate.policy.loading.policy_from_checkpoint`.
        epsilon: probability, in [0, 1], of a uniform random action in place of the policy's; 1 is a random policy.

    Raises:
        UserError: a value is out of its range, or two contradict each other.
    """

    episodes: int = 50
    horizon: int | None = None
    seed: int = 0
    workers: int = 1
    mode: Mode = "auto"
    device: str | None = None
    terminate_on_success: bool = True
    give_up_after: int | None = None
    video: str | Path | None = None
    video_episodes: int = 9
    video_skip: int = 5
    overlay: bool = False
    step_timeout_s: float | None = None
    late: Lateness | None = None
    rename: Rename = field(default_factory=dict)
    precision: Precision = "fp32"
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} is {value}, but must be at least {least}")
        if self.step_timeout_s is not None and not self.step_timeout_s > 0:
            raise UserError(f"step_timeout_s is {self.step_timeout_s}, but must be above 0")
        if self.mode not in (modes := get_args(Mode)):
            raise UserError(f"mode is '{self.mode}', but must be one of {', '.join(modes)}")
        if not 0 <= self.epsilon <= 1:
            raise UserError(f"epsilon is {self.epsilon}, but must be between 0 and 1")
        if self.epsilon and (self.mode == "vector" or self.late is not None):
            raise UserError(
                "--epsilon needs --mode processes, without --latency-ms: leave --mode vector and --latency-ms out"
            )
        if self.late is not None and self.mode == "vector":
            raise UserError(
                "--mode vector predicts for many environments at once, without delay: leave it out with --latency-ms"
            )


@dataclass(frozen=True)
class EpisodePlan:
    """Everything that a worker needs to play the episodes of an evaluation; picklable.

    Attributes:
        policy: source of the policy.
        env_meta: env_args of the environment.
        device: device of the policy.
        settings: settings of the evaluation; the attributes below replace settings of the same name.
        horizon: longest episode in steps.
        step_timeout_s: longest time of one call of the environment, after which its process is ended; None for no
            limit.
        shown: episodes 0 .. shown - 1 are rendered.
        camera: name of the camera that renders them.
        frame_size: side of a frame in pixels.
        named: named rewards whose sums are measured.
    """

    policy: PolicySource
    env_meta: dict[str, Any]
    device: str
    settings: EvalSettings
    horizon: int
    step_timeout_s: float | None
    shown: int = 0
    camera: str | None = "agentview"
    frame_size: int = 256
    named: tuple[RewardSpec, ...] = ()

    def seed_of(self, index: int) -> int:
        """Return the seed from which an episode starts, for every checkpoint and number of workers."""
        return self.settings.seed + index

    @property
    def lang(self) -> str | None:
        """Instruction of the task, or None."""
        return self.env_meta.get("lang")
