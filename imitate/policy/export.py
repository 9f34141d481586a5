"""Export of checkpoints to other toolkits, and configurations whose trained policies can be exported to LeRobot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imitate.algo.base.factory import algo_factory
from imitate.config import load_config
from imitate.errors import CheckpointError
from imitate.interop.lerobot import exporting
from imitate.interop.robomimic.exporting import RELEASES, exported
from imitate.models.preprocess import Preprocess
from imitate.policy.checkpoint import algo_from_checkpoint, save_checkpoint

__all__ = [
    "LAYOUTS",
    "RELEASES",
    "lerobot_refusal",
    "lerobot_resizes",
    "to_lerobot",
    "to_robomimic",
    "write_lerobot_keys",
]

LAYOUTS = (*exporting.LAYOUTS, exporting.PLUGIN)
"""Layouts of LeRobot's policy folders: 0.4 to 0.6, up to 0.3, and the package ``lerobot_policy_imitate``.
"""
_KEYPOINTS = 32


def to_robomimic(ckpt: Mapping[str, Any], target: str) -> dict[str, Any]:
    """Convert a checkpoint to the format of a release of robomimic.

    Args:
        ckpt: a checkpoint of this toolkit.
        target: robomimic release, a name in :data:`RELEASES`.

    Raises:
        CheckpointError: the checkpoint cannot be loaded, or the release has no equivalent of a part; the message names
            the part.
    """
    algo = algo_from_checkpoint(ckpt, source="the checkpoint")
    epoch = ckpt.get("train_state", {}).get("epoch", 0)
    return exported(algo, target, env_metadata=ckpt["env_metadata"], epoch=epoch)


def to_lerobot(ckpt: Mapping[str, Any], folder: str | Path, layout: str = "lerobot") -> None:
    """Write a checkpoint as a policy folder of LeRobot.

    Args:
        ckpt: a checkpoint of this toolkit; its saved observation names (``rename``) are not exported.
        folder: the folder to create.
        layout: layout of the folder, a name in :data:`LAYOUTS`.

    Raises:
        CheckpointError: the checkpoint cannot be loaded, the folder exists, or LeRobot has no equivalent of a part; the
            message names the part.
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


def write_lerobot_keys(tree: dict[str, Any]) -> None:
    """Change a configuration of ``act`` or ``diffusion_policy`` so that its policy can be exported to LeRobot.

    Args:
        tree: the configuration, changed in place. The encoder of cameras becomes a ResNet of LeRobot.
    """
    modalities = tree["observation"]["modalities"]["obs"]
    vectors, cameras = modalities["low_dim"], modalities.get("rgb", [])
    own = set(vectors) <= set(exporting.OWN_VECTORS)
    is_act = tree["algo_name"] == "act"
    if is_act:
        tokens = {"separate_vectors": own, "shared_maps": True, "camera_positions": False}
        tree["algo"]["tokens"] = tree["algo"].get("tokens", {}) | tokens
        state = ["state"] if own else sorted(vectors)
        tree["algo"]["vae"] = tree["algo"].get("vae", {}) | {"posterior_keys": state}
    if cameras:
        encoders = tree["observation"]["encoder"]
        resized = any(step["step"] == "resize" for step in tree["train"].get("preprocess", ()))
        crop = None if resized else encoders.get("rgb", {}).get("obs_randomizer_kwargs")
        tree["observation"]["encoder"] = {"rgb": _act_encoder() if is_act else _unet_encoder(crop)}


def lerobot_resizes(tree: Mapping[str, Any]) -> bool:
    """Return true if LeRobot's policy of this algorithm can resize images; only its ``diffusion`` can."""
    return str(tree["algo_name"]) == "diffusion_policy"


def _act_encoder() -> dict[str, Any]:
    core = {"backbone_class": "ResNet18Conv", "pool_class": None, "flatten": False}
    return {
        "core_class": "VisualCore",
        "core_kwargs": core | {"feature_dimension": None},
        "share": True,
    }


def _unet_encoder(crop: Mapping[str, Any] | None) -> dict[str, Any]:
    core = {
        "backbone_class": "ResNet18Conv",
        "pool_class": "SpatialSoftmax",
        "pool_kwargs": {"num_kp": _KEYPOINTS},
        "feature_dimension": 2 * _KEYPOINTS,
    }
    encoder: dict[str, Any] = {"core_class": "VisualCore", "core_kwargs": core}
    if crop is not None:
        encoder["obs_randomizer_class"] = "CropRandomizer"
        encoder["obs_randomizer_kwargs"] = {**crop, "centre": "even"}
    return encoder


def lerobot_refusal(
    tree: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], action_dims: Mapping[str, int]
) -> str:
    """Return the reason why the policy of a configuration cannot be exported to LeRobot; "" if it can.

    The policy is built without training, and converted as by ``imitate convert-checkpoint``.

    Args:
        tree: the configuration.
        shapes: shape of one step of each observation as stored.
        action_dims: number of dimensions of each action key.
    """
    config = load_config(tree)
    modalities = config.observation.modalities_of_all()
    preprocess = Preprocess(
        {key: shapes[key] for key in modalities},
        modalities,
        action_dims,
        obs_clip=config.train.obs_clip,
        steps=[entry.to_dict() for entry in config.train.preprocess],
    )
    algo = algo_factory(
        config.algo_name,
        config,
        preprocess.obs_shapes,
        preprocess.action_dim,
        load_pretrained=False,
    )
    algo.preprocess = preprocess
    try:
        exporting.contents_of(algo)
    except CheckpointError as error:
        return str(error)
    return ""
