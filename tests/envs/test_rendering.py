import os
import subprocess
import sys

import pytest

from imitate.envs import rendering
from imitate.errors import EnvError


def test_the_users_choice_is_left_alone(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
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
    monkeypatch.setattr(rendering, "_PROBE", "import os; os._exit(9)")
    assert rendering._renders("egl") is False
    monkeypatch.setattr(rendering, "_PROBE", "import os; assert os.environ['MUJOCO_GL'] == 'egl'")
    assert rendering._renders("egl") is True


@pytest.mark.robosuite
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
