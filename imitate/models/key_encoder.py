"""Network of one observation, or of several observations that share it: randomizers, core, ReLU.

A core is a module built as ``core(input_shape, **core_kwargs)`` with an attribute ``output_shape``; its ``forward``
maps ``(B, *input_shape)`` to ``(B, *output_shape)``. If the constructor of a core has arguments of the following names,
they are passed too: ``language_dim`` (size of ``lang_emb``, or None), ``default_norm`` ('batch' or 'group'),
``load_pretrained`` (false if a checkpoint contains the weights). A core with a true attribute ``uses_language`` is
called as ``core(x, language)`` with an embedding ``(B, D)``. Other packages offer cores by entry points in the group
'imitate.encoders'.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.models.layout import Shape
from imitate.models.monet import SlotCore
from imitate.models.options import chosen, chosen_or_installed, relevant, supplied
from imitate.models.randomizers import (
    ColorRandomizer,
    CropRandomizer,
    GaussianNoiseRandomizer,
    Randomizer,
)
from imitate.models.visual import ScanCore, VisualCore, VisualCoreLanguageConditioned


class TokenCore(nn.Module):
    """Mean of the learned embeddings of an observation's tokens; token 0 is padding and is ignored.

    Args:
        input_shape: (L,).
        vocabulary: number of tokens, at least the tokenizer's.
        dim: D, size of an embedding.
    """

    def __init__(self, input_shape: Shape, vocabulary: int = 4096, dim: int = 64) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ConfigError(f"TokenCore: tokens have shape {input_shape}; expected a vector (L,)")
        self.vectors = nn.EmbeddingBag(vocabulary, dim, mode="mean", padding_idx=0)
        self.output_shape = (dim,)

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode tokens ``(B, L)`` as ``(B, D)``."""
        mean: Tensor = self.vectors(torch.round(tokens).long())
        return mean


ENTRY_POINTS = "imitate.encoders"

CORES: dict[str, Any] = {
    "VisualCore": VisualCore,
    "VisualCoreLanguageConditioned": VisualCoreLanguageConditioned,
    "ScanCore": ScanCore,
    "SlotCore": SlotCore,
    "TokenCore": TokenCore,
}
RANDOMIZERS: dict[str, Any] = {
    "CropRandomizer": CropRandomizer,
    "ColorRandomizer": ColorRandomizer,
    "GaussianNoiseRandomizer": GaussianNoiseRandomizer,
}


