"""Plug-in of LeRobot with an arm without hardware, whose joints follow commands and which writes them to a file."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from lerobot.robots.config import RobotConfig
from lerobot.robots.robot import Robot


@RobotConfig.register_subclass("fakearm")
@dataclass(kw_only=True)
class FakeArmConfig(RobotConfig):
    joints: int = 4
    image: list[int] = field(default_factory=list)
    out: str = "sent.json"


class FakeArm(Robot):
    """The arm; LeRobot finds it by the name of its configuration."""

    config_class = FakeArmConfig
    name = "fakearm"

    def __init__(self, config):
        super().__init__(config)
        self.config = config
        self.pose = dict.fromkeys(self._joints, 0.0)
        self.sent = []
        self._connected = False

    @property
    def _joints(self):
        return {f"j{number}.pos": float for number in range(self.config.joints)}

    @cached_property
    def observation_features(self):
        camera = {"hand": tuple(self.config.image)} if self.config.image else {}
        return {**self._joints, **camera}

    @cached_property
    def action_features(self):
        return self._joints

    @property
    def is_connected(self):
        return self._connected

    @property
    def is_calibrated(self):
        return True

    def connect(self, calibrate=True):
        self._connected = True

    def calibrate(self):
        pass

    def configure(self):
        pass

    def get_observation(self):
        camera = {}
        if self.config.image:
            camera = {"hand": np.full(self.config.image, len(self.sent) % 251, np.uint8)}
        return {**self.pose, **camera}

    def send_action(self, action):
        self.sent.append({name: float(value) for name, value in action.items()})
        self.pose.update(self.sent[-1])
        return action

    def disconnect(self):
        self._connected = False
        Path(self.config.out).write_text(json.dumps(self.sent))
