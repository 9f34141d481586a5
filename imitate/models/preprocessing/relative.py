"""Steps of the preprocessing that make actions relative to an observation.

Policies that predict chunks learn a controller's goal poses better as differences from the robot's pose at the start of
the chunk (Chi et al., UMI, RSS 2024, arXiv:2402.10329). The whole chunk has one reference.

The steps convert actions relative to observations, between references, and combined within a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from imitate.errors import ConfigError, nearest
from imitate.functional.transfer import to_device
from imitate.models.layout import ActionLayout
from imitate.models.preprocessing.standard import Rotations
from imitate.models.preprocessing.step import Observations, PreprocessStep, Spec, columns


class RelativeActions(PreprocessStep):
    """Step that subtracts an observation from the action, number by number, and adds it back for the robot.

    Args:
        observation: vector observation, such as the position of the gripper.
        action: action key; None if there is only one action key.
        dims: indices of the action's numbers that are made relative; None: the first numbers, as many as
            ``observation_dims`` has.
        observation_dims: indices of the observation's numbers that are subtracted, as many as ``dims``; None: the first
            numbers, as many as ``dims`` has, or all if both are None.
    """

    changes_actions = True
    imitates = True
    side = "before"

    def __init__(
        self,
        observation: str,
        action: str | None = None,
        dims: Sequence[int] | None = None,
        observation_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.references = (observation,)
        self._action = action
        self._dims = None if dims is None else list(dims)
        self._observation_dims = None if observation_dims is None else list(observation_dims)
        self._index: list[int] = []

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        (observation,) = self.references
        space = spec.space(observation, self.name)
        if space.modality != "low_dim" or len(space.shape) != 1 or space.is_token:
            raise ConfigError(
                f"{self.name}: observation '{observation}' is {space.modality} of shape {space.shape}; "
                "expected a vector"
            )
        names = list(spec.actions)
        action = self._action or names[0]
        if action not in names or (self._action is None and len(names) > 1):
            raise ConfigError(
                f"{self.name}: action is '{self._action}'; expected a key of train.action_keys "
                f"({', '.join(names)}); {nearest(action, names)}"
            )
        from_dims, dims = self._observation_dims, self._dims
        if from_dims is None:
            from_dims = list(range(space.shape[0] if dims is None else len(dims)))
        dims = list(range(len(from_dims))) if dims is None else dims
        _check_dims(f"{self.name}: dims", dims, spec.actions[action], f"action '{action}'")
        _check_dims(
            f"{self.name}: observation_dims",
            from_dims,
            space.shape[0],
            f"observation '{observation}'",
        )
        if len(dims) != len(from_dims):
            raise ConfigError(
                f"{self.name}: {len(dims)} dims of the action, but {len(from_dims)} observation_dims; expected equal "
                "numbers"
            )
        start = sum(spec.actions[name] for name in names[: names.index(action)])
        self._index = [start + dim for dim in dims]
        self._from = from_dims
        return spec

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn."""
        return actions - self._shift(actions, reference)

    def inverse_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Invert :meth:`forward_actions`."""
        return actions + self._shift(actions, reference)

    def _shift(self, actions: Tensor, reference: Observations) -> Tensor:
        """Return a tensor with the shape of an action: the reference for its relative numbers, 0 for other numbers."""
        value = columns(reference[self.references[0]], self._from).to(actions)
        while value.dim() < actions.dim():
            value = value.unsqueeze(-2)
        numbers = dict(zip(self._index, value.unbind(-1), strict=True))
        zero = torch.zeros_like(value[..., 0])
        return torch.stack([numbers.get(dim, zero) for dim in range(actions.shape[-1])], dim=-1)


class DeltaActions(RelativeActions):
    """Differences between successive actions of a chunk; the first action is relative to an observation.

    Networks learn ``a_0 - o``, ``a_1 - a_0``, ``a_2 - a_1`` ... In the pipeline, actions are those of
    :class:`RelativeActions`, ``a_k - o``, because each must be usable alone while a chunk is executed. The arguments
    are those of :class:`RelativeActions`.
    """

    chains = True

    def measured_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Return the differences within a chunk, because statistics are computed of these."""
        return self.to_targets(self.forward_actions(actions, reference))

    def to_targets(self, actions: Tensor) -> Tensor:
        """Convert actions of a chunk to differences."""
        before = torch.cat((torch.zeros_like(actions[..., :1, :]), actions[..., :-1, :]), dim=-2)
        return torch.where(self._chosen(actions), actions - before, actions)

    def from_targets(self, targets: Tensor) -> Tensor:
        """Invert :meth:`to_targets`."""
        return torch.where(self._chosen(targets), targets.cumsum(-2), targets)

    def _chosen(self, actions: Tensor) -> Tensor:
        """Return a mask (A,) bool, true for the action's relative numbers."""
        chosen = torch.zeros(actions.shape[-1], dtype=torch.bool)
        chosen[self._index] = True
        return to_device(chosen, actions.device)


