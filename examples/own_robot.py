"""An example of your own robot in thirty lines: replace the moving point by your robot's driver.

imitate record own.hdf5 --robot examples/own_robot.py:PointArm --teleop keyboard --teleop-arg gripper=false
imitate run last.pth --robot examples/own_robot.py:PointArm --steps 100
"""

import time

import numpy as np

from imitate.deploy import ActionLimits, Observation, Robot


class PointArm(Robot):
    """A point on a table that is pushed to a goal; an action is its velocity along both axes."""

    observation_shapes = {"position": (2,), "goal": (2,), "camera_image": (32, 32, 3)}
    limits = ActionLimits(low=[-1.0, -1.0], high=[1.0, 1.0], step=0.5)
    rate_hz = 10.0

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.position, self.goal = self.random.uniform(-1, 1, (2, 2))

    def observe(
        self,
    ):  # newest observation and its time; keys, units and sizes as in the data
        stamp = time.monotonic()
        image = self.random.integers(
            0, 8, (32, 32, 3), dtype=np.uint8
        )  # a real camera's image has noise
        row, column = np.clip(16 * (self.position + 1), 0, 31).astype(int)
        image[row, column] = 255
        return Observation(
            {"position": self.position.copy(), "goal": self.goal.copy(), "camera_image": image},
            stamp,
        )

    def send(self, action):  # sends the action to the controller and returns at once
        self.position = self.position + 0.1 * action

    def stop(self):  # may be called from any thread, repeatedly, and while another call blocks
        pass

    def pose(self, observation):  # returns the action that does not move the robot
        return np.zeros(2)
