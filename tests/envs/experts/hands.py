"""Observations of a hand above a cube, and the plainest way to move it."""

import numpy as np

from imitate.envs.experts import Style

PLAIN = Style(speed=0.6, hover_m=0.08, grasp_offset_m=np.zeros(3), detour_m=np.zeros(2))


def observation(eef=(0.0, 0.0, 1.0), cube=(0.0, 0.0, 0.82), width=0.08, quat=(1.0, 0.0, 0.0, 0.0)):
    return {
        "robot0_eef_pos": np.array(eef),
        "robot0_eef_quat": np.array(quat),
        "robot0_gripper_qpos": np.array([width / 2, -width / 2]),
        "object": np.array([*cube, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
    }
