"""Steps of several environments, and the metrics of episodes worked out by hand."""

import math

import numpy as np
import pytest

from imitate.train.online.steps import Collected, EpisodeRecord, Metrics, Step


def step(lost=None, signals=None):
    return Step(
        obs={"s": np.arange(3)[:, None]},
        actions=np.zeros((3, 1)),
        rewards=np.zeros(3, np.float32),
        terminals=np.array([True, False, False]),
        timeouts=np.array([True, True, False]),
        next_obs={},
        lost=None if lost is None else np.array(lost),
        signals=signals,
    )


def test_steps_that_are_lost():
    signals = np.arange(6).reshape(3, 2)
    whole, part = step(signals=signals), step([False, False, True], signals)
    assert whole.ends.tolist() == [True, True, False] and part.ends.tolist() == [True] * 3
    assert whole.taken_signals is signals and whole.taken_obs is whole.obs
    assert part.taken_signals.tolist() == [[0, 1], [2, 3]]
    assert part.taken_obs["s"].tolist() == [[0], [1]]
    assert step([True] * 3).taken_signals is None
    collected = Collected([whole, part, part], np.arange(3), [])
    assert collected.num_steps == 3 * 3 - 2
    assert (collected.version, len(collected.lost_lanes)) == (0, 0)


FIRST = EpisodeRecord(2.0, 1.5, 4, True, {"x": 1.0, "success": 1.0}, 0.5, {"y": 3.0, "z": 1.0})
SECOND = EpisodeRecord(4.0, 2.5, 6, None, {"x": 2.0}, 1.0, {"y": 5.0, "success": 0.0})
MEANS = {
    "AverageReturn": 3.0,
    "EpisodicStartAverageDiscountedReturn": 2.0,
    "AverageEpisodeLength": 5.0,
    "AverageReward": 0.6,  # (2 + 4) / (4 + 6)
    "AverageDiscountedReturn": 0.75,
    "AverageEnvInfo[y]": 4.0,
    "LastEnvInfo[x]": 1.5,
}


def test_metrics_of_two_episodes():
    metrics = Metrics()
    assert metrics.numbers() == {"Metrics/EnvironmentSteps": 0.0, "Metrics/NumberOfEpisodes": 0.0}
    metrics.add(4, [FIRST])
    metrics.add(7, iter([SECOND]))
    again = Metrics()
    again.load_state_dict(metrics.state_dict())
    for each in (metrics, again):
        numbers = {key.removeprefix("Metrics/"): value for key, value in each.numbers().items()}
        assert (numbers.pop("EnvironmentSteps"), numbers.pop("NumberOfEpisodes")) == (11.0, 2.0)
        assert (
            numbers.pop("AverageEnvInfo[success]") == 0.5
        )  # unknown beside known ones is not a success
        assert numbers == pytest.approx(MEANS)


def test_unknown_success_and_returns_from_each_step():
    metrics = Metrics()
    metrics.add(1, [EpisodeRecord(1.0, 1.0, 1, None), EpisodeRecord(1.0, 1.0, 1, None, {}, 2.0)])
    names = {key.removeprefix("Metrics/") for key in metrics.numbers()}
    assert {"AverageDiscountedReturn", "AverageEnvInfo[success]"}.isdisjoint(names)
    assert math.isnan(EpisodeRecord(1.0, 1.0, 1, None).mean_discounted_return)


def test_the_latest_hundred_episodes_count():
    metrics = Metrics()
    metrics.add(0, [EpisodeRecord(float(n), 0.0, 1, n >= 50) for n in range(101)])
    numbers = metrics.numbers()
    assert numbers["Metrics/NumberOfEpisodes"] == 101
    assert numbers["Metrics/AverageReturn"] == 50.5  # of 1 .. 100
    assert numbers["Metrics/AverageEnvInfo[success]"] == 0.51
