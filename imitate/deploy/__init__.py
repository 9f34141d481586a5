"""Deployment of policies on robots: control loop, limits, robots and devices, policy server and client, bundles."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from imitate.errors import RobotError

_HOMES = {
    "ActionLimits": "robot.limits",
    "BundlePolicy": "bundle.policy",
    "ControlLoop": "robot.loop",
    "Guidance": "robot.robot",
    "Observation": "robot.robot",
    "PolicyServer": "server.server",
    "RemotePolicy": "server.client",
    "Report": "robot.report",
    "Robot": "robot.robot",
    "Safety": "robot.loop",
    "Teleoperator": "robot.robot",
}

if TYPE_CHECKING:
    from imitate.deploy.bundle.policy import BundlePolicy
    from imitate.deploy.robot.limits import ActionLimits
    from imitate.deploy.robot.loop import ControlLoop, Safety
    from imitate.deploy.robot.report import Report
    from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
    from imitate.deploy.server.client import RemotePolicy
    from imitate.deploy.server.server import PolicyServer

__all__ = [
    "ActionLimits",
    "BundlePolicy",
    "ControlLoop",
    "Guidance",
    "Observation",
    "PolicyServer",
    "RemotePolicy",
    "Report",
    "Robot",
    "RobotError",
    "Safety",
    "Teleoperator",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'imitate.deploy' has no attribute '{name}'")
    return getattr(import_module(f"imitate.deploy.{_HOMES[name]}"), name)
