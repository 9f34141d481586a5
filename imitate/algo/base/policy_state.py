"""State of a policy between steps: remembered observations, planned actions, recurrent state.

The caller keeps the state. Policies never change it in place, so that it may be stored, sent to another process, or
used again later. Rows of different episodes may be joined and separated.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar, cast

import torch
from torch import Tensor

from imitate.algo.base.encoding import Encoding
from imitate.algo.base.execution import ChunkExecution

InnerState = dict[str, Any]
"""An algorithm's own part of the state: a nested dict of tensors with leading dimension B.

``chunk`` contains the planned actions of a chunk, ``rnn`` a recurrent state, ``noise`` the exploration noise, ``base``
the state of a frozen policy.
"""


class Observed(TypedDict, total=False):
    """Observations that a policy remembers; an entry exists only if it is needed.

    Attributes:
        frames: the last F observations, (B, F, ...) by key, if ``train.frame_stack`` is F > 1.
        empty: (B,) bool, True if nothing was observed yet.
        reference: (B, ...) by key, the observation that the planned actions are relative to.
    """

    frames: dict[str, Tensor]
    empty: Tensor
    reference: dict[str, Tensor]


class PolicyState(Observed):
    """State of B policies.

    Attributes:
        policy: the algorithm's own part.
    """

    policy: InnerState


StateT = TypeVar("StateT", bound=Mapping[str, Any])


def where_state(mask: Tensor, new: StateT, old: StateT) -> StateT:
    """Select ``new`` where ``mask`` (B,) is true, else ``old``, for each tensor of two trees of the same structure."""
    chosen: dict[str, Any] = {}
    for key, value in new.items():
        if isinstance(value, dict):
            chosen[key] = where_state(mask, value, old[key])
        else:
            chosen[key] = torch.where(mask.view(-1, *[1] * (value.dim() - 1)), value, old[key])
    return cast(StateT, chosen)


def no_frames(encoding: Encoding, batch_size: int, device: torch.device) -> Observed:
    """Return the frame memory of B policies before the first observation; an empty dict if no frames are stacked."""
    if encoding.frames == 1:
        return {}
    return {
        "frames": {
            key: torch.zeros(batch_size, encoding.frames, *shape, device=device)
            for key, shape in encoding.shapes("obs").items()
        },
        "empty": torch.ones(batch_size, dtype=torch.bool, device=device),
    }


def newest_frame(obs: dict[str, Tensor], frames: int) -> dict[str, Tensor]:
    """Return the newest of stacked observations (B, F, ...), or observations (B, ...) if F = ``frames`` is 1."""
    return {key: value[:, -1] for key, value in obs.items()} if frames > 1 else obs


def with_frame(obs: Mapping[str, Tensor], state: Observed) -> Observed:
    """Add observations (B, ...) to the memory of :func:`no_frames`; the first observation fills all frames."""
    frames = {
        key: torch.cat([old[:, 1:], obs[key].unsqueeze(1)], dim=1)
        for key, old in state["frames"].items()
    }
    repeated = {key: obs[key].unsqueeze(1).expand_as(x) for key, x in frames.items()}
    stacked = where_state(state["empty"], repeated, frames)
    return {"frames": stacked, "empty": torch.zeros_like(state["empty"])}


def remembered(
    obs: dict[str, Tensor], state: Observed, frames: int
) -> tuple[dict[str, Tensor], Observed]:
    """Stack new observations (B, ...) on the remembered frames; return (B, F, ...) and the memory to keep.

    If F = ``frames`` is 1, observations are returned unchanged with an empty memory.
    """
    if frames == 1:
        return obs, {}
    memory = with_frame(obs, state)
    return memory["frames"], memory


def no_plan(
    execution: ChunkExecution | None, batch_size: int, ac_dim: int, device: torch.device
) -> InnerState:
    """Return the initial state of B policies that remember only planned actions; empty for single actions."""
    return (
        {} if execution is None else {"chunk": execution.initial_state(batch_size, ac_dim, device)}
    )


def without_plan(state: PolicyState, execution: ChunkExecution) -> PolicyState:
    """Return the state without the planned actions of a policy that executes chunks."""
    policy = state["policy"]
    return {**state, "policy": {**policy, "chunk": execution.cut(policy["chunk"])}}


def joined_states(states: Sequence[StateT]) -> StateT:
    """Concatenate the rows of several states, in order."""
    joined = {
        key: joined_states([state[key] for state in states])
        if isinstance(value, dict)
        else torch.cat([state[key] for state in states])
        for key, value in states[0].items()
    }
    return cast(StateT, joined)


def state_row(state: StateT, row: int) -> StateT:
    """Copy one row of a state, with leading dimension 1."""
    rows = {
        key: state_row(value, row) if isinstance(value, dict) else value[row : row + 1].clone()
        for key, value in state.items()
    }
    return cast(StateT, rows)


def rows_of(state: Mapping[str, Any]) -> int:
    """Return the number of rows of a state; 0 if it is empty."""
    for value in state.values():
        rows = rows_of(value) if isinstance(value, dict) else len(value)
        if rows:
            return rows
    return 0


class Acting(Protocol):
    """Interface of a policy that acts with an explicit state, such as an algorithm."""

    def initial_state(self, batch_size: int) -> PolicyState:
        """Return the states of B policies at the start of an episode."""

    def act(
        self, obs: dict[str, Tensor], state: PolicyState, goal: dict[str, Tensor] | None = None
    ) -> Any:
        """Return the next actions and state, as a ``PolicyStep``."""


class OwnState:
    """Keeps the state of a policy between calls, for callers that need one action after another."""

    def __init__(self) -> None:
        self._state: PolicyState | None = None

    @torch.no_grad()
    def act(self, policy: Acting, obs: dict[str, Tensor], goal: dict[str, Tensor] | None) -> Tensor:
        """Return actions (B, A) for observations (B, ...).

        The first call after :meth:`reset` starts with a fresh state.
        """
        if self._state is None:
            self._state = policy.initial_state(len(next(iter(obs.values()))))
        step = policy.act(obs, self._state, goal)
        self._state = step.state
        action: Tensor = step.action
        return action

    def reset(self) -> None:
        """Discard the state."""
        self._state = None
