"""Conversion of the pipeline to the form saved in checkpoints, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from imitate.errors import CheckpointError
from imitate.models.action_layout import ActionLayout
from imitate.models.fitting import Affine
from imitate.models.layout import Shape
from imitate.models.preprocessing.standard import Normalize
from imitate.models.preprocessing.step import PreprocessStep
from imitate.models.preprocessing.table import NORMALIZE

VERSION = 2
"""Version of the format. The first version has no number and contains only the standard steps."""


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

    The arguments are the attributes of :class:`~imitate.models.preprocess.Preprocess` of these names.
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
    """Return the arguments of the constructor from the result of :func:`saved_form` of this or an earlier version.

    Raises:
        CheckpointError: the pipeline was saved by a later version.
    """
    version = saved.get("version", 1)
    if version > VERSION:
        raise CheckpointError(
            f"preprocess: written in version {version}; this one reads up to {VERSION}: upgrade imitate"
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
        "obs_clip": saved.get("obs_clip"),  # absent in files written before types were recorded
        "steps": saved.get("steps", ()),
        "image_types": {
            key: entry["image_type"] for key, entry in obs.items() if "image_type" in entry
        },
    }


def load_tensors(steps: Sequence[PreprocessStep], saved: Mapping[str, Any]) -> None:
    """Load the fitted values of the chosen steps."""
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
