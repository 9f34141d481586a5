"""Observations, actions and image encoders of a policy of LeRobot, and their names in imitate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from imitate.data.formats.lerobot_layout import obs_name
from imitate.errors import CheckpointError
from imitate.models.key_encoder import KeyEncoder
from imitate.models.observation import ObservationEncoder
from imitate.models.randomizers import ColorRandomizer, CropRandomizer, GaussianNoiseRandomizer
from imitate.models.resnet import ChannelGroupNorm, ResNet, ResNet18Conv, ResNet34Conv, ResNet50Conv
from imitate.models.visual import VisualCore

ACTION = "action"
EPSILON = 1e-8
"""Number that LeRobot adds to a standard deviation before dividing by it."""
Kind = Literal["STATE", "ENV", "VISUAL", "ACTION"]


@dataclass(frozen=True)
class Feature:
    """An observation or the action.

    Attributes:
        name: LeRobot's name, such as 'observation.images.top'.
        kind: LeRobot's type of the feature, which determines its normalization.
        shape: shape of one step; images (C, H, W).
        joins: our names of the vectors that are concatenated to the feature; empty for one vector named :attr:`key`.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    joins: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Our names of all observations in this feature."""
        return self.joins or (self.key,)

    @property
    def key(self) -> str:
        """Our name of the feature, such as 'top_image'."""
        return "actions" if self.name == ACTION else obs_name(self.name)

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of one step in our datasets; images (H, W, C)."""
        return (*self.shape[1:], self.shape[0]) if self.kind == "VISUAL" else self.shape


def inputs_of(config: Mapping[str, Any]) -> list[Feature]:
    """Return the observations in the order of ``config.json``; networks take the cameras in this order.

    Raises:
        CheckpointError: the type or shape of a feature is not supported, or two features would get the same name here.
    """
    features = _features(config, "input_features", ("STATE", "ENV", "VISUAL"))
    homes: dict[str, str] = {}
    for feature in features:
        other = homes.setdefault(feature.key, feature.name)
        if other != feature.name:
            raise CheckpointError(
                f"input_features: '{other}' and '{feature.name}' would both be called '{feature.key}' here"
            )
    return features


def output_of(config: Mapping[str, Any]) -> Feature:
    """Return the feature of the action.

    Raises:
        CheckpointError: the configuration has no action, or other outputs.
    """
    features = _features(config, "output_features", ("ACTION",))
    if [feature.name for feature in features] != [ACTION]:
        names = ", ".join(feature.name for feature in features) or "nothing"
        raise CheckpointError(f"output_features: {names}; expected '{ACTION}' alone")
    return features[0]


def vectors(features: list[Feature], kind: Kind) -> list[Feature]:
    """Return the vectors of a type; LeRobot's networks take at most one of each type.

    Raises:
        CheckpointError: there is more than one vector of the type.
    """
    found = [feature for feature in features if feature.kind == kind]
    if len(found) > 1:
        names = ", ".join(feature.name for feature in found)
        raise CheckpointError(
            f"input_features: {names} are all of type {kind}; expected one at most"
        )
    return found


def cameras(features: list[Feature]) -> list[Feature]:
    """Return the features of images, in their order."""
    return [feature for feature in features if feature.kind == "VISUAL"]


def _features(config: Mapping[str, Any], group: str, kinds: tuple[Kind, ...]) -> list[Feature]:
    entries = config.get(group)
    if not isinstance(entries, Mapping) or not entries:
        raise CheckpointError(
            f"config.json: {group} is missing or empty; the file is truncated, or was written before February 2025"
        )
    found = []
    for name, entry in entries.items():
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        shape = entry.get("shape") if isinstance(entry, Mapping) else None
        if kind not in kinds:
            raise CheckpointError(
                f"{group}.{name}: type {kind!r}; expected one of {', '.join(kinds)}"
            )
        dims = 3 if kind == "VISUAL" else 1
        if (
            not isinstance(shape, list)
            or len(shape) != dims
            or not all(type(size) is int and size > 0 for size in shape)
        ):
            raise CheckpointError(
                f"{group}.{name}: shape {shape!r}; expected {dims} positive numbers"
            )
        found.append(Feature(str(name), kind, tuple(shape)))
    return found


_TRUNKS: dict[str, type[ResNet]] = {
    "resnet18": ResNet18Conv,
    "resnet34": ResNet34Conv,
    "resnet50": ResNet50Conv,
}


