"""Choose an off-screen OpenGL back end for MuJoCo when the first image is rendered."""

import ctypes
import ctypes.util
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec

from imitate.errors import EnvError, UserError

CANDIDATES = ("egl", "osmesa")
_LIBRARIES = {"egl": ("EGL", "libEGL.so.1"), "osmesa": ("OSMesa", "libOSMesa.so.8")}
_PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6"}
_WITHOUT_LIBRARY = ("", "glfw", "glx", "wgl", "cgl", "enable", "on", "true", "1")
_WITHOUT_DRAWING = ("disable", "disabled", "off", "false", "0")

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
    """Return True if a back end renders a frame in another process, which a broken library may crash."""
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
    """Return a value of MUJOCO_GL that works on this machine, or None; the first call takes a second or two."""
    if not sys.platform.startswith("linux"):
        return "cgl" if sys.platform == "darwin" else "wgl"
    return next((backend for backend in CANDIDATES if _renders(backend)), None)


def gl_fault() -> str | None:
    """Return a line about a MUJOCO_GL that cannot work here, or None if it is valid.

    MuJoCo loads the library of MUJOCO_GL as soon as it is imported, even if nothing is drawn, and fails with errors
    that do not name the variable.
    """
    chosen = os.environ.get("MUJOCO_GL", "")
    backend = chosen.lower().strip()
    if not sys.platform.startswith("linux") or backend in _WITHOUT_LIBRARY + _WITHOUT_DRAWING:
        return None
    if backend in _LIBRARIES:
        if _has_library(*_LIBRARIES[backend]):
            return None
        what = f"its library lib{_LIBRARIES[backend][0]} is not installed"
        cure = f"apt-get install -y {_PACKAGES[backend]}"
    else:
        what, cure = "MuJoCo has no such back end", "set it to egl or osmesa"
    with _without_choice():
        other = find_gl_backend()
    unset = "unset MUJOCO_GL" + (f" ({other} works here and is then used)" if other else "")
    return f"MUJOCO_GL is '{chosen}', but {what}: {unset}, or {cure}"


@contextmanager
def telling_gl_faults() -> Iterator[None]:
    """Context that turns errors of importing or rendering with MuJoCo into one line if MUJOCO_GL is the cause.

    Raises:
        EnvError: MUJOCO_GL cannot work here.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        fault = gl_fault()
        if fault is None:
            raise
        raise EnvError(fault) from error


def _has_library(name: str, file: str) -> bool:
    for candidate in (ctypes.util.find_library(name), file):
        with suppress(OSError):
            if candidate is not None:
                ctypes.CDLL(candidate)
                return True
    return False


@contextmanager
def _without_choice() -> Iterator[None]:
    chosen = os.environ.pop("MUJOCO_GL", None)
    try:
        yield
    finally:
        if chosen is not None:
            os.environ["MUJOCO_GL"] = chosen


def load_triton() -> None:
    """Import triton, if torch includes it, before anything is drawn in this process.

    Mesa's software renderers load a libLLVM, after which the first import of triton ends the process (SIGSEGV).
    torch imports it late: at the first step of an optimizer, or in ``torch.compile``.
    """
    if "triton" not in sys.modules and find_spec("triton") is not None:
        with suppress(Exception):  # triton may be broken; torch works without it
            import_module("triton")


def prepare_gl() -> str:
    """Make sure that MuJoCo can draw off-screen in this process and its children.

    MUJOCO_GL is kept if the user has set it; triton is imported first (:func:`load_triton`).

    Raises:
        EnvError: no OpenGL library can render here, or the library that MUJOCO_GL names cannot.
    """
    fault = gl_fault()
    if fault is not None:
        raise EnvError(fault)
    if os.environ.get("MUJOCO_GL", "").lower().strip() in _WITHOUT_DRAWING:
        raise EnvError(
            f"MUJOCO_GL is '{os.environ['MUJOCO_GL']}', which switches drawing off: unset it to draw images"
        )
    backend = os.environ.get("MUJOCO_GL") or find_gl_backend()
    if backend is None:
        raise EnvError(
            f"rendering: none of MUJOCO_GL={'|'.join(CANDIDATES)} draws on this machine; "
            "install a software renderer: apt-get install -y libosmesa6"
        )
    os.environ["MUJOCO_GL"] = backend
    load_triton()
    # robosuite reads the variable once, when it is imported; it may have been imported without a renderer.
    binding = sys.modules.get("robosuite.utils.binding_utils")
    if binding is not None:
        binding._MUJOCO_GL = backend  # type: ignore[attr-defined]
    return backend