class KeyEncoder(nn.Module):
    """Randomizers, core and ReLU.

    Args:
        input_shape: shape of one step.
        randomizers: randomizers, applied in order.
        core: network with ``output_shape``; None for no network.
        activation: 'relu' after the core, or None.

    Attributes:
        frozen_shape: shape (C, H, W) of a frozen trunk's features, which may be given instead of images if there are no
            randomizers; None if only images are accepted.
    """

    def __init__(
        self,
        input_shape: Shape,
        randomizers: Sequence[Randomizer],
        core: nn.Module | None,
        activation: str | None = "relu",
    ) -> None:
        super().__init__()
        self.activation = activation
        self.input_shape = input_shape
        self.randomizers = nn.ModuleList(randomizers)
        self.core = core
        self.uses_language: bool = getattr(core, "uses_language", False)
        shape: Any = randomizers[-1].output_shape if randomizers else input_shape
        self.output_shape: Shape = tuple(shape if core is None else core.output_shape)  # type: ignore[arg-type]
        self.output_dim = math.prod(self.output_shape)
        shape = None if randomizers else getattr(core, "frozen_shape", None)
        self.frozen_shape: Shape | None = None if shape == tuple(input_shape) else shape

    def forward(self, values: Sequence[Tensor], language: Tensor | None = None) -> list[Tensor]:
        """Encode values ``(*B, *input_shape)`` of one or more keys as ``(*B, output_dim)`` each, in one pass.

        Args:
            values: value of each key, or its features ``(*B, *frozen_shape)`` from :meth:`frozen_features`.
            language: ``(*B, D)``, if the core uses it.
        """
        if self.frozen_shape is not None and values[0].shape[-3:] == self.frozen_shape:
            return self._from_features(values)
        batch = values[0].shape[: values[0].dim() - len(self.input_shape)]
        flat = [value.reshape(-1, *self.input_shape) for value in values]
        x = flat[0] if len(flat) == 1 else torch.cat(flat)
        windows = len(flat) * (batch[0] if batch else 1)
        for randomizer in self.randomizers:
            x = randomizer(x, len(x) // max(windows, 1))
        if self.core is not None:
            x = self.core(*self._core_inputs(x, len(flat), language))
            if self.activation == "relu":
                x = torch.relu(x)
        x = x.flatten(1)
        for randomizer in reversed(self.randomizers):
            x = randomizer.merge(x)  # type: ignore[operator]
        return list(x.reshape(len(flat), *batch, self.output_dim).unbind(0))

    def frozen_features(self, value: Tensor) -> Tensor:
        """Map images ``(B, *input_shape)`` to features ``(B, *frozen_shape)`` of the frozen trunk."""
        features: Tensor = self.core.frozen_features(value)  # type: ignore[union-attr,operator]
        return features

    def _from_features(self, values: Sequence[Tensor]) -> list[Tensor]:
        batch = values[0].shape[:-3]
        x = torch.stack(tuple(values)).flatten(0, -4)
        x = self.core.from_features(x)  # type: ignore[union-attr,operator]
        if self.activation == "relu":
            x = torch.relu(x)
        return list(x.reshape(len(values), *batch, self.output_dim).unbind(0))

    def _core_inputs(self, x: Tensor, keys: int, language: Tensor | None) -> tuple[Tensor, ...]:
        """Return the inputs of the core: the samples, and the embedding of each if the core uses language."""
        if language is None or not self.uses_language:
            return (x,)
        language = language.reshape(-1, language.shape[-1]).repeat(keys, 1)
        return (x, language.repeat_interleave(len(x) // max(len(language), 1), dim=0))

    def keypoints(self, value: Tensor, language: Tensor | None = None) -> Tensor | None:
        """Return keypoints (x, y) ``(*B, K, 2)`` in pixels of images ``(*B, C, H, W)``; None if the core has none."""
        find = getattr(self.core, "keypoints", None)
        if find is None:
            return None
        batch = value.shape[: value.dim() - len(self.input_shape)]
        x = value.reshape(-1, *self.input_shape)
        row = column = 0
        for randomizer in self.randomizers:
            x = randomizer.evaluate(x)  # type: ignore[operator]
            corner: tuple[int, int] = randomizer.corner  # type: ignore[assignment]
            row, column = row + corner[0], column + corner[1]
        places: Tensor | None = find(*self._core_inputs(x, 1, language))
        if places is None:
            return None
        size = torch.tensor([x.shape[-1] - 1, x.shape[-2] - 1], device=x.device)
        start = torch.tensor([column, row], device=x.device)
        return (start + (places + 1) / 2 * size).reshape(*batch, -1, 2)


def make_key_encoder(
    key: str, shape: Shape, section: str, config: Any, supplies: Mapping[str, Any]
) -> KeyEncoder | None:
    """Build the network of a key; return None if the section names neither core nor randomizer.

    Args:
        key: name of the observation, for messages.
        shape: shape of one step, as networks see it.
        section: name of the section, for messages.
        config: the section ``observation.encoder.<section>``.
        supplies: further arguments, given to cores whose constructors have parameters of these names.
    """
    try:
        randomizers = _randomizers(shape, config)
        core = _core(randomizers[-1].output_shape if randomizers else shape, config, supplies)
    except ConfigError as error:
        raise ConfigError(f"observation.encoder.{section} ('{key}', {shape}): {error}") from None
    if core is None and not randomizers:
        return None
    return KeyEncoder(shape, randomizers, core, config.get("feature_activation", "relu"))


def _core(shape: Shape, config: Any, supplies: Mapping[str, Any]) -> nn.Module | None:
    core_class = config.get("core_class", None)
    if core_class is None:
        return None
    kind = chosen_or_installed(CORES, core_class, "core_class", ENTRY_POINTS)
    options = relevant({core_class: kind}, kind, config.get("core_kwargs", {}), "core_kwargs")
    core: nn.Module = kind(shape, **options, **supplied(kind, **supplies))
    return core


def _randomizers(shape: Shape, config: Any) -> list[Randomizer]:
    """Build the randomizers of a section, which names one with its arguments, or lists of names and arguments."""
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
