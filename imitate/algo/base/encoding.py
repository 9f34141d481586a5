"""Observations of an algorithm: their shapes, new encoders of them, prepared batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from imitate.algo.base.execution import ChunkExecution
from imitate.config.observation import MASK
from imitate.errors import ConfigError
from imitate.functional.transfer import to_device
from imitate.models.actor import GroupEncoder
from imitate.models.observation import ObservationEncoder
from imitate.models.preprocess import Preprocess

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Encoding:
    """Observations of an algorithm, and the networks that encode them.

    Attributes:
        config: section ``observation``, or a part of it.
        key_shapes: shape of one step of each observation (and goal) key as networks see it.
        frames: observations that are stacked, ``train.frame_stack``.
        default_norm: normalization layers of image encoders where the section names none.
        load_pretrained: read pretrained weights; false where a checkpoint brings them.
    """

    config: Any
    key_shapes: Shapes
    frames: int = 1
    default_norm: str = "batch"
    load_pretrained: bool = True

    def shapes(self, group: str) -> Shapes:
        """Shapes of the keys of an observation group, in alphabetical order."""
        keys = sorted(self.config.modality_of(group))
        missing = [k for k in keys if k not in self.key_shapes]
        if missing:
            raise ConfigError(
                f"observation.modalities.{group}: no shape was given for {', '.join(missing)}; "
                f"the data have {', '.join(sorted(self.key_shapes))}"
            )
        return {k: self.key_shapes[k] for k in keys}

    def shapes_of_groups(self) -> tuple[Shapes, Shapes, Shapes]:
        """Shapes of the observations, the goals and the subgoals."""
        return self.shapes("obs"), self.shapes("goal"), self.shapes("subgoal")

    @cached_property
    def in_batches(self) -> dict[str, Shapes]:
        """Shapes of the groups of observations that batches have."""
        obs, goal, subgoal = self.shapes_of_groups()
        return {"obs": obs, "next_obs": obs, "goal_obs": goal, "subgoals": subgoal}

    def layout(self, ac_dim: int) -> Preprocess:
        """Preparation of all groups and of actions (A,) without normalization."""
        obs, goal, subgoal = self.shapes_of_groups()
        modalities = self.config.modalities_of_all()
        return Preprocess.layout_only_from_processed(
            {**obs, **goal, **subgoal}, modalities, {"actions": ac_dim}
        )

    def encoder(self, frames: int | None = None, *, goals: bool = True) -> GroupEncoder:
        """A new encoder of observation and goal, as ``observation.encoder`` says.

        Args:
            frames: observations whose features it joins; :attr:`frames` by default.
            goals: false: it sees no goal, also where there are goals.
        """
        goal = self.of("goal") if goals and self.shapes("goal") else None
        return GroupEncoder(self.of("obs"), goal, frames or self.frames)

    def of(self, group: str) -> ObservationEncoder:
        """A new encoder of one group of observations; it does not see a mask of actions."""
        modalities = self.config.modality_of(group)
        return ObservationEncoder(
            {key: shape for key, shape in self.shapes(group).items() if modalities[key] != MASK},
            modalities,
            self.config.encoder,
            default_norm=self.default_norm,
            load_pretrained=self.load_pretrained,
        )


def prepared_batch(
    batch: Mapping[str, Any],
    preprocess: Preprocess,
    encoding: Encoding,
    device: torch.device,
    execution: ChunkExecution | None = None,
) -> dict[str, Any]:
    """Tensors of a raw batch on the device: actions normalized, observations as networks see them.

    Args:
        batch: raw values: ``obs`` (B, T, ...), ``actions`` (B, T, A), ...
        preprocess: prepares them.
        encoding: says which observations are seen; others are left out.
        device: where the networks live.
        execution: of chunks: actions that are relative to an observation all are to that of the window's own step, at
            which a chunk begins; None: each is to that of its own step.
    """
    prepared: dict[str, Any] = {
        key: to_device(value, device) for key, value in batch.items() if isinstance(value, Tensor)
    }
    for group, keys in encoding.in_batches.items():
        if batch.get(group):
            prepared[group] = preprocess.prepare_obs(batch[group], keys)
    now = slice(None) if execution is None else encoding.frames - 1
    references = {
        key: value[:, now]
        for key, value in prepared.get("obs", {}).items()
        if key in preprocess.reference_keys
    }
    for key in ("actions", "next_actions"):
        if key in prepared:
            prepared[key] = preprocess.normalize_actions(prepared[key], references)
    return prepared
