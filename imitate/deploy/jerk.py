"""Trajectories of limited jerk, one control step at a time, by ruckig (extra ``limits``).

Berscheid and Kröger, Jerk-limited Real-time Trajectory Generation with Arbitrary Target States, arXiv:2105.04830.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imitate.errors import UserError
from imitate.system.extras import missing

Vector = NDArray[np.float64]


class JerkTrajectory:
    """Fastest trajectory to a target that may change at each control step.

    Dimensions are not synchronized: synchronized ones may overshoot a target and so leave the box.

    Args:
        speed: (A,) largest speed.
        acceleration: (A,) largest acceleration.
        jerk: (A,) largest jerk.
        period_s: control period.

    Raises:
        UserError: ruckig is not installed.
    """

    def __init__(self, speed: Vector, acceleration: Vector, jerk: Vector, period_s: float) -> None:
        try:
            import ruckig
        except ImportError as error:
            raise UserError(f"a limit of jerk: {missing('limits', error)}") from error
        size = len(speed)
        self._ruckig = ruckig.Ruckig(size, period_s)
        self._input = ruckig.InputParameter(size)
        self._output = ruckig.OutputParameter(size)
        self._input.max_velocity = speed
        self._input.max_acceleration = acceleration
        self._input.max_jerk = jerk
        self._input.synchronization = ruckig.Synchronization.No
        self._good = (ruckig.Result.Working, ruckig.Result.Finished)

    def rest(self, at: Vector) -> None:
        """Begin at rest at a position (A,)."""
        self._input.current_position = at
        self._input.current_velocity = self._input.current_acceleration = np.zeros_like(at)

    def next(self, target: Vector) -> Vector | None:
        """Return the position (A,) after the next control step towards a target, or None if there is no trajectory.

        The state changes only with :meth:`step`.
        """
        self._input.target_position = target
        if self._ruckig.update(self._input, self._output) not in self._good:
            return None
        return np.array(self._output.new_position)

    def step(self) -> None:
        """Take the step that :meth:`next` returned."""
        self._output.pass_to_input(self._input)
