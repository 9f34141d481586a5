"""Preprocessing steps that change coordinates: relative actions, rotations as six numbers, angles as sine and cosine.

Policies that predict chunks learn a controller's goal poses better as differences from the robot's pose at the start of
the chunk (Chi et al., UMI, RSS 2024, arXiv:2402.10329). The whole chunk has one reference.

Functions of this module also convert relative actions from one reference to another, and chunks to differences between
successive actions.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from imitate.errors import ConfigError, nearest
from imitate.functional import rotations
from imitate.functional.rotations import (
    FORMS,
    Pose,
    RotationForm,
    matrix_to_rotation_6d,
    rotation_6d_to_matrix,
)
from imitate.functional.transfer import to_device
from imitate.models.layout import ActionLayout
from imitate.models.preprocessing.standard import Rotations
from imitate.models.preprocessing.step import Observations, PreprocessStep, Spec, columns


class RelativeActions(PreprocessStep):
    """Step that subtracts an observation from the action, number by number, and adds it back for the robot.

    Args:
        observation: vector observation, such as the position of the gripper.
        action: action key; None if there is only one action key.
        dims: indices of the action's numbers that are made relative; None for the first numbers, as many as
            ``observation_dims`` has.
        observation_dims: indices of the observation's numbers that are subtracted, as many as ``dims``; None for the
            first numbers, as many as ``dims`` has, or all if both are None.
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
                f"{self.name}: {len(dims)} dims of the action, but {len(from_dims)} observation_dims; expected "
                "the same number of both"
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
        """Return the differences within a chunk, because statistics are computed from these."""
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
    """Apply ``convert`` with the step that combines a chunk's actions; undo later steps before, and redo them after."""
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
                    f"'{step.name or 'obs_clip'}' does not keep its values; expected only steps with an inverse"
                )


_SIZE = 6
"""Number of values of a rotation in rotation-6d, which networks learn."""


def form_of(name: str, place: str) -> RotationForm:
    """Return the representation of rotations that the option ``place`` names."""
    if name not in FORMS:
        raise ConfigError(f"{place} is '{name}'; {nearest(name, FORMS)}")
    return FORMS[name]


class Rotation6d(PreprocessStep):
    """Convert a rotation of an action to rotation-6d, which is continuous, and back.

    Zhou et al. 2019, arXiv:1812.07035.

    The six numbers are not normalized.

    Args:
        dims: consecutive indices of the rotation's numbers in the whole action, such as [3, 4, 5].
        form: representation in the data and for the robot: 'axis_angle', 'quaternion' (x, y, z, w), 'matrix' (row by
            row), 'euler' or 'rotation_6d'.
    """

    changes_actions = True
    imitates = True
    side = "before"

    def __init__(self, dims: Sequence[int], form: str = "axis_angle") -> None:
        super().__init__()
        self._dims = [int(dim) for dim in dims]
        self._form = form_of(form, "rotation_6d: form")
        self.rotation_dims = tuple(self._dims)
        self.rotation_limit = math.pi if form in ("axis_angle", "euler") else 1.0

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        size = self._form.size
        total = sum(spec.actions.values())
        first = self._dims[0] if self._dims else -1
        wanted = list(range(first, first + size))
        if self._dims != wanted or first < 0 or first + size > total:
            raise ConfigError(
                f"{self.name}: the rotation's dims are {self._dims}; expected {size} consecutive indices below "
                f"{total}, such as {list(range(3, 3 + size))}"
            )
        key, place = self._key_at(spec, first)
        if place + size > spec.actions[key]:
            raise ConfigError(
                f"{self.name}: the rotation's dims {self._dims} are in several keys of train.action_keys; expected one"
            )
        moved = {dim if dim < first else dim + _SIZE - size for dim in spec.unscaled}
        return Spec(
            spec.obs,
            {**spec.actions, key: spec.actions[key] + _SIZE - size},
            frozenset({*moved, *range(first, first + _SIZE)}),
        )

    @staticmethod
    def _key_at(spec: Spec, place: int) -> tuple[str, int]:
        """Return the action key that contains a number of the whole action, and its index there."""
        for key, dim in spec.actions.items():
            if place < dim:
                return key, place
            place -= dim
        raise AssertionError("beyond the action")

    def place_before(self, dim: int) -> int:
        """Convert the index ``dim`` of a number of the action after this step to its index before the step."""
        return dim if dim < self._dims[0] + _SIZE else dim - _SIZE + self._form.size

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn."""
        matrix = self._form.to_matrix(columns(actions, self._dims))
        return self._with_rotation(actions, matrix_to_rotation_6d(matrix), self._form.size)

    def inverse_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Invert :meth:`forward_actions`."""
        matrix = rotation_6d_to_matrix(self._learned(actions))
        return self._with_rotation(actions, self._form.from_matrix(matrix), _SIZE)

    def _learned(self, actions: Tensor) -> Tensor:
        first = self._dims[0]
        return actions[..., first : first + _SIZE]

    def _with_rotation(self, actions: Tensor, rotation: Tensor, size: int) -> Tensor:
        """Replace ``size`` numbers of the action, its rotation, by the numbers of ``rotation``."""
        first = self._dims[0]
        return torch.cat((actions[..., :first], rotation, actions[..., first + size :]), dim=-1)


