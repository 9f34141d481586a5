"""Scan encoder."""

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.scan import ScanCore


def test_defaults():
    # Lengths of 100 beams: (100 - 8) / 4 + 1 = 24, (24 - 4) / 2 + 1 = 11, 11 - 2 + 1 = 10.
    core = ScanCore((2, 100))
    assert core.output_shape == (640,)
    assert core(torch.randn(3, 2, 100)).shape == (3, 640)
    assert (core(torch.randn(3, 2, 100)) >= 0).all()


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [
        ({"feature_dimension": 9}, (9,)),
        ({"flatten": False}, (5, 7)),
        ({"pool_class": "SpatialMeanPool"}, (5,)),
        ({"pool_class": "SpatialSoftmax", "pool_kwargs": {"num_kp": 4}}, (8,)),
        ({"conv_activation": None}, (35,)),
    ],
)
def test_options(kwargs, shape):
    layers = {"out_channels": [3, 5], "kernel_size": [3, 4], "stride": [2, 3], "padding": [1, 2]}
    # 40 beams: (40 + 2 - 3) // 2 + 1 = 20, (20 + 4 - 4) // 3 + 1 = 7.
    core = ScanCore((1, 40), conv_kwargs=layers, **kwargs)
    out = core(torch.randn(3, 1, 40))
    assert core.output_shape == shape
    assert out.shape == (3, *shape)
    if "conv_activation" in kwargs:
        assert out.min() < 0


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"conv_kwargs": {"kernel": [1, 1, 1]}}, "unknown key 'kernel'; did you mean"),
        ({"conv_kwargs": {"stride": [1, 1]}}, "one entry per layer, got .*stride 2"),
        ({"conv_activation": "tanh"}, "conv_activation: unknown 'tanh'"),
        ({"pool_class": "MeanPool"}, "did you mean 'SpatialMeanPool'"),
    ],
)
def test_refusals(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        ScanCore((1, 40), **kwargs)


def test_a_scan_too_short_for_its_layers_is_refused():
    with pytest.raises(ConfigError, match="7 beams is too short"):
        ScanCore((1, 7))
