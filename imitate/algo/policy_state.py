"""What a policy carries from step to step: nested dicts of tensors, each with leading dimension B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

PolicyState = dict[str, Any]
"""Nested dict of tensors, each with leading dimension B."""


def where_state(mask: Tensor, new: PolicyState, old: PolicyState) -> PolicyState:
    """``new`` where ``mask`` (B,) is true, else ``old``, for each tensor of two equal trees."""
    chosen: PolicyState = {}
    for key, value in new.items():
        if isinstance(value, dict):
            chosen[key] = where_state(mask, value, old[key])
        else:
            chosen[key] = torch.where(mask.view(-1, *[1] * (value.dim() - 1)), value, old[key])
    return chosen


def no_frames(
    shapes: Mapping[str, tuple[int, ...]], frames: int, batch_size: int, device: torch.device
) -> PolicyState:
    """Memory of the latest ``frames`` observations of B policies that have seen nothing yet."""
    return {
        "frames": {
            key: torch.zeros(batch_size, frames, *shape, device=device)
            for key, shape in shapes.items()
        },
        "empty": torch.ones(batch_size, dtype=torch.bool, device=device),
    }


def newest_frame(obs: dict[str, Tensor], frames: int) -> dict[str, Tensor]:
    """The newest of stacked observations (B, F, ...), or observations (B, ...) where F = ``frames`` is 1."""
    return {key: value[:, -1] for key, value in obs.items()} if frames > 1 else obs


def with_frame(obs: Mapping[str, Tensor], state: PolicyState) -> PolicyState:
    """The memory of :func:`no_frames` with observations (B, ...) as the newest; the first one fills all of it."""
    frames = {
        key: torch.cat([old[:, 1:], obs[key].unsqueeze(1)], dim=1)
        for key, old in state["frames"].items()
    }
    repeated = {key: obs[key].unsqueeze(1).expand_as(x) for key, x in frames.items()}
    stacked = where_state(state["empty"], repeated, frames)
    return {"frames": stacked, "empty": torch.zeros_like(state["empty"])}
