"""Observations, noise and recorded actions of a bundle's network, and messages of its model by hand."""

from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.deploy.bundle import network as module
from imitate.deploy.bundle.network import BundleObservations, Network, NoiseSource, refuse_external
from imitate.deploy.bundle.spec import Noise
from imitate.deploy.schema import ObservedKey
from imitate.errors import BundleError, NotFiniteError, UserError
from tests.refusals import refused

OBSERVED = {
    "s": ObservedKey((2,)),
    "cam": ObservedKey((1, 2, 1), "rgb", "uint8"),
    "deep": ObservedKey((1, 2, 1), "depth", "float"),
}
STATE = {"s": [1.0, 2.0], "cam": np.zeros((1, 2, 1), np.uint8), "deep": np.zeros((1, 2, 1))}


def pixels(first, second, dtype):
    return np.array([first, second], dtype).reshape(1, 2, 1)


def test_observations_become_floats_and_images_fractions():
    raw = {**STATE, "cam": pixels(0, 255, np.uint8), "deep": pixels(3.5, -7.0, np.float64)}
    found = BundleObservations(OBSERVED).prepare({**raw, "more": 1})
    assert {key: value.ravel().tolist() for key, value in found.items()} == {
        "s": [1.0, 2.0],
        "cam": [0.0, 1.0],
        "deep": [3.5, -7.0],
    }
    assert all(value.dtype == np.float32 for value in found.values())


@pytest.mark.parametrize(
    ("image", "fits"),
    [
        (pixels(-0.1, 1.1, np.float64), True),
        (pixels(-0.11, 1.0, np.float64), False),
        (pixels(0.0, 1.11, np.float64), False),
        (pixels(0, 255, np.int64), True),
        (pixels(0, 256, np.int64), False),
        (pixels(-1, 255, np.int64), False),
    ],
)
def test_the_range_of_pixels(image, fits):
    kinds = {"cam": OBSERVED["cam"]}
    if fits:
        BundleObservations(kinds).prepare({"cam": image})
    else:
        with refused(f"image 'cam' has {image.dtype} values from", error=UserError):
            BundleObservations(kinds).prepare({"cam": image})
    BundleObservations(kinds, any_pixels=("cam",)).prepare({"cam": image})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"s": [1.0]}, "observation 's' has shape"),
        ({"s": [[1.0, 2.0]] * 3}, "observation 's' has shape (3, 2)"),
        ({"s": [1.0, np.nan]}, "observation 's' has 1 value not finite"),
    ],
)
def test_observations_that_do_not_fit(change, words):
    with refused(words, error=UserError):
        BundleObservations({"s": OBSERVED["s"]}).prepare({**STATE, **change})
    with refused("the policy needs s, but got cam", error=UserError):
        BundleObservations({"s": OBSERVED["s"]}).prepare({"cam": 1})


def test_of_stacked_frames_the_newest_counts():
    observed = BundleObservations({"s": OBSERVED["s"]}, stacks=(1, 3))
    found = observed.prepare({"s": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]})
    assert found["s"].tolist() == [5.0, 6.0]
    with pytest.raises(NotFiniteError):
        observed.prepare({"s": [[1.0, 2.0], [3.0, 4.0], [5.0, np.inf]]})


def test_noise_is_that_of_the_seed():
    noise, draw = NoiseSource(Noise(normal=3, exponential=2), 5), np.random.default_rng(5)
    for _ in range(2):
        found = noise.draw()
        normal = draw.standard_normal(3, dtype=np.float32)
        assert found["noise/normal"].tolist() == normal.tolist()
        waits = draw.standard_exponential(2, dtype=np.float32)
        assert found["noise/exponential"].tolist() == waits.tolist()
    assert list(NoiseSource(Noise(normal=0, exponential=2)).draw()) == ["noise/exponential"]
    assert NoiseSource(Noise(normal=0, exponential=0)).draw() == {}


def test_a_waiting_time_is_never_0(monkeypatch):
    waits = Words(standard_exponential=lambda count, dtype: np.array([0.0, 2.0], dtype))
    monkeypatch.setattr(module.np.random, "default_rng", lambda seed: waits)
    source = NoiseSource(Noise(normal=0, exponential=2), 5)
    assert source.draw()["noise/exponential"].tolist() == [np.finfo(np.float32).tiny, 2.0]


# ---- messages of a model -------------------------------------------------------------------------


