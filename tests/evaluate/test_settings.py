"""Settings of an evaluation: smallest values, what excludes what, seeds of the episodes."""

import pytest

from imitate.errors import UserError
from imitate.evaluate.settings import EpisodePlan, EvalSettings, Lateness


@pytest.mark.parametrize(
    "name", ["episodes", "horizon", "workers", "give_up_after", "video_episodes", "video_skip"]
)
def test_counts_are_at_least_1(name):
    assert getattr(EvalSettings(**{name: 1}), name) == 1
    with pytest.raises(UserError, match=f"{name} is 0, but must be at least 1"):
        EvalSettings(**{name: 0})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": -1}, "seed is -1, but must be at least 0"),
        ({"step_timeout_s": 0.0}, "step_timeout_s is 0.0, but must be above 0"),
        ({"step_timeout_s": float("nan")}, "step_timeout_s is nan"),
        ({"mode": "fast"}, "must be one of auto, processes, vector"),
        ({"epsilon": -0.1}, "epsilon is -0.1"),
        ({"epsilon": 1.1}, "epsilon is 1.1"),
        ({"epsilon": 0.5, "mode": "vector"}, "--epsilon needs --mode processes"),
        ({"epsilon": 0.5, "late": Lateness(0.0)}, "--epsilon needs --mode processes"),
        ({"late": Lateness(0.0), "mode": "vector"}, "leave it out with --latency-ms"),
    ],
)
def test_refused(settings, words):
    with pytest.raises(UserError, match=words):
        EvalSettings(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 0},
        {"step_timeout_s": 0.1},
        {"epsilon": 1.0},
        {"epsilon": 1.0, "mode": "processes"},
        {"epsilon": 0.0, "mode": "vector"},
        {"late": Lateness(0.0), "mode": "processes"},
    ],
)
def test_accepted(settings):
    made = EvalSettings(**settings)
    assert {name: getattr(made, name) for name in settings} == settings


def test_defaults():
    made = EvalSettings()
    assert (made.episodes, made.seed, made.workers) == (50, 0, 1)
    assert (made.video_episodes, made.video_skip, made.epsilon) == (9, 5, 0.0)
    assert made.terminate_on_success and not made.overlay


def test_episodes_start_from_consecutive_seeds():
    plan = EpisodePlan(None, {"lang": "lift"}, "cpu", EvalSettings(seed=3), 10, None)
    assert [plan.seed_of(index) for index in (0, 4)] == [3, 7]
    assert (plan.lang, plan.shown, plan.frame_size) == ("lift", 0, 256)
