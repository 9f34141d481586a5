"""A small bundle, and changes of it."""

import zipfile

from imitate.deploy.bundle.exporting import export_policy
from imitate.policy.rollout_policy import RolloutPolicy
from tests.tiny import tiny_algo

OBS_DIM, AC_DIM = 4, 3


def small_policy(seed=0, **algo):
    """A policy of chunks of 4 actions, of which 2 are executed."""
    chunk = {"chunk": {"enabled": True, "size": 4, "execute": 2}, **algo}
    words = {"algo": chunk, "train": {"seq_length": 4}, "seed": seed, "hidden": (8,)}
    made = tiny_algo("bc", obs={"a": OBS_DIM}, action=AC_DIM, **words)
    return RolloutPolicy(made, [-1.0] * AC_DIM, [1.0] * AC_DIM, control_freq=20.0)


def small_bundle(path):
    """Write the bundle of :func:`small_policy`."""
    export_policy(small_policy(), path)
    return path


def parts_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_parts(path, parts, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
