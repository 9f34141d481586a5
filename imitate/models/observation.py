"""From an observation, a dictionary, to one feature vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.models.layout import Shape
from imitate.models.options import chosen, relevant
from imitate.models.randomizers import CropRandomizer, GaussianNoiseRandomizer, Randomizer
from imitate.models.scan import ScanCore
from imitate.models.visual import VisualCore

CORES: dict[str, Any] = {"VisualCore": VisualCore, "ScanCore": ScanCore}
RANDOMIZERS: dict[str, Any] = {
    "CropRandomizer": CropRandomizer,
    "GaussianNoiseRandomizer": GaussianNoiseRandomizer,
}


class ObservationEncoder(nn.Module):
    """Concatenates the features of all keys, in alphabetical order of the keys.

    Keys whose modality has neither core nor randomizer go in as they are, flattened. The output of a
    core goes through a ReLU.

    Args:
        obs_shapes: shape of one step of each key as networks see it: images (C, H, W).
        modalities: modality of each key.
        encoder_config: section ``observation.encoder``.
    """

    def __init__(
        self,
        obs_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        encoder_config: Any,
    ) -> None:
        super().__init__()
        self.obs_shapes = {key: tuple(obs_shapes[key]) for key in sorted(obs_shapes)}
        self.nets = nn.ModuleDict()
        self.output_dim = 0
        for key, shape in self.obs_shapes.items():
            net = _key_encoder(key, shape, modalities[key], encoder_config)
            self.output_dim += math.prod(shape) if net is None else net.output_dim
            if net is not None:
                self.nets[_module_name(key)] = net
        self._vectors_only = not self.nets and all(len(s) == 1 for s in self.obs_shapes.values())

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """``(*B, ...)`` per key to ``(*B, output_dim)``."""
        if self._vectors_only:
            return torch.cat([obs[key] for key in self.obs_shapes], dim=-1)
        features = []
        for key, shape in self.obs_shapes.items():
            value = obs[key]
            name = _module_name(key)
            if name in self.nets:
                value = self.nets[name](value)
            elif len(shape) != 1:
                value = value.reshape(*value.shape[: value.dim() - len(shape)], -1)
            features.append(value)
        return torch.cat(features, dim=-1)


class KeyEncoder(nn.Module):
    """Randomizers, core and ReLU of one key.

    Args:
        input_shape: of one step.
        randomizers: applied in order.
        core: with ``output_shape``; None for no network.
    """

    def __init__(
        self, input_shape: Shape, randomizers: Sequence[Randomizer], core: nn.Module | None
    ) -> None:
        super().__init__()
        self.input_shape = input_shape
        self.randomizers = nn.ModuleList(randomizers)
        self.core = core
        shape: Any = randomizers[-1].output_shape if randomizers else input_shape
        self.output_dim = math.prod(shape if core is None else core.output_shape)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """``(*B, *input_shape)`` to ``(*B, output_dim)``."""
        batch = x.shape[: x.dim() - len(self.input_shape)]
        x = x.reshape(-1, *self.input_shape)
        for randomizer in self.randomizers:
            x = randomizer(x)
        if self.core is not None:
            x = torch.relu(self.core(x))
        x = x.flatten(1)
        for randomizer in reversed(self.randomizers):
            x = randomizer.merge(x)  # type: ignore[operator]
        return x.reshape(*batch, self.output_dim)


def _module_name(key: str) -> str:
    """A module's name may not have a dot."""
    return key.replace(".", "/")


def _key_encoder(key: str, shape: Shape, modality: str, encoder_config: Any) -> KeyEncoder | None:
    """The encoder of a key as its modality's section says, or None where there is nothing to do."""
    config = encoder_config.get(modality)
    if config is None:
        if modality == "low_dim":
            return None
        raise ConfigError(f"observation.encoder.{modality} is missing, but '{key}' is of that kind")
    try:
        randomizers = _randomizers(shape, config)
        core_class = config.get("core_class", None)
        if core_class is None and not randomizers:
            return None
        core = None
        if core_class is not None:
            kind = chosen(CORES, core_class, "core_class")
            options = relevant(
                {core_class: kind}, kind, config.get("core_kwargs", {}), "core_kwargs"
            )
            core_input = randomizers[-1].output_shape if randomizers else shape
            core = kind(core_input, **options)
    except ConfigError as error:
        raise ConfigError(f"observation.encoder.{modality} ('{key}', {shape}): {error}") from None
    return KeyEncoder(shape, randomizers, core)


def _randomizers(shape: Shape, config: Any) -> list[Randomizer]:
    """One name with its arguments, or a list of names with a list of arguments."""
    names = config.get("obs_randomizer_class", None) or ()
    kwargs = config.get("obs_randomizer_kwargs", None) or {}
    if isinstance(names, str):
        names, kwargs = (names,), (kwargs,)
    if isinstance(kwargs, Mapping) or hasattr(kwargs, "items"):
        kwargs = [kwargs] * len(names)
    randomizers: list[Randomizer] = []
    for name, options in zip(names, kwargs, strict=True):
        kind = chosen(RANDOMIZERS, name, "obs_randomizer_class")
        options = relevant({name: kind}, kind, options, "obs_randomizer_kwargs")
        randomizers.append(kind(shape, **options))
        shape = randomizers[-1].output_shape
    return randomizers
