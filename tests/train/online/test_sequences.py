import numpy as np
import pytest
import torch

from imitate.config.data_needs import Transitions
from imitate.train.online.replay import SequenceReplay
from imitate.train.online.steps import Step


def make(capacity=40, envs=1, seq_length=3, burn_in=2, **transitions):
    return SequenceReplay(
        {"s": (1,)},
        1,
        capacity,
        num_envs=envs,
        transitions=Transitions(**{"discount": 0.5, **transitions}),
        state_shapes={"h": (1, 2)},
        seq_length=seq_length,
        burn_in=burn_in,
    )


def step(obs, ends, lost=None, following=None):
    """A step of several environments: rewards are the observations, the state is (observation, -observation)."""
    seen = np.array(obs, dtype=np.float32)
    following = seen + 1 if following is None else np.array(following, dtype=np.float32)
    return Step(
        {"s": seen[:, None]},
        seen[:, None],
        seen,
        np.array([end == "t" for end in ends]),
        np.array([end == "c" for end in ends]),
        {"s": following[:, None]},
        None if lost is None else np.array(lost),
        {"memory/h": np.stack([seen, -seen], -1)[:, None]},
    )


def fill(memory, first, count, end):
    """An episode of observations ``first``, ``first + 1`` ..."""
    for number in range(count):
        memory.add(step([first + number], end if number == count - 1 else "-"))


def at(memory, first):
    """The sequence whose first step shows ``first``, as lists; of what was seen the numbers."""
    batch = memory.at(np.flatnonzero(memory.live & (memory.vectors[:, 0] == first)))
    obs = batch.pop("obs")["s"][0, :, 0].tolist()
    found = {key: value[0].tolist() for key, value in batch.items()}
    return {**found, "obs": obs, "actions": [action for (action,) in found["actions"]]}


@pytest.fixture
def two_episodes():
    """Steps 0 to 4, which end by the clock; 10 and 11, which end with a terminal; 20 and 21, still running."""
    memory = make()
    fill(memory, 0, 5, "c")
    fill(memory, 10, 2, "t")
    fill(memory, 20, 2, "-")
    return memory


@pytest.mark.parametrize(
    ("first", "burn_in", "before", "seen", "mask", "state"),
    [
        (2, 2, [0, 1], [2, 3, 4, 5], [True, True, True], [0, 0]),  # in the middle
        (0, 0, [], [0, 1, 2, 3], [True, True, True], [0, 0]),  # nothing is before the beginning
        (1, 1, [0], [1, 2, 3, 4], [True, True, True], [0, 0]),
        (4, 2, [2, 3], [4, 5, 5, 5], [True, False, False], [2, -2]),  # an end cuts it
        (10, 0, [], [10, 11, 12, 12], [True, True, False], [10, -10]),  # nothing of another episode
        (21, 1, [20], [21, 22], [True, False, False], [20, -20]),  # the newest step
    ],
)
def test_sequences_by_hand(two_episodes, first, burn_in, before, seen, mask, state):
    found = at(two_episodes, first)
    assert found["burn_in"] == burn_in
    assert found["obs"][:burn_in] == before  # the rest up to 2 is padding
    assert found["obs"][2 : 2 + len(seen)] == seen and found["mask"] == mask
    assert found["memory/h"] == [state]


def test_actions_rewards_and_discounts_of_sequences(two_episodes):
    found = at(two_episodes, 2)
    assert found["actions"] == found["n_step_rewards"] == [2, 3, 4]
    assert found["discounts"] == [0.5, 0.5, 0.5] and found["ahead"] == [1, 1, 1]
    assert at(two_episodes, 4)["discounts"][0] == 0.5  # a timeout: what follows has a value
    assert at(two_episodes, 10)["discounts"][:2] == [0.5, 0.0]


