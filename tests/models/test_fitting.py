"""Offsets and scales of each normalization, and shapes and moments, by hand."""

import numpy as np
import pytest
import torch

from imitate.errors import ConfigError
from imitate.functional import normalization
from imitate.models.fitting import MeasuredStats, PartlyMeasured, fit_actions, fit_obs
from imitate.models.layout import processed_shape, raw_shape_of
from imitate.models.moments import RowMoments
from tests.refusals import refused

VALUES = torch.tensor([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [10.0, 5.0]])
STATS = MeasuredStats.of(VALUES)


def test_statistics_of_values():
    assert STATS.mean.tolist() == [3.2, 5.0] and STATS.mean.dtype == torch.float64
    assert STATS.std.tolist() == pytest.approx([np.std(VALUES[:, 0].numpy()), 0.0])
    assert (STATS.min.tolist(), STATS.max.tolist()) == ([0.0, 5.0], [10.0, 5.0])
    found = {level: value[0].item() for level, value in STATS.quantiles.items()}
    # ranks 4 * level, linear between the sorted values 0, 1, 2, 3, 10
    assert found == pytest.approx({0.01: 0.04, 0.1: 0.4, 0.9: 3 + 0.6 * 7, 0.99: 3 + 0.96 * 7})


STD = float(STATS.std[0])


@pytest.mark.parametrize(
    ("fit", "mode", "offset", "scale"),
    [
        (fit_obs, "mean_std", 3.2, STD),
        (fit_actions, "gaussian", 3.2, STD),
        (fit_obs, "min_max", 5.0, 5.0),
        (fit_actions, "min_max", 5.0, 5.0 / normalization.ACTION_LIMIT),
        (fit_obs, "quantile", (0.04 + 9.72) / 2, (9.72 - 0.04) / 2),
        (fit_actions, "quantile10", (0.4 + 7.2) / 2, (7.2 - 0.4) / 2),
    ],
)
def test_offset_and_scale(fit, mode, offset, scale):
    found = fit(mode, STATS, "x")
    assert [x[0].item() for x in found] == pytest.approx([offset, scale], rel=1e-6)
    assert all(x.dtype == torch.float64 and x.isfinite().all() for x in found)
    assert found[1][1] > 0  # of the value that is constant


@pytest.mark.parametrize(
    ("fit", "mode", "words"),
    [
        (fit_obs, "gaussian", "train.obs_normalization of 'x': unknown 'gaussian'|mean_std"),
        (fit_actions, "mean_std", "train.action_config.x.normalization: unknown|gaussian"),
    ],
)  # fmt: skip
def test_unknown_normalizations_are_refused(fit, mode, words):
    with refused(words.replace(" of 'x'", ""), error=ConfigError):
        fit(mode, STATS, "x")


def test_quantiles_that_are_not_known_are_refused():
    image = MeasuredStats(STATS.mean, STATS.std, STATS.min, STATS.max, None)
    with refused("train.obs_normalization of 'x': 'quantile' needs quantiles", error=ConfigError):
        fit_obs("quantile", image, "x")


def test_statistics_of_which_one_is_measured():
    other = MeasuredStats.of(VALUES + 1.0)
    stats = PartlyMeasured({"a": STATS, "b": STATS}, {"b": other}.get)
    assert stats["a"] is STATS and stats["b"] is other
    assert (list(stats), len(stats)) == (["a", "b"], 2)


@pytest.mark.parametrize(
    ("modality", "raw", "processed"),
    [
        ("rgb", (4, 5, 3), (3, 4, 5)),
        ("depth", (4, 5, 1), (1, 4, 5)),
        ("scan", (7, 2), (2, 7)),
        ("low_dim", (4, 5), (4, 5)),
        ("low_dim", (), ()),
    ],
)
def test_shapes_inside_networks(modality, raw, processed):
    assert processed_shape(raw, modality) == processed
    assert raw_shape_of(processed, modality) == raw


@pytest.mark.parametrize(
    ("modality", "words"),
    [("rgbb", "'k': unknown modality 'rgbb'|rgb"), ("rgb", "'k' has shape (4, 5)|'rgb' needs 3")],
)
def test_shapes_that_do_not_fit_are_refused(modality, words):
    with refused(words, error=ConfigError):
        processed_shape((4, 5), modality, "k")


def test_moments_of_rows_batch_by_batch():
    moments = RowMoments(2)
    assert moments.std.tolist() == [1.0, 1.0]
    for part in (VALUES[:1], VALUES[1:3], VALUES[3:]):
        moments.add(part)
    assert moments.count == 5
    assert moments.mean.tolist() == pytest.approx([3.2, 5.0])
    assert moments.squares.tolist() == pytest.approx([5 * STD**2, 0.0])
    assert moments.std.tolist() == pytest.approx([STD, 1.0])  # nothing varies: 1
    moments.squares.copy_(5 * torch.tensor([1e-5, 1e-14]))
    assert moments.std.tolist() == pytest.approx([np.sqrt(1e-5), 1.0])
