"""From a configuration to an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from imitate.algo.algo import Algo
from imitate.config import Config, Section, load_config
from imitate.config import algorithms as registry
from imitate.errors import ConfigError

ToClass = Callable[[Any], tuple[type[Algo], dict[str, Any]]]


def register_algo_factory_func(
    algo_name: str, section: type[Section] | None = None
) -> Callable[[ToClass], ToClass]:
    """Register the function that maps an algorithm's section to ``(class, keyword arguments)``.

    Args:
        algo_name: the name in the configuration; registering it twice raises ConfigError.
        section: typed section of ``algo`` in the configuration; without one every key is accepted.
    """

    def decorator(to_class: ToClass) -> ToClass:
        registry.register(algo_name, section, to_class)
        return to_class

    return decorator


def algo_factory(
    algo_name: str,
    config: Config | Mapping[str, Any],
    obs_key_shapes: Mapping[str, tuple[int, ...]],
    ac_dim: int,
    device: torch.device | str = "cpu",
    *,
    load_pretrained: bool = True,
) -> Algo:
    """Build an algorithm.

    Args:
        algo_name: must be the configuration's.
        config: the whole configuration.
        obs_key_shapes: shape of one step of each observation (and goal) key as networks see it: images are (C, H, W).
        ac_dim: action dimensions.
        device: where the networks live.
        load_pretrained: read pretrained weights of encoders; false where a checkpoint brings them.
    """
    if not isinstance(config, Config):
        config = load_config(dict(config))
    if config.algo_name != algo_name:
        raise ConfigError(
            f"algo_name '{algo_name}' was asked for, but the configuration is for '{config.algo_name}'"
        )
    algo_class, kwargs = registry.find(algo_name).to_class(config.algo)
    algo: Algo = algo_class(
        algo_config=config.algo,
        obs_config=config.observation,
        global_config=config,
        obs_key_shapes=obs_key_shapes,
        ac_dim=ac_dim,
        device=device,
        load_pretrained=load_pretrained,
        **kwargs,
    )
    return algo
