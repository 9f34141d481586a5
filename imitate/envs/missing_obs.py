"""The refusal of an environment that lacks an observation of a policy or of a configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from imitate.errors import EnvError, nearest, offered


def no_observation(env_name: str, key: str, obs: Mapping[str, Any]) -> EnvError:
    """Return the error, with the remedy that the running command has.

    Args:
        env_name: the environment.
        key: the missing observation.
        obs: the observations of the environment.
    """
    words = f"{env_name}: the environment has no observation '{key}'; {nearest(key, obs)}"
    if offered("--rename"):
        return EnvError(f"{words} (if it has another name there, use --rename NEW={key})")
    if offered("--set"):
        vectors = [name for name, value in obs.items() if np.ndim(value) == 1]
        images = [name for name, value in obs.items() if np.ndim(value) == 3]
        own = {kind: names for kind, names in (("low_dim", vectors), ("rgb", images)) if names}
        words += f"; to take its own, add --set 'observation.modalities.obs={json.dumps(own)}'"
    return EnvError(words)
