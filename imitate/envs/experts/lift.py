"""Expert of Lift: it grasps the cube and raises it."""

from __future__ import annotations

import numpy as np

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import CLOSE, Expert, opening

# The cube is 4.0 to 4.4 cm wide and held at any yaw, so the fingers stop between 4 and 6.3 cm.
_TOUCHING_M = 0.068
_HELD_M = 0.056


class LiftExpert(Expert):
    """Descends over the cube, closes when it is between the fingers, and rises as they grip it."""

    env_name = "Lift"
    horizon = 200

    def act(self, obs: Obs) -> Array:
        """Return the action (7,) for an observation."""
        width = opening(obs)
        to_cube: Array = obs["object"][:3] + self.style.grasp_offset_m - obs["robot0_eef_pos"]
        sideways, vertical = float(np.linalg.norm(to_cube[:2])), abs(float(to_cube[2]))
        reached = sideways < 0.013 and vertical < 0.013
        closing = width < 0.075 and sideways < 0.022 and vertical < 0.022
        if not (reached or closing):
            return self.approach(obs, to_cube)
        # The rise increases gradually from contact to grasp, because a policy could not observe the end of a wait.
        rise = float(np.clip((_TOUCHING_M - width) / (_TOUCHING_M - _HELD_M), 0.0, 1.0))
        displacement = (1.0 - rise) * to_cube + np.array([0.0, 0.0, 0.05 * rise])
        return self.move(obs, displacement, CLOSE)
