"""Contract of a preprocessing step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from imitate.errors import ConfigError, nearest
from imitate.models.fitting import Statistics
from imitate.models.layout import Shape

Observations = Mapping[str, Tensor]


class Space(NamedTuple):
    """Values of one observation, at one place of the pipeline.

    Attributes:
        shape: of one time step.
        modality: 'low_dim', 'rgb', 'depth' or 'scan'.
        is_token: True for whole numbers that name words; these are never normalized or clipped.
    """

    shape: Shape
    modality: str
    is_token: bool = False


class Spec(NamedTuple):
    """Observations and actions at the input of a step, or at its output.

    Attributes:
        obs: space of each observation.
        actions: numbers of each action key, in the order of their concatenation.
        unscaled: places in the whole action of the numbers that the normalization leaves as they are.
    """

    obs: dict[str, Space]
    actions: dict[str, int]
    unscaled: frozenset[int] = frozenset()

    def space(self, key: str, step: str) -> Space:
        """Return the space of an observation that the configuration of a step names."""
        if key not in self.obs:
            raise ConfigError(
                f"{step}: there is no observation '{key}'; {nearest(key, self.obs)} "
                f"(observation.modalities has {', '.join(self.obs) or 'none'})"
            )
        return self.obs[key]

    def with_obs(self, changed: Mapping[str, Space]) -> Spec:
        """Return the same with other spaces of some observations."""
        return self._replace(obs={**self.obs, **changed})


class PreprocessStep(nn.Module):
    """One step between raw values and networks, on observations, on actions, or on both.

    The constructor's arguments are the step's options, as they stand in ``train.preprocess``: numbers, strings, lists
    and objects of them. Tensors that belong to it are registered as buffers, in the constructor or in :meth:`bind`;
    options and buffers are what a checkpoint keeps. A step that changes observations overrides :meth:`acts_on`,
    :meth:`forward_obs` and :meth:`inverse_obs`; one that changes actions sets :attr:`changes_actions` and overrides
    :meth:`forward_actions` and :meth:`inverse_actions`; one that changes shapes returns them in :meth:`bind`.

    Attributes:
        name: in the configuration, for messages and checkpoints.
        options: arguments of the constructor.
        changes_actions: True for a step that changes actions.
        invertible: False where :meth:`inverse_obs` does not give back the values that :meth:`forward_obs` got.
        keeps_statistics: True where statistics (per channel of images) are the same after the step as before.
        side: 'before' or 'after', where a step belongs on that side of the normalization; None: either.
        references: observations that actions are relative to, see :meth:`forward_actions`.
        chains: True for a step whose :meth:`to_targets` joins the actions of a chunk.
        imitates: True for a step on actions that is for algorithms that imitate actions.
        rotation_dims: places in the incoming action of numbers that are a rotation, each within +- ``rotation_limit``.
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
        """Return the spec of the output for that of the input; called once, before any value.

        Raises:
            ConfigError: the step cannot take that; the message names step, key, value got and value expected.
        """
        return spec

    def acts_on(self, key: str) -> bool:
        """Return true for the observations that the step changes."""
        return False

    def fit(self, statistics: Statistics) -> None:  # noqa: B027 - a hook, empty by default
        """Learn from statistics of the values that come in; called once, before training."""

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Convert an observation ``(*B, ...)`` that the step acts on; it may be changed in place."""
        return value

    def inverse_obs(self, key: str, value: Tensor) -> Tensor:
        """Restore the values of before :meth:`forward_obs`; the given ones are not changed in place."""
        return value

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn; not in place.

        Args:
            actions: of one step (B, A), or of several (B, T, A).
            reference: per key of :attr:`references` the observation that these actions are relative to, in the units
                of the data: (B, D), one for all T; or (B, T, D), one for each.
        """
        return actions

    def inverse_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Invert :meth:`forward_actions`."""
        return actions

    def measured_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Return the values of a chunk ``(B, K, A)`` that statistics are taken of: those that networks learn."""
        return self.forward_actions(actions, reference)

    def to_targets(self, actions: Tensor) -> Tensor:
        """Convert chunks ``(B, K, A)`` of the outgoing form to those that networks learn; a linear map."""
        return actions

    def from_targets(self, targets: Tensor) -> Tensor:
        """Invert :meth:`to_targets`."""
        return targets

    def place_before(self, dim: int) -> int:
        """Return the place in the incoming action of a number of the outgoing one, of those that the step leaves."""
        return dim

    def packed(self, keys: Sequence[str]) -> Callable[[Tensor], Tensor] | None:
        """Return the step on several vectors at once, for speed: a function of ``(*B, D)``, their values side by side.

        None where there is no such function; keys that the step acts on are then prepared one by one.
        """
        return None
