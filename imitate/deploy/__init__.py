"""Policies on robots: the control loop and its limits, robots and devices, policy server and client, action chunks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from imitate.errors import RobotError

_HOMES = {
    "ActionLimits": "limits",
    "BundlePolicy": "bundle.policy",
    "ControlLoop": "loop",
    "Guidance": "robot",
    "Observation": "robot",
    "PolicyServer": "server",
    "RemotePolicy": "client",
    "Report": "report",
    "Robot": "robot",
    "Safety": "loop",
    "Teleoperator": "robot",
}

if TYPE_CHECKING:
    from imitate.deploy.bundle.policy import BundlePolicy
    from imitate.deploy.client import RemotePolicy
    from imitate.deploy.limits import ActionLimits
    from imitate.deploy.loop import ControlLoop, Safety
    from imitate.deploy.report import Report
    from imitate.deploy.robot import Guidance, Observation, Robot, Teleoperator
    from imitate.deploy.server import PolicyServer

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
