"""Devices with LeRobot's methods and properties, and what is imported of LeRobot, where it is not installed.

``tools/interop/lerobot_robot.sh`` drives LeRobot's own devices.
"""

import sys
import threading
import time
import types
from dataclasses import dataclass, field, fields
from enum import Enum
from types import SimpleNamespace

import numpy as np

MOTORS = ("shoulder", "elbow", "gripper")


class NotConnected(ConnectionError):
    """LeRobot's DeviceNotConnectedError."""


@dataclass(kw_only=True)
class RobotConfig:
    """Base of configurations, where LeRobot registers the types."""

    id: str | None = None
    calibration_dir: str | None = None
    types = {}

    @classmethod
    def get_known_choices(cls):
        return cls.types

    @property
    def type(self):
        return next(name for name, kind in self.types.items() if kind is type(self))


@dataclass(kw_only=True)
class TeleoperatorConfig(RobotConfig):
    types = {}


@dataclass(kw_only=True)
class ArmConfig(RobotConfig):
    port: str
    cameras: dict = field(default_factory=dict)
    disable_torque_on_disconnect: bool = True
    max_relative_target: float | None = None


@dataclass(kw_only=True)
class TwoArmsConfig(RobotConfig):
    left_arm_config: ArmConfig
    right_arm_config: ArmConfig


@dataclass(kw_only=True)
class LeaderConfig(TeleoperatorConfig):
    port: str


RobotConfig.types.update(arm_follower=ArmConfig, two_arms=TwoArmsConfig)
TeleoperatorConfig.types.update(arm_leader=LeaderConfig)


class Bus:
    """Motors whose units are those of LeRobot: degrees, -100 to 100, 0 to 100."""

    model_resolution_table = {"sts3215": 4096}

    def __init__(self, calibration):
        units = ("degrees", "range_m100_100", "range_0_100")
        self.motors = {
            name: SimpleNamespace(norm_mode=SimpleNamespace(value=unit), model="sts3215")
            for name, unit in zip(MOTORS, units, strict=True)
        }
        self.calibration = calibration
        self.torque = True

    def disable_torque(self):
        self.torque = False


class Camera:
    def __init__(self, height=4, width=6):
        self.height, self.width = height, width
        self.latest_timestamp = None


class Arm:
    """A follower with three motors, and a camera if ``camera`` is given."""

    name = "so_arm"

    def __init__(self, config=None, camera=None, calibrated=True):
        self.config = config or ArmConfig(port="p", id="left")
        self.id = self.config.id
        self.calibration_fpath = f"calibration/{self.id}.json"
        whole = SimpleNamespace(range_min=1024, range_max=3072)
        self.bus = Bus({"shoulder": whole} if calibrated else {})
        self.cameras = {"front": camera} if camera else {}
        self.positions = dict(zip(MOTORS, (10.0, -20.0, 40.0), strict=True))
        self.is_calibrated = calibrated
        self.is_connected = False
        self.calls, self.inside, self.overlaps = [], 0, 0
        self.faults = {}
        self._lock = threading.Lock()

    @property
    def observation_features(self):
        motors = {f"{name}.pos": float for name in MOTORS}
        return {**motors, **{k: (c.height, c.width, 3) for k, c in self.cameras.items()}}

    @property
    def action_features(self):
        return {f"{name}.pos": float for name in MOTORS}

    def connect(self, calibrate=True):
        self._note("connect", calibrate)
        self.is_connected = True

    def get_observation(self):
        with self:
            self._note("get_observation")
            seen = {f"{name}.pos": value for name, value in self.positions.items()}
            for key, camera in self.cameras.items():
                seen[key] = np.full((camera.height, camera.width, 3), 7, np.uint8)
            return seen

    def send_action(self, action):
        with self:
            self._note("send_action", dict(action))
            most = self.config.max_relative_target
            sent = {}
            for name, value in action.items():
                now = self.positions[name.removesuffix(".pos")]
                sent[name] = value if most is None else now + np.clip(value - now, -most, most)
            return sent

    def disconnect(self):
        self._note("disconnect")
        self.is_connected = False

    def _note(self, name, value=None):
        self.calls.append((name, value))
        if name in self.faults:
            self.faults[name]()
        if not (self.is_connected or name == "connect"):
            raise NotConnected(name)

    def __enter__(self):  # a bus takes one call at a time
        with self._lock:
            self.inside += 1
            self.overlaps += self.inside > 1
        time.sleep(0.0005)

    def __exit__(self, *_):
        with self._lock:
            self.inside -= 1

    @property
    def sent(self):
        return [value for name, value in self.calls if name == "send_action"]


