"""Policies that are programs, as checkpoints for an evaluation."""

from __future__ import annotations

from pathlib import Path

from imitate.algo.slots.scripted import RANDOM, SCRIPTED, scripted_algo
from imitate.envs import make_env
from imitate.envs.env import first_observation
from imitate.envs.experts import find_expert
from imitate.envs.trust import trust
from imitate.evaluate.environments import laid_over, named_env
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint


def write_scripted(name: str, env: str, path: Path) -> Path:
    """Write the checkpoint of a policy that is a program; return its path.

    Args:
        name: ``scripted``, ``module:function``, which is trusted because the user typed it, or ``random``, whose
            actions the evaluation replaces by random ones.
        env: the environment, as for ``--env``.
        path: the file.

    Raises:
        UserError: there is no such environment, expert or function.
    """
    meta, horizon = named_env(env), None
    if name == SCRIPTED:
        expert = find_expert(str(meta["env_name"]))
        meta, horizon = laid_over(meta, {"env_kwargs": dict(expert.env_kwargs)}), expert.horizon
    made = make_env(meta)
    try:
        shapes = {key: value.shape for key, value in first_observation(made).items()}
        low, high, size = made.action_low, made.action_high, made.action_dim
    finally:
        made.close()
    if name not in (SCRIPTED, RANDOM):
        trust(name)
    algo = scripted_algo(name, str(meta["env_name"]), shapes, size, horizon)
    limits = {"action_low": low.tolist(), "action_high": high.tolist()}
    save_checkpoint(checkpoint_dict(algo, env_metadata=meta, shape_metadata=limits), path)
    return path
