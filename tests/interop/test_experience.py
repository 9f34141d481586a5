"""Steps of another toolkit's loop as samples: two environments, of which the second has a step less."""

import numpy as np
import pytest
import torch

from imitate.errors import UserError
from imitate.interop.experience import Experience, decided, tensors
from tests.algo.test_frozen import units
from tests.tiny import tiny_algo

SEEN = np.array([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0]])[..., None]
ACTIONS = SEEN / 100
REWARDS = np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
TERMINALS = np.array([[False, False], [True, False], [False, False]])
TIMEOUTS = np.array([[False, True], [False, False], [False, False]])
MASK = np.array([[True, True], [True, True], [True, False]])


def experience(mask=MASK, **extras):
    following = {"s": SEEN + 0.5}
    return Experience(
        {"s": SEEN}, following, ACTIONS, REWARDS, TERMINALS, TIMEOUTS, extras, mask=mask
    )


def make(name="sac", *overrides, **words):
    return tiny_algo(name, *overrides, obs={"s": 1}, action=1, **words)


def test_windows_are_in_the_order_of_the_environments():
    algo = make(algo={"discount": 0.25})
    batch = experience().samples(algo)
    assert batch["obs"]["s"].flatten().tolist() == [0, 1, 2, 10, 11]
    assert batch["next_obs"]["s"].flatten().tolist() == [0.5, 1.5, 2.5, 10.5, 11.5]
    assert batch["actions"].flatten().tolist() == pytest.approx([0, 0.01, 0.02, 0.1, 0.11])
    assert batch["n_step_rewards"].tolist() == [1, 2, 3, 4, 5]
    assert batch["discounts"].tolist() == [0.25, 0, 0.25, 0.25, 0.25]  # a time limit is not an end
    assert batch["pad_mask"].all() and batch["obs"]["s"].dtype == torch.float32
    everything = experience(mask=None).samples(algo)
    assert everything["obs"]["s"].flatten().tolist() == [0, 1, 2, 10, 11, 12]


def test_frames_are_of_one_episode():
    algo = make("sac", "train.frame_stack=2", "train.seq_length=1")
    batch = experience().samples(algo)
    assert batch["obs"]["s"][..., 0].tolist() == [[0, 0], [0, 1], [2, 2], [10, 10], [11, 11]]
    following = [[0, 0.5], [1, 1.5], [2, 2.5], [10, 10.5], [11, 11.5]]
    assert batch["next_obs"]["s"][..., 0].tolist() == following


def test_rewards_of_several_steps_end_with_an_episode():
    batch = experience().samples(make(algo={"discount": 0.5, "n_step": 2}))
    assert batch["n_step_rewards"].tolist() == [1 + 0.5 * 2, 2, 3, 4, 5]
    assert batch["discounts"].tolist() == [0, 0, 0.5, 0.5, 0.5]
    following = batch["next_obs"]["s"].flatten().tolist()
    assert following == [1.5, 1.5, 2.5, 10.5, 11.5]  # nothing of the missing step


def test_a_rollout_ends_where_steps_are_missing_and_with_the_last_ones():
    algo = make("ppo")
    algo.prepare_rollout = lambda rollout: rollout
    found = experience(log_prob=REWARDS).samples(algo)
    assert found["timeouts"].tolist() == [[False, True], [False, True], [False, True]]
    assert found["end_rows"].tolist() == [1, 3, 4, 5]
    assert found["end_obs"]["s"].flatten().tolist() == [10.5, 11.5, 2.5, 12.5]
    assert found["mask"] is MASK and found["log_prob"] is REWARDS
    assert found["rewards"].dtype == np.float32 and found["rewards"].tolist() == REWARDS.tolist()


def test_a_step_before_a_missing_one_ends_the_rollout_unless_the_task_ends_there():
    algo = make("ppo")
    algo.prepare_rollout = lambda rollout: rollout
    found = experience(np.array([[True, True], [True, True], [False, False]])).samples(algo)
    assert found["timeouts"].tolist() == [[False, True], [False, True], [True, True]]


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        (
            "sac",
            {"algo": {"rnn": {"enabled": True}}, "train": {"seq_length": 4}},
            "a recurrent state",
        ),
        ("mbrl", {}, "algo.dynamics: its training samples exist only in"),
        ("dt", {}, "dt learns from whole episodes of a file: train it with `imitate train`"),
    ],
)
def test_what_single_steps_lack_is_refused(name, words, expected):
    with pytest.raises(UserError, match=expected):
        experience().samples(make(name, **words))


@pytest.mark.parametrize("training", [True, False])
def test_decisions_are_made_in_evaluation_and_in_raw_units(training):
    algo, modes = make(), []
    algo.set_train() if training else algo.set_eval()
    act = algo.act
    algo.act = lambda *given, **how: modes.append(algo.nets.training) or act(*given, **how)
    algo.preprocess = units(action=(1.0, 2.0))
    action, step = decided(algo, {"s": np.zeros((3, 1))}, algo.initial_state(3), explore=False)
    assert modes == [False] and algo.nets.training == training
    torch.testing.assert_close(action, 1.0 + 2.0 * step.action)


def test_nested_arrays_become_tensors():
    found = tensors({"a": np.ones(2), "b": {"c": np.zeros(1, np.uint8)}})
    assert found["a"].tolist() == [1, 1] and found["b"]["c"].dtype == torch.uint8
