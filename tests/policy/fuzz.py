"""Damaged and senseless checkpoints: each is used, or refused in one line that names the file.

The tests run a fixed part of them; tools/fuzz_checkpoints.py explores others at random.
"""

import copy
import json

import numpy as np
import torch

from imitate import policy_from_checkpoint
from imitate.cli.reports import checkpoint as report
from imitate.errors import UserError
from imitate.policy.checkpoint import checkpoint_dict
from tests.tiny import tiny_algo

SWAPS = (None, -1, 2**62, 0.5, np.nan, "x", [], ["x"], {}, {"x": None}, True, torch.ones(1, 1))
GONE = object()


def plain_checkpoint(algo="bc"):
    """A small checkpoint, the same at each call."""
    sections = {
        "bc": {"rnn": {"enabled": True, "hidden_dim": 4, "num_layers": 1}},
        "flow_policy": {"horizon": {"observation_horizon": 1, "prediction_horizon": 8}},
    }
    words = {"algo": sections[algo], "train": {"seq_length": 10, "frame_stack": 1}}
    made = tiny_algo(algo, obs={"pos": 3, "vel": 2}, action=2, hidden=(8,), **words)
    return checkpoint_dict(
        made,
        env_metadata={"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {"g": 9.8}},
        shape_metadata={"action_low": [-1.0, -1.0], "action_high": [1.0, 1.0]},
        train_state={"epoch": 3, "step": 30, "cpu_s": 1.5},
        provenance={"datasets": [{"path": "x.hdf5", "num_demos": 3, "weight": 1.0}]},
        language={"instructions": ["lift"], "embeddings": [[1.0]]},
    )


def paths_in(tree, start=()):
    """The place of every value in nested dicts and lists; of a list, of its first value."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield (*start, key)
            yield from paths_in(value, (*start, key))
    elif isinstance(tree, list) and tree:
        yield (*start, 0)
        yield from paths_in(tree[0], (*start, 0))


def swapped(tree, path, value):
    """A copy of the tree with another value there, or without it."""
    *way, last = path
    made = copy.copy(tree)
    at = made
    for key in way:
        at[key] = copy.copy(at[key])
        at = at[key]
    if value is GONE:
        del at[last]
    else:
        at[last] = value
    return made


def all_swaps(ckpt):
    """(words, checkpoint) with each value of the checkpoint and of its configuration swapped for each other kind."""
    for value in (*SWAPS, GONE):
        for path in paths_in(ckpt):
            yield f"{path} = {value!r}", swapped(ckpt, path, value)
        config = json.loads(ckpt["config"])
        if isinstance(value, torch.Tensor):
            continue
        for path in paths_in(config):
            text = json.dumps(swapped(config, path, value))
            yield f"config {path} = {value!r}", {**ckpt, "config": text}


def use(path):
    """Load a file as `imitate info` and a robot do; return the words of its refusal, or None."""
    refusal = None
    try:
        list(report.lay_out(report.describe(path)))
    except UserError as error:
        refusal = str(error)
        assert str(path) in refusal, refusal
        assert len(refusal.splitlines()) <= 8, refusal
    try:
        policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=path)
        policy.start_episode()
        obs = {
            key: np.zeros(policy.algo.preprocess.raw_shapes[key]) for key in policy.obs_keys[:50]
        }
        policy(obs)
    except UserError as error:
        refusal = str(error)
    return refusal
