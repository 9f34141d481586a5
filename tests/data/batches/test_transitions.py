"""Transitions worked out by hand, observations that lie ahead, and images of the steps that are looked at."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imitate.config.data_needs import Subgoals, Transitions
from imitate.data import SequenceDataset, build_datasets
from imitate.data.batches.windows import TransitionPicker, transition_table
from imitate.errors import ConfigError
from tests.demo_files import data_config, episode, write_demos

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
    assert found.last.tolist() == [0, 1, 2, 3, 4] and found.usable.all()


def test_three_steps_stop_at_a_terminal_in_the_middle_and_bootstrap_at_the_timeout():
    found = table(terminals=[0, 0, 1, 0, 0], n_step=3)
    # 1 + 2/2 + 4/4; 2 + 4/2; 4; 8 + 16/2; 16
    assert found.rewards.tolist() == [3.0, 4.0, 4.0, 16.0, 16.0]
    # two steps are left at row 3, one at row 4: 0.5^2 and 0.5
    assert found.discounts.tolist() == [0.0, 0.0, 0.0, 0.25, 0.5]
    assert found.last.tolist() == [2, 2, 2, 4, 4] and found.usable.all()


def test_without_a_state_after_the_end_sums_stop_one_step_earlier():
    found = table(end_is_known=False, n_step=3)
    # row 2: 4 + 8/2, bootstrapped two steps on, from row 4; row 4 itself is not a transition
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


def write(path, next_obs=True, end="timeout"):
    """Five and three steps. x counts 0, 1, 2 ... from ten times the demo's number; what follows its end is -1, -2."""
    demos = []
    for number, length in enumerate((5, 3)):
        x = 10.0 * number + np.arange(length, dtype=np.float32)[:, None]
        after = {"x": np.append(x[1:], [[-1.0 - number]], axis=0)} if next_obs else None
        rewards = np.full(length, number + 1.0)
        demos.append(episode(length, {"x": x}, x / 100, end, next_obs=after, rewards=rewards))
    return write_demos(path, demos)


