"""A small untrained policy of a point that is pushed to a goal, for tests that need any checkpoint."""

import torch

from imitate import algo_factory, load_config
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint


def save_point_policy(path):
    """Write its checkpoint: 10 Hz, observations ``position`` (2,) and ``goal`` (2,), actions (2,) within [-1, 1]."""
    tree = {
        "algo_name": "bc",
        "algo": {"actor_layer_dims": [16]},
        "observation": {"modalities": {"obs": {"low_dim": ["position", "goal"]}}},
    }
    torch.manual_seed(0)
    algo = algo_factory("bc", load_config(tree), {"position": (2,), "goal": (2,)}, 2, "cpu")
    shapes = {
        "action_low": [-1.0] * 2,
        "action_high": [1.0] * 2,
        "control_freq": 10.0,
        "raw_shapes": {"position": [2], "goal": [2]},
    }
    save_checkpoint(checkpoint_dict(algo, env_metadata={}, shape_metadata=shapes), path)
    return path
