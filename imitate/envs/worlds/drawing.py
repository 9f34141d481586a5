"""Cameras of a MuJoCo model, for adapters that observe or render images."""

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces

from imitate.envs.env import Array, Obs
from imitate.envs.rendering import prepare_gl
from imitate.errors import EnvError, nearest

SUFFIX = "_image"


class ModelCameras:
    """Cameras of a model.

    Args:
        model: MuJoCo's model.
        data: MuJoCo's data with the state that is rendered.
        observed: names of the cameras to observe.
        size: side of the observed images, in pixels.
        shadows: true to draw shadows, which take most of the time without a GPU.

    Raises:
        EnvError: there is no such camera.
    """

    def __init__(
        self, model: Any, data: Any, observed: Sequence[str], size: int, shadows: bool = True
    ) -> None:
        self._model, self._data = model, data
        self._observed, self._size, self._shadows = tuple(observed), size, shadows
        self._viewers: dict[tuple[int, int], Any] = {}  # keyed by height and width
        self._names = [model.camera(i).name for i in range(model.ncam)]
        for name in self._observed:
            self._check(name)

    def spaces(self) -> dict[str, Any]:
        """Return the spaces of the observed images, ``<camera>_image`` (size, size, 3)."""
        shape = (self._size, self._size, 3)
        return {name + SUFFIX: spaces.Box(0, 255, shape, np.uint8) for name in self._observed}

    def observe(self) -> Obs:
        """Draw the observed images."""
        return {name + SUFFIX: self.draw(name, self._size, self._size) for name in self._observed}

    def draw(self, name: str, height: int, width: int) -> Array:
        """Draw one frame, (height, width, 3) uint8.

        Images of cameras that are upside down, such as Meta-World's four in the corners, are rotated by 180 degrees.

        Raises:
            EnvError: there is no such camera, or OpenGL cannot draw here.
        """
        self._check(name)
        if (height, width) not in self._viewers:
            prepare_gl()
            # Unlike mujoco.Renderer, this reads MUJOCO_GL now, not when mujoco is imported.
            from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer

            buffer = self._model.vis.global_  # frames larger than the buffer would stay black
            buffer.offheight = max(buffer.offheight, height)
            buffer.offwidth = max(buffer.offwidth, width)
            made = OffScreenViewer(self._model, self._data, width, height)
            made.scn.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = self._shadows
            self._viewers[height, width] = made
        viewer = self._viewers[height, width]
        viewer.make_context_current()
        camera = self._model.camera(name)
        frame = viewer.render("rgb_array", camera_id=camera.id)
        up = self._data.cam_xmat[camera.id].reshape(3, 3)[2, 1]
        stands = camera.mode[0] == mujoco.mjtCamLight.mjCAMLIGHT_FIXED
        return np.ascontiguousarray(frame[::-1, ::-1] if stands and up < 0 else frame)

    def _check(self, name: str) -> None:
        if name not in self._names:
            raise EnvError(f"the scene has no camera '{name}'; {nearest(name, self._names)}")

    def close(self) -> None:
        """Free the OpenGL contexts."""
        self._viewers.clear()  # each renderer frees its own context
