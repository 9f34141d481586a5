"""Base class of preprocessing steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError, nearest
from imitate.models.fitting import Statistics
from imitate.models.layout import Shape

PackedStep = Callable[[Any], Any]
"""Function of concatenated vectors (*B, D): a tensor or, on the CPU, an array. The result has the same type."""

Observations = Mapping[str, Tensor]


class Space(NamedTuple):
    """Shape and kind of one observation before or after a step of the pipeline.

    Attributes:
        shape: shape of one time step.
        modality: 'low_dim', 'rgb', 'depth' or 'scan'.
        is_token: True for integer tokens of words, which are never normalized or clipped.
    """

    shape: Shape
    modality: str
    is_token: bool = False


class Spec(NamedTuple):
    """Spaces of all observations and sizes of all action keys, before or after a step.

    Attributes:
        obs: space of each observation.
        actions: number of values of each action key, in the order of concatenation.
        unscaled: indices in the whole action of numbers that the normalization does not change.
    """

    obs: dict[str, Space]
    actions: dict[str, int]
    unscaled: frozenset[int] = frozenset()

    def space(self, key: str, step: str) -> Space:
        """Return the space of an observation that ``step`` names. Raises ConfigError for an unknown observation."""
        if key not in self.obs:
            raise ConfigError(
                f"{step}: there is no observation '{key}'; {nearest(key, self.obs)} "
                f"(observation.modalities has {', '.join(self.obs) or 'none'})"
            )
        return self.obs[key]

    def with_obs(self, changed: Mapping[str, Space]) -> Spec:
        """Return a copy in which the observations in ``changed`` have new spaces."""
        return self._replace(obs={**self.obs, **changed})


class PreprocessStep(nn.Module):
    """One step between raw values and networks, on observations, on actions, or on both.

    The constructor's arguments are the step's options in ``train.preprocess``: numbers, strings, lists and objects of
    them. Tensors of the step are registered as buffers, in the constructor or in :meth:`bind`; a checkpoint contains
    options and buffers. A step that changes observations overrides :meth:`acts_on`,
    :meth:`forward_obs` and :meth:`inverse_obs`; a step that changes actions sets :attr:`changes_actions` and overrides
    :meth:`forward_actions` and :meth:`inverse_actions`; a step that changes shapes returns them in :meth:`bind`.

    Attributes:
        name: name in the configuration, for messages and checkpoints.
        options: arguments of the constructor.
        changes_actions: True for a step that changes actions.
        invertible: False if :meth:`inverse_obs` cannot restore the values that :meth:`forward_obs` was given.
        keeps_statistics: True if the step does not change statistics (per channel of images).
        side: 'before' or 'after' if the step must come before or after the normalization; None if both are possible.
        references: observations to which actions are relative, see :meth:`forward_actions`.
        chains: True for a step whose :meth:`to_targets` combines the actions of a chunk.
        imitates: True for a step on actions that only imitation algorithms support.
        rotation_dims: indices of a rotation's numbers in the action before the step; their magnitudes are at most
            ``rotation_limit``.
    """

    name: str = ""
    options: dict[str, Any]
    changes_actions: bool = False
    invertible: ClassVar[bool] = True
    keeps_statistics: ClassVar[bool] = False
    side: ClassVar[Literal["before", "after"] | None] = None
    references: tuple[str, ...] = ()
    chains: ClassVar[bool] = False
    imitates: ClassVar[bool] = False
    rotation_dims: tuple[int, ...] = ()
    rotation_limit: float = 1.0

    def bind(self, spec: Spec) -> Spec:
        """Check the spec of the input and return the spec of the output; called once, before any conversion.

        Raises:
            ConfigError: the step cannot process such an input; the message names the step, the key, and what was
                expected.
        """
        return spec

    def acts_on(self, key: str) -> bool:
        """Return true for the observations that the step changes."""
        return False

    def fit(self, statistics: Statistics) -> None:  # noqa: B027 - a hook, empty by default
        """Fit the step to statistics of the incoming values; called once, before training."""

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Convert an observation ``(*B, ...)`` that the step acts on; the value may be changed in place."""
        return value

    def inverse_obs(self, key: str, value: Tensor) -> Tensor:
        """Invert :meth:`forward_obs`; ``value`` is not changed in place."""
        return value

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn, not in place.

        Args:
            actions: (B, A) of one step, or (B, T, A) of several.
            reference: for each key of :attr:`references`, the observation to which these actions are relative, in the
                units of the data: (B, D), one for all T steps; or (B, T, D), one per step.
        """
        return actions

    def inverse_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Invert :meth:`forward_actions`."""
        return actions

    def measured_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert a chunk ``(B, K, A)`` to values that networks learn, for computing their statistics."""
        return self.forward_actions(actions, reference)

    def to_targets(self, actions: Tensor) -> Tensor:
        """Convert chunks ``(B, K, A)``, after the step, to the targets of networks; must be linear."""
        return actions

    def from_targets(self, targets: Tensor) -> Tensor:
        """Invert :meth:`to_targets`."""
        return targets

    def place_before(self, dim: int) -> int:
        """Convert the index ``dim`` of an unchanged number of the action after this step to its index before it."""
        return dim

    def packed(self, keys: Sequence[str]) -> PackedStep | None:
        """Return a function that applies the step to several concatenated vectors ``(*B, D)`` at once, for speed.

        It takes tensors and, on the CPU, arrays, for which numpy is several times as fast with one observation. The
        result is None if the step has no such function; its keys are then prepared one by one.
        """
        return None


def columns(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the numbers (*B, len(dims)) at the indices ``dims`` of ``x`` (*B, D).

    Indexing with a list gives the same result, but copies the list to the device of ``x``, which makes the CPU wait for
    a GPU.
    """
    first, count = dims[0], len(dims)
    if list(dims) == list(range(first, first + count)):
        return x[..., first : first + count]
    return torch.stack([x[..., dim] for dim in dims], dim=-1)
