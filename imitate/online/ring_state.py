"""Save and restore the state of a ring buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from imitate.errors import CheckpointError
from imitate.online.ring import StepRing


def ring_state(ring: StepRing) -> dict[str, Any]:
    """Return everything stored, as tensors and scalars; rows are views, not copies."""
    filled = min(ring.filled + 1, ring.length) * ring.num_envs
    counters = {"position": ring.position, "running": ring.running, "wrapped": ring.wrapped}
    return {
        "rows": {name: torch.from_numpy(x[:filled]) for name, x in ring.stored.items()},
        "counters": {name: torch.from_numpy(x.copy()) for name, x in counters.items()},
        "layout": _layout(ring),
    }


def restore_ring(ring: StepRing, state: Mapping[str, Any]) -> None:
    """Restore :func:`ring_state`.

    Raises:
        CheckpointError: its observations, actions, environments or capacity differ.
    """
    if state["layout"] != _layout(ring):
        raise CheckpointError(
            f"the saved steps have the layout {state['layout']}, wanted {_layout(ring)}: use "
            "the configuration with which they were collected"
        )
    for name, value in state["rows"].items():
        ring.stored[name][: len(value)] = value.numpy()
    ring.position[:] = state["counters"]["position"].numpy()
    ring.running[:] = state["counters"]["running"].numpy()
    ring.wrapped[:] = state["counters"]["wrapped"].numpy()
    ring.count_steps()


def _layout(ring: StepRing) -> dict[str, Any]:
    columns = {name: [part.start, part.stop] for name, part in ring.columns.items()}
    images = {key: list(ring.obs_shapes[key]) for key in ring.image_keys}
    sizes = {"actions": ring.actions.shape[1], "envs": ring.num_envs, "length": ring.length}
    return {"columns": columns, "images": images, **sizes}
