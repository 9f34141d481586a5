"""Encoder of an observation, a dict of arrays, as one feature vector."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.models.key_encoder import KeyEncoder, make_key_encoder
from imitate.models.layout import JoinedVectors, Shape
from imitate.system.instructions import LANGUAGE_KEY

CONDITION_KEY = "advantage_condition"
"""Key of the input that contains the condition of :mod:`imitate.algo.slots.advantage`."""
GOOD = (1.0, 0.0)
"""Value of the condition for acting: the action is good. (0, 1) means not good, (0, 0) means no condition."""


class ObservationEncoder(nn.Module):
    """Encoder of an observation: features of all keys, concatenated in alphabetical order of the keys.

    Keys whose modality has neither core nor randomizer are flattened without a network. The output of a core is
    followed by a ReLU. The instruction's embedding, ``lang_emb``, is omitted if a core is conditioned on it. If
    there is a key :data:`CONDITION_KEY`, observations without it get :data:`GOOD`.

    Args:
        obs_shapes: shape of one step of each key as networks see it: images (C, H, W).
        modalities: modality of each key.
        encoder_config: section ``observation.encoder``; an entry under the name of a key replaces the entry of its
            modality.
        default_norm: normalization layers of trunks whose ``norm`` is null: 'batch'; or 'group' if a moving average of
            the weights is kept.
        load_pretrained: load pretrained weights; false if a checkpoint contains the weights.

    Attributes:
        output_dim: D, number of features of all keys together.
        feature_dims: number of features of each key.
        encoded_shapes: shape of the features before flattening, for each key with a network.
    """

    def __init__(
        self,
        obs_shapes: Mapping[str, Sequence[int]],
        modalities: Mapping[str, str],
        encoder_config: Any,
        *,
        default_norm: str = "batch",
        load_pretrained: bool = True,
    ) -> None:
        super().__init__()
        self.obs_shapes: dict[str, Shape] = {k: tuple(obs_shapes[k]) for k in sorted(obs_shapes)}
        self.nets = nn.ModuleDict()
        self._keys_of: dict[str, list[str]] = {}
        supplies = {
            "language_dim": math.prod(self.obs_shapes[LANGUAGE_KEY])
            if LANGUAGE_KEY in self.obs_shapes
            else None,
            "default_norm": default_norm,
            "load_pretrained": load_pretrained,
        }
        for keys, name, config in self._networks(modalities, encoder_config):
            net = make_key_encoder(keys[0], self.obs_shapes[keys[0]], name, config, supplies)
            if net is not None:
                # the name of a submodule must not contain a dot
                module = "+".join(keys).replace(".", "/")
                self.nets[module] = net
                self._keys_of[module] = keys
        self.uses_language = any(net.uses_language for net in self._encoders().values())
        self._set_up_output()

    def _networks(
        self, modalities: Mapping[str, str], encoder_config: Any
    ) -> list[tuple[list[str], str, Any]]:
        """Yield for each network the keys that share it, the name of their section, and the section."""
        networks: list[tuple[list[str], str, Any]] = []
        shared: dict[tuple[str, Shape], list[str]] = {}
        for key, shape in self.obs_shapes.items():
            own = encoder_config.get(key)
            name = modalities[key] if own is None else key
            config = encoder_config.get(name)
            if config is None:
                if name == "low_dim":
                    continue
                raise ConfigError(
                    f"observation.encoder.{name} is missing, but observation '{key}' needs it: add this section"
                )
            if config.get("share", False) and (name, shape) in shared:
                shared[name, shape].append(key)
            else:
                keys = shared[name, shape] = [key]
                networks.append((keys, name, config))
        return networks

    def _set_up_output(self) -> None:
        shapes = {key: (math.prod(shape),) for key, shape in self.obs_shapes.items()}
        self.encoded_shapes: dict[str, Shape] = {}
        for module, net in self._encoders().items():
            self.encoded_shapes |= dict.fromkeys(self._keys_of[module], net.output_shape)
        if self.uses_language:
            del shapes[LANGUAGE_KEY]
        self._output_keys = list(shapes)
        self.feature_dims = {
            key: math.prod(self.encoded_shapes.get(key, shape)) for key, shape in shapes.items()
        }
        self.output_dim = sum(self.feature_dims.values())
        is_plain = CONDITION_KEY not in self.obs_shapes and not self.nets
        self._vectors_only = is_plain and all(len(s) == 1 for s in self.obs_shapes.values())

    def shared_keys(self) -> list[list[str]]:
        """Return the groups of keys that share a network."""
        return [keys for keys in self._keys_of.values() if len(keys) > 1]

    def networks_of_keys(self) -> dict[str, KeyEncoder]:
        """Return the network of each key that is encoded by a network."""
        nets = self._encoders()
        return {key: nets[module] for module, keys in self._keys_of.items() for key in keys}

    def _encoders(self) -> dict[str, KeyEncoder]:
        return {name: net for name, net in self.nets.items() if isinstance(net, KeyEncoder)}

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Encode observations ``(*B, ...)`` by key as ``(*B, output_dim)``."""
        if self._vectors_only:
            parts = [obs[key] for key in self.obs_shapes]
            if isinstance(obs, JoinedVectors) and obs.are_columns(parts):
                return obs.joined
        else:
            parts = [*self.features(obs).values()]
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0].contiguous()

    def features(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Encode observations ``(*B, ...)`` as features ``(*B, D)`` of each key, in the order of concatenation."""
        encoded: dict[str, Tensor] = {}
        obs = self._conditioned(obs)
        for module, keys in self._keys_of.items():
            outputs = self.nets[module]([obs[key] for key in keys], self._language(obs))
            encoded |= zip(keys, outputs, strict=True)
        return {
            key: encoded[key] if key in encoded else _flat(obs[key], self.obs_shapes[key])
            for key in self._output_keys
        }

    @torch.no_grad()
    def keypoints(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return keypoints of the networks with a spatial softmax: per key ``(*B, K, 2)``, x and y in pixels.

        Keypoints are computed as in evaluation: without noise, and from the centre crop.
        """
        found: dict[str, Tensor] = {}
        for module, net in self._encoders().items():
            for key in self._keys_of[module]:
                places = net.keypoints(obs[key], self._language(obs))
                if places is not None:
                    found[key] = places
        return found

    def _conditioned(self, obs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if CONDITION_KEY not in self.obs_shapes or CONDITION_KEY in obs:
            return obs
        key = next(key for key in self.obs_shapes if key != CONDITION_KEY)
        leading = obs[key].shape[: obs[key].dim() - len(self.obs_shapes[key])]
        return {**obs, CONDITION_KEY: obs[key].new_tensor(GOOD).expand(*leading, len(GOOD))}

    def _language(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        return obs[LANGUAGE_KEY] if self.uses_language else None


def _flat(value: Tensor, shape: Shape) -> Tensor:
    """Flatten ``(*B, *shape)`` to ``(*B, D)``."""
    if len(shape) == 1:
        return value
    return value.reshape(*value.shape[: value.dim() - len(shape)], -1)