class RelativePose(Rotation6d):
    """Convert a pose of an action to the pose relative to the observed pose, with rotation-6d, and back.

    Args:
        position: observation with the position, three numbers.
        rotation: observation with the rotation.
        position_dims: indices of the position's numbers in the whole action.
        rotation_dims: consecutive indices of the rotation's numbers.
        form: representation of the action's rotation, see :class:`Rotation6d`.
        observed_form: representation of the observation's rotation.
        frame: 'hand': in the frame of the observed pose, as in UMI; 'world': along the axes of the world.
    """

    def __init__(
        self,
        position: str,
        rotation: str,
        position_dims: Sequence[int] = (0, 1, 2),
        rotation_dims: Sequence[int] = (3, 4, 5),
        form: str = "axis_angle",
        observed_form: str = "quaternion",
        frame: str = "hand",
    ) -> None:
        super().__init__(rotation_dims, form)
        if frame not in ("hand", "world"):
            raise ConfigError(f"relative_pose: frame is '{frame}'; expected 'hand' or 'world'")
        self.references = (position, rotation)
        self._observed_form = form_of(observed_form, "relative_pose: observed_form")
        self._position_dims = [int(dim) for dim in position_dims]
        in_hand = frame == "hand"
        self._there = rotations.relative_in_frame if in_hand else rotations.relative_in_world
        self._back = rotations.absolute_from_frame if in_hand else rotations.absolute_from_world

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        for key, size in zip(self.references, (3, self._observed_form.size), strict=True):
            shape = spec.space(key, self.name).shape
            if shape != (size,):
                raise ConfigError(
                    f"{self.name}: observation '{key}' has shape {shape}; expected ({size},)"
                )
        dims, others = self._position_dims, self._dims
        known = range(sum(spec.actions.values()))
        if len(set(dims)) != 3 or set(dims) & set(others) or not set(dims) <= set(known):
            raise ConfigError(
                f"{self.name}: position_dims is {dims}; expected three indices of the action other than {others}"
            )
        return super().bind(spec)

    def forward_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Convert actions ``(*B, A)`` to the form that networks learn."""
        matrix = self._form.to_matrix(columns(actions, self._dims))
        pose = Pose(columns(actions, self._position_dims), matrix)
        found = self._there(pose, self._base(actions, reference))
        learned = self._with_rotation(
            actions, matrix_to_rotation_6d(found.rotation), self._form.size
        )
        return self._with_position(learned, found.position, self._places_learned())

    def inverse_actions(self, actions: Tensor, reference: Observations) -> Tensor:
        """Invert :meth:`forward_actions`."""
        learned = self._places_learned()
        pose = Pose(columns(actions, learned), rotation_6d_to_matrix(self._learned(actions)))
        found = self._back(pose, self._base(actions, reference))
        sent = self._with_rotation(actions, self._form.from_matrix(found.rotation), _SIZE)
        return self._with_position(sent, found.position, self._position_dims)

    def _places_learned(self) -> list[int]:
        """Return the indices of the position within the action that networks learn."""
        longer = _SIZE - self._form.size
        return [dim if dim < self._dims[0] else dim + longer for dim in self._position_dims]

    def _base(self, actions: Tensor, reference: Observations) -> Pose:
        """Return the observed pose, with an axis for the actions of a chunk."""
        position, rotation = (reference[key].to(actions) for key in self.references)
        matrix = self._observed_form.to_matrix(rotation)
        while position.dim() < actions.dim():
            position, matrix = position.unsqueeze(-2), matrix.unsqueeze(-3)
        return Pose(position, matrix)

    @staticmethod
    def _with_position(actions: Tensor, position: Tensor, dims: Sequence[int]) -> Tensor:
        parts = list(actions.unbind(-1))
        for dim, value in zip(dims, position.unbind(-1), strict=True):
            parts[dim] = value
        return torch.stack(parts, dim=-1)


class ContinuousObservation(PreprocessStep):
    """Base class of steps that convert numbers of an observation to a form that does not jump, and back.

    Args:
        observation: key of a vector observation.
        dims: consecutive indices of the numbers that are replaced; None for all.
    """

    side = "before"
    grown: int
    """Number of values that take the place of the chosen numbers."""

    def __init__(self, observation: str, dims: Sequence[int] | None) -> None:
        super().__init__()
        self._key = observation
        self._chosen = None if dims is None else [int(dim) for dim in dims]
        self._dims: list[int] = []

    @abstractmethod
    def taken(self, size: int) -> list[int]:
        """Return the indices to convert in a vector of ``size`` numbers, if the configuration has no ``dims``."""

    @abstractmethod
    def there(self, value: Tensor) -> Tensor:
        """Convert ``(*B, D)`` from the data to ``(*B, grown)``."""

    @abstractmethod
    def back(self, value: Tensor) -> Tensor:
        """Invert :meth:`there`, as far as the representation is unique."""

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        space = spec.space(self._key, self.name)
        if space.modality != "low_dim" or len(space.shape) != 1 or space.is_token:
            raise ConfigError(
                f"{self.name}: observation '{self._key}' is {space.modality} of shape {space.shape}; expected a vector"
            )
        size = space.shape[0]
        dims = self._chosen if self._chosen is not None else self.taken(size)
        first = dims[0] if dims else -1
        if (
            not dims
            or first < 0
            or dims != list(range(first, first + len(dims)))
            or dims[-1] >= size
        ):
            raise ConfigError(
                f"{self.name}: dims are {dims}; expected consecutive indices of the {size} numbers of '{self._key}'"
            )
        self._dims = dims
        return spec.with_obs({self._key: space._replace(shape=(size - len(dims) + self.grown,))})

    def acts_on(self, key: str) -> bool:
        """Return true for the chosen observation."""
        return key == self._key

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Convert an observation ``(*B, ...)`` that the step acts on."""
        return self._with(value, len(self._dims), self.there)

    def inverse_obs(self, key: str, value: Tensor) -> Tensor:
        """Invert :meth:`forward_obs`."""
        return self._with(value, self.grown, self.back)

    def _with(self, value: Tensor, size: int, change: Callable[[Tensor], Tensor]) -> Tensor:
        first = self._dims[0]
        end = first + size
        changed = change(value[..., first:end].float())
        return torch.cat((value[..., :first].float(), changed, value[..., end:].float()), dim=-1)


