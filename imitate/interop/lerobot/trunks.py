"""ResNet trunks of LeRobot's policies: torchvision's, by their names there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imitate.errors import CheckpointError

_BACKBONES = {"resnet18": "ResNet18Conv", "resnet34": "ResNet34Conv", "resnet50": "ResNet50Conv"}


def backbone_of(config: Mapping[str, Any]) -> str:
    """Return the name here of ``vision_backbone``.

    Raises:
        CheckpointError: there is none like it.
    """
    name = config.get("vision_backbone")
    if name not in _BACKBONES:
        raise CheckpointError(f"vision_backbone: {name!r}; expected one of {', '.join(_BACKBONES)}")
    return _BACKBONES[name]
