"""Export of checkpoints to the formats of other toolkits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imitate.interop.lerobot import exporting
from imitate.interop.robomimic.exporting import RELEASES, exported
from imitate.policy.checkpoint import algo_from_checkpoint, save_checkpoint

__all__ = ["LAYOUTS", "RELEASES", "to_lerobot", "to_robomimic"]

LAYOUTS = (*exporting.LAYOUTS, exporting.PLUGIN)
"""Layouts of LeRobot's policy folders: 0.4 to 0.6, up to 0.3, and the package ``lerobot_policy_imitate``.
"""


def to_robomimic(ckpt: Mapping[str, Any], target: str) -> dict[str, Any]:
    """Convert a checkpoint of ours to one that a release of robomimic loads.

    Args:
        ckpt: a checkpoint of this toolkit.
        target: robomimic release, a name in :data:`RELEASES`.

    Raises:
        CheckpointError: the checkpoint cannot be loaded, or the release has no equivalent of a part, which the message
            names.
    """
    algo = algo_from_checkpoint(ckpt, source="the checkpoint")
    epoch = ckpt.get("train_state", {}).get("epoch", 0)
    return exported(algo, target, env_metadata=ckpt["env_metadata"], epoch=epoch)


def to_lerobot(ckpt: Mapping[str, Any], folder: str | Path, layout: str = "lerobot") -> None:
    """Write a checkpoint of ours as a policy folder of LeRobot.

    Args:
        ckpt: a checkpoint of this toolkit; its saved observation names (``rename``) are not exported.
        folder: the folder to create.
        layout: layout of the folder, a name in :data:`LAYOUTS`.

    Raises:
        CheckpointError: the checkpoint cannot be loaded, the folder exists, or LeRobot has no equivalent of a part,
            which the message names.
    """
    algo = algo_from_checkpoint(ckpt, source="the checkpoint")
    if layout == exporting.PLUGIN:
        kept = {name: value for name, value in ckpt.items() if name != "rename"}
        exporting.export_plugin(
            algo,
            Path(folder),
            lambda path: save_checkpoint(kept, path),
            has_instructions=bool(ckpt.get("language")),
        )
    else:
        exporting.export(algo, Path(folder), layout)
