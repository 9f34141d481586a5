"""Execution of action chunks, for every policy that predicts several actions at once.

A policy predicts K actions, beginning with the current step's. There are three ways to execute them:

    receding horizon   the first ``execute`` of them, then a new prediction (Chi et al., RSS 2023, arXiv:2303.04137)
    latency d          a prediction takes d steps, during which the last chunk is continued; the first d actions of the
                       new chunk, which belong to these steps, are skipped
    ensembling         a new chunk at every step; the action is the mean of all predictions for this step,
                       with weights exp(-m i), i = 0 for the oldest prediction (Zhao et al., RSS 2023, arXiv:2304.13705)

The caller keeps the state, whose tensors have the leading dimension B. So each of B environments or robots may be at a
different step of its chunk; a prediction is made only for rows that need one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from imitate.functional.transfer import to_device

Inputs = dict[str, Any]
"""Nested dict of tensors with leading dimension B, or None."""

Predict = Callable[[Inputs], Tensor]
"""Function that maps the inputs of n rows to their chunks (n, K, A)."""


@dataclass(frozen=True)
class ChunkExecution:
    """Conversion of chunks to single actions.

    Args:
        size: K, number of actions in a chunk.
        execute: number of steps from one prediction to the next, at most ``size - latency``.
        temporal_ensemble: m of temporal ensembling, which needs ``execute`` 1; None: receding horizon.
        latency: number of control steps that pass during a prediction.
    """

    size: int
    execute: int = 1
    temporal_ensemble: float | None = None
    latency: int = 0

    def initial_state(self, batch_size: int, action_dim: int, device: torch.device) -> Inputs:
        """Return the state of B policies before their first prediction."""
        plan = torch.zeros(batch_size, self.size, action_dim, device=device)
        if self.temporal_ensemble is not None:
            count = torch.zeros(batch_size, self.size, device=device)
            return {"sum": plan, "weight": count, "count": count.clone()}
        position = torch.full((batch_size,), -1, dtype=torch.long, device=device)
        return {"plan": plan, "position": position}

    def cut(self, state: Inputs) -> Inputs:
        """Return the state without planned actions, so that the next step predicts a new chunk in every row."""
        cut = {name: torch.zeros_like(value) for name, value in state.items()}
        return cut if "position" not in cut else {**cut, "position": cut["position"] - 1}

    def step(
        self, state: Inputs, inputs: Inputs, predict: Predict
    ) -> tuple[Tensor, Inputs, dict[str, Tensor]]:
        """Return the actions of the current control step, and predict new chunks where they are due.

        Args:
            state: from :meth:`initial_state` or the previous step.
            inputs: inputs of ``predict`` for all B rows.
            predict: function that predicts chunks, called with the rows that need a new chunk, if there are any.

        Returns:
            actions (B, A), the next state, and extras: ``chunk`` (B, K, A), the planned actions from this step on;
            after the end of the plan its last action is repeated.
        """
        if self.temporal_ensemble is not None:
            return self._ensemble(state, predict(inputs))
        plan, position = state["plan"], state["position"]
        needed = (position < 0) | (position >= self.execute)
        waiting = needed.cpu()  # the only point at which the CPU waits for the device
        if bool(waiting.all()):
            plan, position = self._replanned(plan, position, predict(inputs))
        elif bool(waiting.any()):
            rows = to_device(waiting.nonzero()[:, 0], plan.device)
            chunk = predict(take_rows(inputs, rows))
            new_plan, new_position = self._replanned(plan[rows], position[rows], chunk)
            plan = plan.index_copy(0, rows, new_plan)
            position = position.index_copy(0, rows, new_position)
        steps = position[:, None] + torch.arange(self.size, device=plan.device)
        ahead = _gather(plan, steps.clamp(max=self.size - 1))
        return ahead[:, 0], {"plan": plan, "position": position + 1}, {"chunk": ahead}

    def mapped(self, state: Inputs, convert: Callable[[Tensor], Tensor]) -> Inputs:
        """Return the state with all stored actions (B, K, A) converted by ``convert``, an affine map."""
        if self.temporal_ensemble is None:
            return {**state, "plan": convert(state["plan"])}
        weight = state["weight"][..., None]
        mean = state["sum"] / weight.clamp(min=torch.finfo(weight.dtype).tiny)
        return {**state, "sum": convert(mean) * weight}

    def _replanned(self, old: Tensor, position: Tensor, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """Return new plans and positions: actions of the old plans during the latency, then those of the new chunks.

        Without an old plan, the robot waits for the prediction, and the chunk is executed from its first action on.
        """
        if self.latency == 0:
            return chunk, torch.zeros_like(position)
        steps = torch.arange(self.size, device=chunk.device)
        kept = _gather(old, (position[:, None] + steps).clamp(0, self.size - 1))
        waiting = (steps < self.latency) & (position >= 0)[:, None]
        return torch.where(waiting[..., None], kept, chunk), torch.zeros_like(position)

    def _ensemble(self, state: Inputs, chunk: Tensor) -> tuple[Tensor, Inputs, dict[str, Tensor]]:
        assert self.temporal_ensemble is not None
        # Predictions for one step arrive oldest first, so the new prediction has the index i = count and the weight
        # exp(-m i).
        weight = (-self.temporal_ensemble * state["count"]).exp()
        total = state["sum"] + weight[..., None] * chunk
        weights = state["weight"] + weight
        mean = total / weights[..., None]
        next_state = {
            "sum": _shifted(total),
            "weight": _shifted(weights),
            "count": _shifted(state["count"] + 1),
        }
        return mean[:, 0], next_state, {"chunk": mean}


def take_rows(tree: Inputs, rows: Tensor) -> Inputs:
    """Select rows of each tensor of a nested dict."""
    taken: Inputs = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            taken[key] = take_rows(value, rows)
        else:
            taken[key] = None if value is None else value[rows]
    return taken


def _gather(plan: Tensor, steps: Tensor) -> Tensor:
    """Return the actions (B, S, A) of ``plan`` (B, K, A) at the indices ``steps`` (B, S)."""
    return plan.gather(1, steps[..., None].expand(-1, -1, plan.shape[-1]))


def _shifted(x: Tensor) -> Tensor:
    """Shift ``x`` (B, K, ...) by one step; the last step becomes zero."""
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], dim=1)
