"""Transitions worked out by hand: n steps, terminals in the middle, timeouts at the end."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imitate import load_config
from imitate.config.data_needs import Transitions
from imitate.data import DatasetWriter, Episode, SequenceDataset, build_datasets
from imitate.data.batches.transitions import TransitionPicker, transition_table
from imitate.errors import ConfigError

REWARDS = np.array([1.0, 2.0, 4.0, 8.0, 16.0], dtype=np.float32)
NEVER = np.zeros(5, dtype=np.float32)
END = np.array([5])


def table(terminals=NEVER, end_is_known=True, demo_end=END, rewards=REWARDS, **wanted):
    return transition_table(
        rewards,
        np.asarray(terminals, dtype=np.float32),
        demo_end,
        Transitions(discount=0.5, **wanted),
        end_is_known=end_is_known,
    )


def test_one_step():
    found = table(terminals=[0, 0, 0, 0, 1])
    assert found.rewards.tolist() == REWARDS.tolist()
    assert found.discounts.tolist() == [0.5, 0.5, 0.5, 0.5, 0.0]
    assert found.last.tolist() == [0, 1, 2, 3, 4]
    assert found.usable.all()


def test_three_steps_stop_at_a_terminal_in_the_middle_and_bootstrap_at_the_timeout():
    found = table(terminals=[0, 0, 1, 0, 0], n_step=3)
    # 1 + 2/2 + 4/4; 2 + 4/2; 4; 8 + 16/2; 16
    assert found.rewards.tolist() == [3.0, 4.0, 4.0, 16.0, 16.0]
    # two steps are left at row 3, one at row 4: 0.5^2 and 0.5
    assert found.discounts.tolist() == [0.0, 0.0, 0.0, 0.25, 0.5]
    assert found.last.tolist() == [2, 2, 2, 4, 4]
    assert found.usable.all()


def test_without_a_state_after_the_end_sums_stop_one_step_earlier():
    found = table(end_is_known=False, n_step=3)
    # row 2: 4 + 8/2, bootstrapped two steps on, from row 4; row 4 itself is no transition
    assert found.rewards.tolist() == [3.0, 6.0, 8.0, 8.0, 0.0]
    assert found.discounts.tolist() == [0.125, 0.125, 0.25, 0.5, 0.0]
    assert found.last.tolist() == [2, 3, 3, 3, 4]
    assert found.usable.tolist() == [True, True, True, True, False]


def test_a_terminal_end_needs_no_state_after_it():
    found = table(terminals=[0, 0, 0, 0, 1], end_is_known=False, n_step=2)
    assert found.rewards.tolist() == [2.0, 4.0, 8.0, 16.0, 16.0]
    assert found.discounts.tolist() == [0.25, 0.25, 0.25, 0.0, 0.0]
    assert found.usable.all()


def test_sums_do_not_reach_into_the_next_demo():
    found = table(demo_end=np.array([2, 5]), n_step=4)
    assert found.rewards.tolist() == [2.0, 2.0, 12.0, 16.0, 16.0]
    assert found.discounts.tolist() == [0.25, 0.5, 0.125, 0.25, 0.5]


def test_an_infinite_horizon_repeats_the_reward_of_a_terminal():
    found = table(terminals=[0, 0, 0, 0, 1], infinite_horizon=True, n_step=2)
    assert found.rewards.tolist() == [2.0, 4.0, 8.0, 24.0, 32.0]  # 8 + 32 / 2


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    n_step=st.integers(1, 5),
    known=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_plain_loop_agrees(lengths, n_step, known, seed):
    random = np.random.default_rng(seed)
    ends = np.cumsum(lengths)
    count = int(ends[-1])
    rewards = random.normal(size=count).astype(np.float32)
    terminals = (random.random(count) < 0.2).astype(np.float32)
    found = transition_table(rewards, terminals, ends, Transitions(0.9, n_step), end_is_known=known)
    for t in range(count):
        end = int(ends[np.searchsorted(ends, t, side="right")]) - 1
        total, discount, usable, k = 0.0, 0.0, False, 0
        while k < n_step and t + k <= end:
            if t + k == end and not known and not terminals[t + k]:
                break
            usable = True
            total += 0.9**k * float(rewards[t + k])
            discount = 0.0 if terminals[t + k] else 0.9 ** (k + 1)
            k += 1
            if terminals[t + k - 1]:
                break
        assert found.usable[t] == usable
        assert found.rewards[t] == pytest.approx(total, abs=1e-5)
        assert found.discounts[t] == pytest.approx(discount, abs=1e-6)
        if usable:
            assert found.last[t] == t + k - 1


def test_frames_of_the_next_state_repeat_the_first_observation_of_the_demo():
    picker = TransitionPicker(table(demo_end=np.array([2, 5])), np.array([0, 2]), frame_stack=3)
    before, last = picker.next_frames(np.array([2, 4]), np.array([1, 1]))
    # after row 2, the demo's first, come its own observation twice and the new one
    assert before.tolist() == [[2, 2], [3, 4]]
    assert last.tolist() == [[2], [4]]


# ---- from files ----------------------------------------------------------------------------------


def write(path, lengths=(5, 3), next_obs=True, ends="timeout", **steps):
    """x counts 0, 1, 2 ... within a demo of tens; after the last step of a demo comes -1, -2 ..."""
    meta = {"env_name": "Toy", "type": 2, "env_kwargs": {}}
    with DatasetWriter(path, meta) as writer:
        for number, length in enumerate(lengths):
            x = 10.0 * number + np.arange(length, dtype=np.float32)
            after = np.append(x[1:], -1.0 - number)
            last = np.arange(length) == length - 1
            writer.append_episode(
                Episode(
                    obs={"x": x[:, None]},
                    next_obs={"x": after[:, None]} if next_obs else None,
                    actions=x[:, None] / 100,
                    rewards=np.ones(length, dtype=np.float32) * (number + 1),
                    terminals=last & (ends == "terminal"),
                    timeouts=last & (ends == "timeout"),
                    steps={key: value[number] for key, value in steps.items()},
                )
            )
    return path


def dataset(path, frame_stack=1, **wanted):
    return SequenceDataset(
        path, ["x"], frame_stack=frame_stack, transitions=Transitions(discount=0.5, **wanted)
    )


def test_a_batch_has_the_state_that_the_file_says_follows_a_timeout(tmp_path):
    batch = dataset(write(tmp_path / "d.hdf5"))[np.arange(8)]
    assert batch["next_obs"]["x"][:, 0, 0].tolist() == [1, 2, 3, 4, -1, 11, 12, -2]
    assert batch["discounts"].tolist() == [0.5] * 8
    assert batch["n_step_rewards"].tolist() == [1] * 5 + [2] * 3
    assert "weight" not in batch


def test_without_next_obs_the_last_step_is_no_transition(tmp_path):
    batch = dataset(write(tmp_path / "d.hdf5", next_obs=False))[np.arange(8)]
    assert batch["next_obs"]["x"][[0, 1, 2, 3, 5, 6], 0, 0].tolist() == [1, 2, 3, 4, 11, 12]
    assert batch["weight"][:, 0].tolist() == [1, 1, 1, 1, 0, 1, 1, 0]


def test_without_next_obs_a_terminal_end_still_counts(tmp_path):
    batch = dataset(write(tmp_path / "d.hdf5", next_obs=False, ends="terminal"))[np.arange(8)]
    assert "weight" not in batch
    assert batch["discounts"].tolist() == [0.5, 0.5, 0.5, 0.5, 0.0, 0.5, 0.5, 0.0]


def test_next_actions_are_those_of_the_state_that_is_bootstrapped_from(tmp_path):
    batch = dataset(write(tmp_path / "d.hdf5"), n_step=2, next_actions=True)[np.arange(8)]
    used = batch["weight"][:, 0] > 0
    assert used.tolist() == [True, True, True, True, False, True, True, False]
    state, action = batch["next_obs"]["x"][used, 0, 0], batch["next_actions"][used, 0]
    assert state.tolist() == [2, 3, 4, 4, 12, 12]
    torch.testing.assert_close(action, state / 100)


@pytest.mark.parametrize("next_obs", [True, False])
def test_frames_of_the_next_state(tmp_path, next_obs):
    data = dataset(write(tmp_path / "d.hdf5", next_obs=next_obs), frame_stack=3)
    batch = data[np.array([0, 3, 5])]
    assert batch["obs"]["x"][..., 0].tolist() == [[0, 0, 0], [1, 2, 3], [10, 10, 10]]
    assert batch["next_obs"]["x"][..., 0].tolist() == [[0, 0, 1], [2, 3, 4], [10, 10, 11]]


def test_images_follow_too(tmp_path, demo_file):
    path = demo_file(image=True, num_demos=2, length=4)
    data = SequenceDataset(
        path, ["object", "agentview_image"], frame_stack=2, transitions=Transitions(n_step=2)
    )
    batch = data[np.arange(8)]
    assert batch["next_obs"]["agentview_image"].shape == (8, 2, 8, 6, 3)
    windows = SequenceDataset(path, ["agentview_image"], load_next_obs=True)[np.arange(8)]
    stored = windows["next_obs"]["agentview_image"][:, 0]
    # two steps on from row 0: after row 1; rows 2 and 3 end at the terminal, row 3
    assert torch.equal(batch["next_obs"]["agentview_image"][:4, -1], stored[[1, 2, 3, 3]])


@pytest.mark.parametrize("cache_mode", ["all", None])
def test_it_does_not_matter_where_the_data_lie(tmp_path, cache_mode):
    path = write(tmp_path / "d.hdf5")
    wanted = Transitions(0.5, 2, next_actions=True)
    here = SequenceDataset(path, ["x"], transitions=wanted, hdf5_cache_mode=cache_mode)
    batch = here[np.arange(8)]
    assert batch["n_step_rewards"].tolist() == [1.5, 1.5, 1.5, 1, 0, 3, 2, 0]


# ---- from configurations -------------------------------------------------------------------------


def config(path, algo_name="iql", algo=None, **train):
    return load_config(
        {
            "algo_name": algo_name,
            "train": {"data": str(path), **train},
            "algo": algo or {},
            "observation": {"modalities": {"obs": {"low_dim": ["x"]}}},
        }
    )


def test_next_observations_are_loaded_for_those_that_need_them(tmp_path):
    path = write(tmp_path / "d.hdf5")
    batch = build_datasets(config(path, algo={"n_step": 2, "discount": 0.5}))[0][np.arange(8)]
    assert batch["next_obs"]["x"][:, 0, 0].tolist() == [2, 3, 4, -1, -1, 12, -2, -2]
    assert "next_obs" not in build_datasets(config(path, "bc"))[0][np.arange(8)]
    windows = build_datasets(config(path, "bc", hdf5_load_next_obs=True))[0][np.arange(8)]
    assert windows["next_obs"]["x"].shape == (8, 1, 1)
    assert "discounts" not in windows


def test_an_explicit_no_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="hdf5_load_next_obs is false, but iql learns from next"):
        config(write(tmp_path / "d.hdf5"), hdf5_load_next_obs=False)


def test_rebrac_asks_for_next_actions(tmp_path):
    batch = build_datasets(config(write(tmp_path / "d.hdf5"), "rebrac"))[0][np.arange(8)]
    assert batch["next_actions"].shape == (8, 1)
