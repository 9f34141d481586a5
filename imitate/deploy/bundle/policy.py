"""Policy of a bundle, with the same interface as a policy of a checkpoint.

    from imitate.deploy.bundle import BundlePolicy

    policy = BundlePolicy("lift.zip")
    policy.start_episode()
    action = policy(observation)

Needs numpy and onnxruntime; no torch. The policy server can run it too: the networks are shared, and each session has
its own memory. Robots use this module without the packages of a server, so it imports them late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.deploy.bundle.archive import read_bundle
from imitate.deploy.bundle.network import Frames, Memory, Network, NoiseSource
from imitate.deploy.bundle.spec import Actions, ChunkPlan
from imitate.deploy.schema import Schema
from imitate.errors import BundleError, MissingPackageError, UserError
from imitate.policy.checks import refuse_action
from imitate.system.instructions import LANGUAGE_KEY

if TYPE_CHECKING:
    from imitate.deploy.server.session import Ask, ChunkAsk, Prediction


class BundleState(NamedTuple):
    """Memory of a policy in an episode; immutable.

    Attributes:
        lang_emb: vector of the instruction, if any.
        frames: the last observations, oldest first.
        memory: recurrent state.
        plan: planned actions; None for a policy of single actions.
    """

    lang_emb: NDArray[np.float32] | None
    frames: Frames
    memory: Memory
    plan: ChunkPlan | None


class BundlePolicy:
    """Policy with the interface of :class:`imitate.RolloutPolicy`, for one robot, without torch.

    Args:
        path: bundle that ``imitate export`` wrote.
        seed: random seed of stochastic policies, or None for an unpredictable one.
        threads: number of threads per prediction.
        clip: false to return actions beyond the limits; for comparisons, not for robots.

    Attributes:
        can_be_guided: False, because real-time chunking needs the checkpoint.
        spec: description of the policy.
        schema: observations and actions of the policy.
        obs_keys: keys that an observation must have; without ``lang_emb`` if there are ``instructions``.
        goal_keys: keys that a goal must have; empty for a policy without goals.
        control_freq: actions per second in the demonstrations, or None if unknown.
        instructions: table of a policy that is conditioned on language.

    Raises:
        BundleError: the file is not a bundle, is damaged, or its networks do not reproduce the recorded actions.
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
            self._network = network = Network(bundle, threads)
            network.replay(bundle)
        except MissingPackageError:
            raise
        except UserError as error:
            raise BundleError(f"{path}: {error}") from error
        self.spec, self.instructions = network.spec, network.instructions
        self.schema: Schema = self.spec.schema
        self.obs_keys = tuple(self.schema.observations)
        self.goal_keys = tuple(self.schema.goals)
        self.control_freq = self.schema.rate_hz
        self.number_names = self.schema.names
        self._low = np.array(self.schema.action_low)
        self._high = np.array(self.schema.action_high)
        self._clip = clip
        self.seed(seed)
        self.start_episode()

    # ---- acting ----------------------------------------------------------------------------------

    def start_episode(self, lang: str | None = None) -> None:
        """Begin a new episode with empty memory.

        Args:
            lang: the instruction, one of ``instructions.names``; may be omitted if there is only one.

        Raises:
            UserError: the instruction is not one of the policy's.
        """
        self.state = self.begin(lang)
        self.lang = lang
        self._planned: Actions | None = None

    def seed(self, seed: int | None) -> None:
        """Seed the random numbers of stochastic policies; None chooses an unpredictable seed."""
        self._noise = NoiseSource(self.spec.noise, seed)

    def __call__(
        self, ob: Mapping[str, ArrayLike], goal: Mapping[str, ArrayLike] | None = None
    ) -> Actions:
        """Return the action (A,) for an observation, in the units of the data, within the limits.

        Args:
            ob: raw observation by key: vectors (D,) of floats, images (H, W, C) uint8; extra keys are ignored.
            goal: observations of the goal, if the policy has one.

        Raises:
            UserError: a key is missing or mis-shaped, or an image has floats outside [0, 1].
            NotFiniteError: an observation or the action has NaN or infinity. After any error the policy's memory is as
                before the call.
        """
        planned, self.state = self.step(self.state, ob, goal)
        self._planned = planned if self.spec.execution is not None else None
        action: Actions = planned[0].copy()
        return action

    def cut_plan(self) -> None:
        """Discard the planned actions that are not yet executed, for example after an intervention."""
        self.state = self.cut(self.state)

    def planned_actions(self) -> Actions | None:
        """Return the planned actions (K, A), beginning with the last returned one; None for single actions."""
        return None if self._planned is None else self._planned.copy()

    @property
    def history(self) -> int:
        """Number of observations that a prediction uses."""
        return self.spec.frames

    @property
    def limits(self) -> tuple[Actions, Actions]:
        """Lowest and highest action (A,); infinite if actions are not clipped."""
        return self._low, self._high

    def predict_chunk(
        self,
        history: Sequence[Mapping[str, ArrayLike]],
        planned: ArrayLike | None = None,
        delay: int = 0,
        guidance: str = "identity",
    ) -> Actions:
        """Predict the actions (K, A) that begin at the newest observation, independent of an earlier plan.

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
                f"{self.schema.algorithm} has a memory beyond its last observations, so its "
                "actions cannot be predicted from those alone: call the policy at every "
                "control step"
            )
        if not history:
            raise UserError("history is empty; expected at least one observation")
        state = self.begin()._replace(lang_emb=self.state.lang_emb)
        for ob in history[-self.history :]:
            state = state._replace(frames=self._network.observe(state.frames, ob, state.lang_emb))
        chunk, _ = self._network.predict(state.frames, {}, state.memory, self._noise.draw())
        return self._checked(chunk)

    # ---- the same on a state of the caller -------------------------------------------------------

    def begin(self, lang: str | None = None) -> BundleState:
        """Return the state at the beginning of an episode; ``lang`` as in :meth:`start_episode`."""
        lang_emb = None
        if self.instructions is not None:
            if lang is None and len(self.instructions.names) == 1:
                lang = self.instructions.names[0]
            lang_emb = None if lang is None else self.instructions.vector(lang)
        execution = self.spec.execution
        return BundleState(
            lang_emb=lang_emb,
            frames=(),
            memory=self._network.memory,
            plan=None if execution is None else execution.start(self.schema.action_dim),
        )

    def cut(self, state: BundleState) -> BundleState:
        """Return the state without planned actions but with the observations."""
        execution = self.spec.execution
        memory = {
            name: self._network.memory[name] if name in self.spec.cut else value
            for name, value in state.memory.items()
        }
        plan = None if execution is None else execution.start(self.schema.action_dim)
        return state._replace(memory=memory, plan=plan)

    def step(
        self,
        state: BundleState,
        ob: Mapping[str, Any],
        goal: Mapping[str, Any] | None = None,
    ) -> tuple[Actions, BundleState]:
        """Return the planned actions (K, A), beginning with this step's, and the next state.

        Arguments and errors are those of :meth:`__call__`. A policy of single actions plans only one.
        """
        network, execution, plan = self._network, self.spec.execution, state.plan
        frames = network.observe(state.frames, ob, state.lang_emb)
        target, memory, chunk = network.goal(goal), state.memory, np.empty(0)
        needed = execution is None or plan is None or execution.needs_chunk(plan)
        if needed or memory:  # a recurrent state is updated by every observation
            noise = self._noise.draw() if needed else network.any_noise
            chunk, memory = network.predict(frames, target, memory, noise)
        if execution is None or plan is None:
            return self._checked(chunk), BundleState(state.lang_emb, frames, memory, plan)
        ahead, plan = execution.step(plan, lambda: chunk)
        return self._checked(ahead), BundleState(state.lang_emb, frames, memory, plan)

    def _checked(self, actions: Actions) -> Actions:
        """Clip actions (K, A) to the limits; the first one must be finite, which implies that all are."""
        refuse_action(actions[None])
        if not self._clip:
            return actions
        clipped: Actions = np.minimum(np.maximum(actions, self._low), self._high)
        return clipped


class ServedBundle:
    """Answers the sessions of a policy server with one bundle, see :class:`imitate.deploy.server.server.Served`.

    Args:
        policy: policy of the bundle; no other code may use it meanwhile.
    """

    def __init__(self, policy: BundlePolicy, weights: str = "") -> None:
        self._policy, self.weights = policy, weights
        self.schema = policy.schema

    def begin(self, lang: str | None) -> BundleState:
        """Return the memory at the beginning of an episode."""
        return self._policy.begin(lang)

    def cut(self, state: BundleState) -> BundleState:
        """Return the memory without planned actions."""
        return self._policy.cut(state)

    def predict(self, asks: Sequence[Ask]) -> Sequence[Prediction]:
        """Answer the observations of several sessions, one after the other."""
        from imitate.deploy.server.session import Prediction

        answers = []
        for ask in asks:
            planned, state = self._policy.step(ask.state, ask.obs, ask.goal)
            answers.append(Prediction(planned[0], planned, state))
        return answers

    def predict_chunks(self, asks: Sequence[ChunkAsk]) -> Sequence[Actions]:
        """Predict a chunk for each of several sessions, whose memories are neither read nor changed."""
        return [self._chunk(ask) for ask in asks]

    def _chunk(self, ask: ChunkAsk) -> Actions:
        lang_emb = ask.state.lang_emb
        words = {} if lang_emb is None else {LANGUAGE_KEY: lang_emb}
        return self._policy.predict_chunk([{**obs, **words} for obs in ask.history], ask.planned)
