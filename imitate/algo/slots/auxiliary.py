"""Slot of algorithms: an auxiliary network with a loss, a reward or both, computed from the algorithm's batches.

    "algo": {"auxiliary": {"novelty": {"type": "rnd", "reward": 0.1},
                           "actions": {"type": "inverse", "encoder": "policy", "loss": 0.1}}}

Each type is one file: its section, derived from :class:`AuxiliaryConfig` or :class:`SharingAuxiliaryConfig`, and its
class under ``@register("rnd", RNDConfig)``. A type is found by its name: as the module ``imitate.algo.slots.<type>``,
or as an entry point of another package in the group ``imitate.auxiliaries``.

An auxiliary with its own encoder makes its own gradient step. If an auxiliary shares the encoder of a network,
its weighted loss is added to the next loss of that network: one backward pass gives the gradients of both
(:meth:`~imitate.algo.base.optimization.Optimization.add`). Batches of auxiliaries, with K the largest ``num_steps``:

    obs, next_obs   {key: (B, [F,] ...)} before and after the current step
    goal_obs        {key: (B, ...)}, or None
    actions         (B, A) normalized
    rewards         (B,), if the algorithm has transitions, or if ``needs_rewards`` is set
    part            (B,) 0 for steps of the replay buffer or a rollout, 1 and more for demonstrations
    mask            (B,) false where ``next_obs`` is unknown; missing if all are known
    window          K steps from the sample's on, if an algorithm has no transitions or K > 1: ``obs`` {key:
                    (B, K + 1, [F,] ...)}, ``actions`` (B, K, A), ``mask`` (B, K) false after the episode's end, and
                    ``rewards`` (B, K) with ``needs_rewards``
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from imitate.algo.base.encoding import Encoding, Shapes
from imitate.config.auxiliary import (
    AUXILIARIES,
    AuxiliaryConfig,
    SharingAuxiliaryConfig,
)
from imitate.errors import ConfigError, nearest
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.observation import ObservationEncoder
from imitate.system.instructions import LANGUAGE_KEY
from imitate.system.text import MASK

__all__ = [
    "Auxiliary",
    "AuxiliaryConfig",
    "AuxiliaryContext",
    "Batch",
    "RelativeErrors",
    "SharingAuxiliaryConfig",
    "module_of",
    "newest_frame",
    "register",
    "window_of",
]

PREFIX = "auxiliary/"
"""Prefix of the names of auxiliary networks."""

Batch = Mapping[str, Any]
register = AUXILIARIES.register


class Features:
    """Function from observations to features: the auxiliary's own encoder, or the encoder of another network.

    This class is not a module, so that an auxiliary does not save the weights of a shared encoder a second time, nor
    gives them to its own optimizer.

    Args:
        encoder: the encoder.
        frames: F, number of stacked frames in observations. An encoder of single frames sees the newest frame.
    """

    def __init__(self, encoder: GroupEncoder, frames: int) -> None:
        self.encoder = encoder
        self._newest = frames > encoder.frames
        self.output_dim = encoder.output_dim

    def __call__(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Return features (*B, D) of observations (*B, [F,] ...) and goals (B, ...), if the encoder has goals."""
        if self._newest:
            obs = {key: value[:, -1] for key, value in obs.items()}
        return cast(Tensor, self.encoder(obs, goal if self.encoder.goal is not None else None))

    def of_windows(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Return features (B, T, D) of observations (B, T, [F,] ...) and goals (B, ...)."""
        first = next(iter(obs.values()))
        flat = {key: value.flatten(0, 1) for key, value in obs.items()}
        if goal is not None:
            goal = {key: value.repeat_interleave(first.shape[1], 0) for key, value in goal.items()}
        features = self(flat, goal)
        return features.reshape(*first.shape[:2], features.shape[-1])


@dataclass(frozen=True)
class AuxiliaryContext:
    """Parts of the algorithm from which an auxiliary is built.

    Attributes:
        encoding: observations of the algorithm.
        ac_dim: A, action dimensions.
        num_choices: C; the first C of an action's A values are a one-hot choice; 0: all values are continuous.
        nets: networks of the algorithm.
    """

    encoding: Encoding
    ac_dim: int
    num_choices: int
    nets: nn.ModuleDict

    @property
    def shapes(self) -> Shapes:
        """Shapes of the observations as networks see them, without frames: vectors (D,), images (C, H, W)."""
        return self.encoding.shapes("obs")

    @property
    def frames(self) -> int:
        """F, number of stacked frames. If F > 1, observations in batches are (B, F, ...), the newest frame last."""
        return self.encoding.frames

    def chosen_shapes(self, keys: Iterable[str] | None = None) -> Shapes:
        """Return the shapes of observations ``keys``; by default of all images, or without images of all observations.

        Raises:
            ConfigError: an observation is unknown.
        """
        shapes, modalities = self.shapes, self.encoding.config.modality_of("obs")
        if keys is None:
            known = [k for k in shapes if modalities[k] != MASK and k != LANGUAGE_KEY]
            keys = [key for key in known if len(shapes[key]) == 3] or known
        chosen = tuple(keys)
        for key in chosen:
            if key not in shapes:
                raise ConfigError(f"algo.auxiliary: no observation '{key}'; {nearest(key, shapes)}")
        return {key: shapes[key] for key in chosen}

    def encoder(self, keys: Iterable[str] | None = None) -> GroupEncoder:
        """Create an encoder of the observations ``keys``, by default all, without goals."""
        return self.encoding.encoder(goals=False, keys=keys)

    def shared(self, name: str) -> GroupEncoder:
        """Return the encoder of one of the algorithm's networks, such as ``policy``, ``actor`` or ``critic``.

        Raises:
            ConfigError: the algorithm trains no such network, or the network has no encoder or several.
        """
        found = {key: _encoders_of(net) for key, net in self.nets.items()}
        if len(found.get(name, ())) > 1:
            raise ConfigError(
                f"algo.auxiliary: network '{name}' has {len(found[name])} encoders, of which none can be shared: set "
                "algo.critic.ensemble.shared_encoder to true"
            )
        if not found.get(name):
            able = ", ".join(key for key, encoders in found.items() if len(encoders) == 1)
            raise ConfigError(
                f"algo.auxiliary: there is no trained network '{name}' with an encoder of observations; those that "
                f"have one: {able or 'none'}"
            )
        return found[name][0]


def _encoders_of(net: nn.Module) -> list[GroupEncoder]:
    """Return the encoders of observations, and of goals if there are any, in a network that is trained."""
    if not any(weight.requires_grad for weight in net.parameters()):
        return []
    whole = [each for each in net.modules() if isinstance(each, GroupEncoder)]
    if whole:
        return whole
    # a network that reads tokens has one ObservationEncoder for observations and one for goals, in this order
    parts = [each for each in net.modules() if isinstance(each, ObservationEncoder)]
    return [GroupEncoder(parts[0])] if parts else []


class RelativeErrors(nn.Module):
    """Reward bonuses from prediction errors of a model: errors divided by their moving mean, at most 5.

    Bonuses keep their size while the model learns and its errors become thousands of times smaller.
    """

    RATE = 0.01
    """Rate of the moving mean per update."""
    LARGEST = 5.0
    """Largest bonus."""
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, errors: Tensor) -> Tensor:
        """Return bonuses (B,) for errors (B,), which before the first update are divided by their own mean."""
        mean = torch.where(self.mean > 0, self.mean, errors.mean())
        tiny = torch.finfo(errors.dtype).tiny
        return (errors / mean.clamp(min=tiny)).clamp(max=self.LARGEST)

    @torch.no_grad()
    def add(self, errors: Tensor) -> None:
        """Move the running mean towards the mean of errors (B,)."""
        found = errors.mean()
        self.mean.copy_(torch.where(self.mean > 0, self.mean.lerp(found, self.RATE), found))


class Auxiliary(nn.Module, ABC):
    """Base class of auxiliaries: a network with a loss, a reward, or both, beside an algorithm's own networks.

    Args:
        config: section of the auxiliary.
        context: parts of the algorithm from which the auxiliary is built.
    """

    def __init__(self, config: Any, context: AuxiliaryContext) -> None:
        super().__init__()
        self.config = config
        self.followed: list[nn.Module] = []
        """Modules whose values are learned without gradients, and are kept equal in all processes of a training."""

    @property
    def owner(self) -> str | None:
        """Name of the network whose encoder the auxiliary shares, or None."""
        return cast("str | None", self.config.get("encoder", None))

    def features_of(self, context: AuxiliaryContext) -> Features:
        """Return the features of a new encoder, ``own_encoder``, or of the network named by the option ``encoder``."""
        if self.owner is not None:
            return Features(context.shared(self.owner), context.frames)
        self.own_encoder = context.encoder()
        return Features(self.own_encoder, context.frames)

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss, and scalars to log.

        Args:
            batch: see :mod:`imitate.algo.slots.auxiliary`. It contains no transitions imagined by a model, which are
                passed only to :meth:`reward`.
        """

    def reward(self, batch: Batch) -> Tensor | None:
        """Return rewards (B,) without gradient, or None if the auxiliary gives none."""
        return None

    def follow(self, batch: Batch) -> None:  # noqa: B027 - a hook, empty by default
        """Update running statistics or target networks, after the algorithm's gradient step. By default, do nothing."""


def module_of(number: Tensor) -> nn.Module:
    """Return a module that contains only the buffer ``number``, for :attr:`Auxiliary.followed`."""
    module = nn.Module()
    module.register_buffer("number", number)
    return module


def newest_frame(obs: Obs, frames: int) -> Obs:
    """Return the newest frame of observations (B, [F,] ...): (B, ...) by key."""
    return {key: value[:, -1] for key, value in obs.items()} if frames > 1 else obs


def window_of(batch: Batch, steps: int) -> dict[str, Any]:
    """Return the first ``steps`` steps of a batch's ``window``; without a window, make one from its transitions."""
    window = batch.get("window")
    if window is None:
        after = batch["next_obs"]
        names = [name for name in ("actions", "rewards", "mask") if batch.get(name) is not None]
        window = {name: batch[name].unsqueeze(1) for name in names}
        window["obs"] = {k: torch.stack([x, after[k]], dim=1) for k, x in batch["obs"].items()}
        window.setdefault("mask", torch.ones_like(window["actions"][..., 0], dtype=torch.bool))
    cut = {name: value[:, :steps] for name, value in window.items() if name != "obs"}
    return {**cut, "obs": {key: value[:, : steps + 1] for key, value in window["obs"].items()}}


def built(
    config: Any, encoding: Encoding, ac_dim: int, nets: nn.ModuleDict
) -> dict[str, Auxiliary]:
    """Create the auxiliaries of the section ``auxiliary``, by network name; an empty dict without a section."""
    wanted = config.get("auxiliary", None) or {}
    context = AuxiliaryContext(encoding, ac_dim, config.get("num_choices", None) or 0, nets)
    return {
        PREFIX + name: AUXILIARIES.find(own.type)[0](own, context) for name, own in wanted.items()
    }


def with_experience(chosen: dict[str, Any], batch: Batch, frames: int) -> dict[str, Any]:
    """Add the batch of auxiliaries under ``experience`` to the batch ``chosen`` if ``batch`` has ``following`` steps.

    ``chosen`` is the part of the prepared ``batch`` that the algorithm learns from.
    """
    if "following" not in batch:
        return chosen
    return {**chosen, "experience": experience_of(batch, frames)}


def experience_of(batch: Batch, frames: int) -> dict[str, Any]:
    """Return the batch of auxiliaries, made from a prepared batch of windows.

    Args:
        batch: ``obs`` {key: (B, T, ...)}, whose first ``frames`` steps end with the current step, and ``following``,
            the steps after it.
        frames: F, number of stacked frames.
    """
    following = batch["following"]
    obs = {}
    for key, value in batch["obs"].items():
        seen, steps = value[:, :frames], following["mask"].shape[1]
        later = following["obs"].get(key)
        # an instruction is the same at all steps, so it is not stored for the following ones
        if later is None:
            later = seen[:, -1:].expand(-1, steps, *seen.shape[2:])
        whole = torch.cat([seen, later], dim=1)
        obs[key] = whole.unfold(1, frames, 1).movedim(-1, 2) if frames > 1 else whole
    window = {**following, "obs": obs}
    part = batch.get("part")
    first = {key: value[:, 0] for key, value in following.items() if key != "obs"}
    return {
        "obs": {key: value[:, 0] for key, value in obs.items()},
        "next_obs": {key: value[:, 1] for key, value in obs.items()},
        **first,
        "part": torch.ones_like(following["mask"][:, 0], dtype=torch.long)
        if part is None
        else part,
        "window": window,
    }
