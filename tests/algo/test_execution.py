"""Action chunks become actions: receding horizon, latency, ensembling, rows that are out of step."""

import math

import pytest
import torch

from imitate.algo.base.execution import ChunkExecution
from imitate.algo.base.policy_state import where_state
from imitate.algo.base.sections import ChunkConfig

CPU = torch.device("cpu")


class Counter:
    """Predicts ``100 n + 0, 1, 2 ...`` at its n-th call, n from 1, and remembers how many rows asked."""

    def __init__(self, size):
        self.size = size
        self.rows = []

    def __call__(self, inputs):
        self.rows.append(inputs["obs"].shape[0])
        chunk = 100.0 * len(self.rows) + torch.arange(self.size, dtype=torch.float32)
        return chunk[None, :, None].expand(inputs["obs"].shape[0], -1, 1)


def run(execution, steps, batch_size=1):
    predict, state = Counter(execution.size), execution.initial_state(batch_size, 1, CPU)
    actions = []
    for _ in range(steps):
        action, state, _ = execution.step(state, {"obs": torch.zeros(batch_size, 2)}, predict)
        actions.append(action[:, 0].tolist())
    return [row[0] for row in actions], predict


def test_the_first_actions_of_each_chunk_are_executed():
    actions, predict = run(ChunkExecution(size=4, execute=2), 5)
    assert actions == [100, 101, 200, 201, 300]
    assert len(predict.rows) == 3


def test_a_whole_chunk():
    assert run(ChunkExecution(size=3, execute=3), 7)[0] == [100, 101, 102, 200, 201, 202, 300]


def test_with_latency_the_last_chunk_goes_on_and_the_past_of_the_new_one_is_left_out():
    """Predictions at steps 0, 2, 4; each is there one step later, when its first action is in the past."""
    assert run(ChunkExecution(size=4, execute=2, latency=1), 7)[0] == [
        *(100, 101),  # nothing to go on with: the robot waits for the first prediction
        *(102, 201),
        *(202, 301),
        302,
    ]


def test_ensembling_by_hand():
    """The action of step 2 was predicted thrice: 102, 201, 300; weights 1, e^-m, e^-2m from the oldest."""
    m = 0.5
    actions, predict = run(ChunkExecution(size=3, execute=1, temporal_ensemble=m), 4)
    w1, w2 = math.exp(-m), math.exp(-2 * m)
    assert (actions[0], actions[1]) == (100, pytest.approx((101 + w1 * 200) / (1 + w1)))
    assert actions[2] == pytest.approx((102 + w1 * 201 + w2 * 300) / (1 + w1 + w2))
    # Three chunks at most reach a step: 202, 301, 400.
    assert actions[3] == pytest.approx((202 + w1 * 301 + w2 * 400) / (1 + w1 + w2))
    assert len(predict.rows) == 4


def test_only_rows_at_the_end_of_their_chunk_ask_for_a_new_one():
    execution = ChunkExecution(size=4, execute=3)
    predict, state = Counter(4), execution.initial_state(3, 1, CPU)
    obs = {"obs": torch.zeros(3, 2)}
    first, state, _ = execution.step(state, obs, predict)
    fresh = execution.initial_state(3, 1, CPU)
    state = where_state(torch.tensor([False, True, False]), fresh, state)
    second, state, _ = execution.step(state, obs, predict)
    third, state, extras = execution.step(state, obs, predict)
    fourth, _, _ = execution.step(state, obs, predict)
    assert predict.rows == [3, 1, 2]
    assert first[:, 0].tolist() == [100, 100, 100]
    assert second[:, 0].tolist() == [101, 200, 101]
    assert third[:, 0].tolist() == [102, 201, 102]
    assert fourth[:, 0].tolist() == [300, 202, 300]
    # What is planned from here on; beyond the plan its last action.
    assert extras["chunk"][:, :, 0].tolist() == [
        [102, 103, 103, 103],
        [201, 202, 203, 203],
        [102, 103, 103, 103],
    ]


def test_the_given_state_is_not_changed():
    execution = ChunkExecution(size=4, execute=2)
    state = execution.initial_state(1, 1, CPU)
    execution.step(state, {"obs": torch.zeros(1, 2)}, Counter(4))
    assert (state["position"].tolist(), state["plan"].abs().sum()) == ([-1], 0)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"size": 8, "execute": 9}, "more actions than the 8"),
        ({"size": 8, "execute": 6, "latency": 3}, "after 3 of latency"),
        ({"size": 8, "execute": 2, "temporal_ensemble": 0.01}, "execute 1 action"),
    ],
)
def test_what_cannot_be_executed_is_said(section, words):
    (problem,) = ChunkConfig.model_validate(section).problems("algo.chunk")
    assert words in problem
    assert problem.startswith("algo.chunk")
