"""Preprocessing of raw observations and actions for networks, and its inverse.

Steps process some vectors together, and other values one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from imitate.errors import ConfigError, UserError, nearest
from imitate.functional.transfer import to_device
from imitate.models.fitting import Affine, Statistics
from imitate.models.layout import ActionLayout, JoinedVectors, Shape, raw_shape_of
from imitate.models.preprocessing.coordinates import (
    check_relations,
    rebased_actions,
    through_chain,
)
from imitate.models.preprocessing.measuring import Samples, statistics_before
from imitate.models.preprocessing.standard import Clip, Layout, Normalize, Rotations
from imitate.models.preprocessing.step import (
    Observations,
    PackedStep,
    PreprocessStep,
    Space,
    Spec,
)
from imitate.models.preprocessing.steps import (
    VERSION,
    load_tensors,
    make_steps,
    saved_arguments,
    saved_form,
)

__all__ = ["VERSION", "Preprocess"]


class Preprocess(nn.Module):
    """Pipeline of observations and actions, the same in training, rollout and serving.

    Its steps are, in order: layout, rotations, and the steps of ``train.preprocess``, which include the normalization.
    Without steps in ``train.preprocess``, observations become float32 on the module's device: images uint8 (H, W, C)
    become (C, H, W) in [0, 1], float images must be in [0, 1] already, and scans (L, C) become (C, L). Then
    ``(x - offset) / scale``, per channel for images, and low_dim numbers are clipped to +-``obs_clip``.
    Actions are the concatenation of the action keys in the given order, with rotations as described in
    :class:`~imitate.models.layout.ActionLayout`, normalized in the same way and converted back. Without
    normalization, offset is 0 and scale is 1.

    Args:
        raw_shapes: shape of one step of each observation key as stored.
        modalities: 'low_dim', 'rgb', 'depth' or 'scan' for each key.
        actions: layout of the action keys, or the size of each key, in the order of concatenation.
        obs_affine: offset and scale of the keys to normalize, shaped like one step, or per channel.
        action_affine: offset and scale of the action keys to normalize.
        obs_clip: largest magnitude of a prepared low_dim number; None for no limit.
        steps: entries of ``train.preprocess``, see :mod:`imitate.models.preprocessing.steps`.
        normalize: the normalization step, which is fitted later; by default, a normalization that changes no values.
        image_types: type of the recorded values of each image ('uint8', 'integer' or 'float'), where it is known.

    Attributes:
        steps: all steps in order.
        normalization: the step that normalizes.
        obs_shapes: shape of one step of each observation as networks see it.
        reference_keys: observations to which actions are relative; empty if actions are not relative.
        feature_shapes: shapes of features of frozen encoders, by image key. If a value has such a shape, it is the
            features of an image, which networks receive unchanged. A training sets this attribute, which is not saved.
    """

    normalization: Normalize
    _layout: Layout

    def __init__(
        self,
        raw_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        actions: ActionLayout | Mapping[str, int],
        obs_affine: Mapping[str, Affine] | None = None,
        action_affine: Mapping[str, Affine] | None = None,
        obs_clip: float | None = None,
        steps: Sequence[Mapping[str, Any]] = (),
        normalize: Normalize | None = None,
        image_types: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.raw_shapes = {key: tuple(raw_shapes[key]) for key in sorted(raw_shapes)}
        self.modalities = {key: modalities[key] for key in self.raw_shapes}
        self.actions = actions if isinstance(actions, ActionLayout) else ActionLayout(actions)
        self.obs_clip = obs_clip
        before, after = make_steps(steps)
        layout, normalization = Layout(), normalize or Normalize()
        layout.image_types = {
            key: kind for key, kind in (image_types or {}).items() if key in self.raw_shapes
        }
        self.feature_shapes: dict[str, Shape] = {}
        # Both modules are registered as steps too; these attributes bypass torch's registration, so that each is
        # registered once.
        self.__dict__.update(_layout=layout, normalization=normalization)
        clip = [] if obs_clip is None else [Clip(obs_clip)]
        self.steps: list[PreprocessStep] = [
            *(layout, Rotations(self.actions), *before),
            *(normalization, *clip, *after),
        ]
        self.registered_steps = nn.ModuleList(self.steps)
        self.register_load_state_dict_post_hook(_refreshed)  # type: ignore[no-untyped-call]
        self._specs = self._bound()
        self.obs_shapes = {key: space.shape for key, space in self._specs[-1].obs.items()}
        self.reference_keys = tuple(
            dict.fromkeys(key for step in self.steps for key in step.references)
        )
        for key, affine in (obs_affine or {}).items():
            normalization.set_obs(key, *affine)
        for key, affine in (action_affine or {}).items():
            normalization.set_actions(key, *affine)
        self._refresh()

    def _bound(self) -> list[Spec]:
        """Bind each step to the output spec of the previous step; return all input specs and the last output spec."""
        spaces = {key: Space(self.raw_shapes[key], self.modalities[key]) for key in self.raw_shapes}
        specs = [Spec(spaces, {name: key.stored for name, key in self.actions.keys.items()})]
        for step in self.steps:
            specs.append(step.bind(specs[-1]))
        check_relations(self.steps, self.actions)
        return specs

    # ---- constructors ---------------------------------------------------------------------------

    @classmethod
    def layout_only_from_processed(
        cls,
        obs_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        action_dims: Mapping[str, int],
    ) -> Self:
        """Build a pipeline without normalization from the shapes that networks see: images (C, H, W)."""
        raw = {key: raw_shape_of(shape, modalities[key], key) for key, shape in obs_shapes.items()}
        return cls(raw, modalities, action_dims)

    @classmethod
    def unfitted(
        cls,
        raw_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        action_dims: Mapping[str, int],
        *,
        obs_normalization: str | None = None,
        action_config: Mapping[str, Any] | None = None,
        unit_range_keys: Collection[str] = (),
        obs_clip: float | None = None,
        steps: Sequence[Mapping[str, Any]] = (),
        image_types: Mapping[str, str] | None = None,
    ) -> Self:
        """Build an unfitted pipeline from shapes and names, for :meth:`fit`.

        The arguments are those of :meth:`from_statistics`.
        """
        layout = ActionLayout.from_config(action_dims, action_config or {})
        modes: dict[str, str | None] = {}
        for name, action_key in layout.keys.items():
            modes[name] = (action_config or {}).get(name, {}).get("normalization", None)
            if modes[name] is not None and action_key.learned != action_key.stored:
                raise ConfigError(
                    f"train.action_config.{name}.normalization is '{modes[name]}', but rotations that are converted to "
                    "6d are within [-1, 1] already; set it to null"
                )
        normalize = Normalize(obs_normalization, modes, unit_range_keys)
        return cls(
            raw_shapes,
            modalities,
            layout,
            obs_clip=obs_clip,
            steps=steps,
            normalize=normalize,
            image_types=image_types,
        )

    @classmethod
    def from_statistics(
        cls,
        raw_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        action_dims: Mapping[str, int],
        statistics: Statistics,
        obs_normalization: str | None = None,
        action_config: Mapping[str, Any] | None = None,
        unit_range_keys: Collection[str] = (),
        obs_clip: float | None = None,
        steps: Sequence[Mapping[str, Any]] = (),
        samples: Samples | None = None,
    ) -> Self:
        """Build a pipeline fitted to data.

        Args:
            raw_shapes: shape of one step of each observation key as stored.
            modalities: modality of each key.
            action_dims: size of each action key, in the order of concatenation.
            statistics: ``{"obs": {key: Stats}, "actions": {key: Stats}}``.
            obs_normalization: None; 'mean_std', with a std of at least 0.01; 'min_max', to [-1, 1]; 'quantile', which
                maps the quantiles 0.01 and 0.99 of each number to -1 and 1.
            action_config: per action key a mapping with ``normalization``: None; 'min_max', to
                +-0.999999; 'gaussian', to mean 0 and std 1; 'quantile' as for observations; and ``format`` and
                ``convert_at_runtime``, see :class:`~imitate.models.layout.ActionLayout`.
            unit_range_keys: images that are not normalized further and remain in [0, 1].
            obs_clip: largest magnitude of a prepared low_dim number; None for no limit.
            steps: entries of ``train.preprocess``.
            samples: windows of the data, for statistics of values that ``steps`` have changed.
        """
        pipeline = cls.unfitted(
            raw_shapes,
            modalities,
            action_dims,
            obs_normalization=obs_normalization,
            action_config=action_config,
            unit_range_keys=unit_range_keys,
            obs_clip=obs_clip,
            steps=steps,
        )
        pipeline.fit(statistics, samples)
        return pipeline

    def fit(self, statistics: Statistics, samples: Samples | None = None) -> None:
        """Fit each step to its input.

        Args:
            statistics: statistics of the data.
            samples: windows of the data, for statistics of values that earlier steps have changed.
        """
        for number, (step, spec) in enumerate(zip(self.steps, self._specs[:-1], strict=True)):
            step.fit(statistics_before(self.steps, number, spec, statistics, samples))
        self._refresh()

    # ---- observations ----------------------------------------------------------------------------

    def prepare_obs(self, raw: Raw, keys: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Prepare raw observations as inputs of networks.

        Args:
            raw: (*B, ...) arrays or tensors with the same leading dimensions; other keys are ignored.
            keys: the requested keys; None for all.

        Returns:
            (*B, ...) float32 tensors on the module's device, which may share one storage.

        Raises:
            UserError: a key is missing or has another shape, or an image has values beyond its range.
        """
        plan = self.plan(None if keys is None else tuple(keys))
        features, checked = [], plan.keys
        if self.feature_shapes:
            features = self._features(raw, plan.keys)
            checked = tuple(key for key in plan.keys if key not in features)
        check_raw(raw, checked, self.raw_shapes, self.modalities)
        return plan.prepared(raw, features)

    def plan(self, keys: tuple[str, ...] | None) -> ObsPlan:
        """Return the plan for preparing the observations ``keys`` (None for all), made once and then reused."""
        plan = self._plans.get(keys)
        if plan is None:
            device = self.normalization.offset.device
            plan = obs_plan(self.steps, self.raw_shapes, self.modalities, keys, device)
            self._plans[keys] = plan
        return plan

    def _features(self, raw: Raw, keys: Sequence[str]) -> list[str]:
        """Return the keys of images for which ``raw`` contains features of a frozen encoder."""
        return [
            key
            for key in keys
            if key in self.feature_shapes and key in raw
            if tuple(raw[key].shape[-3:]) == self.feature_shapes[key] != self.raw_shapes[key]
        ]

    def unnormalize_obs(self, key: str, value: Tensor) -> Tensor:
        """Convert a prepared observation ``(*B, ...)`` to the units of the data; images stay (C, H, W) in [0, 1]."""
        for step in reversed(self.steps):
            if step.acts_on(key):
                value = step.inverse_obs(key, value)
        return value

    def normalize_obs(self, key: str, value: Tensor) -> Tensor:
        """Invert :meth:`unnormalize_obs`; values are clipped as in :meth:`prepare_obs`."""
        value = value.clone()
        for step in self.steps[1:]:
            if step.acts_on(key):
                value = step.forward_obs(key, value)
        return value

    def set_obs_normalization(self, key: str, offset: Tensor, scale: Tensor) -> None:
        """Set offset and scale of an observation, with the shape of one step, or per channel of an image."""
        self.normalization.set_obs(key, offset, scale)
        self._refresh()

    # ---- actions ---------------------------------------------------------------------------------

    def normalize_actions(self, actions: Tensor, obs: Observations | None = None) -> Tensor:
        """Convert stored actions ``(*B, D)`` to the networks' targets, ``(*B, A)`` float32 on the module's device.

        Args:
            actions: (B, D) of one step, or (B, T, D) of several.
            obs: prepared observations with :attr:`reference_keys`, of the step at which the actions begin (B, ...), or
                of each step (B, T, ...); ignored if actions are not relative.

        Raises:
            UserError: actions are relative to an observation that is missing.
        """
        actions = actions.to(self.action_offset)
        reference = self._reference(obs)
        for step in self._action_steps:
            actions = step.forward_actions(actions, reference)
        return actions

    def unnormalize_actions(self, actions: Tensor, obs: Observations | None = None) -> Tensor:
        """Convert predictions ``(*B, A)`` to the robot's actions; ``obs`` as in :meth:`normalize_actions`."""
        reference = self._reference(obs)
        for step in reversed(self._action_steps):
            actions = step.inverse_actions(actions, reference)
        return actions

    def rebase_actions(self, actions: Tensor, old: Observations, new: Observations) -> Tensor:
        """Convert predictions that are relative to the observations ``old`` to the same actions relative to ``new``."""
        if not self.reference_keys:
            return actions
        before, after = self._reference(old), self._reference(new)
        return rebased_actions(self._action_steps, actions, before, after)

    def to_targets(self, actions: Tensor) -> Tensor:
        """Convert normalized chunks ``(B, K, A)`` to the targets of networks; differs only with ``delta_actions``."""
        return through_chain(self._action_steps, actions, lambda step, x: step.to_targets(x))

    def from_targets(self, targets: Tensor) -> Tensor:
        """Invert :meth:`to_targets`."""
        return through_chain(self._action_steps, targets, lambda step, x: step.from_targets(x))

    def _reference(self, obs: Observations | None) -> Observations:
        """Return the observations to which actions are relative, in the units of the data."""
        if not self.reference_keys:
            return {}
        missing = [key for key in self.reference_keys if key not in (obs or {})]
        if obs is None or missing:
            step = next(step for step in self.steps if step.references)
            raise UserError(
                f"step '{step.name}': actions are relative to observation '{missing[0]}', but none was given: expected "
                "the prepared observation of the step at which the actions begin"
            )
        return {key: self.unnormalize_obs(key, obs[key]) for key in self.reference_keys}

    # ---- parts -----------------------------------------------------------------------------------

    @property
    def action_dim(self) -> int:
        """Number of values that networks predict for an action."""
        return sum(self._specs[-1].actions.values())

    @property
    def offset(self) -> Tensor:
        """Offset of all observations, concatenated."""
        return self.normalization.offset

    @property
    def scale(self) -> Tensor:
        """Scale of all observations, concatenated."""
        return self.normalization.scale

    @property
    def action_offset(self) -> Tensor:
        """Offset of the action."""
        return self.normalization.action_offset

    @property
    def action_scale(self) -> Tensor:
        """Scale of the action."""
        return self.normalization.action_scale

    @property
    def normalizes_obs(self) -> bool:
        """True if the normalization changes any observation."""
        return self.normalization.normalizes_obs

    @property
    def normalizes_actions(self) -> bool:
        """True if the normalization changes actions."""
        return self.normalization.normalizes_actions

    @property
    def beyond_unit_range(self) -> frozenset[str]:
        """Images that were recorded with values outside [0, 1]; the range of their values is not checked."""
        return self._layout.beyond_unit_range

    @property
    def image_types(self) -> Mapping[str, str]:
        """Type of each image's recorded values, if known; see :func:`~imitate.system.images.image_type`."""
        return self._layout.image_types

    @property
    def chosen_steps(self) -> list[PreprocessStep]:
        """The steps of ``train.preprocess``."""
        return [step for step in self.steps if step.name]

    def sent_limits(
        self, low: Sequence[float], high: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Convert limits of stored actions to limits of actions sent to the robot; rotations have limits +- pi or 1."""
        lows, highs = self.actions.sent_limits(low, high)
        for number, step in enumerate(self.steps):
            for place in step.rotation_dims if not self.actions.converts else ():
                for before in reversed(self.steps[:number]):
                    place = before.place_before(place)
                lows[place], highs[place] = -step.rotation_limit, step.rotation_limit
        return lows, highs

    # ---- saving ----------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the whole pipeline as tensors on the CPU, numbers, strings, lists and dicts."""
        return saved_form(
            self.raw_shapes,
            self.modalities,
            self.actions,
            self.steps,
            self.normalization,
            self.obs_clip,
            self.image_types,
        )

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Build the pipeline on the CPU from the result of :meth:`to_dict`, also from earlier versions.

        Raises:
            CheckpointError: the dict was written by a later version.
            ConfigError: a step belongs to a package that is not installed.
        """
        pipeline = cls(**saved_arguments(saved))
        load_tensors(pipeline.chosen_steps, saved)
        pipeline._refresh()
        return pipeline

    # ---- buffers ---------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Make new preparation plans; must be called whenever the buffers of a step change."""
        self._plans: dict[tuple[str, ...] | None, ObsPlan] = {}
        normalization = self.normalization
        normalization.refresh()
        self._layout.beyond_unit_range = frozenset(
            key
            for key, modality in self.modalities.items()
            if modality == "rgb" and bool((normalization.obs_affine(key)[0] > 1).any())
        )
        self._action_steps = [step for step in self.steps if step.changes_actions]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the plans, which contain functions and are recreated later."""
        return {**self.__dict__, "_plans": {}}

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._refresh()
        return self


def _refreshed(preprocess: Preprocess, keys: Any) -> None:
    preprocess._refresh()


Raw = Mapping[str, "Tensor | np.ndarray[Any, Any]"]

LARGEST = float(np.finfo(np.float32).max)


class ObsPlan(NamedTuple):
    """Plan of :meth:`~imitate.models.preprocess.Preprocess.prepare_obs` for one selection of keys.

    Attributes:
        keys: the selected keys.
        packed: vectors that are concatenated and prepared together.
        sizes: number of values of each vector in ``packed``.
        together: functions applied to the concatenated vectors, in order.
        device: device of the result.
        one_by_one: for each other key, the steps that change it, in order.
    """

    keys: tuple[str, ...]
    packed: tuple[str, ...]
    sizes: list[int]
    together: list[PackedStep]
    device: torch.device
    one_by_one: dict[str, list[PreprocessStep]]

    def prepared(self, raw: Raw, features: Collection[str]) -> dict[str, Tensor]:
        """Prepare checked values. Keys in ``features`` contain features, which are only converted to float32."""
        prepared: dict[str, Tensor] = {}
        if self.packed:
            joined = _joined([raw[key] for key in self.packed], self.device)
            prepared = self._split(self._changed(joined))
        for key, steps in self.one_by_one.items():
            value = _tensor(raw[key])
            if key in features:
                prepared[key] = to_device(value, self.device, torch.float32)
                continue
            for step in steps:
                value = step.forward_obs(key, value)
            prepared[key] = value
        return prepared

    def of_vectors(
        self, raw: Mapping[str, Any], names: Mapping[str, str]
    ) -> dict[str, Tensor] | None:
        """Prepare one observation, ``{key: (1, D)}``, in as few operations as possible.

        Args:
            raw: the observation, under the caller's names of the keys.
            names: the caller's name of each key.

        Returns:
            the prepared vectors; None if a value is not an array (D,) of finite numbers, so that :meth:`prepared` must
            be used, which checks each value.
        """
        if self.one_by_one:
            return None
        values = []
        for key, size in zip(self.packed, self.sizes, strict=True):
            value = raw.get(names[key])
            if type(value) is not np.ndarray or value.shape != (size,):
                return None
            values.append(value)
        joined = np.concatenate(values)
        # If the sum of squares is below LARGEST, each value is finite in float32; with NaN, the comparison is false.
        if joined.dtype.kind != "f" or not float(joined.dot(joined)) < LARGEST:
            return None
        x: Any = joined.astype(np.float32, copy=False)[None]
        if self.device.type == "cpu":
            return JoinedVectors(torch.from_numpy(self._changed(x)), self.packed, self.sizes)
        return self._split(self._changed(to_device(torch.from_numpy(x), self.device)))

    def _changed(self, x: Any) -> Any:
        """Apply the steps to concatenated vectors (*B, D), a tensor or an array."""
        for function in self.together:
            x = function(x)
        return x

    def _split(self, x: Tensor) -> dict[str, Tensor]:
        """Return the vectors that are concatenated in ``x`` (*B, D)."""
        return dict(zip(self.packed, x.split_with_sizes(self.sizes, -1), strict=True))


def obs_plan(
    steps: Sequence[PreprocessStep],
    raw_shapes: Mapping[str, Shape],
    modalities: Mapping[str, str],
    keys: tuple[str, ...] | None,
    device: torch.device,
) -> ObsPlan:
    """Plan the preparation of some observations.

    Args:
        steps: all steps of the pipeline, the layout first.
        raw_shapes: shape of one step of each observation as stored.
        modalities: modality of each observation.
        keys: the selected keys; None for all.
        device: device of the result.

    Raises:
        UserError: a selected key is not an observation.
    """
    chosen = tuple(raw_shapes) if keys is None else keys
    for key in chosen:
        if key not in raw_shapes:
            raise UserError(f"unknown observation '{key}'; {nearest(key, raw_shapes)}")
    # in the order in which encoders concatenate them
    vectors = sorted(k for k in chosen if modalities[k] == "low_dim" and len(raw_shapes[k]) == 1)
    packed, together = _packed(steps, vectors)
    return ObsPlan(
        keys=chosen,
        packed=packed,
        sizes=[raw_shapes[key][0] for key in packed],
        together=together,
        device=device,
        one_by_one={
            key: [step for step in steps if step.acts_on(key)]
            for key in chosen
            if key not in packed
        },
    )


def check_raw(
    raw: Raw, keys: Sequence[str], raw_shapes: Mapping[str, Shape], modalities: Mapping[str, str]
) -> None:
    """Raise UserError if an observation is missing or its shape differs from the stored one."""
    for key in keys:
        shape = raw_shapes[key]
        if key not in raw:
            raise UserError(
                f"observation '{key}' is missing; expected {', '.join(keys)}, "
                f"got {', '.join(raw) or 'nothing'}"
            )
        got = raw[key].shape
        if got[len(got) - len(shape) :] != shape:
            raise UserError(
                f"observation '{key}' has shape {tuple(got)}; expected (..., "
                f"{', '.join(map(str, shape))}) with modality '{modalities[key]}'"
            )


def _packed(
    steps: Sequence[PreprocessStep], keys: Sequence[str]
) -> tuple[tuple[str, ...], list[Callable[[Tensor], Tensor]]]:
    """Return the keys of the vectors that can be prepared as one concatenated tensor, and the functions for it."""
    together: list[Callable[[Tensor], Tensor]] = []
    # the first step, the layout, is left out: concatenation already makes a float32 vector
    for step in steps[1:]:
        acted_on = [key for key in keys if step.acts_on(key)]
        if not acted_on:
            continue
        function = step.packed(keys) if len(acted_on) == len(keys) else None
        if function is None:
            return _packed(steps, [key for key in keys if key not in acted_on])
        together.append(function)
    return tuple(keys), together


def _joined(values: Sequence[Tensor | np.ndarray[Any, Any]], device: torch.device) -> Tensor:
    """Concatenate vectors ``(*B, D)`` as a float32 tensor."""
    if not [value for value in values if isinstance(value, Tensor)]:
        arrays: Any = values
        joined = np.concatenate(arrays, axis=-1, dtype=np.float32, casting="same_kind")
        here = torch.from_numpy(joined)
        return here if device.type == "cpu" else to_device(here, device)
    tensors = [_tensor(value) for value in values]
    packed = torch.cat(tensors, -1) if len(tensors) > 1 else tensors[0]
    return to_device(packed, device, torch.float32)


def _tensor(value: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """Convert to a tensor; copy arrays with negative strides, such as ``frame[..., ::-1]``, which torch refuses."""
    if isinstance(value, np.ndarray) and min(value.strides, default=0) < 0:
        value = value.copy()
    return torch.as_tensor(value)