def _check_dims(place: str, dims: Sequence[int], size: int, what: str) -> None:
    if sorted(set(dims)) != sorted(dims) or any(dim not in range(size) for dim in dims):
        raise ConfigError(
            f"{place} is {list(dims)}, but {what} has {size} numbers; expected distinct indices from 0 to {size - 1}"
        )


Steps = Sequence[PreprocessStep]


def _forward(steps: Steps, actions: Tensor, reference: Observations) -> Tensor:
    """Convert stored actions to the networks' targets."""
    for step in steps:
        actions = step.forward_actions(actions, reference)
    return actions


def _inverse(steps: Steps, actions: Tensor, reference: Observations) -> Tensor:
    """Convert predictions to actions in their stored form."""
    for step in reversed(steps):
        actions = step.inverse_actions(actions, reference)
    return actions


def rebased_actions(
    steps: Steps, actions: Tensor, before: Observations, after: Observations
) -> Tensor:
    """Convert actions that are relative to the reference ``before`` to the same actions relative to ``after``."""
    # Two kinds of steps are skipped: rotations, because the given and the returned actions are in the form that
    # networks learn, and steps without an inverse, such as limits, which only change actions for training.
    relative = [step for step in steps if step.invertible and not isinstance(step, Rotations)]
    return _forward(relative, _inverse(relative, actions, before), after)


def through_chain(
    steps: Steps, actions: Tensor, convert: Callable[[PreprocessStep, Tensor], Tensor]
) -> Tensor:
    """Apply ``convert`` with the step that combines the actions of a chunk; later steps are undone and redone."""
    place = next((number for number, step in enumerate(steps) if step.chains), None)
    if place is None:
        return actions
    behind = [step for step in steps[place + 1 :] if step.invertible]
    joined = convert(steps[place], _inverse(behind, actions, {}))
    return _forward(behind, joined, {})


def check_relations(steps: Steps, actions: ActionLayout) -> None:
    """Raise ConfigError for steps that change a reference observation, or that convert a rotation twice.

    Raises:
        ConfigError: the message names the step.
    """
    if actions.converts and any(step.rotation_limit > 1.0 for step in steps):
        raise ConfigError(
            "train.preprocess: a step expects rotations in the form of the data, but "
            "train.action_config converts one to 6d first: set the step's form to 'rotation_6d', or remove "
            "convert_at_runtime"
        )
    chained = [number for number, step in enumerate(steps) if step.chains]
    if chained and any(step.references for step in steps[chained[0] + 1 :]):
        raise ConfigError(
            "train.preprocess: a step after delta_actions is relative to an observation; expected a single step "
            "delta_actions, after all other relative steps"
        )
    for key in (key for step in steps for key in step.references):
        for step in steps:
            if not step.invertible and step.acts_on(key):
                raise ConfigError(
                    f"train.preprocess: actions are relative to observation '{key}', but step "
                    f"'{step.name or 'obs_clip'}' does not keep its values; expected only steps that do"
                )
