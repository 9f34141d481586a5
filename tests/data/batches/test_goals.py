"""Hindsight goals: their distributions, the state after a demo's end, and the random numbers of a batch."""

import numpy as np
import pytest
import torch

from imitate.config import GoalShares, HindsightGoals
from imitate.data import SequenceDataset
from imitate.data.batches.goals import GoalSampler, goal_sampler
from tests.demo_files import episode, write_demos

OWN, LATER, ANY = GoalShares(1, 0, False), GoalShares(0, 0, False), GoalShares(0, 1, False)
NEAR = GoalShares(0, 0, True)
SHORT, LONG = 3, 6
"""Steps of the two demos; states are 0, 1, 2, 3 and 10, 11 ... 16."""
COPIES = 20000


def dataset(folder, value=LATER, actor=LATER, next_obs=True, **words):
    demos = []
    for first, length in ((0.0, SHORT), (10.0, LONG)):
        states = first + np.arange(length + 1.0)[:, None]
        more = {"next_obs": {"s": states[1:]}} if next_obs else {}
        demos.append(episode(length, {"s": states[:-1]}, **more))
    goals = HindsightGoals(("s",), value, actor, discount=0.5, **words)
    return SequenceDataset(write_demos(folder / "d.hdf5", demos), ("s",), goals=goals)


def shares(values):
    """The fraction of each number, in order."""
    numbers, counts = values.flatten().unique(return_counts=True)
    return dict(zip(numbers.tolist(), (counts / counts.sum()).tolist(), strict=True))


def drawn(data, sample, name="value_goals"):
    return shares(data[[sample] * COPIES][name]["s"])


def test_later_states_are_uniform_but_for_half_at_both_ends(tmp_path):
    data = dataset(tmp_path)
    assert drawn(data, 3) == pytest.approx(
        {**{11.0: 0.1, 16.0: 0.1}, **dict.fromkeys((12.0, 13.0, 14.0, 15.0), 0.2)}, abs=0.02
    )
    assert drawn(data, 0, "goal_obs") == pytest.approx({1.0: 0.25, 2.0: 0.5, 3.0: 0.25}, abs=0.02)
    assert drawn(data, SHORT - 1) == {3.0: 1.0}


@pytest.mark.parametrize(
    ("known", "usable"), [(True, [1] * 9), (False, [1, 0, 1, 1, 0, 1, 1, 1, 0])]
)
def test_rows_that_are_transitions(known, usable):
    wanted, ends = HindsightGoals(("s",), ANY, ANY, discount=0.5), np.array([2, 5, 9])
    sampler = goal_sampler(wanted, ends, end_is_known=known)
    assert isinstance(sampler, GoalSampler) and sampler.usable.tolist() == [bool(x) for x in usable]
    assert goal_sampler(None, ends, end_is_known=known) is None
    rows, last = np.zeros(1000, int), np.full(1000, 1)
    drawn = sampler.draw(rows, last, np.random.default_rng(0))
    assert set(drawn["goal_obs"].rows.tolist()) == {row for row in range(9) if usable[row]}
    assert not drawn["goal_obs"].after.any()


def test_geometric_steps_stop_at_the_last_state(tmp_path):
    found = drawn(dataset(tmp_path, NEAR), 0)
    assert found == pytest.approx({1.0: 0.5, 2.0: 0.25, 3.0: 0.25}, abs=0.02)


def test_shares_of_values_and_actor(tmp_path):
    mixed = GoalShares(current=0.2, random=0.5, geometric=True)
    data = dataset(tmp_path, mixed, OWN)
    found = drawn(data, 2)
    assert found[2.0] == pytest.approx(0.2 + 0.5 / 9, abs=0.02)
    assert found[3.0] == pytest.approx(0.3, abs=0.02)
    assert sum(found.values()) - found[2.0] - found[3.0] == pytest.approx(0.5 * 8 / 9, abs=0.02)
    assert drawn(data, 2, "goal_obs") == {2.0: 1.0}
    assert drawn(dataset(tmp_path, ANY), 4) == pytest.approx(
        dict.fromkeys((0.0, 1.0, 2.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0), 1 / 9), abs=0.02
    )


def test_a_sample_in_its_goal_is_marked_and_next_observations_come_along(tmp_path):
    data = dataset(tmp_path, GoalShares(0.3, 0.3, True))
    batch = data[np.arange(9).repeat(50)]
    own, goal = batch["obs"]["s"][:, 0], batch["value_goals"]["s"]
    assert torch.equal(batch["at_goal"], (own == goal)[:, 0])
    assert torch.equal(batch["next_obs"]["s"], batch["obs"]["s"] + 1)
    assert not dataset(tmp_path, LATER)[np.arange(9)]["at_goal"].any()
    assert "weight" not in batch


def test_without_the_state_after_the_end_the_last_step_is_a_goal_alone(tmp_path):
    data = dataset(tmp_path, NEAR, ANY, next_obs=False)
    batch = data[np.arange(9).repeat(100)]
    ends = torch.tensor([2.0, 15.0])
    last = torch.isin(batch["obs"]["s"][:, 0, 0], ends)
    assert torch.equal(batch["weight"][:, 0] == 0, last)
    assert batch["value_goals"]["s"].max() == 15.0
    assert not torch.isin(batch["goal_obs"]["s"], ends).any()  # no transition begins there


def test_subgoals_are_some_steps_ahead_but_not_beyond_the_goal(tmp_path):
    data = dataset(tmp_path, NEAR, NEAR, subgoal_steps=2)
    batch = data[[3] * 500 + [8] * 500]
    low, high, goal = (batch[name]["s"] for name in ("low_goals", "high_targets", "goal_obs"))
    assert shares(low) == {12.0: 0.5, 16.0: 0.5}
    assert torch.equal(high, torch.minimum(low, goal))
    anywhere = dataset(tmp_path, NEAR, ANY, subgoal_steps=2)[[3] * 500]
    assert shares(anywhere["high_targets"]["s"]) == {12.0: 1.0}


def test_goals_follow_from_the_samples_of_a_batch(tmp_path):
    data, numbers = dataset(tmp_path), np.arange(9).repeat(20)
    first, again, other = (
        data[chosen]["goal_obs"]["s"] for chosen in (numbers, numbers, numbers[::-1].copy())
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other.flip(0))
    batch = data[numbers]
    assert not torch.equal(batch["goal_obs"]["s"], batch["value_goals"]["s"])
