"""Let the policy server run a :class:`~imitate.RolloutPolicy`, with a memory for each session."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.algo.base.policy_state import PolicyState, joined_states, state_row
from imitate.deploy.check.statistics import recorded_ranges
from imitate.deploy.schema import ObservedKey, Schema
from imitate.deploy.server.session import Ask, ChunkAsk, Prediction
from imitate.errors import UserError
from imitate.policy.rollout_policy import RolloutPolicy, vector_of
from imitate.system.instructions import LANGUAGE_KEY


@dataclass(frozen=True)
class _Memory:
    """Memory of a session: the policy's state for one environment, and the vector of the instruction, if any."""

    state: PolicyState
    vector: NDArray[np.float32] | None


class ServedPolicy:
    """Answers the sessions of a policy server with one policy.

    Args:
        policy: policy of a checkpoint, which no other code may use while it is served.
        weights: SHA-256 of the checkpoint's file; empty if there is no file.
    """

    def __init__(self, policy: RolloutPolicy, weights: str = "") -> None:
        self._policy, self.weights = policy, weights
        self.schema = schema_of(policy)

    def begin(self, lang: str | None) -> _Memory:
        """Return the memory at the beginning of an episode; see :class:`imitate.deploy.server.server.Served`."""
        known, vector = self._policy.instructions, None
        if known is not None:
            if lang is None and len(known.names) == 1:
                lang = known.names[0]
            vector = None if lang is None else vector_of(known, lang)
        return _Memory(self._policy.algo.initial_state(1), vector)

    def cut(self, state: _Memory) -> _Memory:
        """Return the memory without planned actions."""
        return replace(state, state=self._policy.algo.cut_plan(state.state))

    def predict(self, asks: Sequence[Ask]) -> Sequence[Prediction]:
        """Answer the observations of several sessions in one pass through the networks."""
        policy, memories = self._policy, [ask.state for ask in asks]
        obs = {key: np.stack([ask.obs[key] for ask in asks]) for key in self.schema.observations}
        obs |= _embeddings([memory.vector for memory in memories])
        goal = {key: np.stack([ask.goal[key] for ask in asks]) for key in self.schema.goals}
        policy.state = joined_states([memory.state for memory in memories])
        actions = policy(obs, goal or None, batched_ob=True)
        chunks = policy.planned_actions()
        if chunks is None:
            chunks = actions[:, None]
        after = policy.state
        assert after is not None
        return [
            Prediction(actions[row], chunks[row], replace(memory, state=state_row(after, row)))
            for row, memory in enumerate(memories)
        ]

    def predict_chunks(self, asks: Sequence[ChunkAsk]) -> Sequence[NDArray[np.float64]]:
        """Predict a chunk for each of several sessions, without reading or changing their memories.

        Requests without planned actions whose histories have the same length are predicted in one pass.
        """
        chunks: dict[int, NDArray[np.float64]] = {}
        together: dict[int, list[int]] = {}
        for number, ask in enumerate(asks):
            if ask.planned is None:
                together.setdefault(len(ask.history), []).append(number)
            else:
                chunks[number] = self._guided(ask, ask.planned)
        for rows in together.values():
            chunks.update(zip(rows, self._free([asks[row] for row in rows]), strict=True))
        return [chunks[number] for number in range(len(asks))]

    def _free(self, asks: Sequence[ChunkAsk]) -> NDArray[np.float64]:
        """Predict chunks (B, K, A) for histories of the same length."""
        words = _embeddings([ask.state.vector for ask in asks])
        steps = zip(*(ask.history for ask in asks), strict=True)
        history = [
            {key: np.stack([obs[key] for obs in step]) for key in self.schema.observations} | words
            for step in steps
        ]
        return self._policy.predict_chunk(history, batched_ob=True)

    def _guided(self, ask: ChunkAsk, planned: NDArray[np.float64]) -> NDArray[np.float64]:
        words = _embeddings([ask.state.vector])
        single = {key: value[0] for key, value in words.items()}
        history: list[dict[str, Any]] = [{**obs, **single} for obs in ask.history]
        guidance: Any = ask.guidance or "identity"
        return self._policy.predict_chunk(history, planned, ask.delay, guidance)


def _embeddings(vectors: Sequence[NDArray[np.float32] | None]) -> dict[str, NDArray[np.float32]]:
    """Return the vectors (B, D) of instructions as an observation; empty if the policy uses none.

    Raises:
        UserError: some sessions have an instruction and others have none; each request is then answered on its own.
    """
    known = [vector for vector in vectors if vector is not None]
    if known and len(known) < len(vectors):
        raise UserError("an episode has no instruction: name it with start_episode(lang=...)")
    return {LANGUAGE_KEY: np.stack(known)} if known else {}


def schema_of(policy: RolloutPolicy) -> Schema:
    """Return the schema of a policy's observations and actions."""
    prepare = policy.algo.preprocess
    execution = policy.algo.execution

    def seen(keys: Sequence[str]) -> dict[str, ObservedKey]:
        return {
            key: ObservedKey(
                tuple(policy.raw_shapes[key]),
                policy.modalities[key],
                prepare.image_types.get(key, ""),
            )
            for key in keys
        }

    low, high = policy.limits
    names: Any = () if policy.instructions is None else policy.instructions.names
    kinds = {key: policy.modalities[key] for key in policy.obs_keys}
    return Schema(
        observations=seen(policy.obs_keys),
        goals=seen(policy.goal_keys),
        action_dim=prepare.actions.sent_dim,
        action_low=tuple(map(float, low)),
        action_high=tuple(map(float, high)),
        rate_hz=policy.control_freq,
        chunk=1 if execution is None else execution.size,
        languages=tuple(names),
        algorithm=policy.algo.global_config.algo_name,
        history=policy.history,
        execute=1 if execution is None else execution.execute,
        max_prefix=policy.max_prefix,
        names={
            key: names
            for key, names in policy.number_names.items()
            if key in ("actions", *policy.obs_keys)
        },
        ranges={
            key: known.to_dict() for key, known in recorded_ranges(policy.ranges, kinds).items()
        },
    )
