"""Images at the size of the demonstrations: the filter of training, kept ratios, remote and local policies alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from imitate.deploy.resizing import ResizedPolicy, Resizer, resized
from imitate.deploy.schema import ObservedKey
from imitate.deploy.server.client import RemotePolicy
from imitate.errors import UserError
from imitate.models.preprocessing.steps import Resize
from tests.deploy.counting_policy import SCHEMA, Counter
from tests.deploy.in_process import Patient
from tests.deploy.openpi_server import openpi_server
from tests.refusals import refused


def noise(*shape, dtype=np.uint8):
    values = np.random.default_rng(0).uniform(0, 255, shape)
    return np.rint(values).astype(dtype) if dtype == np.uint8 else (values / 255).astype(dtype)


def of_training(image, size):
    """The preprocessing step's result for one (H, W, C) image."""
    channels_first = torch.as_tensor(image, dtype=torch.float32).permute(2, 0, 1)
    return Resize(size).forward_obs("image", channels_first).permute(1, 2, 0).numpy()


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((480, 640, 3), (120, 160)),
        ((240, 320, 3), (90, 120)),
        ((84, 84, 3), (224, 224)),
        ((100, 100, 1), (37, 37)),
        ((60, 60, 2), (21, 21)),
        ((60, 60, 4), (21, 21)),
    ],
)
def test_the_filter_is_that_of_training(shape, size):
    image = noise(*shape)
    small = resized(image, size)
    assert small.shape == (*size, shape[2]) and small.dtype == np.uint8
    assert np.abs(small - of_training(image, size)).max() <= 1.01


def test_all_pixels_count():
    """Black and white stripes become grey; the four nearest pixels would give stripes again."""
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    assert np.abs(resized(stripes, (8, 8))[:, 1:-1].astype(int) - 128).max() <= 2


def test_depths_keep_their_units():
    depth = noise(100, 80, 1, dtype=np.float32)
    small = resized(depth, (50, 40))
    assert small.dtype == np.float32
    np.testing.assert_allclose(small, of_training(depth, (50, 40)), atol=1e-5)


def test_an_image_of_the_size_is_itself():
    image = noise(8, 8, 3)
    assert resized(image, (8, 8)) is image


@pytest.mark.parametrize("shape", [(480, 640, 3), (16, 18, 3)])
def test_other_ratios_are_refused(shape):
    with refused(f"'camera' has {shape[0]} x {shape[1]}|8 x 8|distort", error=UserError):
        Resizer(SCHEMA)({"state": np.zeros(2), "camera": np.zeros(shape, np.uint8)})


@pytest.mark.parametrize(
    ("camera", "size", "fitted"),
    [
        # A pixel that rounding took is not a distortion.
        *(((*camera, 3), size, (*size, 3)) for camera, size in
          (((270, 481), (135, 240)), ((480, 640), (85, 113)), ((100, 133), (75, 100)))),
        # Other shapes are left to the schema.
        *((shape, (8, 8), shape) for shape in ((8, 8), (8, 8, 1))),
    ],
)  # fmt: skip
def test_pictures_are_fitted(camera, size, fitted):
    schema = replace(SCHEMA, observations={"camera": ObservedKey((*size, 3), "rgb")})
    assert Resizer(schema)({"camera": np.zeros(camera, np.uint8)})["camera"].shape == fitted


class Seeing(Counter):
    """Remembers the pictures that it was given."""

    def predict(self, asks):
        self.pictures = [ask.obs["camera"] for ask in asks]
        return super().predict(asks)


def test_the_client_resizes_before_it_sends(network_of):
    served, picture = Seeing(), noise(32, 32, 3)
    ob = {"state": np.zeros(2, np.float32), "camera": picture}
    network_of(served)
    with RemotePolicy("ws://here") as policy, refused("has shape", error=UserError):
        policy(ob)
    with RemotePolicy("ws://here", resize=True) as policy:
        policy(ob)
        policy.predict_chunk([ob])
    (seen,) = served.pictures
    np.testing.assert_array_equal(seen, resized(picture, (8, 8)))
    np.testing.assert_array_equal(served.chunk_asks[0].history[0]["camera"], seen)


def test_a_local_policy_sees_the_same():
    class Local:
        control_freq, obs_keys, history = 20.0, ("state", "camera"), 2

        def __call__(self, ob, goal=None):
            return ob["camera"]

        def predict_chunk(self, history, planned=None):
            return history[-1]["camera"], planned

    policy, picture = ResizedPolicy(Local(), SCHEMA), noise(32, 32, 3)
    assert (policy.control_freq, policy.history) == (20.0, 2)
    expected = resized(picture, (8, 8))
    np.testing.assert_array_equal(policy({"camera": picture}), expected)
    seen, planned = policy.predict_chunk([{"camera": picture}], planned=3)
    np.testing.assert_array_equal(seen, expected)
    assert planned == 3
    assert not hasattr(policy, "cut_plan")


def test_an_openpi_server_does_not_say_its_sizes():
    with openpi_server(lambda obs: {}) as url, refused("image sizes", error=UserError):
        Patient(url, resize=True)


@pytest.mark.parametrize(("shape", "fits"), [((4, 6), True), ((5, 6), False)])
def test_a_ratio_may_differ_by_the_rounding_to_pixels(shape, fits):
    """From 4 x 6 to 2 x 4: 4 * 4 - 6 * 2 is 4, the largest side of the result; from 5 x 6 it is 8."""
    resize = Resizer(replace(SCHEMA, observations={"camera": ObservedKey((2, 4, 3), "rgb")}))
    image = {"camera": noise(*shape, 3)}
    if fits:
        assert resize(image)["camera"].shape == (2, 4, 3)
        return
    with refused("image 'camera' has 5 x 6 pixels, but 2 x 4", error=UserError):
        resize(image)


def test_integers_are_rounded_and_a_goal_is_resized_too():
    stripes = np.tile(np.array([[[0], [1001]]], np.uint16), (4, 2, 1))
    assert resized(stripes, (2, 2)).dtype == np.uint16
    assert abs(int(resized(stripes, (1, 1))[0, 0, 0]) - 501) <= 1
    seen = []

    class Local:
        def __call__(self, ob, goal=None):
            seen.append((ob["camera"].shape, None if goal is None else goal["camera"].shape))

    policy = ResizedPolicy(Local(), SCHEMA)
    policy({"camera": noise(16, 16, 3)})
    policy({"camera": noise(8, 8, 3)}, {"camera": noise(32, 32, 3)})
    assert seen == [((8, 8, 3), None), ((8, 8, 3), (8, 8, 3))]
    kinds = {
        "a": ObservedKey((4, 2, 1), "depth"),
        "b": ObservedKey((4, 2, 1)),
        "c": ObservedKey((4, 2), "rgb"),
    }
    resize = Resizer(replace(SCHEMA, observations={}, goals=kinds))
    found = resize({key: noise(8, 4, 1) for key in kinds})
    assert [value.shape for value in found.values()] == [(4, 2, 1), (8, 4, 1), (8, 4, 1)]
