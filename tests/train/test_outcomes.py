"""Evaluations in the metrics, in results.json and in words."""

import math
from types import SimpleNamespace

import pytest

from imitate.evaluate.result import EpisodeResult, EvalResult
from imitate.system.statistics import estimate, mean_over_seeds, wilson_interval
from imitate.train.outcomes import describe, outcome_words, rollout_entry, rollout_numbers


def result(successes, returns, name="Lift", lengths=None, planned=None, **more):
    lengths = lengths or [10] * len(successes)
    episodes = tuple(
        EpisodeResult(n, n, success, value, length, success if n else False, **more)
        for n, (success, value, length) in enumerate(zip(successes, returns, lengths, strict=True))
    )
    return EvalResult(name, None, episodes, planned or len(episodes), 50, 0, "processes", 1, 65.0)


def test_numbers_of_one_environment():
    found = rollout_numbers([result([True, True, False, True], [1.0, 2.0, 3.0, 4.0])])
    low, high = wilson_interval(3, 4)
    assert found == pytest.approx(
        {
            "Rollout/Success_Rate": 0.75,
            "Rollout/Success_Rate_At_End": 0.5,
            "Rollout/Return": 2.5,
            "Rollout/Return_Std": math.sqrt(5 / 3),
            "Rollout/Horizon": 10.0,
            "Rollout/Episodes": 4.0,
            "Rollout/Success_Rate_Low": low,
            "Rollout/Success_Rate_High": high,
        }
    )


def test_numbers_of_several_environments_are_means_and_each():
    first = result([True, True], [1.0, 3.0], "A")  # deviation sqrt(2)
    second = result([True, False], [5.0, 9.0], "B", [20, 20])  # sqrt(8)
    found = rollout_numbers([first, second])
    assert found["Rollout/Success_Rate"] == 0.75
    assert found["Rollout/Return_Std"] == pytest.approx(math.sqrt((2 + 8) / 2))
    assert found["Rollout/Episodes"] == 4.0
    assert (found["Rollout/Success_Rate_Low"], found["Rollout/Success_Rate_High"]) == (
        wilson_interval(3, 4)
    )
    assert (found["Rollout/Return/A"], found["Rollout/Return/B"]) == (2.0, 7.0)
    assert (found["Rollout/Horizon"], found["Rollout/Horizon/B"]) == (15.0, 20.0)
    assert found["Rollout/Success_Rate/A"] == 1.0
    assert "Rollout/Return_Std/A" not in found


def test_unknown_success_is_left_out():
    found = rollout_numbers([result([None, None], [1.0, 3.0])])
    assert "Rollout/Success_Rate" not in found and "Rollout/Success_Rate_Low" not in found
    found = rollout_numbers([result([True], [1.5], "A"), result([None], [2.5], "B")])
    assert "Rollout/Success_Rate" not in found and found["Rollout/Success_Rate/A"] == 1.0
    assert found["Rollout/Return"] == 2.0 and "Rollout/Success_Rate/B" not in found


def test_numbers_of_agents():
    agents = {"a": {"return": 1.0, "success": True}, "b": {"return": 3.0, "success": None}}
    found = rollout_numbers([result([True], [4.0], agents=agents)])
    assert (found["Rollout/Return/a"], found["Rollout/Return/b"]) == (1.0, 3.0)
    assert found["Rollout/Success_Rate/a"] == 1.0 and "Rollout/Success_Rate/b" not in found


def test_d4rl_scores():
    found = rollout_numbers([result([None, None], [1000.0, 2000.0], "Hopper-v5")])
    span = 3234.3 + 20.272305
    assert found["Rollout/D4RL_Score"] == pytest.approx(100 * (1500 + 20.272305) / span)
    assert found["Rollout/D4RL_Score_Std"] == pytest.approx(100 * math.sqrt(500_000) / span)


def test_an_entry_of_the_results():
    record = {
        **{"epoch": 3, "Rollout/Success_Rate": 0.5, "Rollout/Success_Rate_Low": 0.2},
        **{"Rollout/Success_Rate_High": 0.8, "Rollout/Return": 2.0, "Rollout/Return_Std": 1.0},
        **{"Rollout/Episodes": 4.0, "Rollout/Horizon": 10.0, "Rollout/D4RL_Score": 7.0},
    }
    entry = rollout_entry(record)
    returns = mean_over_seeds([2.0], [1.0], [4])
    assert entry == {
        **{"epoch": 3, "episodes": 4, "success_rate": 0.5, "success_rate_95": [0.2, 0.8]},
        **{"mean_return": 2.0, "return_std": 1.0, "mean_return_95": list(returns[1:3])},
        **{"d4rl_score": 7.0, "mean_length": 10.0},
    }
    assert set(rollout_entry({"epoch": 1}).values()) == {1, None}
    for missing in ("Rollout/Return", "Rollout/Return_Std", "Rollout/Episodes"):
        less = {key: value for key, value in record.items() if key != missing}
        assert rollout_entry(less)["mean_return_95"] is None


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"success_rate": 0.5, "success_rate_95": [0.2, 0.8]}, "50 % (20 - 80)"),
        ({"success_rate": 0.0}, "0 %"),
        ({"mean_return": 2.0, "return_std": 1.0}, "return 2 ± 1"),
        ({}, "return not finite"),
    ],
)
def test_an_entry_in_words(entry, words):
    assert outcome_words(entry) == words


def test_a_result_in_words():
    made = result([True, True, False], [1.0, 2.0, 3.0], planned=9)
    low, high = wilson_interval(2, 3)
    returns = estimate([1.0, 2.0, 3.0])
    words = describe(made)
    assert words.startswith(
        f"Lift 2/3 succeed (67 %, 95 % interval {100 * low:.0f} - {100 * high:.0f} %), return 2 ± 1 (95 % interval "
    )
    assert f"{returns.high:.4g}"[:4] in words
    assert words.endswith("10 steps, 1 min 05 s; stopped after 3 failures")
    words = describe(result([None], [1.0], "Hopper-v5"))
    assert (
        words.startswith("Hopper-v5 return 1, D4RL score 0.7, 10 steps") and "stopped" not in words
    )


def test_a_score_of_0_has_a_deviation():
    found = rollout_numbers([result([None, None], [-20.272305] * 2, "Hopper-v5")])
    assert (found["Rollout/D4RL_Score"], found["Rollout/D4RL_Score_Std"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("meets", "kept"),
    [([None], None), ([True, None, True], 1.0), ([True, False], 0.0), ([], None)],
)
def test_named_rewards_and_whether_their_bounds_are_kept(meets, kept):
    made = result([True], [1.0])
    rewards = [
        SimpleNamespace(
            spec=SimpleNamespace(name=f"r{number}"),
            per_step=SimpleNamespace(value=float(number)),
            meets=each,
        )
        for number, each in enumerate(meets)
    ]
    object.__setattr__(made, "__class__", type("Result", (EvalResult,), {"rewards": rewards}))
    found = rollout_numbers([made])
    named = {f"Rollout/Rewards/r{number}": float(number) for number in range(len(meets))}
    named |= {} if kept is None else {"Rollout/Bounds_Kept": kept}
    marks = ("Rollout/Rewards", "Rollout/Bounds")
    assert {key: value for key, value in found.items() if key.startswith(marks)} == named