class TwoArms:
    """Two arms in one robot, as LeRobot's ``bi_so_follower``."""

    name = "two_arms"

    def __init__(self, config):
        self.config, self.id, self.cameras = config, config.id, {}
        self.left_arm, self.right_arm = Arm(config.left_arm_config), Arm(config.right_arm_config)

    @property
    def observation_features(self):
        return {f"{side}_{name}.pos": float for side in ("left", "right") for name in MOTORS}

    action_features = observation_features


class Leader:
    """A leader arm with motors."""

    name = "so_leader"

    def __init__(self, config=None):
        self.config = config or LeaderConfig(port="p", id="right")
        self.id = self.config.id
        self.positions = dict(zip(MOTORS, (1.0, 2.0, 3.0), strict=True))
        self.is_calibrated, self.is_connected, self.torque = True, False, False
        self.calls = []

    @property
    def action_features(self):
        return {f"{name}.pos": float for name in reversed(MOTORS)}  # another order than the robot

    feedback_features = action_features

    def connect(self, calibrate=True):
        self.calls.append(("connect", calibrate))
        self.is_connected = True

    def get_action(self):
        return {f"{name}.pos": value for name, value in self.positions.items()}

    def send_feedback(self, feedback):
        self.calls.append(("send_feedback", dict(feedback)))

    def enable_torque(self):
        self.calls.append(("enable_torque", None))

    def disable_torque(self):
        self.calls.append(("disable_torque", None))

    def disconnect(self):
        self.is_connected = False


class TeleopEvents(Enum):
    SUCCESS = "success"
    FAILURE = "failure"
    RERECORD_EPISODE = "rerecord_episode"
    IS_INTERVENTION = "is_intervention"
    TERMINATE_EPISODE = "terminate_episode"


class Gamepad:
    """A gamepad as LeRobot has it: ``connect`` takes nothing, ``is_calibrated`` is a method, features are one array."""

    name = "gamepad"
    config = SimpleNamespace(type="gamepad")
    id = None
    feedback_features = {}
    action_features = {
        "dtype": "float32",
        "shape": (3,),
        "names": {"delta_y": 1, "delta_x": 0, "gripper": 2},
    }

    def __init__(self):
        self.pressed, self.is_connected = set(), False
        self.action = {"delta_x": np.float32(0.5), "delta_y": np.float32(-0.5), "gripper": 2}

    def connect(self):
        self.is_connected = True

    def is_calibrated(self):
        return True

    def get_action(self):
        return self.action

    def get_teleop_events(self):
        return {event: event.value in self.pressed for event in TeleopEvents}

    def disconnect(self):
        self.is_connected = False


def install(monkeypatch, plugins=lambda: None):
    """Put stand-ins of LeRobot's modules where imports find them; ``plugins`` is called when plug-ins are imported."""

    def decode(base, given):
        given = dict(given)
        kind = base.get_known_choices()[given.pop("type")]
        nested = {f.name: given[f.name] for f in fields(kind) if f.name.endswith("arm_config")}
        given |= {name: ArmConfig(**value) for name, value in nested.items()}
        return kind(**given)

    def made(config):
        return {ArmConfig: Arm, TwoArmsConfig: TwoArms, LeaderConfig: Leader}[type(config)](config)

    contents = {
        "lerobot": {},
        "lerobot.robots": {"RobotConfig": RobotConfig, "make_robot_from_config": made},
        "lerobot.teleoperators": {
            "TeleoperatorConfig": TeleoperatorConfig,
            "make_teleoperator_from_config": made,
        },
        "lerobot.cameras": {},
        "lerobot.utils": {},
        "lerobot.utils.import_utils": {"register_third_party_plugins": plugins},
        "draccus": {"decode": decode},
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        module.__path__ = []
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
