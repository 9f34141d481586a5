"""Cameras of a small model, drawn by a stand-in for OpenGL."""

import gc
import weakref

import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco import mujoco_rendering

from imitate.envs.worlds import drawing
from imitate.envs.worlds.drawing import ModelCameras
from imitate.errors import EnvError
from tests.refusals import refused

SCENE = """<mujoco><worldbody>
<camera name="front" pos="0 -1 1" xyaxes="1 0 0 0 1 1"/>
<camera name="turned" pos="0 -1 1" xyaxes="-1 0 0 0 1 -1"/>
<camera name="tracking" mode="trackcom" pos="0 -1 1" xyaxes="-1 0 0 0 1 -1"/>
<camera name="above" pos="0 0 1" xyaxes="1 0 0 0 1 0"/>
<geom size="0.1"/></worldbody></mujoco>"""


class Viewer:
    """Draws the number of the camera, and one pixel of 99 at the upper left."""

    made = []

    def __init__(self, model, data, width, height):
        self.scn = type("Scene", (), {"flags": np.ones(10, int)})()
        self.size, self.current = (height, width), False
        self.made.append(weakref.ref(self))

    def make_context_current(self):
        self.current = True

    def render(self, mode, camera_id):
        assert self.current and mode == "rgb_array"
        frame = np.full((*self.size, 3), camera_id, np.uint8)
        frame[0, 0] = 99
        return frame


@pytest.fixture
def cameras(monkeypatch):
    monkeypatch.setattr(mujoco_rendering, "OffScreenViewer", Viewer)
    monkeypatch.setattr(drawing, "prepare_gl", lambda: Viewer.made.append("prepared"))
    Viewer.made.clear()
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)

    def make(observed=("front", "turned"), **kwargs):
        return ModelCameras(model, data, observed, 5, **kwargs), model

    return make


def test_observed_images(cameras):
    made, _ = cameras()
    limits = [(box.shape, box.low.max(), box.high.min()) for box in made.spaces().values()]
    assert limits == [((5, 5, 3), 0, 255)] * 2
    seen = made.observe()
    assert list(seen) == list(made.spaces()) == ["front_image", "turned_image"]
    assert [image[2, 2, 0] for image in seen.values()] == [0, 1]
    assert Viewer.made[0] == "prepared" and len(Viewer.made) == 2  # one per size
    assert seen["front_image"][0, 0, 0] == 99
    assert seen["turned_image"][4, 4, 0] == 99  # upside down, so turned by half
    assert seen["turned_image"][0, 0, 0] == 1 and seen["turned_image"].flags.c_contiguous


def test_a_camera_that_moves_is_not_turned(cameras):
    made, model = cameras(("tracking",))
    frame = made.draw("tracking", 700, 3)
    assert frame.shape == (700, 3, 3) and frame[0, 0, 0] == 99
    assert model.vis.global_.offheight == 700  # larger than the model's 480
    assert model.vis.global_.offwidth == 640  # and kept where it is smaller
    frame = made.draw("above", 3, 900)
    assert frame.shape == (3, 900, 3) and frame[0, 0, 0] == 99
    assert (model.vis.global_.offheight, model.vis.global_.offwidth) == (700, 900)


@pytest.mark.parametrize(
    ("given", "shadows"), [({"shadows": False}, False), ({"shadows": True}, True), ({}, True)]
)
def test_shadows_and_the_end(cameras, given, shadows):
    made, _ = cameras(**given)
    for size in ((3, 4), (3, 4), (4, 3)):
        made.draw("front", *size)
    viewers = [viewer for viewer in Viewer.made if viewer != "prepared"]
    assert len(viewers) == 2
    shadow = mujoco.mjtRndFlag.mjRND_SHADOW
    assert [bool(viewer().scn.flags[shadow]) for viewer in viewers] == [shadows] * 2
    made.close()
    gc.collect()
    assert [viewer() for viewer in viewers] == [None, None]


def test_unknown_cameras_are_refused(cameras):
    with refused("no camera 'frnt'; did you mean 'front'", error=EnvError):
        cameras(("frnt",))
    with refused("no camera 'back'", error=EnvError):
        cameras()[0].draw("back", 3, 3)
