"""Table of preprocessing steps by name, and the form of the pipeline in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from imitate.errors import CheckpointError, ConfigError, nearest
from imitate.models.fitting import Affine
from imitate.models.layout import ActionLayout, Shape
from imitate.models.options import arguments, chosen_or_installed
from imitate.models.preprocessing.relative import DeltaActions, RelativeActions
from imitate.models.preprocessing.rotations import (
    ObservedRotation6d,
    RelativePose,
    Rotation6d,
    SinCos,
)
from imitate.models.preprocessing.standard import Clip, Normalize
from imitate.models.preprocessing.step import PreprocessStep
from imitate.models.preprocessing.steps import BinaryActions, HashTokens, Pad, Resize

ENTRY_POINTS = "imitate.preprocess"
NORMALIZE = "normalize"
"""Step name that marks the position of the normalization in ``train.preprocess``."""

STEPS: dict[str, type[PreprocessStep]] = {
    "binary_actions": BinaryActions,
    "clip": Clip,
    "delta_actions": DeltaActions,
    "observed_rotation_6d": ObservedRotation6d,
    "pad": Pad,
    "relative_actions": RelativeActions,
    "relative_pose": RelativePose,
    "resize": Resize,
    "rotation_6d": Rotation6d,
    "sin_cos": SinCos,
    "tokenize": HashTokens,
}


def make_step(entry: Mapping[str, Any], place: str = "train.preprocess") -> PreprocessStep:
    """Make the step that an entry of the configuration describes.

    Args:
        entry: the name under ``step``, and the options of the step.
        place: dotted key of the entry, for messages.

    Raises:
        ConfigError: the step's name is unknown, or an option is unknown or missing.
    """
    options = {key: value for key, value in entry.items() if key != "step"}
    name = str(entry.get("step", ""))
    kind = chosen_or_installed(STEPS, name, f"{place}.step", ENTRY_POINTS)
    known = arguments(kind)
    for key in options:
        if key not in known:
            raise ConfigError(
                f"{place}.{key}: step '{name}' has no such key; {nearest(key, known)}"
            )
    try:
        step = kind(**options)
    except TypeError as error:
        raise ConfigError(f"{place}: step '{name}' cannot be made: {error}") from error
    if not isinstance(step, PreprocessStep):
        raise ConfigError(
            f"{place}: step '{name}' is a {type(step).__name__}; expected a class derived from PreprocessStep"
        )
    step.name, step.options = name, options
    return step


def make_steps(
    entries: Sequence[Mapping[str, Any]],
) -> tuple[list[PreprocessStep], list[PreprocessStep]]:
    """Make the steps before the normalization, and the steps after it.

    The normalization is at the entry ``{"step": "normalize"}``; without this entry, it is before the first step that
    must follow the normalization, or at the end.

    Raises:
        ConfigError: a step cannot be made from its entry, or is on the wrong side of the normalization.
    """
    before: list[PreprocessStep] = []
    after: list[PreprocessStep] = []
    marked = any(entry.get("step") == NORMALIZE for entry in entries)
    passed = False
    for number, entry in enumerate(entries):
        place = f"train.preprocess.{number}"
        if entry.get("step") == NORMALIZE:
            if passed or len(entry) > 1:
                raise ConfigError(
                    f'{place}: expected {{"step": "normalize"}} once, without other keys: it marks the place of '
                    "train.obs_normalization and train.action_config"
                )
            passed = True
            continue
        step = make_step(entry, place)
        passed = passed or (step.side == "after" and not marked)
        if step.side == ("before" if passed else "after"):
            raise ConfigError(
                f"{place}: step '{step.name}' is {'after' if passed else 'before'} the normalization; move it "
                f"{'before' if passed else 'after'} the entry 'normalize'"
            )
        (after if passed else before).append(step)
    return before, after


VERSION = 2
"""Version of the saved format. The first version has no number and contains only the standard steps."""


def saved_form(
    raw_shapes: Mapping[str, Shape],
    modalities: Mapping[str, str],
    actions: ActionLayout,
    steps: Sequence[PreprocessStep],
    normalization: Normalize,
    obs_clip: float | None,
    image_types: Mapping[str, str],
) -> dict[str, Any]:
    """Return all parts of a pipeline as tensors on the CPU, numbers, strings, lists and dicts.

    The arguments are attributes of :class:`~imitate.models.preprocess.Preprocess`.
    """
    obs = {
        key: {
            "raw_shape": list(shape),
            "modality": modalities[key],
            **({"image_type": image_types[key]} if key in image_types else {}),
            **_affine_dict(*normalization.obs_affine(key)),
        }
        for key, shape in raw_shapes.items()
    }
    stored_actions = {
        key: {
            "dim": action.stored,
            "rotation": action.rotation,
            **_affine_dict(*normalization.action_affine(key)),
        }
        for key, action in actions.keys.items()
    }
    entries = [
        {"step": NORMALIZE} if step is normalization else {"step": step.name, **step.options}
        for step in steps
        if step.name or step is normalization
    ]
    tensors = {
        f"{number}.{name}": tensor.detach().cpu().clone()
        for number, step in enumerate(step for step in steps if step.name)
        for name, tensor in step.state_dict().items()
    }
    return {
        "version": VERSION,
        "obs": obs,
        "actions": stored_actions,
        "obs_clip": obs_clip,
        "steps": entries,
        "tensors": tensors,
    }


def saved_arguments(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the result of :func:`saved_form`, of this or an earlier version, to arguments of ``Preprocess``.

    Raises:
        CheckpointError: the pipeline was saved by a later version.
    """
    version = saved.get("version", 1)
    if version > VERSION:
        raise CheckpointError(
            f"preprocess: saved in version {version}, but this imitate reads versions up to {VERSION}: upgrade imitate"
        )
    obs, actions = saved["obs"], saved["actions"]
    return {
        "raw_shapes": {key: entry["raw_shape"] for key, entry in obs.items()},
        "modalities": {key: entry["modality"] for key, entry in obs.items()},
        "actions": ActionLayout(
            {key: entry["dim"] for key, entry in actions.items()},
            {key: entry["rotation"] for key, entry in actions.items() if entry.get("rotation")},
        ),
        "obs_affine": _affine_of(obs),
        "action_affine": _affine_of(actions),
        # checkpoints of the first version do not have this entry
        "obs_clip": saved.get("obs_clip"),
        "steps": saved.get("steps", ()),
        "image_types": {
            key: entry["image_type"] for key, entry in obs.items() if "image_type" in entry
        },
    }


def load_tensors(steps: Sequence[PreprocessStep], saved: Mapping[str, Any]) -> None:
    """Load the saved buffers of the steps that ``train.preprocess`` lists."""
    for number, step in enumerate(steps):
        prefix = f"{number}."
        step.load_state_dict(
            {
                name.removeprefix(prefix): torch.as_tensor(tensor)
                for name, tensor in saved.get("tensors", {}).items()
                if name.startswith(prefix)
            }
        )


def _affine_dict(offset: Tensor, scale: Tensor) -> dict[str, Tensor]:
    return {"offset": offset.detach().cpu().clone(), "scale": scale.detach().cpu().clone()}


def _affine_of(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Affine]:
    return {key: (entry["offset"], entry["scale"]) for key, entry in entries.items()}