class ObservedRotation6d(ContinuousObservation):
    """Convert a rotation of an observation to rotation-6d, which is continuous and equal for quaternions q and -q.

    Args:
        observation: key of the observation.
        dims: indices of the rotation's numbers; None for all.
        form: representation of the rotation in the data, see :class:`Rotation6d`.
    """

    grown = _SIZE

    def __init__(
        self, observation: str, dims: Sequence[int] | None = None, form: str = "quaternion"
    ) -> None:
        super().__init__(observation, dims)
        self._form = form_of(form, "observed_rotation_6d: form")

    def bind(self, spec: Spec) -> Spec:
        """Return the shapes of observations and actions after this step, from those before it."""
        bound = super().bind(spec)
        if len(self._dims) != self._form.size:
            raise ConfigError(
                f"{self.name}: {len(self._dims)} numbers of '{self._key}' are chosen; expected the {self._form.size} "
                "of the form: list their indices in dims"
            )
        return bound

    def taken(self, size: int) -> list[int]:
        """Return the indices to convert in a vector of ``size`` numbers: all of them."""
        return list(range(size))

    def there(self, value: Tensor) -> Tensor:
        """Convert the chosen numbers of the data to the form that networks see."""
        return matrix_to_rotation_6d(self._form.to_matrix(value))

    def back(self, value: Tensor) -> Tensor:
        """Invert :meth:`there`."""
        return self._form.from_matrix(rotation_6d_to_matrix(value))


class SinCos(ContinuousObservation):
    """Convert angles of an observation to sines and cosines, which do not jump from pi to -pi.

    Args:
        observation: key of the observation.
        dims: consecutive indices of the angles, in radians; None for all.
    """

    def __init__(self, observation: str, dims: Sequence[int] | None = None) -> None:
        super().__init__(observation, dims)
        self.grown = 2 * len(self._chosen or ())

    def taken(self, size: int) -> list[int]:
        """Return the indices to convert in a vector of ``size`` numbers: all of them."""
        self.grown = 2 * size
        return list(range(size))

    def there(self, value: Tensor) -> Tensor:
        """Convert the chosen numbers of the data to the form that networks see."""
        return torch.cat((value.sin(), value.cos()), dim=-1)

    def back(self, value: Tensor) -> Tensor:
        """Invert :meth:`there`."""
        sine, cosine = value.chunk(2, dim=-1)
        return torch.atan2(sine, cosine)
