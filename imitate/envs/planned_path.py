"""Predict the paths of the grippers of robosuite's robots under a sequence of actions.

For the controllers of hand poses (``OSC_POSE``, ``OSC_POSITION``). They pull a hand towards its goal as a spring and a
damper would: ``acceleration = kp (goal - position) - kd velocity``. A relative goal moves on before the gripper reaches
it, so the path length is a fraction of the sum of the commands: about a quarter with robosuite's default gains at 20
Hz.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from imitate.envs.env import Array

PULSE_S = 0.002
"""Length of a step of the spring's motion."""


def planned_paths(env: Any, actions: Array) -> list[Array]:
    """Predict the positions of each hand: now, and after each action.

    Args:
        env: robosuite's environment.
        actions: (K, A) in the environment's form.

    Returns:
        per hand with such a controller (K + 1, 3) metres in the world.
    """
    return [_hand_path(env, controller, commands) for controller, commands in _arms(env, actions)]


def _arms(env: Any, actions: Array) -> Iterator[tuple[Any, Array]]:
    """Return the controllers of gripper poses, each with the action columns that are its goal."""
    start = 0
    for robot in env.robots:
        composite = robot.composite_controller
        composite.update_state()  # base position of the robot
        for arm in robot.arms:
            controller = composite.part_controllers[arm]
            if getattr(controller, "name_suffix", None) in ("POSE", "POSITION"):
                _, stop = composite._action_split_indexes[arm]
                size = 6 if controller.use_ori else 3
                yield controller, actions[:, start + stop - size : start + stop]
        start += int(robot.action_dim)


def _hand_path(env: Any, controller: Any, commands: Array) -> Array:
    data, name = env.sim.data, controller.ref_name
    position = np.array(data.site_xpos[env.sim.model.site_name2id(name)])
    velocity = np.array(data.get_site_xvelp(name))
    in_base = controller.input_ref_frame == "base"
    frame = np.asarray(controller.origin_ori) if in_base else np.eye(3)
    origin = np.asarray(controller.origin_pos) if in_base else np.zeros(3)
    relative = controller.input_type == "delta"
    follows_hand = getattr(controller, "_goal_update_mode", "achieved") == "achieved"
    pulses = max(1, round(1 / (controller.control_freq * PULSE_S)))
    duration = 1 / (controller.control_freq * pulses)
    path, goal = [position], position
    for command in commands:
        if relative:
            motion = frame @ controller.scale_action(command)[:3]
            goal = (position if follows_hand else goal) + motion
        else:
            goal = origin + frame @ command[:3]
        for _ in range(pulses):
            pull = controller.kp[:3] * (goal - position) - controller.kd[:3] * velocity
            velocity = velocity + duration * pull
            position = position + duration * velocity
        path.append(position)
    return np.stack(path)
