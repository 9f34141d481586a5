"""Memory of robosuite's simulators: MuJoCo's objects are freed when they are no longer needed.

robosuite and MuJoCo keep more than an environment uses:

* Each reset builds a new simulator. Cycles of Python objects keep the old one until the garbage collector runs.
* Each reset also compiles a model of every robot alone, which robosuite never reads.
* MuJoCo keeps the description of the scene that was compiled last, with all meshes, for ``mj_saveLastXML``.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_BUILDING = threading.RLock()
"""Held while robosuite's class of robots is changed, for environments in several threads."""


def free_simulator(env: Any) -> None:
    """Free model and data of a robosuite environment's current scene before it is replaced or closed.

    The environment cannot step afterwards, until its next hard reset.
    """
    if env.sim is not None:
        env.sim.data._data = None
        env.sim.model._model = None


@contextmanager
def lean_build() -> Iterator[None]:
    """Let robosuite build scenes without models of single robots, and MuJoCo forget the last scene afterwards.

    :func:`restore_get_xml` must be called afterwards.
    """
    robot_model = importlib.import_module("robosuite.models.robots.robot_model").RobotModel
    with _BUILDING:
        compile_robot = robot_model.set_mujoco_model
        robot_model.set_mujoco_model = lambda self, mujoco_model=None: None
        try:
            yield
        finally:
            robot_model.set_mujoco_model = compile_robot
            _forget_scene()


def restore_get_xml(env: Any, scene: str | None = None) -> None:
    """Let ``env.sim.model.get_xml()`` compile the scene again: it writes the scene that MuJoCo compiled last.

    Args:
        env: robosuite's environment.
        scene: MJCF from which the simulator was built; None for that of the environment's own model.
    """
    env.sim.model.get_xml = partial(_get_xml, env, scene)


def _get_xml(env: Any, scene: str | None) -> str:
    mujoco, model = importlib.import_module("mujoco"), env.sim.model
    with _BUILDING:
        mujoco.MjModel.from_xml_string(env.edit_model_xml(scene or env.model.get_xml()))
        xml = str(type(model).get_xml(model))
        _forget_scene()
    return xml


def _forget_scene() -> None:
    importlib.import_module("mujoco").MjModel.from_xml_string("<mujoco/>")
