import os
import subprocess
import sys
import types
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from imitate.envs import rendering
from imitate.envs.gymnasium_env import GymnasiumEnv
from imitate.errors import EnvError


def test_the_users_choice_is_left_alone(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setattr(rendering, "_has_library", lambda name, file: True)
    monkeypatch.setattr(rendering, "find_gl_backend", lambda: pytest.fail("looked for another"))
    assert rendering.prepare_gl() == "osmesa"
    assert os.environ["MUJOCO_GL"] == "osmesa"


def test_no_library_is_one_clear_line(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(rendering, "find_gl_backend", lambda: None)
    with pytest.raises(EnvError, match="apt-get install -y libosmesa6") as caught:
        rendering.prepare_gl()
    assert "\n" not in str(caught.value)
    assert "MUJOCO_GL" not in os.environ


def test_first_backend_that_draws_is_taken(monkeypatch):
    monkeypatch.setattr(rendering.sys, "platform", "linux")
    tried = []

    def draws(backend):
        tried.append(backend)
        return backend == "osmesa"

    monkeypatch.setattr(rendering, "_renders", draws)
    rendering.find_gl_backend.cache_clear()
    try:
        assert rendering.find_gl_backend() == "osmesa"
    finally:
        rendering.find_gl_backend.cache_clear()
    assert tried == ["egl", "osmesa"]


def test_a_backend_that_ends_its_process_is_not_taken(monkeypatch):
    program = "import os; os._exit(9) if os.environ['MUJOCO_GL'] == 'egl' else None"
    monkeypatch.setattr(rendering.sys, "platform", "linux")
    monkeypatch.setattr(rendering, "_PROBE", program)
    rendering.find_gl_backend.cache_clear()
    try:
        assert rendering.find_gl_backend() == "osmesa"
    finally:
        rendering.find_gl_backend.cache_clear()


@pytest.mark.robosuite
@pytest.mark.slow("a new interpreter imports the simulator")
def test_importing_robosuite_leaves_the_variable_and_the_screen_alone():
    program = (
        "import os; from imitate.envs.robosuite_env import import_robosuite; import_robosuite();"
        "assert 'MUJOCO_GL' not in os.environ"
    )
    environ = {key: value for key, value in os.environ.items() if key != "MUJOCO_GL"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- a MUJOCO_GL that cannot work ----------------------------------------------------------------


@pytest.fixture
def no_library(monkeypatch):
    """A machine without OSMesa, where EGL draws."""
    monkeypatch.setattr(rendering.sys, "platform", "linux")
    monkeypatch.setattr(rendering, "_has_library", lambda name, file: name == "EGL")
    monkeypatch.setattr(rendering, "find_gl_backend", lambda: "egl")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            "osmesa",
            "MUJOCO_GL is 'osmesa', but its library libOSMesa is not installed: unset MUJOCO_GL (egl works here and is "
            "then used), or apt-get install -y libosmesa6",
        ),
        (
            "emacs",
            "MUJOCO_GL is 'emacs', but MuJoCo has no such back end: unset MUJOCO_GL (egl works here "
            "and is then used), or set it to egl or osmesa",
        ),
        ("egl", None),
        ("EGL", None),
        ("glfw", None),
        ("disable", None),
        ("", None),
    ],
)
def test_faults_of_the_choice(monkeypatch, no_library, value, words):
    monkeypatch.setenv("MUJOCO_GL", value)
    assert rendering.gl_fault() == words
    assert os.environ["MUJOCO_GL"] == value
    if words is not None:
        with pytest.raises(EnvError) as raised:
            rendering.prepare_gl()
        assert str(raised.value) == words


def test_drawing_that_is_switched_off(monkeypatch, no_library):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    with pytest.raises(EnvError, match="switches drawing off: unset it"):
        rendering.prepare_gl()


def test_other_failures_stay_what_they_are(monkeypatch, no_library):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(AttributeError, match="mine"), rendering.telling_gl_faults():
        raise AttributeError("mine")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(EnvError, match="libOSMesa is not installed"), rendering.telling_gl_faults():
        raise AttributeError("'NoneType' object has no attribute 'glGetError'")
    with pytest.raises(EnvError, match="mine"), rendering.telling_gl_faults():
        raise EnvError("mine")


