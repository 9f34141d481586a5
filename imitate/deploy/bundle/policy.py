"""A policy in a bundle, called as one of a checkpoint is.

    from imitate.deploy.bundle import BundlePolicy

    policy = BundlePolicy("lift.zip")
    policy.start_episode()
    action = policy(observation)

Needs numpy and onnxruntime; no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.data.language import LANGUAGE_KEY, Instructions
from imitate.deploy.bundle.archive import Bundle, read_bundle
from imitate.deploy.bundle.graph import Graph
from imitate.deploy.bundle.observations import Arrays, Observations
from imitate.deploy.bundle.playback import Actions, Plan
from imitate.deploy.bundle.spec import BundleSpec, Noise
from imitate.deploy.schema import Observed, Schema
from imitate.errors import BundleError, UserError
from imitate.policy.finite import refuse_action

TOLERANCE = 1e-4
"""Largest difference from the recorded actions: absolute, and relative to those beyond 1."""
FEWEST_CHECKS = 3


@dataclass(frozen=True)
class BundleState:
    """Memory of an episode; never changed in place.

    Attributes:
        told: vector of the instruction, if any.
        frames: the last observations, oldest first.
        memory: recurrent state.
        plan: planned actions; None for a policy of single actions.
    """

    told: NDArray[np.float32] | None
    frames: tuple[Arrays, ...]
    memory: Mapping[str, NDArray[Any]]
    plan: Plan | None


class NoiseSource:
    """Random numbers of predictions.

    Args:
        noise: counts.
        seed: of the generator; None: another one each time.
    """

    def __init__(self, noise: Noise, seed: int | None = None) -> None:
        self._counts, self._generator = noise, np.random.default_rng(seed)

    def draw(self) -> Arrays:
        """Return the numbers of the next prediction."""
        draw, counts = self._generator, self._counts
        waits = draw.standard_exponential(counts.exponential, dtype=np.float32)
        return {
            "noise/normal": draw.standard_normal(counts.normal, dtype=np.float32),
            # A time of 0 would divide by zero.
            "noise/exponential": np.maximum(waits, np.finfo(np.float32).tiny),
        }


class BundlePolicy:
    """The same call as :class:`imitate.RolloutPolicy`, for one robot, without torch.

    Args:
        path: bundle that ``imitate export`` wrote.
        seed: of the noise of policies that draw actions; None: another one each time.
        threads: of a prediction.
        clip: False: actions may leave the limits, as the networks predict them; for comparisons, not for robots.

    Attributes:
        can_be_guided: False: real-time chunking needs the checkpoint.
        spec: description of the policy.
        schema: its observations and actions.
        obs_keys: keys that an observation must have; ``lang_emb`` is not among them where there are ``instructions``.
        goal_keys: keys that a goal must have; empty for a policy without goals.
        control_freq: actions per second of the demonstrations; None: not known.
        instructions: table of a policy that is conditioned on language.

    Raises:
        BundleError: the file is no bundle, is damaged, or its networks do not give the actions recorded in it.
        UserError: onnxruntime is not installed.
    """

    can_be_guided = False

    def __init__(
        self,
        path: str | Path,
        *,
        seed: int | None = None,
        threads: int = 1,
        clip: bool = True,
    ) -> None:
        bundle = read_bundle(path)
        try:
            self.spec = BundleSpec.from_dict(bundle.description)
            self._graph = Graph(bundle.network, threads)
            self.instructions = _instructions(self.spec, bundle)
            self._memory = {name: bundle.array(place) for name, place in self.spec.memory.items()}
        except BundleError as error:
            raise BundleError(f"{path}: {error}") from error
        spec = self.spec
        self.schema: Schema = spec.schema
        self.obs_keys = tuple(self.schema.observations)
        self.goal_keys = tuple(self.schema.goals)
        self.control_freq = self.schema.rate_hz
        observed = dict(self.schema.observations)
        told = None
        if self.instructions is not None:
            told = LANGUAGE_KEY
            observed[told] = Observed((self.instructions.size,))
        self._obs = Observations(observed, spec.stacks, spec.any_pixels, told)
        self._goal = Observations(self.schema.goals, spec.stacks, spec.any_pixels)
        self._low = np.array(self.schema.action_low)
        self._high = np.array(self.schema.action_high)
        self._clip = clip
        self.seed(seed)
        self._unused = NoiseSource(spec.noise, 0).draw()
        try:
            self._replay(bundle)
        except UserError as error:
            raise BundleError(f"{path}: {error}") from error
        self.start_episode()

    # ---- acting ----------------------------------------------------------------------------------

    def start_episode(self, lang: str | None = None) -> None:
        """Forget the last episode.

        Args:
            lang: the task in words, one of ``instructions.names``; may be left out where there is only one.

        Raises:
            UserError: the policy does not know the instruction.
        """
        self.state = self.begin(lang)
        self.lang = lang
        self._planned: Actions | None = None

    def seed(self, seed: int | None) -> None:
        """Begin a new sequence of random numbers; None: another one each time."""
        self._noise = NoiseSource(self.spec.noise, seed)

    def __call__(
        self, ob: Mapping[str, ArrayLike], goal: Mapping[str, ArrayLike] | None = None
    ) -> Actions:
        """Return the action (A,) for an observation, in the units of the data, within the limits.

        Args:
            ob: raw observation by key: vectors (D,) of floats, images (H, W, C) uint8; extra keys are ignored.
            goal: the same for the goal, where the policy has one.

        Raises:
            UserError: a key is missing or mis-shaped, or an image has floats beyond 0 and 1.
            NotFiniteError: an observation or the action has NaN or infinity. After any error the policy's memory is as
                before the call.
        """
        planned, self.state = self.step(self.state, ob, goal)
        self._planned = planned if self.spec.execution is not None else None
        action: Actions = planned[0].copy()
        return action

    def cut_plan(self) -> None:
        """Discard the planned actions that are not yet taken, as after an intervention."""
        self.state = self.cut(self.state)

    def planned_actions(self) -> Actions | None:
        """Return the plan (K, A) at the last action, that action first; None where no more than one is planned."""
        return None if self._planned is None else self._planned.copy()

    @property
    def history(self) -> int:
        """Number of observations that a prediction sees."""
        return self.spec.frames

    @property
    def limits(self) -> tuple[Actions, Actions]:
        """Lowest and highest action (A,); infinite where actions are not clipped."""
        return self._low, self._high

    def predict_chunk(
        self,
        history: Sequence[Mapping[str, ArrayLike]],
        planned: ArrayLike | None = None,
        delay: int = 0,
        guidance: str = "identity",
    ) -> Actions:
        """Predict the actions (K, A) from an observation on, without regard to an earlier plan.

        Args:
            history: raw observations of successive control steps, the newest last.
            planned: not supported: real-time chunking needs the checkpoint.
            delay: see ``planned``.
            guidance: see ``planned``.

        Raises:
            UserError: the policy has goals or a recurrent memory, an observation does not fit, or ``planned`` is given.
        """
        if planned is not None:
            raise UserError(
                "a bundle cannot be guided towards planned actions, as real-time chunking does: join chunks by blend, "
                "fade or replace, or run the checkpoint"
            )
        if self.goal_keys:
            raise UserError(
                f"the policy has goals ({', '.join(self.goal_keys)}), and chunks are predicted without one: call the "
                "policy at every control step"
            )
        if self.spec.memory:
            raise UserError(
                f"{self.schema.algorithm} remembers more than its last observations, so its actions cannot be "
                "predicted from those alone: call the policy at every control step"
            )
        if not history:
            raise UserError("an empty history: expected at least one observation")
        state = replace(self.begin(None), told=self.state.told)
        for ob in history[-self.history :]:
            state = replace(state, frames=self._seen(state, ob))
        chunk, _ = self._predict(state, None, self._noise.draw())
        return self._checked(chunk)

    # ---- the same on a state of the caller -------------------------------------------------------

    def begin(self, lang: str | None = None) -> BundleState:
        """Return the state of an episode that begins; ``lang`` as in :meth:`start_episode`."""
        told = None
        if self.instructions is not None:
            if lang is None and len(self.instructions.names) == 1:
                lang = self.instructions.names[0]
            told = None if lang is None else self.instructions.vector(lang)
        execution = self.spec.execution
        return BundleState(
            told=told,
            frames=(),
            memory=self._memory,
            plan=None if execution is None else execution.start(self.schema.action_dim),
        )

    def cut(self, state: BundleState) -> BundleState:
        """Return the state without planned actions; what was observed stays."""
        execution = self.spec.execution
        memory = {
            name: self._memory[name] if name in self.spec.cut else value
            for name, value in state.memory.items()
        }
        plan = None if execution is None else execution.start(self.schema.action_dim)
        return replace(state, memory=memory, plan=plan)

    def step(
        self,
        state: BundleState,
        ob: Mapping[str, Any],
        goal: Mapping[str, Any] | None = None,
    ) -> tuple[Actions, BundleState]:
        """Return the actions (K, A) that are planned from this step on, the present one first, and the next state.

        Arguments and errors are those of a call. A policy of single actions plans one.
        """
        seen = replace(state, frames=self._seen(state, ob))
        target = self._goal.prepare(goal or {}) if self.goal_keys else None
        execution, plan = self.spec.execution, state.plan
        if execution is None or plan is None:
            chunk, memory = self._predict(seen, target, self._noise.draw())
            return self._checked(chunk), replace(seen, memory=memory)
        memory, chunk = seen.memory, np.empty(0)
        needed = execution.needs_chunk(plan)
        if needed or memory:  # a recurrent state follows every observation
            noise = self._noise.draw() if needed else self._unused
            chunk, memory = self._predict(seen, target, noise)
        ahead, plan = execution.step(plan, lambda: chunk)
        return self._checked(ahead), replace(seen, memory=memory, plan=plan)

    def _seen(self, state: BundleState, ob: Mapping[str, Any]) -> tuple[Arrays, ...]:
        """The last F observations with this one; the first one of an episode stands for those before it."""
        if self.instructions is not None and LANGUAGE_KEY not in ob:
            if state.told is None:
                shown = "; ".join(f"'{name}'" for name in self.instructions.names[:10])
                raise UserError(
                    f"the policy was trained on several tasks: name one with start_episode(lang=...): {shown}"
                )
            ob = {**ob, LANGUAGE_KEY: state.told}
        newest = self._obs.prepare(ob)
        before = state.frames or (newest,) * self.spec.frames
        return (*before, newest)[-self.spec.frames :]

    def _predict(
        self, state: BundleState, goal: Arrays | None, noise: Arrays
    ) -> tuple[Actions, Mapping[str, NDArray[Any]]]:
        """The actions (K, A) that the networks predict, not yet clipped, and the next recurrent state."""
        feed: dict[str, NDArray[Any]] = dict(noise)
        for key, value in state.frames[-1].items():
            stacked = (
                np.stack([frame[key] for frame in state.frames]) if self.history > 1 else value
            )
            feed[f"obs/{key}"] = stacked[None]
        for key, value in (goal or {}).items():
            feed[f"goal/{key}"] = value[None]
        for name, value in state.memory.items():
            feed[f"memory/{name}"] = value
        given = self._graph.run(feed)
        actions: Actions = given["actions"][0].astype(np.float64)
        return actions, {name: given[f"next/{name}"] for name in state.memory}

    def _checked(self, actions: Actions) -> Actions:
        """Actions (K, A) within the limits; of a chunk the first has to be finite, and then all are."""
        refuse_action(actions[None])
        if not self._clip:
            return actions
        clipped: Actions = np.minimum(np.maximum(actions, self._low), self._high)
        return clipped

    # ---- checks ----------------------------------------------------------------------------------

    def _replay(self, bundle: Bundle) -> None:
        """Compare the networks with the actions that they gave when they were exported.

        Raises:
            BundleError: they differ, or too few were recorded.
        """
        checks = bundle.description.get("checks")
        if not isinstance(checks, list) or len(checks) < FEWEST_CHECKS:
            raise BundleError(f"has fewer than {FEWEST_CHECKS} recorded actions to compare with")
        self.state = self.begin(None if self.instructions is None else self.instructions.names[0])
        for number, check in enumerate(checks):
            try:
                obs, goal = (
                    {str(key): bundle.array(value) for key, value in check[group].items()}
                    for group in ("obs", "goal")
                )
                noise = {
                    f"noise/{kind}": bundle.array(check[kind]) for kind in Noise.__annotations__
                }
                expected = bundle.array(check["actions"])
            except (KeyError, TypeError, AttributeError) as error:
                raise BundleError(f"recorded action {number} lacks {error}") from error
            seen = replace(self.state, frames=self._seen(self.state, obs))
            target = self._goal.prepare(goal) if self.goal_keys else None
            actions, memory = self._predict(seen, target, noise)
            self.state = replace(seen, memory=memory)
            if actions.shape != expected.shape:
                raise BundleError(f"its actions have shape {actions.shape}, not {expected.shape}")
            error_size = np.abs(actions - expected) / np.maximum(np.abs(expected), 1.0)
            if not (error_size <= TOLERANCE).all():
                raise BundleError(
                    f"its networks do not give the recorded actions here (check {number}: "
                    f"{float(error_size.max()):.2g} away, at most {TOLERANCE:g} allowed): it was changed, or "
                    "onnxruntime computes otherwise on this machine"
                )


def _instructions(spec: BundleSpec, bundle: Bundle) -> Instructions | None:
    """The table of instructions, where the policy reads one."""
    saved = spec.languages
    if saved is None:
        return None
    names = spec.schema.languages
    vectors = bundle.array(saved.get("vectors") or {})
    if vectors.ndim != 2 or len(vectors) != len(names) or not np.isfinite(vectors).all():
        raise BundleError(f"its instructions are {len(names)} names with vectors {vectors.shape}")
    return Instructions(names, vectors.astype(np.float32), are_texts=saved.get("are_texts") is True)
