"""Policies with random weights, and observations for them: for tests of bundles, servers and predictions ahead."""

from pathlib import Path

import numpy as np
import torch

from imitate import RolloutPolicy, algo_factory, load_config
from imitate.system.instructions import Instructions
from tests.tiny import tiny_algo

CONFIGS = Path(__file__).parents[2] / "configs"
IMAGES = ("agentview_image", "robot0_eye_in_hand_image", "corner2_image")
SIZES = {"robot0_eef_pos": 3, "robot0_gripper_qpos": 2, "flat": 11, "desired_goal": 3}
SHAPES = {key: (size,) for key, size in {**SIZES, "object": 10, "observation": 10}.items()}
SHAPES |= {key: (3, 84, 84) for key in IMAGES}
"""Shapes of observations; all others have four numbers."""


def acting(algo, instructions=None):
    """A policy at 20 Hz, whose actions are within 0.9."""
    high = np.full(algo.ac_dim, 0.9)
    return RolloutPolicy(algo, -high, high, instructions, control_freq=20.0)


def policy_of(name, **overrides):
    """A policy of seven numbers of a ready configuration, "folder/name" or a path."""
    torch.manual_seed(0)
    config = load_config(CONFIGS / f"{str(name).removesuffix('.json')}.json").with_overrides(
        {"experiment.epoch_every_n_steps": 10, **overrides}
    )
    keys = {*config.observation.modality_of("obs"), *config.observation.modality_of("goal")}
    shapes = {key: SHAPES.get(key, (4,)) for key in sorted(keys)}
    return acting(algo_factory(config.algo_name, config, shapes, 7, "cpu"))


def instructed(languages=("pick", "place")):
    """A policy that takes instructions, as one-hot vectors."""
    obs = {"object": 10, "lang_emb": len(languages)}
    return acting(tiny_algo("bc", obs=obs, action=7), Instructions.one_hot(list(languages)))


def observations(policy, count, seed=0):
    """Random observations, of the goals too."""
    rng, preprocess = np.random.default_rng(seed), policy.algo.preprocess
    return [
        {
            key: rng.integers(256, size=preprocess.raw_shapes[key], dtype=np.uint8)
            if preprocess.modalities[key] == "rgb"
            else rng.normal(size=preprocess.raw_shapes[key]).astype(np.float32)
            for key in (*policy.obs_keys, *policy.goal_keys)
        }
        for _ in range(count)
    ]
