"""Observations of an algorithm: their shapes, encoders and prepared batches."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from imitate.algo.base.execution import ChunkExecution
from imitate.algo.base.own_networks import OwnNetworks
from imitate.errors import ConfigError, DatasetError
from imitate.functional.transfer import to_device
from imitate.models.actor import GroupEncoder
from imitate.models.observation import CONDITION_KEY, GOOD, ObservationEncoder
from imitate.models.optim import averaging
from imitate.models.preprocess import Preprocess
from imitate.system.text import MASK

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Encoding:
    """Observations of an algorithm, and the networks that encode them.

    Attributes:
        config: section ``observation``, or a part of it.
        key_shapes: shape of one step of each observation (and goal) key as networks see it.
        frames: number of stacked observations, ``train.frame_stack``.
        default_norm: normalization layers of image encoders if the section names none.
        load_pretrained: load pretrained weights; false if a checkpoint contains the weights.
        own: the user's own networks (``algo.networks``), which replace the encoder of observations or other networks.
        is_conditioned: true if encoders of observations also have the input :data:`CONDITION_KEY`, which is added to
            batches and observations later.
    """

    config: Any
    key_shapes: Shapes
    frames: int = 1
    default_norm: str = "batch"
    load_pretrained: bool = True
    own: OwnNetworks = field(default_factory=lambda: OwnNetworks(None, 0))
    is_conditioned: bool = False

    def shapes(self, group: str) -> Shapes:
        """Return the shapes of the keys of an observation group, in alphabetical order."""
        keys = sorted(self.config.modality_of(group))
        missing = [k for k in keys if k not in self.key_shapes]
        if missing:
            raise ConfigError(
                f"observation.modalities.{group}: no shape was given for {', '.join(missing)}; "
                f"the data have {', '.join(sorted(self.key_shapes))}"
            )
        return {k: self.key_shapes[k] for k in keys}

    def shapes_of_groups(self) -> tuple[Shapes, Shapes, Shapes]:
        """Return the shapes of observations, goals and subgoals."""
        return self.shapes("obs"), self.shapes("goal"), self.shapes("subgoal")

    @cached_property
    def in_batches(self) -> dict[str, Shapes]:
        """Return the shapes of the observation groups that batches contain."""
        (obs, goal, subgoal), more = self.shapes_of_groups(), self.shapes("critic")
        obs = {**obs, **more}
        goals = dict.fromkeys(("goal_obs", "value_goals", "low_goals", "high_targets"), goal)
        return {"obs": obs, "next_obs": obs, "later_obs": obs, **goals, "subgoals": subgoal}

    def layout(self, ac_dim: int) -> Preprocess:
        """Return a preprocessing of all groups and of actions (A,) without normalization."""
        obs, goal, subgoal = self.shapes_of_groups()
        modalities = self.config.modalities_of_all()
        return Preprocess.layout_only_from_processed(
            {**obs, **goal, **subgoal, **self.shapes("critic")}, modalities, {"actions": ac_dim}
        )

    def encoder(
        self,
        frames: int | None = None,
        *,
        goals: bool = True,
        keys: Iterable[str] | None = None,
        group: Literal["obs", "critic"] = "obs",
    ) -> GroupEncoder:
        """Create an encoder of observation and goal according to ``observation.encoder``.

        Args:
            frames: number of observations whose features are joined; :attr:`frames` by default.
            goals: true if the encoder also sees goals, if there are any; false: the encoder never sees goals.
            keys: observations of group ``obs`` that the encoder sees; None: all.
            group: ``critic`` for critics, which also see the observations of that group.
        """
        goal = self.of("goal") if goals and self.shapes("goal") else None
        seen = self.seen(keys, group)
        own = self.own.encoder("encoder", seen) if self.own.has("encoder") else None
        condition = {CONDITION_KEY: (len(GOOD),)} if self.is_conditioned else {}
        encoder = own or self._of_shapes({**seen, **condition})
        return GroupEncoder(encoder, goal, frames or self.frames)

    def own_actor(self) -> GroupEncoder | None:
        """Create the network that ``networks.actor`` names; None if it names no network."""
        if not self.own.has("actor"):
            return None
        goal = self.of("goal") if self.shapes("goal") else None
        return GroupEncoder(self.own.encoder("actor", self.seen()), goal, self.frames)

    def seen(
        self, keys: Iterable[str] | None = None, group: Literal["obs", "critic"] = "obs"
    ) -> Shapes:
        """Return the shapes of all observations, or of ``keys``, without the mask of allowed actions.

        With ``group`` ``critic``, the shapes of that group are added.
        """
        modalities, shapes = self.config.modality_of("obs"), self.shapes("obs")
        own = {k: shapes[k] for k in (shapes if keys is None else keys) if modalities[k] != MASK}
        return own if group == "obs" else {**own, **self.shapes("critic")}

    def of(self, group: str) -> ObservationEncoder:
        """Create an encoder of one group of observations, without the mask of actions."""
        modalities = self.config.modality_of(group)
        shapes = self.shapes(group).items()
        return self._of_shapes({k: shape for k, shape in shapes if modalities[k] != MASK})

    def _of_shapes(self, shapes: Shapes) -> ObservationEncoder:
        return ObservationEncoder(
            shapes,
            {**self.config.modalities_of_all(), CONDITION_KEY: "low_dim"},
            self.config.encoder,
            default_norm=self.default_norm,
            load_pretrained=self.load_pretrained,
        )


def encoding_of(algo: Any, shapes: Shapes, load_pretrained: bool) -> Encoding:
    """Return the encoding of an algorithm's observations.

    Args:
        algo: an :class:`~imitate.algo.base.algo.Algo` with its sections.
        shapes: shape of one step of each observation.
        load_pretrained: load pretrained weights.
    """
    config = algo.config
    condition = config.get("advantage", None)
    return Encoding(
        algo.obs_config,
        shapes,
        algo.frame_stack,
        "batch" if averaging(config) is None else "group",
        load_pretrained,
        OwnNetworks(config.get("networks"), algo.ac_dim),
        condition is not None and bool(condition.get("enabled", False)),
    )


def prepared_batch(
    batch: Mapping[str, Any],
    preprocess: Preprocess,
    encoding: Encoding,
    device: torch.device,
    execution: ChunkExecution | None = None,
) -> dict[str, Any]:
    """Prepare a raw batch as tensors on the device: normalized actions, and observations as the networks see them.

    Args:
        batch: raw values: ``obs`` (B, T, ...), ``actions`` (B, T, A), ...
        preprocess: the preprocessing.
        encoding: defines the observations that are used; other observations are dropped.
        device: device of the networks.
        execution: execution of chunks. If actions are relative to an observation, all actions of a chunk are relative
            to the observation at the current step, where the chunk begins; None: each action is relative to the
            observation of its own step.
    """
    prepared: dict[str, Any] = {
        key: to_device(value, device) for key, value in batch.items() if isinstance(value, Tensor)
    }
    for group, keys in encoding.in_batches.items():
        if batch.get(group):
            prepared[group] = preprocess.prepare_obs(batch[group], keys)
    if "following" in batch:
        prepared["following"] = _following(
            batch["following"], prepared["obs"], preprocess, encoding, device
        )
    now = slice(None) if execution is None else encoding.frames - 1
    references = {
        key: value[:, now]
        for key, value in prepared.get("obs", {}).items()
        if key in preprocess.reference_keys
    }
    for key in ("actions", "next_actions", "chunk"):
        if key in prepared:
            prepared[key] = preprocess.normalize_actions(prepared[key], references)
    return prepared


def _following(
    steps: Mapping[str, Any],
    obs: Mapping[str, Tensor],
    preprocess: Preprocess,
    encoding: Encoding,
    device: torch.device,
) -> dict[str, Any]:
    """Prepare the steps after the sample; relative actions refer to the observation of their own step."""
    ready = {key: to_device(x, device) for key, x in steps.items() if isinstance(x, Tensor)}
    shapes = {k: shape for k, shape in encoding.in_batches["obs"].items() if k in steps["obs"]}
    later = preprocess.prepare_obs(steps["obs"], shapes)
    now = encoding.frames - 1
    references = {
        key: torch.cat([obs[key][:, now : now + 1], later[key][:, :-1]], dim=1)
        for key in preprocess.reference_keys
    }
    actions = preprocess.normalize_actions(ready["actions"], references)
    return {**ready, "obs": later, "actions": actions}


def weight_of_window(batch: Mapping[str, Any], frames: int, algo_name: str) -> dict[str, Any]:
    """Select each sample's weight (B, 1) and goal, for algorithms that learn from the batch's steps ``following``.

    Raises:
        DatasetError: the batch has no ``following`` with rewards and ends.
    """
    if "ends" not in batch.get("following", {}):
        raise DatasetError(
            f"{algo_name} learns from windows with rewards and ends, which the batches lack: make the dataset by "
            "build_datasets(config), or with SequenceDataset(..., following=config.algo.following(config))"
        )
    weight = batch.get("weight")
    return {
        "goal_obs": batch.get("goal_obs"),
        "weight": None if weight is None else weight[:, frames - 1 :][:, :1],
    }
