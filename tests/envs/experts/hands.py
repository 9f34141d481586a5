"""Observations of a hand above a cube, the plainest way to move it, and random places near an expert's thresholds."""

from dataclasses import replace

import numpy as np

from imitate.envs.experts import Style

PLAIN = Style(speed=0.6, hover_m=0.08, grasp_offset_m=np.zeros(3), detour_m=np.zeros(2))
OTHER = replace(PLAIN, grasp_offset_m=np.array([0.001, -0.002, 0.0015]), margin_m=0.01)


def observation(eef=(0.0, 0.0, 1.0), cube=(0.0, 0.0, 0.82), width=0.08, quat=(1.0, 0.0, 0.0, 0.0)):
    return {
        "robot0_eef_pos": np.array(eef),
        "robot0_eef_quat": np.array(quat),
        "robot0_gripper_qpos": np.array([width / 2, -width / 2]),
        "object": np.array([*cube, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
    }


def near(random, *edges):
    """One of these thresholds, or a value up to a third beside it."""
    return random.choice(edges) * random.choice([1.0, random.uniform(0.7, 1.3)])


BESIDE = 1.01
"""Factor on thresholds where the rounding of sines would decide whether they are reached."""


def aside(random, *edges):
    """A vector (3,) along none to three axes, each part near one of these thresholds."""
    return np.array([near(random, *edges) for _ in "xyz"]) * random.integers(-1, 2, 3)


def rotation(random, *edges):
    """A rotation vector (3,) about any axis by an angle near one of these."""
    axis = random.normal(size=3)
    return BESIDE * near(random, *edges) * axis / np.linalg.norm(axis)


def fingerprint(kind, draw, count=300):
    """The sum of the actions for drawn observations with random weights: it differs if one action does."""
    random, total = np.random.default_rng(1), 0.0
    for _ in range(count):
        action = kind(random.choice([PLAIN, OTHER])).act(draw(random))
        total += float(action @ random.uniform(-1.0, 1.0, len(action)))
    return total
