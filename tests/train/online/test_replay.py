import numpy as np
import pytest
import torch

from imitate.config.data_needs import FollowingSteps, Returns, Transitions
from imitate.data.batches.rewards import RewardTransform
from imitate.errors import CheckpointError
from imitate.train.online import replay
from imitate.train.online.replay import ReplayBuffer
from imitate.train.online.steps import Step


def step(obs, next_obs, rewards, ends="", actions=None, lost=None):
    """A step of as many environments as there are rewards; ``ends`` has a letter each: t(erminal), c(lock) or -."""
    count = len(rewards)
    ends = ends or "-" * count
    return Step(
        obs={"s": np.array(obs, dtype=np.float32).reshape(count, -1)},
        actions=np.array(actions or [[r] for r in rewards], dtype=np.float32),
        rewards=np.array(rewards, dtype=np.float32),
        terminals=np.array([e == "t" for e in ends]),
        timeouts=np.array([e == "c" for e in ends]),
        next_obs={"s": np.array(next_obs, dtype=np.float32).reshape(count, -1)},
        lost=None if lost is None else np.array(lost),
    )


def buffer(capacity=20, **kwargs):
    return ReplayBuffer({"s": (1,)}, 1, capacity, **kwargs)


def fill(memory, first, rewards, end="c"):
    """An episode of one environment whose observation after reward i is ``first + i + 1``."""
    for i, reward in enumerate(rewards):
        last = i == len(rewards) - 1
        memory.add(step([first + i], [first + i + 1], [reward], end if last else "-"))


def every_transition(memory):
    batch = memory.at(np.flatnonzero(memory.live))
    return {
        float(o): (float(a), float(r), float(d), float(n))
        for o, a, r, d, n in zip(
            batch["obs"]["s"][:, -1, 0],
            batch["actions"][:, -1, 0],
            batch["n_step_rewards"],
            batch["discounts"],
            batch["next_obs"]["s"][:, -1, 0],
            strict=True,
        )
    }


@pytest.mark.parametrize(
    ("transitions", "reward", "episodes", "expected"),
    [
        # A terminal has no future and a timeout has one.
        (
            {},
            (),
            [(0, [1, 2], "t"), (10, [3, 4], "c")],
            {0: (1, 1, 0.5, 1), 1: (2, 2, 0, 2), 10: (3, 3, 0.5, 11), 11: (4, 4, 0.5, 12)},
        ),
        # Sums of three steps end at ends and at the newest step.
        (
            {"n_step": 3},
            (),
            [(0, [1, 2, 4, 8], "t"), (10, [16, 32], "c"), (20, [64, 128], "-")],
            {
                0: (1, 1 + 1 + 1, 0.125, 3),
                1: (2, 2 + 2 + 2, 0, 4),
                2: (4, 4 + 4, 0, 4),
                3: (8, 8, 0, 4),
                10: (16, 16 + 16, 0.25, 12),
                11: (32, 32, 0.5, 12),
                20: (64, 64 + 64, 0.25, 22),
                21: (128, 128, 0.5, 22),
            },
        ),
        # Rewards are transformed when they are sampled: 2 r - 1.
        (
            {"n_step": 2},
            (2.0, -1.0),
            [(0, [1, 2], "t")],
            {0: (1, 1 + 0.5 * 3, 0, 2), 1: (2, 3, 0, 2)},
        ),
        # A reward at a terminal counts for ever.
        ({"infinite_horizon": True}, (), [(0, [1, 3], "t")], {0: (1, 1, 0.5, 1), 1: (3, 6, 0, 2)}),
    ],
    ids=["ends", "three steps", "scaled", "for ever"],
)
def test_transitions_by_hand(transitions, reward, episodes, expected):
    transitions = Transitions(discount=0.5, **transitions)
    memory = buffer(transitions=transitions, reward=RewardTransform(*reward))
    for episode in episodes:
        fill(memory, *episode)
    assert every_transition(memory) == expected
    assert [e.rewards.tolist() for e in memory.episodes()] == [
        rewards for _, rewards, _ in episodes
    ]


def returns(memory):
    """By what was seen, the return from there."""
    batch = memory.at(np.flatnonzero(memory.live))
    assert batch["returns"].shape == batch["rewards"].shape
    seen = batch["obs"]["s"][:, -1, 0].tolist()
    return dict(zip(seen, batch["returns"][:, -1].tolist(), strict=True))


