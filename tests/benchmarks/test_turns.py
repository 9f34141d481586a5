"""The protocol of processes that take turns, and the arithmetic of the benchmark that uses it; nothing is timed."""

import io
import json

import numpy as np
import pytest

from benchmarks import turns
from benchmarks.lerobot_training import rows_of
from benchmarks.turns import Turns, serve_calls


@pytest.fixture
def talk(monkeypatch, capsys):
    def start(*requests):
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        monkeypatch.setattr(turns.sys, "stdin", io.StringIO(lines))
        return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return start


def test_a_loop_runs_in_turns_and_its_time_is_split(talk, monkeypatch):
    clock = [5.0]
    monkeypatch.setattr(turns.time, "process_time", lambda: clock[0])
    answers = talk({"n": 2}, {"n": 1})

    def update(weights):
        clock[0] += 3.0
        return weights

    loop = Turns(update, len)
    with pytest.raises(SystemExit):
        while True:
            assert loop([7, 8]) == [7, 8]
            clock[0] += 1.0  # the next batch
    assert answers() == [
        {"start_s": 5.0, "parameters": 2},
        {"step_s": 4.0, "data_s": 1.0},
        {"step_s": 4.0, "data_s": 1.0},
    ]


def test_calls_are_given_the_policys_names_and_episodes_begin_where_asked(talk):
    answers = talk(
        {"shapes": {"a.x": [3], "a.y": [4, 5, 3]}, "n": 2},
        {"case": "predict", "n": 3},
        {"case": "episode", "n": 3},
    )
    calls = []

    def policy(observation):
        calls.append({name: (value.shape, value.dtype) for name, value in observation.items()})
        return observation["x"]

    serve_calls(
        policy, lambda: calls.append("start"), own_name=lambda name: name.removeprefix("a.")
    )
    call = {"x": ((3,), np.float32), "y": ((4, 5, 3), np.uint8)}
    begun = ["start", call]
    assert calls == [*begun, call, "start", *begun * 3, *begun, call, call]
    first, predicted, episode = answers()
    assert np.array(json.loads(first["actions"])).shape == (2, 3)
    assert set(predicted) == set(episode) == {"call_s"}


def test_ratios_of_the_table():
    figures = {
        "step_s": {"imitate": 0.5, "LeRobot": 0.8},
        "data_s": {"imitate": 0.005, "LeRobot": 0.2},
        "start_s": {"imitate": 5.0, "LeRobot": 2.0},
        "predict_s": {"imitate": 0.03, "LeRobot": 0.05},
        "episode_s": {"imitate": 0.009, "LeRobot": 0.01},
    }
    rows = rows_of("act_images", figures)
    # 0.8 / 0.5; 2 / 5; (2 + 50 * 0.8) / (5 + 50 * 0.5); 0.03 / 0.05; 0.009 / 0.01
    assert [row.value for row in rows] == pytest.approx([1.6, 0.4, 1.4, 0.6, 0.9])
    assert [row.met for row in rows] == [True, None, True, True, False]
    assert "loading 1.0 %, LeRobot 25.0 %" in rows[0].note
