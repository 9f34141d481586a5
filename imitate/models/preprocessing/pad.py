"""Padding of vectors to a common length."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from imitate.errors import ConfigError
from imitate.models.preprocessing.step import Observations, PreprocessStep, Spec


class Pad(PreprocessStep):
    """Append zeros to an observation or the action, up to a length, for one network of several robots.

    Args:
        dim: length of the padded vector.
        observation: key of the observation; None: the action.

    Attributes:
        mask: (dim,) bool, true for real numbers, false for padding.
    """

    side = "after"
    mask: Tensor

    def __init__(self, dim: int, observation: str | None = None) -> None:
        super().__init__()
        self.dim = int(dim)
        self._key = observation
        self.changes_actions = observation is None
        self.register_buffer("mask", torch.ones(self.dim, dtype=torch.bool))
        self._real = self.dim

    def bind(self, spec: Spec) -> Spec:
        """Return the spec of the step's output."""
        if self._key is None:
            self._set_real(sum(spec.actions.values()), "the action")
            missing = self.dim - self._real
            padding = {PADDING: missing} if missing else {}
            return spec._replace(actions={**spec.actions, **padding})
        space = spec.space(self._key, self.name)
        if space.modality != "low_dim" or len(space.shape) != 1:
            raise ConfigError(
                f"{self.name}: observation '{self._key}' is {space.modality} of shape {space.shape}; expected a vector"
            )
        self._set_real(space.shape[0], f"observation '{self._key}'")
        return spec.with_obs({self._key: space._replace(shape=(self.dim,))})

    def _set_real(self, size: int, what: str) -> None:
        if size > self.dim:
            raise ConfigError(
                f"{self.name}: dim is {self.dim}, but {what} has {size} numbers; expected at least {size}"
            )
        self._real = size
        self.mask[size:] = False

    def acts_on(self, key: str) -> bool:
        """Return true for the chosen observation."""
        return key == self._key

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Convert an observation ``(*B, ...)`` that the step acts on."""
        return self._padded(value)

    def inverse_obs(self, key: str, value: Tensor) -> Tensor:
        """Invert :meth:`forward_obs`."""
        return value[..., : self._real]

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn."""
        return self._padded(actions)

    def inverse_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Invert :meth:`forward_actions`."""
        return actions[..., : self._real]

    def _padded(self, value: Tensor) -> Tensor:
        return pad(value, (0, self.dim - self._real))


PADDING = "padding"
"""Action key of the padding, which is not sent to a robot."""
