"""Plug-in of LeRobot with a camera of moving stripes, which freezes after ``freezes_after_s`` seconds."""

import time
from dataclasses import dataclass

import numpy as np
from lerobot.cameras.camera import Camera
from lerobot.cameras.configs import CameraConfig


@CameraConfig.register_subclass("stripes")
@dataclass(kw_only=True)
class StripesCameraConfig(CameraConfig):
    freezes_after_s: float | None = None


class StripesCamera(Camera):
    """The camera; LeRobot finds it by the name of its configuration."""

    def __init__(self, config):
        super().__init__(config)
        self.config = config
        self._since = None
        self.latest_timestamp = None

    @property
    def is_connected(self):
        return self._since is not None

    @staticmethod
    def find_cameras():
        return []

    def connect(self, warmup=True):
        self._since = time.perf_counter()
        self.latest_timestamp = self._since

    def read(self):
        now = time.perf_counter()
        last = self.config.freezes_after_s
        if last is None or now - self._since < last:
            self.latest_timestamp = now
        return np.full(
            (self.height, self.width, 3), int(1e3 * self.latest_timestamp) % 251, np.uint8
        )

    def async_read(self, timeout_ms=200):
        return self.read()

    def read_latest(self, max_age_ms=500):
        frame = self.read()
        if 1e3 * (time.perf_counter() - self.latest_timestamp) > max_age_ms:
            raise TimeoutError(f"latest frame is older than {max_age_ms} ms")
        return frame

    def disconnect(self):
        self._since = None