def dataset(path, frame_stack=1, cache_mode="all", **wanted):
    wanted = Transitions(discount=0.5, **wanted)
    return SequenceDataset(
        path, ["x"], frame_stack=frame_stack, transitions=wanted, hdf5_cache_mode=cache_mode
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
    batch = dataset(write(tmp_path / "t.hdf5", next_obs=False, end="terminal"))[np.arange(8)]
    assert "weight" not in batch, "a terminal end still counts"
    assert batch["discounts"].tolist() == [0.5, 0.5, 0.5, 0.5, 0.0, 0.5, 0.5, 0.0]


@pytest.mark.parametrize("cache_mode", ["all", None])
def test_next_actions_are_those_of_the_state_that_is_bootstrapped_from(tmp_path, cache_mode):
    path = write(tmp_path / "d.hdf5")
    batch = dataset(path, n_step=2, next_actions=True, cache_mode=cache_mode)[np.arange(8)]
    assert batch["n_step_rewards"].tolist() == [1.5, 1.5, 1.5, 1, 0, 3, 2, 0]
    used = batch["weight"][:, 0] > 0
    assert used.tolist() == [True, True, True, True, False, True, True, False]
    state, action = batch["next_obs"]["x"][used, 0, 0], batch["next_actions"][used, 0]
    assert state.tolist() == [2, 3, 4, 4, 12, 12]
    np.testing.assert_allclose(action, state / 100, rtol=1e-6)


@pytest.mark.parametrize("cache_mode", ["all", None])
def test_chunks_are_the_actions_of_the_summed_steps(tmp_path, cache_mode):
    path = write(tmp_path / "d.hdf5")
    batch = dataset(path, n_step=2, chunks=True, cache_mode=cache_mode)[np.array([0, 4, 6])]
    chunk, mask = batch["chunk"][..., 0] * 100, batch["chunk_mask"]
    # the demo of five steps ends after row 4; its last action is repeated
    torch.testing.assert_close(chunk, torch.tensor([[0.0, 1], [4, 4], [11, 12]]))
    assert mask.tolist() == [[True, True], [True, False], [True, True]]


@pytest.mark.parametrize("next_obs", [True, False])
def test_frames_of_the_next_state(tmp_path, next_obs):
    data = dataset(write(tmp_path / "d.hdf5", next_obs=next_obs), frame_stack=3)
    batch = data[np.array([0, 3, 5])]
    assert batch["obs"]["x"][..., 0].tolist() == [[0, 0, 0], [1, 2, 3], [10, 10, 10]]
    assert batch["next_obs"]["x"][..., 0].tolist() == [[0, 0, 1], [2, 3, 4], [10, 10, 11]]


def test_images_follow_too(demo_file):
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


def test_next_observations_are_loaded_for_those_that_need_them(tmp_path):
    path = write(tmp_path / "d.hdf5")

    def batch(*words, **changes):
        return build_datasets(data_config(path, ["x"], *words, **changes))[0][np.arange(8)]

    found = batch("iql", algo={"n_step": 2, "discount": 0.5})["next_obs"]["x"]
    assert found[:, 0, 0].tolist() == [2, 3, 4, -1, -1, 12, -2, -2]
    assert "next_obs" not in batch("bc")
    windows = batch("bc", hdf5_load_next_obs=True)
    assert windows["next_obs"]["x"].shape == (8, 1, 1)
    assert "discounts" not in windows
    assert batch("rebrac")["next_actions"].shape == (8, 1)
    with pytest.raises(ConfigError, match="hdf5_load_next_obs is false, but iql learns from next"):
        batch("iql", hdf5_load_next_obs=False)


# ---- observations that lie ahead -----------------------------------------------------------------


def counted(path, lengths=(5, 3), with_next=False):
    """Observation x of demo d at step t is 10 d + t, and one more after its last step where ``next_obs`` is there."""
    demos = []
    for demo, length in enumerate(lengths):
        x = 10.0 * demo + np.arange(length + 1)[:, None]
        image = np.broadcast_to(x[:, :, None, None], (length + 1, 4, 4, 3)).astype(np.uint8)
        seen = {"x": x, "image": image, "other": x}
        following = {key: value[1:] for key, value in seen.items()} if with_next else None
        obs = {key: value[:-1] for key, value in seen.items()}
        demos.append(episode(length, obs, next_obs=following))
    return write_demos(path, demos)


def ahead(path, subgoals, **kwargs):
    return SequenceDataset(path, ["x", "image", "other"], subgoals=subgoals, **kwargs)


@pytest.mark.parametrize(
    ("with_next", "wanted"),
    [(False, [2, 3, 4, 4, 4, 12, 12, 12]), (True, [2, 3, 4, 5, 5, 12, 13, 13])],
)
def test_the_observation_two_steps_ahead_or_the_last_one(tmp_path, with_next, wanted):
    path = counted(tmp_path / "d.hdf5", with_next=with_next)
    batch = ahead(path, Subgoals(("x", "image"), 2))[np.arange(8)]
    assert batch["subgoals"]["x"][:, 0].tolist() == wanted
    assert batch["subgoals"]["image"][:, 0, 0, 0].tolist() == wanted
    assert batch["subgoals"]["image"].dtype == torch.uint8
    assert set(batch["subgoals"]) == {"x", "image"}
    assert "next_obs" not in batch


def test_every_observation_on_the_way(tmp_path):
    path = counted(tmp_path / "d.hdf5")
    batch = ahead(path, Subgoals(("x",), 3, every=True))[np.array([0, 2, 6])]
    assert batch["subgoals"]["x"][..., 0].tolist() == [[1, 2, 3], [3, 4, 4], [12, 12, 12]]
    # images on the way are not left out with those of the window
    wanted = Subgoals(("image",), 3, every=True)
    batch = ahead(path, wanted, seq_length=4, image_steps=1)[np.array([0])]
    assert batch["obs"]["image"].shape[1] == 1
    assert batch["subgoals"]["image"].shape == (1, 3, 4, 4, 3)


def test_frames_do_not_shift_them_and_transitions_go_with_them(tmp_path):
    window = {"frame_stack": 2, "seq_length": 3, "transitions": Transitions()}
    data = ahead(counted(tmp_path / "d.hdf5"), Subgoals(("x",), 2), **window)
    batch = data[np.array([1, 5])]
    assert batch["obs"]["x"][0, :, 0].tolist() == [0, 1, 2, 3]
    assert batch["subgoals"]["x"][:, 0].tolist() == [3, 12]
    assert batch["next_obs"]["x"][0, :, 0].tolist() == [1, 2]


# ---- images of some steps ------------------------------------------------------------------------


@pytest.mark.parametrize("cache_mode", ["all", "low_dim"])
def test_the_first_images_of_whole_windows(tmp_path, cache_mode):
    path = counted(tmp_path / "d.hdf5", lengths=(10, 10))
    window = {"frame_stack": 2, "seq_length": 6, "load_next_obs": True}

    def windows(image_steps):
        dataset = SequenceDataset(
            path, ("image", "x"), hdf5_cache_mode=cache_mode, image_steps=image_steps, **window
        )
        return dataset[np.array([0, 4, 13])]

    whole, some = windows(None), windows(2)
    assert whole["obs"]["image"].shape == (3, 7, 4, 4, 3)
    for group in ("obs", "next_obs"):
        assert torch.equal(some[group]["image"], whole[group]["image"][:, :2])
        assert torch.equal(some[group]["x"], whole[group]["x"])
    assert some["obs"]["image"][1, :, 0, 0, 0].tolist() == [3, 4]


def test_a_policy_that_predicts_chunks_reads_its_frames_only(tmp_path):
    path = counted(tmp_path / "d.hdf5", lengths=(10, 10))
    dataset, _ = build_datasets(data_config(path, ["x"], "flow_policy", rgb=["image"]))
    batch = dataset[np.array([5])]
    assert (batch["obs"]["image"].shape[1], batch["actions"].shape[1]) == (2, 17)
