"""Off-screen OpenGL for MuJoCo, chosen when an image is first asked for and never before."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from imitate.errors import EnvError

CANDIDATES = ("egl", "osmesa")

_PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><geom size="1"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(data)
assert renderer.render().any()
"""
_PROBE_LIMIT_S = 120


def _renders(backend: str) -> bool:
    """Draw one frame in another process: a missing or broken GL library can end the process that tries it."""
    environ = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env=environ,
            capture_output=True,
            timeout=_PROBE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@functools.cache
def find_gl_backend() -> str | None:
    """The value of MUJOCO_GL that draws on this machine, or None. Costs a second or two, once per process."""
    if not sys.platform.startswith("linux"):
        return "cgl" if sys.platform == "darwin" else "wgl"
    return next((backend for backend in CANDIDATES if _renders(backend)), None)


def prepare_gl() -> str:
    """Make sure that MuJoCo can draw off-screen in this process and its children.

    MUJOCO_GL is left alone where the user has set it.

    Raises:
        EnvError: no OpenGL library draws here.
    """
    backend = os.environ.get("MUJOCO_GL") or find_gl_backend()
    if backend is None:
        raise EnvError(
            f"rendering: none of MUJOCO_GL={'|'.join(CANDIDATES)} draws on this machine; "
            "install a software renderer: apt-get install -y libosmesa6"
        )
    os.environ["MUJOCO_GL"] = backend
    # robosuite reads the variable once, when it is imported; it may have been imported without a renderer.
    binding = sys.modules.get("robosuite.utils.binding_utils")
    if binding is not None:
        binding._MUJOCO_GL = backend  # type: ignore[attr-defined]
    return backend
