"""MuJoCo's own window on a simulated scene, for a person who teleoperates it."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

from imitate.envs.env import Env
from imitate.errors import EnvError


class SceneWindow:
    """A window on the scene of a robosuite environment; all calls must be made in the thread that steps it.

    The window draws in its own thread. If the person closes it, it stays closed until the next episode, whose new model
    gets a new window.
    """

    def __init__(self) -> None:
        self._viewer: Any = None
        self._model: Any = None

    def show(self, env: Env) -> None:
        """Show the current state.

        Raises:
            EnvError: the environment is not from robosuite, or no window can be opened.
        """
        scene = getattr(env, "base_env", None)
        if scene is None or not hasattr(scene, "sim"):
            raise EnvError("view is for robosuite's environments: this one has no MuJoCo scene")
        model, data = scene.sim.model._model, scene.sim.data._data
        if model is not self._model:
            self.close()
            self._viewer, self._model = _opened(model, data), model
        if self._viewer.is_running():
            self._viewer.sync()

    def close(self) -> None:
        """Close the window."""
        viewer, self._viewer, self._model = self._viewer, None, None
        if viewer is not None:
            with contextlib.suppress(Exception):  # it may already be closed
                viewer.close()


def _opened(model: Any, data: Any) -> Any:
    import glfw
    import mujoco.viewer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usable = glfw.init()  # MuJoCo would end the process if it fails
    try:
        if not usable:
            raise RuntimeError("GLFW finds no display")
        viewer = mujoco.viewer.launch_passive(model, data, show_left_ui=False, show_right_ui=False)
    except RuntimeError as error:
        raise EnvError(
            f"no window can be opened: {error}: view needs a display (DISPLAY, "
            "WAYLAND_DISPLAY), and on macOS mjpython instead of python"
        ) from error
    with viewer.lock():
        viewer.opt.geomgroup[0] = 0  # shapes for collisions
        viewer.cam.lookat[:] = (0.0, 0.0, 1.0)
        viewer.cam.distance, viewer.cam.azimuth, viewer.cam.elevation = 2.0, 0.0, -30.0
    return viewer