def field(number, data):
    """A field with bytes (fewer than 128) of a message, as protocol buffers write it."""
    key = number << 3 | 2
    return bytes([key] if key < 128 else [key & 127 | 128, key >> 7]) + bytes([len(data)]) + data


def nested(count, inner):
    for _ in range(count):  # node {attribute {graph {...}}}
        inner = field(1, field(5, field(6, inner)))
    return field(7, inner)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (b"", None),
        (nested(10, field(1, b"")), None),  # 32 messages in one another
        (nested(10, field(1, field(5, b""))), "graphs that are nested too deeply"),
        (bytes([1 << 3 | 1]) + bytes(8) + bytes([1 << 3 | 5]) + bytes(4), None),
        (bytes([1 << 3 | 1]) + bytes(7), "is not an ONNX model"),
        (bytes([1 << 3 | 5]) + bytes(3), "is not an ONNX model"),
        (b"\x08" + b"\xff" * 9 + b"\x01", None),
        (b"\x08" + b"\xff" * 10 + b"\x01", "is not an ONNX model"),
        (b"\x08\xff", "is not an ONNX model"),
        (field(8, field(1, b"ai.onnx")), None),
        (field(8, field(1, b"")), None),
        (field(8, field(1, b"own")), "has operators of 'own'"),
        (field(7, field(5, bytes([14 << 3, 0]))), None),
        (field(7, field(5, bytes([14 << 3, 1]))), "has weights in another file"),
        (field(7, field(5, field(13, b""))), None),
        (field(7, field(5, field(13, b"x"))), "has weights in another file"),
        (field(7, field(4, field(13, b"x"))), None),  # no tensor
        (field(20, field(2, field(5, field(13, b"x")))), "has weights in another file"),
        (field(25, field(7, field(5, field(5, field(13, b"x"))))), "has weights in another file"),
        (field(25, field(9, field(1, b"own"))), "has operators of 'own'"),
    ],
)
def test_messages(model, words):
    if words is None:
        refuse_external(model)
    else:
        with refused(words, error=BundleError):
            refuse_external(model)


# ---- recorded actions ----------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch):
    """A network of two actions (2.0, 0.5), and a bundle with what was recorded of it."""
    runs = []
    spec = Words(
        schema=Words(observations={"s": OBSERVED["s"]}, goals={}, action_dim=2, languages=()),
        **{"memory": {}, "stacks": (1,), "any_pixels": (), "languages": None, "frames": 1},
        **{"execution": None, "noise": Noise(normal=0, exponential=0)},
    )

    class Graph:
        outputs, made = ("actions",), [[[2.0, 0.5]]]

        def __init__(self, model, threads):
            assert (model, threads) == ("model", 1)

        def run(self, feed):
            runs.append(feed)
            assert feed["obs/s"].shape == (1, 2)
            return {"actions": np.array([self.made[0]], np.float32)}

    monkeypatch.setattr(module, "Graph", Graph)
    monkeypatch.setattr(module.BundleSpec, "from_dict", staticmethod(lambda description: spec))

    def replay(expected, count=3):
        check = {"obs": {"s": np.ones(2)}, "goal": {}, "actions": np.array([expected])}
        bundle = Words(network="model", array=lambda place: place)
        bundle.description = {"checks": [check] * count}
        Network(bundle, 1).replay(bundle)
        return runs

    return replay


@pytest.mark.parametrize(
    ("expected", "fits"),
    [
        ([2.0, 0.5], True),
        ([2.0 + 1.9e-4, 0.5 + 0.9e-4], True),  # relative beyond 1, absolute below
        ([2.0 + 2.1e-4, 0.5], False),
        ([2.0, 0.5 + 1.1e-4], False),
        ([2.0, 0.5 - 1.1e-4], False),
        ([2.0, np.nan], False),
    ],
)
def test_recorded_actions_are_reproduced(recorded, expected, fits):
    if fits:
        assert len(recorded(expected)) == 3
    else:
        with refused("do not reproduce the recorded actions here (check 0: ", error=BundleError):
            recorded(expected)


def test_too_few_or_other_recorded_actions(recorded):
    with refused("has fewer than 3 recorded actions to compare with", error=BundleError):
        recorded([2.0, 0.5], count=2)
    with refused(
        "the networks predict actions of shape (1, 2); expected (1, 2)", error=BundleError
    ):
        recorded([2.0, 0.5, 1.0])
