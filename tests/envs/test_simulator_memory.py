"""MuJoCo's objects are freed at once, and robosuite's own interface works without what is no longer kept."""

import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from imitate.envs.robosuite_env import RobosuiteEnv
from imitate.system.memory import return_freed_memory

pytestmark = pytest.mark.robosuite


def resident_mb():
    return_freed_memory()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.fixture
def lift():
    env = RobosuiteEnv("Lift")
    env.reset(seed=0)
    yield env
    env.close()


def test_a_reset_frees_the_old_scene_before_it_builds_the_new_one(lift, monkeypatch):
    old, kept = lift.base_env.sim, []
    build = type(old).from_xml_string

    def watched(xml):
        kept.extend(vars(part)[key] for part, key in ((old.model, "_model"), (old.data, "_data")))
        return build(xml)

    monkeypatch.setattr(type(old), "from_xml_string", watched)
    lift.reset()
    assert kept == [None, None]


@pytest.mark.nightly
def test_a_closed_environment_holds_no_scene(lift):
    before, closed = resident_mb(), []
    for _ in range(10):
        env = RobosuiteEnv("Lift")
        env.reset()
        env.close()
        closed.append(env)
    assert resident_mb() - before < 200  # a scene takes 60 MB, a robot alone 40 MB


@pytest.mark.nightly
def test_mujoco_does_not_keep_the_last_scene(lift):
    import mujoco

    lift.base_env.sim.model.get_xml()
    before = resident_mb()
    # Compiled by MuJoCo itself, the scene is kept once more: there was none to take the place of.
    mujoco.MjModel.from_xml_string(lift.base_env.model.get_xml())
    grown_mb = resident_mb() - before
    lift.reset()
    assert grown_mb > 40
    assert resident_mb() - before < grown_mb / 2  # kept again, it would be all of it


@pytest.mark.slow("builds the scene anew")
def test_robosuites_model_still_writes_its_own_scene(lift):
    assert "cube_main" in bodies(lift)
    lift.reset_to(lift.get_state())
    assert "cube_main" in bodies(lift)


def bodies(env):
    scene = ElementTree.fromstring(env.base_env.sim.model.get_xml())
    return {body.get("name") for body in scene.iter("body")}


def test_a_soft_reset_keeps_its_scene():
    env = RobosuiteEnv("Lift", {"hard_reset": False})
    env.reset(seed=0)
    scene = env.base_env.sim
    obs, _ = env.reset(seed=1)
    assert env.base_env.sim is scene
    assert np.isfinite(obs["object"]).all()
    env.close()


def test_close_may_be_called_twice(lift):
    lift.close()
    lift.close()
