"""Memory of a policy from step to step: what it observed, what it plans, its recurrent state.

The state belongs to the caller. It is never changed in place, so that it may be kept, sent to another process, or taken
up again later; rows of different episodes may be joined and taken apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar, cast

import torch
from torch import Tensor

from imitate.algo.base.encoding import Encoding
from imitate.algo.base.execution import ChunkExecution

InnerState = dict[str, Any]
"""An algorithm's own part of the state: a nested dict of tensors with leading dimension B.

``chunk`` is the plan of an executed chunk, ``rnn`` a recurrent state, ``noise`` that of exploration, ``base`` the state
of a frozen policy.
"""


class Observed(TypedDict, total=False):
    """Observations that a policy remembers; each entry is there only where it is needed.

    Attributes:
        frames: the last F observations, (B, F, ...) by key, where ``train.frame_stack`` is F > 1.
        empty: (B,) bool, True where nothing was observed yet.
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
    """``new`` where ``mask`` (B,) is true, else ``old``, for each tensor of two equal trees."""
    chosen: dict[str, Any] = {}
    for key, value in new.items():
        if isinstance(value, dict):
            chosen[key] = where_state(mask, value, old[key])
        else:
            chosen[key] = torch.where(mask.view(-1, *[1] * (value.dim() - 1)), value, old[key])
    return cast(StateT, chosen)


def no_frames(encoding: Encoding, batch_size: int, device: torch.device) -> Observed:
    """Memory of the latest observations of B policies that have seen nothing yet; empty where none are stacked."""
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
    """The newest of stacked observations (B, F, ...), or observations (B, ...) where F = ``frames`` is 1."""
    return {key: value[:, -1] for key, value in obs.items()} if frames > 1 else obs


def with_frame(obs: Mapping[str, Tensor], state: Observed) -> Observed:
    """The memory of :func:`no_frames` with observations (B, ...) as the newest; the first one fills all of it."""
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
    """Observations (B, F, ...) with those before them, and the frames to keep; none where F = ``frames`` is 1."""
    if frames == 1:
        return obs, {}
    memory = with_frame(obs, state)
    return memory["frames"], memory


def no_plan(
    execution: ChunkExecution | None, batch_size: int, ac_dim: int, device: torch.device
) -> InnerState:
    """Own state of B policies whose one memory is a plan; empty where actions come one at a time."""
    return (
        {} if execution is None else {"chunk": execution.initial_state(batch_size, ac_dim, device)}
    )


def without_plan(state: PolicyState, execution: ChunkExecution) -> PolicyState:
    """The state without the planned actions of a policy that executes chunks."""
    policy = state["policy"]
    return {**state, "policy": {**policy, "chunk": execution.cut(policy["chunk"])}}


def joined_states(states: Sequence[StateT]) -> StateT:
    """One state of all the rows of several, in their order."""
    joined = {
        key: joined_states([state[key] for state in states])
        if isinstance(value, dict)
        else torch.cat([state[key] for state in states])
        for key, value in states[0].items()
    }
    return cast(StateT, joined)


def state_row(state: StateT, row: int) -> StateT:
    """The state of one row, with leading dimension 1, in memory of its own."""
    rows = {
        key: state_row(value, row) if isinstance(value, dict) else value[row : row + 1].clone()
        for key, value in state.items()
    }
    return cast(StateT, rows)


def rows_of(state: Mapping[str, Any]) -> int:
    """B, the rows of a state; 0 where it holds nothing."""
    for value in state.values():
        rows = rows_of(value) if isinstance(value, dict) else len(value)
        if rows:
            return rows
    return 0


class Acting(Protocol):
    """Anything that acts on a state."""

    def initial_state(self, batch_size: int) -> PolicyState:
        """State of B policies that have seen nothing yet."""

    def act(
        self, obs: dict[str, Tensor], state: PolicyState, goal: dict[str, Tensor] | None = None
    ) -> Any:
        """One decision: a ``PolicyStep``."""


class OwnState:
    """The state of a policy that is asked for one action after another, kept between the calls."""

    def __init__(self) -> None:
        self._state: PolicyState | None = None

    @torch.no_grad()
    def act(self, policy: Acting, obs: dict[str, Tensor], goal: dict[str, Tensor] | None) -> Tensor:
        """Actions (B, A) for observations (B, ...), the first ones after :meth:`reset` on a fresh state."""
        if self._state is None:
            self._state = policy.initial_state(len(next(iter(obs.values()))))
        step = policy.act(obs, self._state, goal)
        self._state = step.state
        action: Tensor = step.action
        return action

    def reset(self) -> None:
        """Forget the state."""
        self._state = None