def test_several_steps_are_summed_within_the_episode():
    memory = make(n_step=2)
    fill(memory, 0, 5, "c")
    fill(memory, 10, 2, "t")
    found = at(memory, 2)
    assert found["n_step_rewards"] == [2 + 1.5, 3 + 2, 4]
    assert (found["ahead"], found["discounts"]) == ([2, 2, 1], [0.25, 0.25, 0.5])
    assert found["obs"] == [0, 1, 2, 3, 4, 5, 5]
    found = at(memory, 10)
    assert found["n_step_rewards"][:2] == [10 + 5.5, 11] and found["discounts"][:2] == [0, 0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n_step", [1, 3])
def test_whatever_the_ring_holds_sequences_are_parts_of_episodes(seed, n_step):
    """Random episodes go round the ring several times; observations of a lane count up and jump between episodes."""
    rng = np.random.default_rng(seed)
    memory = make(capacity=34, envs=2, seq_length=4, burn_in=3, n_step=n_step)
    now, episode_began = np.array([0.0, 10_000.0]), np.array([0.0, 10_000.0])
    last_of = {}
    for number in range(120):
        ends = "".join(rng.choice(["-", "c", "t"], p=[0.75, 0.15, 0.1], size=2))
        lost = [bool(rng.random() < 0.03), False]
        ends = "".join("-" if gone else end for end, gone in zip(ends, lost, strict=True))
        memory.add(step(now, ends, lost=lost if any(lost) else None))
        for lane in range(2):
            over = ends[lane] != "-" or lost[lane]
            last_of[now[lane]] = episode_began[lane]
            now[lane] += 100.0 if over else 1.0
            if over:
                episode_began[lane] = now[lane]
        rows = np.flatnonzero(memory.live)
        if number % 4 or not len(rows):
            continue
        batch = memory.at(rows)
        starts = memory.vectors[rows, 0]
        before, shown = batch["obs"]["s"][:, :3, 0].numpy(), batch["obs"]["s"][:, 3:, 0].numpy()
        counts, burn_in = batch["mask"].sum(1).numpy(), batch["burn_in"].numpy()
        stored = batch["memory/h"][:, 0, 0].numpy()
        for i, start in enumerate(starts):
            began = last_of[float(start)]
            assert burn_in[i] <= min(3, start - began)
            assert stored[i] == start - burn_in[i]
            assert before[i, : burn_in[i]].tolist() == list(np.arange(start - burn_in[i], start))
            taken = batch["actions"][i, : counts[i], 0].tolist()
            assert taken == list(start + np.arange(counts[i]))
            assert last_of[taken[-1]] == began
            for place in range(counts[i]):
                ahead = int(batch["ahead"][i, place])
                assert shown[i, place + ahead] == start + place + ahead
                assert 1 <= ahead <= n_step


def test_after_the_ring_is_full_nothing_that_is_left_is_missed():
    memory = make(capacity=20, seq_length=4, burn_in=3)
    fill(memory, 0, 50, "-")
    # The latest 19 steps are left, 31 to 49: of the first one nothing before it.
    assert sorted(memory.vectors[memory.live, 0]) == list(range(31, 50))
    assert (at(memory, 31)["burn_in"], at(memory, 33)["burn_in"]) == (0, 2)
    assert at(memory, 40)["memory/h"] == [[37, -37]]


def test_steps_are_drawn_alike_and_beginnings_with_what_follows():
    memory = make(seq_length=4)
    fill(memory, 0, 20, "c")
    counts = np.zeros(20)
    batch = memory.sample(20_000)
    for taken, mask in zip(batch["actions"][..., 0].long(), batch["mask"], strict=True):
        counts[taken[mask].numpy()] += 1
    share = counts / counts[8:12].mean()
    # Of steps t and places o uniform in 0 to 3 a sequence begins at max(t - o, 0): begins at 0 in (4 + 3 + 2 + 1) / 4
    # times as many cases as elsewhere, and near the end in 3, 2, 1 quarters as many.
    expected = np.ones(20)
    expected[:3] = np.array([2.5, 3.5, 4.5]) / 4
    expected[3] = 5.5 / 4
    expected[17:] = np.array([3.75, 3.25, 2.5]) / 4
    expected[17] = (1 + 1 + 1 + 0.75) / 4
    expected[18] = (1 + 1 + 0.75 + 0.5) / 4
    expected[19] = (1 + 0.75 + 0.5 + 0.25) / 4
    np.testing.assert_allclose(share, expected, atol=0.08)


def test_a_short_episode_is_mostly_drawn_whole():
    memory = make(seq_length=8)
    fill(memory, 0, 4, "c")
    whole = memory.sample(4000)["mask"][:, :4].all(1).float().mean()
    # Begins at 0 unless the place is smaller than the step: 1 - (1 + 2 + 3) / 32.
    assert float(whole) == pytest.approx(1 - 6 / 32, abs=0.03)


def test_a_copy_goes_on_identically():
    memory, other = make(), make()
    fill(memory, 0, 5, "c")
    fill(memory, 10, 3, "-")
    other.load_state_dict(memory.state_dict())
    first, second = memory.sample(16), other.sample(16)
    for key, value in first.items():
        if key == "obs":
            assert torch.equal(value["s"], second[key]["s"])
        else:
            assert torch.equal(value, second[key])


def test_states_take_their_room():
    assert make(capacity=40).nbytes == 40 * (4 * 3 + 4 + 4) + 40 * 2 * 4
