"""Policies of imitate for LeRobot, which imports this package if it is installed."""

from lerobot_policy_imitate.configuration_imitate import ImitateConfig

__all__ = ["ImitateConfig"]
