"""Description of a policy in a bundle: everything that acting needs besides the networks.

Action chunks are executed in numpy, for one robot, as :mod:`imitate.algo.base.execution` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.schema import Schema
from imitate.errors import BundleError, WireError

Actions = NDArray[np.float64]


@dataclass(frozen=True)
class ChunkPlan:
    """Planned actions; immutable.

    Attributes:
        actions: (K, A); with ensembling, weighted sums of the predictions for this step and later ones.
        position: index of the next action; -1 if nothing is planned. Unused with ensembling.
        weight: (K,) sum of the weights of each step.
        count: (K,) number of predictions of each step.
    """

    actions: Actions
    position: int = -1
    weight: Actions | None = None
    count: Actions | None = None


@dataclass(frozen=True)
class Execution:
    """Settings for executing chunks, the same as in :class:`imitate.algo.base.execution.ChunkExecution`.

    Attributes:
        size: number K of actions in a chunk.
        execute: number of control steps from one prediction to the next.
        temporal_ensemble: m in the weights exp(-m i), where i = 0 is the oldest prediction; None for a receding
            horizon.
        latency: number of control steps until a prediction is available.
    """

    size: int
    execute: int = 1
    temporal_ensemble: float | None = None
    latency: int = 0

    def start(self, action_dim: int) -> ChunkPlan:
        """Return the empty plan at the beginning of an episode or after a plan was discarded."""
        zeros = np.zeros(self.size)
        return ChunkPlan(np.zeros((self.size, action_dim)), weight=zeros, count=zeros)

    def needs_chunk(self, plan: ChunkPlan) -> bool:
        """Return True if a new chunk is needed for the next action."""
        ensembles = self.temporal_ensemble is not None
        return ensembles or not 0 <= plan.position < self.execute

    def step(self, plan: ChunkPlan, predict: Callable[[], Actions]) -> tuple[Actions, ChunkPlan]:
        """Return the actions to execute from this control step on.

        Args:
            plan: plan from :meth:`start` or the previous step.
            predict: returns a chunk (K, A); called only if a new one is needed.

        Returns:
            (K, A) actions from this step on, padded by repeating the last one, and the plan for the next step.
        """
        if self.temporal_ensemble is not None:
            return self._ensembled(plan, predict(), self.temporal_ensemble)
        actions, position = plan.actions, plan.position
        if self.needs_chunk(plan):
            actions, position = self._replanned(plan, predict()), 0
        steps = np.minimum(np.arange(position, position + self.size), self.size - 1)
        return actions[steps], ChunkPlan(actions, position + 1, plan.weight, plan.count)

    def _replanned(self, old: ChunkPlan, chunk: Actions) -> Actions:
        """Return a new plan: the rest of the old one during the latency, then the chunk."""
        if self.latency == 0 or old.position < 0:
            return chunk
        steps = np.minimum(np.arange(self.latency) + old.position, self.size - 1)
        return np.concatenate([old.actions[steps], chunk[self.latency :]])

    def _ensembled(
        self, plan: ChunkPlan, chunk: Actions, decay: float
    ) -> tuple[Actions, ChunkPlan]:
        assert plan.weight is not None
        assert plan.count is not None
        weight = np.exp(-decay * plan.count)
        total = plan.actions + weight[:, None] * chunk
        weights = plan.weight + weight
        after = ChunkPlan(_shifted(total), -1, _shifted(weights), _shifted(plan.count + 1.0))
        return total / weights[:, None], after


def _shifted(x: Actions) -> Actions:
    """Shift ``x`` (K, ...) by one step; the last entry becomes zero."""
    return np.concatenate([x[1:], np.zeros_like(x[:1])])


_MOST_NUMBERS = 10**8


@dataclass(frozen=True)
class Noise:
    """How many random numbers a prediction uses.

    Attributes:
        normal: number of standard normal values.
        exponential: number of exponentially distributed values with mean 1.
    """

    normal: int = 0
    exponential: int = 0


@dataclass(frozen=True)
class BundleSpec:
    """Description of a bundle's policy.

    The networks take ``obs/KEY`` (1, [F,] ...), ``goal/KEY`` (1, ...), ``memory/NAME`` and ``noise/KIND`` (N,), all
    float32 except memories of other types, and give ``actions`` (1, K, A) in the units of the demonstrations, and
    ``next/NAME`` of each memory.

    Attributes:
        schema: observations, goals, actions, limits, rate, instructions.
        frames: number F of observations that a prediction uses.
        stacks: allowed numbers of frames if an observation is given as a stack of frames.
        any_pixels: keys of images recorded with values outside 0 to 1.
        execution: settings for executing chunks; None for a policy of single actions.
        memory: recurrent state at the beginning of an episode, as references to arrays.
        cut: names of memories that are reset when the plan is discarded.
        noise: how many random numbers a prediction uses.
        languages: ``vectors`` (a reference to an array) and ``are_texts`` of the schema's instructions; None for a
            policy without instructions.
        statistics: offset and scale of observations and actions, for information only: the networks contain them.
        environment: env_args of the demonstrations, for ``--robot sim``.
    """

    schema: Schema
    frames: int = 1
    stacks: tuple[int, ...] = (1,)
    any_pixels: tuple[str, ...] = ()
    execution: Execution | None = None
    memory: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cut: tuple[str, ...] = ()
    noise: Noise = field(default_factory=Noise)
    languages: Mapping[str, Any] | None = None
    statistics: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers; infinite limits become None."""
        saved = asdict(self)
        saved["schema"] = self.schema.to_dict()
        for name in ("action_low", "action_high"):
            limits = saved["schema"][name]
            saved["schema"][name] = [x if math.isfinite(x) else None for x in limits]
        return saved

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> BundleSpec:
        """Invert :meth:`to_dict`; further keys are ignored.

        Raises:
            BundleError: a value is missing or has another type.
        """
        try:
            execution, schema = saved["execution"], dict(saved["schema"])
            for name, none in (("action_low", -math.inf), ("action_high", math.inf)):
                schema[name] = [none if x is None else x for x in schema[name]]
            spec = cls(
                schema=Schema.from_dict(schema),
                frames=int(saved["frames"]),
                stacks=tuple(map(int, saved["stacks"])),
                any_pixels=tuple(map(str, saved["any_pixels"])),
                execution=None if execution is None else Execution(**execution),
                memory={str(name): dict(entry) for name, entry in saved["memory"].items()},
                cut=tuple(map(str, saved["cut"])),
                noise=Noise(**saved["noise"]),
                languages=None if saved["languages"] is None else dict(saved["languages"]),
                statistics=dict(saved["statistics"]),
                environment=dict(saved["environment"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, WireError) as error:
            raise BundleError(
                f"bundle.json lacks a valid {error}: export the bundle again"
            ) from error
        spec._refuse_sizes()
        spec._refuse_values()
        return spec

    def _refuse_sizes(self) -> None:
        """Raise BundleError for invalid sizes before any memory is allocated.

        Raises:
            BundleError: a size is not positive, or too large.
        """
        schema, execution = self.schema, self.execution
        shapes = [
            seen.shape for group in (schema.observations, schema.goals) for seen in group.values()
        ]
        sizes = {
            "frames": (self.frames, 1),
            "action_dim": (schema.action_dim, 1),
            "normal": (self.noise.normal, 0),
            "exponential": (self.noise.exponential, 0),
            **{f"shape {shape}": (math.prod((self.frames, *shape)), 1) for shape in shapes},
        }
        if execution is not None:
            sizes["size"] = (execution.size * schema.action_dim, 1)
            sizes["execute"], sizes["latency"] = (execution.execute, 1), (execution.latency, 0)
        for name, (size, least) in sizes.items():
            if not isinstance(size, int) or not least <= size <= _MOST_NUMBERS:
                raise BundleError(
                    f"{name} in bundle.json is {size!r}, which is too large or not positive: the bundle is damaged, "
                    "export it again"
                )

    def _refuse_values(self) -> None:
        """Raise BundleError for impossible limits, rates and settings of the execution.

        Raises:
            BundleError: a value is invalid.
        """
        execution = self.execution
        try:
            self.schema.check()
        except WireError as error:
            raise BundleError(f"in bundle.json {error}: export the bundle again") from error
        if execution is None:
            return
        if execution.execute + execution.latency > execution.size:
            raise BundleError(
                f"the policy executes {execution.execute} actions after a latency of {execution.latency} steps, but "
                f"its chunks have only {execution.size}: export the bundle again"
            )
        decay = execution.temporal_ensemble
        if decay is not None and not _is_number(decay):
            raise BundleError(
                f"temporal_ensemble is {decay!r}, but must be a finite number or null: export the bundle again"
            )


def _is_number(value: Any, above: float = -math.inf) -> bool:
    return type(value) in (int, float) and above < value < math.inf
