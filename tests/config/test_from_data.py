"""Values that follow from the data, keys that a word means, steps that losses share: exact values."""

import pytest

from imitate.config.auxiliary import AuxiliaryConfig, joint_following
from imitate.config.data_needs import DataNeeds, FollowingSteps, Returns, Subgoals, Transitions
from imitate.config.from_data import action_normalization, num_epochs, rollout_horizon
from imitate.config.key_hints import keys_that_mean, leaves


@pytest.mark.parametrize(
    ("lengths", "horizon"),
    [
        ([50], 100),
        ([51], 110),  # 102
        ([100, 10], 200),  # the quantile is 95.5, of which the double is 191
        ([10] * 99 + [1000], 1000),  # the double of the quantile is 20
        ([10] * 20 + [110], 110),
    ],
)
def test_horizons(lengths, horizon):
    assert rollout_horizon(lengths) == horizon


@pytest.mark.parametrize(
    ("samples", "batch", "steps", "epochs"),
    [
        (0, 64, 100, 10),
        (5000, 100, 100, 10),  # 1000 updates
        (5005, 100, 100, 11),  # 1001
        (64_000, 64, 500, 40),
        (10, 64, 300, 4),
    ],
)
def test_epochs(samples, batch, steps, epochs):
    assert num_epochs(samples, batch, steps) == epochs


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [
        ([-1, -0.1], [0.2, 0.3], None),
        ([-0.1, -0.1], [0.2, 1.0], None),
        ([-0.5], [0.1], None),
        ([0.1], [0.5], None),
        ([-0.49], [0.49], "min_max"),
        ([-1.01, 0], [0, 0], "min_max"),
        ([0, 0], [0, 1.01], "min_max"),
    ],
)
def test_ranges_of_actions(low, high, kind):
    assert action_normalization(low, high) == kind


KEYS = (
    *("algo.clip", "algo.actor.chunk.size", "algo.chunk.size", "algo.discount", "train.seed"),
    *(f"algo.{name}.learning_rate.initial" for name in ("policy", "actor", "critic", "value")),
    *(f"algo.{name}.layer_dims" for name in ("a", "b")),
    *(f"algo.{name}.enabled" for name in ("a", "b", "c", "d")),
    *(f"algo.{name}.share" for name in ("a", "b", "c")),
    "algo.horizon.action_horizon",
)


@pytest.mark.parametrize(
    ("word", "keys"),
    [
        ("train.seed", ["train.seed"]),
        ("train/seed", ["train.seed"]),
        ("seed", ["train.seed"]),
        ("other.seed", ["train.seed"]),
        ("eed", []),
        ("gamma", ["algo.discount"]),
        ("model.gamma", ["algo.discount"]),
        ("chunk_size", ["algo.chunk.size", "algo.actor.chunk.size"]),  # the shortest first
        ("n_action_steps", ["algo.horizon.action_horizon"]),  # the second of its synonyms
        ("lr", [KEYS[6], KEYS[8], KEYS[5]]),
        ("hidden_units", ["algo.a.layer_dims", "algo.b.layer_dims"]),
        ("enabled", []),  # four
        ("share", ["algo.a.share", "algo.b.share", "algo.c.share"]),
        ("clip_rang", []),
    ],
)
def test_keys_that_a_word_means(word, keys):
    assert keys_that_mean(word, iter(KEYS)) == keys


def test_leaves():
    tree = {"a": {"b": 1, "c": {"d": None}}, "e": {}, "f": [1]}
    assert list(leaves(tree)) == ["a.b", "a.c.d", "e", "f"]
    assert list(leaves(tree, "x.")) == ["x.a.b", "x.a.c.d", "x.e", "x.f"]


@pytest.mark.parametrize(
    ("needs", "joint"),
    [
        ([], None),
        ([None], None),
        ([FollowingSteps()], (1, False, False)),
        ([FollowingSteps(2), None, FollowingSteps(3, True)], (3, True, False)),
        ([FollowingSteps(4, False, True), FollowingSteps(3, True)], (4, True, True)),
    ],
)
def test_steps_that_are_enough_for_all(needs, joint):
    assert joint_following(iter(needs)) == (None if joint is None else FollowingSteps(*joint))


def test_arrays_that_following_steps_read_and_defaults():
    assert FollowingSteps().step_keys == ()
    assert FollowingSteps(rewards=True, ends=True).step_keys == ("rewards", "terminals")
    assert FollowingSteps(ends=True).step_keys == ("terminals",)
    assert Transitions() == Transitions(0.99, 1, False, False, (), (), False)
    assert Returns(0.9) == Returns(0.9, False, True)
    assert Subgoals(("a",), 3) == Subgoals(("a",), 3, False)
    assert DataNeeds().environment_rewards
    entry = AuxiliaryConfig(type="own")
    assert (entry.num_steps, entry.needs_rewards) == (1, False)