def backbone_of(config: Mapping[str, Any]) -> str:
    """Return our name of LeRobot's ``vision_backbone``.

    Raises:
        CheckpointError: the backbone has no counterpart here.
    """
    name = config["vision_backbone"]
    if name not in _TRUNKS:
        raise CheckpointError(f"vision_backbone: {name!r}; expected one of {', '.join(_TRUNKS)}")
    return _TRUNKS[name].__name__


@dataclass(frozen=True)
class CameraEncoder:
    """Encoder of one or more cameras for which LeRobot has a counterpart.

    Attributes:
        keys: names of the cameras.
        name: value of LeRobot's ``vision_backbone``.
        core: our encoder.
        trunk: convolutional trunk of our encoder.
        norm: 'batch' if running statistics are stored, else 'group'.
        crop: size of the crop of an image when the policy acts, or None if there is no crop.
    """

    keys: tuple[str, ...]
    name: str
    core: VisualCore
    trunk: ResNet
    norm: Literal["batch", "group"]
    crop: CropRandomizer | None

    def affine(self, channels: int) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (C,) with which the trunk normalizes images: ImageNet's, or 0 and 1."""
        if not self.trunk.normalizes:
            return torch.zeros(channels).double(), torch.ones(channels).double()
        images = self.trunk.images
        return images.mean.flatten().double(), images.std.flatten().double()


def encoders_of(encoder: ObservationEncoder, features: list[Feature]) -> list[CameraEncoder]:
    """Return the encoders of cameras.

    Raises:
        CheckpointError: LeRobot has no such encoder; the message contains the reason.
    """
    found = []
    images = {feature.key for feature in cameras(features)}
    for module, net in encoder.nets.items():
        keys = tuple(key.replace("/", ".") for key in module.split("+"))
        if not set(keys) <= images:
            raise CheckpointError(
                f"vector '{keys[0]}' has an encoder network, but LeRobot's policies take vectors without one"
            )
        assert isinstance(net, KeyEncoder)
        found.append(_encoder(keys, net))
    alike = {(one.name, one.norm, _size(one.crop)) for one in found}
    if len(alike) > 1:
        raise CheckpointError(
            "cameras have different encoders, but LeRobot's policies have equal encoders for all cameras"
        )
    return found


def _encoder(keys: tuple[str, ...], net: KeyEncoder) -> CameraEncoder:
    where = f"encoder of '{keys[0]}'"
    core = net.core
    trunk = core.backbone if isinstance(core, VisualCore) else None
    names = {kind: name for name, kind in _TRUNKS.items()}
    if not isinstance(core, VisualCore) or type(trunk) not in names:
        kind = type(core if trunk is None else trunk).__name__
        raise CheckpointError(
            f"{where} is {kind}: LeRobot has ResNet18Conv, ResNet34Conv and ResNet50Conv; train with one of them "
            "as backbone_class, or write this policy with --to lerobot-plugin"
        )
    assert isinstance(trunk, ResNet)
    if trunk.conv1.in_channels != 3 or type(trunk.conv1) is not nn.Conv2d:
        raise CheckpointError(
            f"{where} does not take images with three channels, or adds coordinates to them; "
            "LeRobot's takes three channels"
        )
    if trunk.images.size is not None:
        raise CheckpointError(f"{where} has an image_size, but LeRobot's does not resize images")
    layer = trunk.bn1
    if not isinstance(layer, (nn.BatchNorm2d, ChannelGroupNorm)):
        raise CheckpointError(
            f"{where} has norm 'none': LeRobot has 'batch', 'frozen_batch' and 'group'"
        )
    crops = [one for one in net.randomizers if isinstance(one, CropRandomizer)]
    other = [
        one
        for one in net.randomizers
        if not isinstance(one, (CropRandomizer, ColorRandomizer, GaussianNoiseRandomizer))
    ]
    if other or len(crops) > 1 or any(crop.pos_enc for crop in crops):
        raise CheckpointError(f"{where} changes images when acting, but LeRobot only crops them")
    norm: Literal["batch", "group"] = "group" if isinstance(layer, ChannelGroupNorm) else "batch"
    return CameraEncoder(keys, names[type(trunk)], core, trunk, norm, crops[0] if crops else None)


def _size(crop: CropRandomizer | None) -> tuple[int, int] | None:
    return None if crop is None else crop.crop
