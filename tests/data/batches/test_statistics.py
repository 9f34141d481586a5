"""Statistics of arrays that come in pieces, of images by their levels, and quantiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from imitate.data.batches.statistics import (
    KeyStats,
    StatsOnDemand,
    image_statistics,
    quantiles_of,
    statistics_of,
)


@given(
    values=hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=3, max_side=12),
        elements=st.floats(-1e3, 1e3, width=32),
    ),
    cuts=st.lists(st.integers(0, 12), max_size=3),
)
def test_equal_to_numpy_however_the_data_are_cut(values, cuts):
    edges = sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})
    stats = statistics_of([values[a:b] for a, b in zip(edges, edges[1:], strict=False)])
    np.testing.assert_allclose(stats.mean, values.mean(0), rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(stats.std, values.std(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(stats.min, values.min(0))
    np.testing.assert_array_equal(stats.max, values.max(0))


def test_a_small_spread_far_from_zero_survives():
    values = 1e6 + np.array([[0.0], [1e-3], [2e-3]])
    stats = statistics_of([values[:1], values[1:]])
    np.testing.assert_allclose(stats.std, [np.sqrt(2 / 3) * 1e-3], rtol=1e-6)


def test_computed_once_and_only_when_asked_for():
    asked = []

    def compute(key):
        asked.append(key)
        return statistics_of([np.zeros((2, 1))])

    stats = StatsOnDemand(["a", "b"], compute)
    assert list(stats) == ["a", "b"] and len(stats) == 2
    assert stats["a"] is stats["a"]
    assert asked == ["a"]
    with pytest.raises(KeyError):
        stats["c"]


def test_quantiles_of_each_number():
    values = np.arange(1001)[:, None, None] * np.array([[1, 2, 3], [4, 5, 6]])
    found = quantiles_of(values)
    assert list(found) == [0.01, 0.1, 0.9, 0.99]
    for level, quantile in found.items():
        np.testing.assert_allclose(quantile, 1000 * level * values[1], rtol=1e-12)
    stats = KeyStats(*np.zeros((4, 1)), lambda: found)
    assert stats.quantiles is found
    assert KeyStats(*np.zeros((4, 1))).quantiles is None


def test_images_of_the_lowest_and_the_highest_level():
    images = np.zeros((2, 1, 1, 2), np.uint8)
    images[0] = 255
    found = image_statistics([images])
    for values, wanted in ((found.mean, 0.5), (found.std, 0.5), (found.min, 0), (found.max, 1)):
        assert values.tolist() == [wanted, wanted]


def test_images_per_channel_by_counting_levels():
    images = np.random.default_rng(0).integers(3, 250, (5, 6, 7, 3), dtype=np.uint8)
    images[..., 1] = 77
    counted = image_statistics([images[:2], images[2:]])
    pixels = images.reshape(-1, 3) / 255.0
    np.testing.assert_allclose(counted.mean, pixels.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(counted.std, pixels.std(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(counted.min, pixels.min(axis=0))
    np.testing.assert_array_equal(counted.max, pixels.max(axis=0))
    depth = images.astype(np.float32)
    np.testing.assert_allclose(
        image_statistics([depth]).mean, depth.reshape(-1, 3).mean(axis=0), rtol=1e-6
    )