@pytest.mark.parametrize(
    ("wanted", "cut"),
    [
        (Returns(0.5), {10.0: 16 + 16, 11.0: 32}),
        # 32 for ever is 64.
        (Returns(0.5, continue_truncated=True), {10.0: 16 + 32, 11.0: 64}),
        (Returns(0.5, scaled=False), {10.0: 8 + 8, 11.0: 16}),
    ],
)
def test_returns_go_to_the_end_of_the_episode_and_are_unknown_while_it_runs(wanted, cut):
    memory = buffer(7, returns=wanted, reward=RewardTransform(scale=2.0))
    fill(memory, 90, [1])  # overwritten, so that the episodes go around the ring's end
    fill(memory, 0, [1, 2, 4], end="t")
    assert returns(memory)[0.0] == (3 if wanted.scaled is False else 6)
    fill(memory, 10, [8, 16], end="c")
    memory.add(step([20], [21], [64]))
    found = returns(memory)
    assert found[20.0] == -np.inf
    assert {key: found[key] for key in cut} == cut


def test_next_actions_and_where_they_are_unknown():
    memory = buffer(transitions=Transitions(discount=0.5, next_actions=True))
    fill(memory, 0, [1, 2], end="t")
    fill(memory, 10, [3, 4], end="c")
    batch = memory.at(np.flatnonzero(memory.live))
    assert batch["next_actions"][0].item() == 2 and batch["next_actions"][2].item() == 4
    assert batch["weight"][:, 0].tolist() == [1, 1, 1, 0]


def test_chunks_end_with_their_episode_and_go_around_the_rings_end():
    memory = buffer(6, transitions=Transitions(discount=0.5, n_step=3, chunks=True))
    fill(memory, 90, [7, 8, 9])
    fill(memory, 0, [1, 2, 3, 4], end="t")
    memory.add(step([20], [21], [5]))
    batch = memory.at(np.flatnonzero(memory.live))
    found = dict(
        zip(
            batch["obs"]["s"][:, -1, 0].tolist(),
            zip(batch["chunk"][..., 0].tolist(), batch["chunk_mask"].sum(1).tolist(), strict=True),
            strict=True,
        )
    )
    wanted = {1: ([2, 3, 4], 3), 2: ([3, 4, 4], 2), 3: ([4, 4, 4], 1), 20: ([5, 5, 5], 1)}
    assert {key: found[key] for key in wanted} == wanted


def test_environments_lie_beside_each_other_and_do_not_mix():
    memory = buffer(40, num_envs=2, transitions=Transitions(discount=0.5, n_step=2))
    memory.add(step([0, 100], [1, 101], [1, 10], "-c"))
    memory.add(step([1, 200], [2, 201], [2, 20], "t-"))
    memory.add(step([5, 201], [6, 202], [3, 30]))
    assert every_transition(memory) == {
        0.0: (1, 2, 0.0, 2),
        1.0: (2, 2, 0.0, 2),
        5.0: (3, 3, 0.5, 6),
        100.0: (10, 10, 0.5, 101),
        200.0: (20, 35, 0.25, 202),
        201.0: (30, 30, 0.5, 202),
    }