nightly = partial(pytest.param, marks=pytest.mark.nightly)


@pytest.mark.robosuite
@pytest.mark.slow("looks for a way of drawing that works, in new processes")
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("collect", "--env", "Lift", "--num", "1", "--out", "out.hdf5"), 2),
        nightly(("dataset", "render", "{lift}", "--out", "out.hdf5"), 2),
        nightly(("check-env", "HalfCheetah-v5"), 1),
    ],
    ids=["collect", "render", "gymnasium"],
)
def test_commands_say_it_in_one_line(tmp_path, monkeypatch, imitate, args, code):
    """Without images too: MuJoCo wants the library when it is imported."""
    lift = Path(__file__).parents[1] / "data" / "fixtures" / "robosuite_1.4.1_lift.hdf5"
    monkeypatch.setenv("MUJOCO_GL", "neither")
    done = imitate(*(arg.format(lift=lift) for arg in args), cwd=tmp_path, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == code, printed
    assert "MUJOCO_GL is 'neither', but MuJoCo has no such back end" in printed
    assert "Traceback" not in printed


# ---- triton before the first drawing ---------------------------------------------------------------


@pytest.fixture
def triton(monkeypatch, tmp_path):
    """A stand-in for triton that is installed and not imported yet; returns whether it has been imported."""
    (tmp_path / "triton.py").write_text("")
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: "triton" in sys.modules
    sys.modules.pop("triton", None)


class Pictures(gymnasium.Env):
    """Notes whether triton is imported when it may draw for the first time."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}
    action_space = spaces.Discrete(2)
    found = {}

    def __init__(self, render_mode=None, image=True):
        self.found["made"] = "triton" in sys.modules
        one = spaces.Box(0, 255, (2, 2, 3), np.uint8) if image else spaces.Box(0, 1, (1,))
        self.observation_space = spaces.Dict({"x": one})

    def reset(self, *, seed=None, options=None):
        self.found["reset"] = "triton" in sys.modules
        return self.observation_space.sample(), {}


def test_triton_is_imported_before_mujoco_draws(monkeypatch, no_library, triton):
    """After Mesa has loaded its libLLVM, the import ends the process."""
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert not triton()
    rendering.prepare_gl()
    assert triton()


@pytest.mark.parametrize(
    ("render", "image", "made", "reset"),
    [(True, False, True, True), (False, True, False, True), (False, False, False, False)],
    ids=["rendered", "image observed", "states"],
)
def test_triton_is_imported_before_an_environment_draws(triton, render, image, made, reset):
    gymnasium.register("Pictures-v0", Pictures, disable_env_checker=True)
    try:
        GymnasiumEnv("Pictures-v0", {"image": image}, render=render).reset()
    finally:
        del gymnasium.registry["Pictures-v0"]
    assert Pictures.found == {"made": made, "reset": reset}


class MujocoPictures(Pictures):
    """MuJoCo is in the class's name, as in gymnasium_robotics, rather than in the module's."""


def test_opengl_is_prepared_for_mujoco_however_it_is_spelled(monkeypatch):
    prepared = []
    monkeypatch.setattr("imitate.envs.gymnasium_env.prepare_gl", lambda: prepared.append(True))
    gymnasium.register("Pictures-v0", MujocoPictures, disable_env_checker=True)
    try:
        GymnasiumEnv("Pictures-v0", render=True)
    finally:
        del gymnasium.registry["Pictures-v0"]
    assert prepared == [True]


def test_a_triton_that_cannot_be_imported_is_no_matter(triton, tmp_path):
    (tmp_path / "triton.py").write_text("raise OSError('no driver')")
    rendering.load_triton()
    assert not triton()


# ---- part by part --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "draws", "backend"),
    [
        ("darwin", [], "cgl"),
        ("win32", [], "wgl"),
        ("linux2", ["egl", "osmesa"], "egl"),
        ("linux", [], None),
    ],
)
def test_back_ends_by_platform(monkeypatch, platform, draws, backend):
    monkeypatch.setattr(rendering.sys, "platform", platform)
    monkeypatch.setattr(rendering, "_renders", draws.__contains__)
    rendering.find_gl_backend.cache_clear()
    try:
        assert rendering.find_gl_backend() == backend
    finally:
        rendering.find_gl_backend.cache_clear()
    assert rendering.CANDIDATES == ("egl", "osmesa")


@pytest.mark.parametrize(("code", "draws"), [(0, True), (1, False), (-11, False), (None, False)])
def test_a_frame_is_drawn_in_another_process(monkeypatch, code, draws):
    seen = []

    def run(command, **words):
        seen.append((command, words))
        if code is None:
            raise subprocess.TimeoutExpired(command, 120)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(rendering.sys, "platform", "linux")
    monkeypatch.setattr(rendering.subprocess, "run", run)
    rendering.find_gl_backend.cache_clear()
    try:
        assert rendering.find_gl_backend() == ("egl" if draws else None)
    finally:
        rendering.find_gl_backend.cache_clear()
    backends = ["egl"] if draws else ["egl", "osmesa"]
    for backend, (command, words) in zip(backends, seen, strict=True):
        assert command[:2] == [sys.executable, "-c"] and "renderer.render().any()" in command[2]
        assert words["env"]["MUJOCO_GL"] == words["env"]["PYOPENGL_PLATFORM"] == backend
        assert words["env"]["PATH"] == os.environ["PATH"]
        assert (words["timeout"], words["check"], words["capture_output"]) == (120, False, True)


@pytest.mark.parametrize(
    ("platform", "value", "found", "fault"),
    [
        ("darwin", "emacs", [], None),
        (
            "linux",
            " OSMesa ",
            [],
            "library libOSMesa is not installed: unset MUJOCO_GL, or apt-get",
        ),
        ("linux", "egl", ["libEGL.so.1"], None),
        ("linux", "egl", ["EGL.found"], None),
        ("linux", "egl", [], "its library libEGL is not installed: unset MUJOCO_GL, or apt-get "),
        ("linux", "off", [], None),
        ("linux", "enable", [], None),
    ],
)
def test_libraries_are_searched_by_both_names(monkeypatch, platform, value, found, fault):
    def load(name):
        if name not in found:
            raise OSError(name)

    monkeypatch.setattr(rendering.sys, "platform", platform)
    monkeypatch.setattr(rendering.ctypes.util, "find_library", lambda name: f"{name}.found")
    monkeypatch.setattr(rendering.ctypes, "CDLL", load)
    monkeypatch.setattr(rendering, "find_gl_backend", lambda: None)
    monkeypatch.setenv("MUJOCO_GL", value)
    words = rendering.gl_fault()
    assert words is None if fault is None else fault in words
    monkeypatch.setattr(rendering.ctypes.util, "find_library", lambda name: None)
    if found == ["EGL.found"]:
        assert "libEGL is not installed" in rendering.gl_fault()


def test_other_back_ends_are_searched_without_the_choice(monkeypatch):
    seen = []
    monkeypatch.setattr(rendering.sys, "platform", "linux")
    monkeypatch.setattr(
        rendering, "find_gl_backend", lambda: seen.append("MUJOCO_GL" in os.environ)
    )
    monkeypatch.setenv("MUJOCO_GL", "emacs")
    rendering.gl_fault()
    assert seen == [False] and os.environ["MUJOCO_GL"] == "emacs"


def test_what_prepares_drawing(monkeypatch, no_library):
    loaded, binding = [], types.ModuleType("robosuite.utils.binding_utils")
    monkeypatch.setitem(sys.modules, "robosuite.utils.binding_utils", binding)
    monkeypatch.setattr(rendering, "load_triton", lambda: loaded.append(True))
    monkeypatch.setenv("MUJOCO_GL", "")
    assert rendering.prepare_gl() == os.environ["MUJOCO_GL"] == "egl"
    assert vars(binding)["_MUJOCO_GL"] == "egl" and loaded == [True]
    monkeypatch.delitem(sys.modules, "robosuite.utils.binding_utils")
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert rendering.prepare_gl() == os.environ["MUJOCO_GL"] == "glfw"
    assert vars(binding)["_MUJOCO_GL"] == "egl"
