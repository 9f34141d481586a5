"""Checkpoints of policies that are programs: a task's scripted expert, or ``module:function``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imitate.algo.base.algo import Algo
from imitate.algo.base.factory import algo_factory
from imitate.config import load_config
from imitate.config.algorithms import FUNCTION
from imitate.policy.checkpoint import checkpoint_dict

SCRIPTED, RANDOM = "scripted", "random"


def is_scripted(name: str) -> bool:
    """Return true for ``scripted``, ``random`` and ``module:function``, unless there is a file of that name."""
    named = name in (SCRIPTED, RANDOM) or re.match(FUNCTION, name) is not None
    return named and not Path(name).exists()


def scripted_algo(
    name: str,
    task: str,
    shapes: Mapping[str, Sequence[int]],
    ac_dim: int,
    horizon: int | None = None,
) -> Algo:
    """Build the policy.

    Args:
        name: ``scripted``, ``module:function``, or ``random``.
        task: name of the environment, whose scripted expert acts.
        shapes: shapes of the observations; vectors are used.
        ac_dim: size of an action.
        horizon: longest episode in steps.

    Raises:
        UserError: the task has no expert, or the function cannot be imported or is not trusted.
    """
    sections: dict[str, dict[str, Any]] = {SCRIPTED: {"task": task}, RANDOM: {}}
    vectors = {key: tuple(shape) for key, shape in shapes.items() if len(shape) == 1}
    tree = {
        "algo_name": SCRIPTED,
        "algo": sections.get(name, {"expert": name}),
        "experiment": {"rollout": {"horizon": horizon}},
        "observation": {"modalities": {"obs": {"low_dim": list(vectors)}}},
    }
    return algo_factory(SCRIPTED, load_config(tree), vectors, ac_dim)


def scripted_checkpoint(
    algo: Algo, env_meta: Mapping[str, Any], low: Sequence[float], high: Sequence[float]
) -> dict[str, Any]:
    """Return the checkpoint of :func:`scripted_algo`, for an environment with these limits of actions."""
    shapes = {"action_low": list(low), "action_high": list(high)}
    return checkpoint_dict(algo, env_metadata=env_meta, shape_metadata=shapes)