@pytest.mark.parametrize("length", [1, 2, 3, 5])
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_full_ring_holds_the_latest_steps_and_nothing_wrong(length, n_step):
    memory = buffer(11, transitions=Transitions(discount=0.5, n_step=n_step))
    begin = 0
    for episode in range(20):
        fill(memory, begin, [1.0] * length, "t" if episode % 2 else "c")
        begin += 100
        for start, (_, reward, discount, after) in every_transition(memory).items():
            steps = min(n_step, length - int(start) % 100)
            ends = (int(start) // 100) % 2 == 1 and int(start) % 100 + steps == length
            assert after == start + steps
            assert reward == sum(0.5**i for i in range(steps))
            assert discount == (0 if ends else 0.5**steps)
    assert len(memory) == len(every_transition(memory)) >= 11 * length // (length + 1) - length
    assert max(every_transition(memory)) == 1900 + length - 1


def test_frames_repeat_the_first_one_and_stay_within_the_episode():
    memory = buffer(frame_stack=3)
    fill(memory, 0, [1, 1], "t")
    fill(memory, 10, [1, 1, 1, 1])
    batch = memory.at(np.flatnonzero(memory.live))
    frames = {w[-1]: w for w in batch["obs"]["s"][..., 0].int().tolist()}
    after = {
        w[-1]: n
        for w, n in zip(
            batch["obs"]["s"][..., 0].int().tolist(),
            batch["next_obs"]["s"][..., 0].int().tolist(),
            strict=True,
        )
    }
    assert frames == {
        0: [0, 0, 0],
        1: [0, 0, 1],
        10: [10, 10, 10],
        11: [10, 10, 11],
        12: [10, 11, 12],
        13: [11, 12, 13],
    }
    assert after[1] == [0, 1, 2] and after[10] == [10, 10, 11] and after[13] == [12, 13, 14]


def test_frames_never_reach_into_what_was_overwritten():
    memory = buffer(8, frame_stack=3)
    for episode in range(9):
        for i in range(5):
            start = 100 * episode + i
            memory.add(step([start], [start + 1], [1], "c" if i == 4 else "-"))
            rows = np.flatnonzero(memory.live)
            for window in memory.at(rows)["obs"]["s"][..., 0].int().tolist():
                assert window == sorted(window) and window[-1] - window[0] <= 2
                assert {w // 100 for w in window} == {window[-1] // 100}


def test_frames_never_reach_into_what_a_lost_episode_overwrote():
    memory = buffer(8, frame_stack=8)
    for i in range(12):
        memory.add(step([i], [i + 1], [1], "c" if i == 11 else "-"))
    memory.add(step([100], [101], [1]))
    memory.add(step([101], [102], [1], lost=[True]))
    windows = memory.at(np.flatnonzero(memory.live))["obs"]["s"][..., 0].int().tolist()
    assert max(map(max, windows)) == 11
    assert all(window == sorted(window) for window in windows)


def test_images_stay_bytes_and_lie_once():
    memory = ReplayBuffer({"image": (4, 4, 3), "s": (2,)}, 1, 100, images=("image",))
    frames = np.random.default_rng(0).integers(256, size=(11, 1, 4, 4, 3), dtype=np.uint8)
    for i in range(10):
        memory.add(
            Step(
                {"image": frames[i], "s": np.zeros((1, 2), np.float32)},
                np.zeros((1, 1), np.float32),
                np.ones(1, np.float32),
                np.array([False]),
                np.array([i == 9]),
                {"image": frames[i + 1], "s": np.zeros((1, 2), np.float32)},
            )
        )
    batch = memory.at(np.arange(10))
    assert batch["obs"]["image"].dtype == torch.uint8
    assert np.array_equal(batch["obs"]["image"].numpy(), frames[:10])
    assert np.array_equal(batch["next_obs"]["image"].numpy(), frames[1:])
    assert memory.nbytes < 1.5 * 100 * (48 + 6 * 4)


def test_sampling_is_uniform_over_steps():
    memory = buffer(40, num_envs=2)
    for i in range(6):
        memory.add(step([i, 10 + i], [i + 1, 11 + i], [1, 1], "c-" if i % 2 else "--"))
    counts = torch.bincount(memory.sample(12_000)["obs"]["s"][:, 0, 0].long(), minlength=16)
    assert counts[[0, 1, 2, 3, 4, 5, *range(10, 16)]].sum() == 12_000
    assert counts[counts > 0].min() > 850 and counts.max() < 1150


def test_a_copy_goes_on_identically(tmp_path):
    memory = buffer(11)
    fill(memory, 0, [1] * 5)
    fill(memory, 10, [1] * 8, "t")
    memory.add(step([50], [51], [1]))
    memory.sample(3)
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    other = buffer(11, seed=5)
    other.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    for each in (memory, other):
        each.add(step([51], [52], [1], "t"))
    assert len(memory) == len(other)
    assert every_transition(memory) == every_transition(other)
    assert torch.equal(memory.sample(50)["index"], other.sample(50)["index"])


def test_a_memory_of_other_shape_is_refused():
    with pytest.raises(CheckpointError, match="layout"):
        buffer(11).load_state_dict(buffer(12).state_dict())


def test_an_empty_memory_cannot_be_sampled():
    with pytest.raises(ValueError, match="empty"):
        buffer().sample(1)


def test_memory_is_that_of_the_values():
    assert ReplayBuffer({"s": (17,)}, 6, 100_000).nbytes < 1.06 * 100_000 * (17 + 6 + 3) * 4


def test_following_steps_end_with_their_episode_or_at_the_newest_step():
    memory = buffer(following=FollowingSteps(3, rewards=True, ends=True))
    fill(memory, 0, [1, 2], "t")
    fill(memory, 10, [3, 4, 5, 6], "-")
    first = [np.flatnonzero(memory.live & (memory.rewards == r))[0] for r in (1, 2, 3, 6)]
    following = memory.at(np.array(first))["following"]
    assert following["mask"].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0]]
    assert following["ends"].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    expected = [[1, 2, 2], [2, 2, 2], [11, 12, 13], [14, 14, 14]]
    assert following["obs"]["s"][..., 0].tolist() == expected
    assert following["rewards"].tolist() == [[1, 2, 2], [2, 2, 2], [3, 4, 5], [6, 6, 6]]
    assert torch.equal(following["actions"][..., 0], following["rewards"])


def test_sums_of_successive_values():
    values = np.array([[1.0, 2.0, 4.0, 8.0], [0.0, 0.0, 1.0, 0.0]])
    assert replay.sums_of(values, 1).tolist() == values.tolist()
    assert replay.sums_of(values, 2).tolist() == [[3.0, 6.0, 12.0], [0.0, 1.0, 1.0]]
    assert replay.sums_of(values, 4).tolist() == [[15.0], [1.0]]


def test_the_smallest_buffer_holds_the_steps_of_a_return():
    assert buffer(1).length == 3
    assert buffer(1, transitions=Transitions(n_step=4)).length == 6
    assert buffer(9, transitions=Transitions(n_step=4)).length == 9
