import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imitate.config.data_needs import Transitions
from imitate.config.schedule import Schedule
from imitate.system.ranks import Ranks
from imitate.train.online.learners import Corrected, MixedBuffer, ReplayLearner
from imitate.train.online.replay import PrioritizedReplay, ReplayBuffer, SumTree
from imitate.train.online.steps import Collected

from .test_replay import fill, step
from .worlds import make_algo


def test_prefix_sums_by_hand():
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([1.0, 0.0, 2.0, 3.0, 0.5]))
    assert tree.total == 6.5
    sums = np.array([0.0, 0.99, 1.0, 2.99, 3.0, 5.99, 6.0, 6.49])
    assert tree.find(sums).tolist() == [0, 0, 2, 2, 3, 3, 4, 4]
    tree.set(np.array([2, 4]), np.array([0.0, 1.5]))
    assert tree.total == 5.5 and tree.find(np.array([1.0, 4.5])).tolist() == [3, 4]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=40), st.integers(0, 2**32 - 1))
def test_it_agrees_with_cumulative_sums(values, seed):
    tree = SumTree(len(values))
    rng = np.random.default_rng(seed)
    numbers = np.array(values)
    tree.set(rng.permutation(len(values)), 7.0)
    tree.set(np.arange(len(values)), numbers)
    assert tree.total == pytest.approx(numbers.sum())
    if numbers.sum() > 1e-3:
        assert (numbers[tree.find(rng.random(100) * tree.total * (1 - 1e-9))] > 0).all()


def constant(value):
    return Schedule(((0.0, value),))


def memory(capacity=20, **kwargs):
    return PrioritizedReplay(
        {"s": (1,)}, 1, capacity, transitions=Transitions(discount=0.5), **kwargs
    )


def priorities(steps):
    """Priorities of the rows, as they are saved."""
    return steps.state_dict()["rows"]["priority"].numpy()


def test_steps_are_drawn_in_proportion_and_weighed_inversely():
    steps = memory(alpha=constant(0.5), beta=constant(1.0))
    fill(steps, 0, [1, 1, 1, 1])
    rows = np.flatnonzero(steps.live)
    steps.update_priorities(rows, np.array([1.0, 4.0, 9.0, 16.0], np.float32))
    drawn = steps.sample(10_000)
    counts = torch.bincount(drawn["obs"]["s"].flatten().long())
    assert counts.tolist() == pytest.approx([1000, 2000, 3000, 4000], abs=2)
    weight = {
        int(s): w
        for s, w in zip(drawn["obs"]["s"].flatten(), drawn["weight"][:, 0].tolist(), strict=True)
    }
    # (4 P)^-1, P of 0.1 to 0.4, over the largest of them.
    assert weight == pytest.approx({0: 1.0, 1: 0.5, 2: 1 / 3, 3: 0.25}, rel=1e-4)
    steps.beta = 0.0
    assert (steps.sample(10)["weight"] == 1).all()


def test_the_correction_in_the_loss_grows_to_full_over_the_training():
    steps = memory(8, alpha=constant(1.0))
    for progress, beta in ((0.0, 0.4), (0.5, 0.7), (1.0, 1.0)):
        steps.anneal(progress)
        assert steps.beta == pytest.approx(beta) and steps.alpha == 1.0


def test_new_steps_come_first_and_forgotten_ones_never():
    steps = memory(8, alpha=constant(1.0))
    fill(steps, 0, [1, 1, 1])
    steps.update_priorities(np.flatnonzero(steps.live), np.array([5.0, 1e-9, 1e-9], np.float32))
    steps.add(step([50], [51], [1]))
    counts = torch.bincount(steps.sample(1000)["obs"]["s"].flatten().long(), minlength=51)
    assert counts[50] == pytest.approx(500, abs=2) and counts[0] == pytest.approx(500, abs=2)
    steps.drop_episodes(np.array([0]))
    left = priorities(steps)
    dropped = ~steps.live[: len(left)]
    assert dropped.any() and (left[dropped] == 0).all()
    for episode in range(5):
        fill(steps, 100 * episode, [1, 1, 1])
        live = set(steps.vectors[steps.live, 0].tolist())
        assert set(steps.sample(200)["obs"]["s"].flatten().tolist()) == live
    steps.update_priorities(np.arange(8), np.full(8, 100.0, np.float32))
    assert (priorities(steps)[~steps.live[:8]] == 0).all()


def test_a_copy_goes_on_identically(tmp_path):
    steps = memory(12)
    fill(steps, 0, [1] * 4)
    steps.update_priorities(np.flatnonzero(steps.live), np.array([3, 1, 2, 9], np.float32))
    torch.save(steps.state_dict(), tmp_path / "memory.pt")
    other = memory(12, seed=9)
    other.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    for each in (steps, other):
        each.add(step([50], [51], [1]))
    assert torch.equal(steps.sample(30)["index"], other.sample(30)["index"])


def test_errors_come_back_to_the_steps_of_the_memory_alone():
    algo = make_algo()
    algo.keeps_errors = True
    steps = PrioritizedReplay({"place": (1,)}, 1, 50, seed=1)
    demos = ReplayBuffer({"place": (1,)}, 1, 50)
    taken = []
    for i in range(6):
        one = step([i], [i + 1], [1])
        renamed = {"obs": {"place": one.obs["s"]}, "next_obs": {"place": one.next_obs["s"]}}
        taken.append(type(one)(**{**vars(one), **renamed}))
        demos.add(taken[-1])
    steps.add(taken[0])
    mixed = MixedBuffer([(steps, 0.5), (demos, 0.5)])
    assert mixed.sample(8)["weight"][4:].tolist() == [[1.0]] * 4
    learner = ReplayLearner(
        algo, steps, mixed, batch_size=8, update_ratio=0.2, warmup_steps=0, demos=demos
    )
    learner.take(Collected(taken[1:], np.zeros(1, np.int64), []))
    before = priorities(steps)
    assert len(list(learner.updates_due(1))) == 1
    errors = algo.sample_errors
    assert errors.shape == (8,) and (errors >= 0).all()
    changed = np.flatnonzero(priorities(steps) != before)
    assert 1 <= len(changed) <= 4
    for batch in learner.demonstrations(3):
        learner.learned(algo.train_on_batch(batch, 1))
    assert learner.updates == 3
    assert np.array_equal(np.flatnonzero(priorities(steps) != before), changed)


class OutOfStep(Ranks):
    """Processes of which only this one asks the others."""

    def table(self, values):
        raise AssertionError("the other processes do not answer")


def test_corrections_among_demonstrations_are_drawn_uniformly_so_they_weigh_alike():
    """Processes draw different numbers of corrections: these are not a matter of all ranks."""
    steps, demos = memory(ranks=OutOfStep(world=2)), ReplayBuffer({"s": (1,)}, 1, 50)
    fill(steps, 0, [1, 1, 1, 1])
    fill(demos, 10, [1])
    rows = np.flatnonzero(steps.live)
    steps.intervened[rows] = True
    steps.update_priorities(rows, np.array([1.0, 4.0, 9.0, 16.0], np.float32))
    batch = MixedBuffer([(demos, 0.5), (Corrected(demos, steps), 0.5)]).sample(64)
    assert set(batch["obs"]["s"][32:].flatten().tolist()) > {0.0, 1.0, 2.0, 3.0}
    assert "weight" not in batch
