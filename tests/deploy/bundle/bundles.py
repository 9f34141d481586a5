"""A small bundle, and changes of it."""

import json
import zipfile

import torch

from imitate import algo_factory, load_config
from imitate.deploy.bundle.exporting import export_policy
from imitate.policy.rollout_policy import RolloutPolicy

OBS_DIM, AC_DIM = 4, 3


def small_policy(seed=0, **algo):
    """A policy of chunks of 4 actions, of which 2 are executed."""
    torch.manual_seed(seed)
    tree = {
        "algo_name": "bc",
        "experiment": {"epoch_every_n_steps": 10},
        "train": {"seq_length": 4},
        "observation": {"modalities": {"obs": {"low_dim": ["a"]}}},
        "algo": {
            "actor_layer_dims": [8],
            "chunk": {"enabled": True, "size": 4, "execute": 2},
            **algo,
        },
    }
    made = algo_factory("bc", load_config(tree), {"a": (OBS_DIM,)}, AC_DIM, "cpu")
    return RolloutPolicy(made, [-1.0] * AC_DIM, [1.0] * AC_DIM, control_freq=20.0)


def small_bundle(path, **algo):
    """Write the bundle of :func:`small_policy`."""
    export_policy(small_policy(**algo), path)
    return path


def parts_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_parts(path, parts, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def description_of(path):
    return json.loads(parts_of(path)["bundle.json"])
