"""Steps that convert rotations to six numbers, absolute or relative to a pose, and angles to sine and cosine."""

from __future__ import annotations

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
from imitate.models.preprocessing.step import Observations, PreprocessStep, Spec, columns

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
        """Return the index, before this step, of a number of the action whose index after it is ``dim``."""
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
        dims: consecutive indices of the numbers that are replaced; None: all.
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
        dims: indices of the rotation's numbers; None: all.
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
        dims: consecutive indices of the angles, in radians; None: all.
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
