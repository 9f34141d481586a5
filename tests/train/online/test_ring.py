"""Where steps lie in the ring, row by row: positions, ends, what is overwritten and what is forgotten."""

import re

import numpy as np
import pytest

from imitate.data.file.episode import Episode
from imitate.errors import EnvError
from imitate.train.online.ring import StepRing
from imitate.train.online.steps import Step


def make(capacity=20, num_envs=1, shapes=None, **kwargs):
    return StepRing(shapes or {"s": (1,)}, 1, capacity, num_envs=num_envs, **kwargs)


def step(obs, ends="", lost=None):
    """A step of environments that stand at ``obs`` and go on by 1; ``ends``: t(erminal), c(lock) or -."""
    obs = np.array(obs, dtype=np.float32)
    ends = ends or "-" * len(obs)
    return Step(
        obs={"s": obs[:, None]},
        actions=-obs[:, None],
        rewards=obs * 10,
        terminals=np.array([e == "t" for e in ends]),
        timeouts=np.array([e == "c" for e in ends]),
        next_obs={"s": obs[:, None] + 1},
        lost=None if lost is None else np.array(lost),
    )


def live(ring, text, lanes=None):
    """Take steps, a word each: where each environment stands, with t(erminal) or c(lock) where its episode ends."""
    for word in text.split():
        parts = re.findall(r"(\d+)([tc]?)", word)
        ring.add(step([int(at) for at, _ in parts], "".join(end or "-" for _, end in parts)), lanes)


def lived(capacity, text, num_envs=1):
    ring = make(capacity, num_envs)
    live(ring, text)
    return ring


def episode(first, length, terminal=False, next_obs=True):
    """Steps at ``first``, ``first + 1``, ..."""
    s = first + np.arange(length, dtype=np.float32)
    ends, none = np.arange(length) == length - 1, np.zeros(length, bool)
    following = {"s": s[:, None] + 1} if next_obs else None
    return Episode(
        {"s": s[:, None]}, -s[:, None], s * 10, ends if terminal else none, none, following
    )


def rows(ring):
    """Observations of the rows, in the order of the rows; None where there is no step."""
    values = ring.vectors[:, 0].astype(int).tolist()
    return [value if live else None for value, live in zip(values, ring.live.tolist(), strict=True)]


def kept(ring):
    return [e.obs["s"][:, 0].astype(int).tolist() for e in ring.episodes()]


def counters(ring):
    return ring.position.tolist(), ring.running.tolist(), ring.wrapped.tolist()


def marked(flags):
    return np.flatnonzero(flags).tolist()


# ---- sizes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capacity", "num_envs", "least", "length"),
    [(8, 1, 3, 8), (9, 2, 3, 5), (8, 2, 3, 4), (1, 1, 3, 3), (1, 1, 7, 7), (6, 3, 3, 3)],
)
def test_the_capacity_is_rounded_up_to_whole_positions(capacity, num_envs, least, length):
    ring = make(capacity, num_envs, least=least)
    assert ring.length == length
    assert ring.vectors.shape == (length * num_envs, 1)
    assert counters(ring) == ([0] * num_envs, [0] * num_envs, [False] * num_envs)
    assert ring.number.tolist() == [0] * length * num_envs


def test_one_environment_and_three_positions_are_the_fewest():
    ring = StepRing({"s": (1,)}, 1, 1)
    assert (ring.num_envs, ring.length) == (1, 3)


def test_vectors_lie_side_by_side_in_the_order_of_their_names_and_images_apart():
    shapes = {"z": (2,), "a": (3, 2), "image": (4, 4, 3), "m": ()}
    ring = make(8, shapes=shapes, images=("image",))
    assert ring.columns == {"a": slice(0, 6), "m": slice(6, 7), "z": slice(7, 9)}
    assert (ring.vectors.shape, ring.images["image"].shape) == ((8, 9), (8, 4, 4, 3))
    assert ring.image_keys == ("image",)
    names = {"vectors", "actions", "rewards", "terminals", "timeouts", "live", "number"}
    assert set(ring.stored) == names | {"intervened", "images/image"}
    # 9 floats, an action and a reward; four marks; a number of 4 bytes; 48 bytes of image.
    assert ring.nbytes == 8 * (9 * 4 + 4 + 4 + 4 + 4 + 48)


def test_shapes_come_back_as_they_were():
    ring = make(8, shapes={"a": (3, 2), "image": (2, 2, 3), "m": ()}, images=("image",))
    rng = np.random.default_rng(0)
    obs = {
        "a": rng.random((2, 3, 2), np.float32),
        "image": rng.integers(256, size=(2, 2, 2, 3), dtype=np.uint8),
        "m": rng.random(2, np.float32),
    }
    first, second = ({key: value[k : k + 1] for key, value in obs.items()} for k in range(2))
    none = np.zeros(1, bool)
    ring.add(Step(first, np.zeros((1, 1)), np.zeros(1, np.float32), ~none, none, second))
    (found,) = ring.episodes()
    for key in obs:
        np.testing.assert_array_equal(found.obs[key], first[key])
        np.testing.assert_array_equal(found.next_obs[key], second[key])


# ---- add ---------------------------------------------------------------------------------------------


def test_steps_lie_one_position_after_the_other_and_an_end_takes_one_more():
    ring = lived(8, "0 1t 10")
    # 0, 1, then the observation that the episode ended with, 10, and the newest observation.
    assert ring.vectors[:5, 0].tolist() == [0, 1, 2, 10, 11]
    assert rows(ring)[:5] == [0, 1, None, 10, None]
    assert ring.actions[:4, 0].tolist() == [0, -1, 0, -10]
    assert ring.rewards[:4].tolist() == [0, 10, 0, 100]
    assert marked(ring.terminals) == [1] and not ring.timeouts.any()
    assert ring.number[:4].tolist() == [0, 1, 0, 0]
    assert counters(ring) == ([4], [1], [False])
    assert len(ring) == 3 and ring.filled == 4


def test_a_ring_that_is_full_forgets_the_oldest_and_says_that_it_went_around():
    ring = lived(4, "0 1 2")
    assert ring.filled == 3 and not ring.wrapped.any()
    live(ring, "3")
    # Position 0 holds the newest observation, 4.
    assert rows(ring) == [None, 1, 2, 3] and ring.vectors[0, 0] == 4
    assert counters(ring) == ([0], [4], [True]) and ring.filled == 4
    live(ring, "4 5 6 7 8")
    assert rows(ring) == [8, None, 6, 7]
    assert len(ring) == 3 and kept(ring) == [[6, 7, 8]]


def test_ends_that_are_overwritten_leave_no_mark():
    ring = lived(4, "0t 10c 20 21 22 23 24 25 26")
    assert not ring.terminals.any() and not ring.timeouts.any()
    assert len(ring) == 3


def test_several_environments_lie_beside_each_other():
    ring = lived(20, "0,100 1,101t 2,200", 2)
    assert rows(ring) == [0, 100, 1, 101, 2, None, None, 200, *[None] * 12]
    assert counters(ring)[:2] == ([3, 4], [3, 1])
    assert ring.number[[0, 2, 4, 1, 3, 7]].tolist() == [0, 1, 2, 0, 1, 0]
    # Both lanes are at one position again after an end of the other.
    live(ring, "3t,201")
    assert ring.position.tolist() == [5, 5]
    live(ring, "50,202")
    assert kept(ring) == [[0, 1, 2, 3], [50], [100, 101], [200, 201, 202]]


def test_both_begin_and_one_goes_on():
    """A step after an end writes the first observation of the lanes that begin, and of no other."""
    ring = lived(20, "0c,100", 2)
    before = ring.vectors.copy()
    live(ring, "7,999")
    # Lane 1 goes on at position 1, whose observation stands there already: 101, not 999.
    assert ring.vectors[1 * 2 + 1, 0] == before[1 * 2 + 1, 0] == 101
    assert ring.vectors[2 * 2 + 0, 0] == 7


def test_the_same_lanes_in_order_are_all_lanes():
    text = "0,100 1,101 2t,102c 3,103 4,104"
    ring, other = lived(20, text, 2), make(20, 2)
    live(other, text, np.array([0, 1]))
    for name, array in ring.stored.items():
        np.testing.assert_array_equal(array, other.stored[name])
    assert ring.position.tolist() == other.position.tolist() == [6, 6]


def test_lanes_in_another_order_and_alone():
    ring = make(20, 2)
    live(ring, "100,0", np.array([1, 0]))
    live(ring, "1 2", np.array([0]))
    live(ring, "101", np.array([1]))
    assert kept(ring) == [[0, 1, 2], [100, 101]]
    assert ring.position.tolist() == [3, 2]


def test_a_lane_that_goes_around_alone_leaves_the_others_as_they_are():
    ring = lived(8, "0,100", 2)
    live(ring, "101 102 103 104 105", np.array([1]))
    assert ring.wrapped.tolist() == [False, True]
    assert kept(ring) == [[0], [103, 104, 105]]
    assert len(ring) == 4 and ring.filled == 4


def test_an_observation_of_another_shape_is_refused():
    wrong = step([0])
    wrong.next_obs["s"] = np.zeros((1, 2), np.float32)
    with pytest.raises(EnvError, match=r"observation 's' has shape \(2,\), but \(1,\) before"):
        make().add(wrong)


# ---- lost environments -------------------------------------------------------------------------------


def test_a_lost_environment_takes_its_running_episode_along():
    ring = lived(20, "0,100t 1,101 2,102", 2)
    ring.add(step([3, 103], lost=[False, True]))
    assert kept(ring) == [[0, 1, 2, 3], [100]]
    # 100 and its last observation take positions 0 and 1; the lost steps gave 2 and 3 back.
    assert counters(ring)[:2] == ([4, 2], [4, 0])
    live(ring, "4,500")
    assert kept(ring) == [[0, 1, 2, 3, 4], [100], [500]]


@pytest.mark.parametrize(
    ("lost", "left"), [([True, True], []), ([False, False], [[0, 1], [100, 101]])]
)
def test_all_or_nobody_lost(lost, left):
    ring = lived(20, "0,100", 2)
    ring.add(step([1, 101], lost=lost))
    assert kept(ring) == left and len(ring) == 2 * len(left)
    assert counters(ring)[:2] == ([len(left)] * 2, [len(left)] * 2)


def test_of_some_lanes_the_lost_one_is_told_by_its_place_among_them():
    ring = lived(30, "0,100,200", 3)
    ring.add(step([201, 101], lost=[True, False]), np.array([2, 1]))
    assert kept(ring) == [[0], [100, 101]]


def test_a_dropped_episode_that_filled_the_ring_is_dropped_whole():
    ring = lived(4, "0 1 2 3 4 5 6 7 8")
    ring.drop_episodes(np.array([0]))
    # Three steps are left of nine, at positions 6, 7, 8 of the way: back to 9 - 3 = 6, which is 2 in a ring of 4.
    assert len(ring) == 0 and counters(ring)[:2] == ([2], [0])
    live(ring, "50t")
    assert kept(ring) == [[50]]


def test_a_dropped_episode_over_the_rings_end():
    ring = lived(7, "0t 10t 20 21 22 23")
    assert ring.position.tolist() == [1]
    ring.drop_episodes(np.array([0]))
    assert ring.position.tolist() == [4]
    # The running episode had overwritten the first one, and the end of it stays forgotten.
    assert kept(ring) == [[10]]


# ---- cut episodes ------------------------------------------------------------------------------------


def test_cut_episodes_end_by_the_clock_where_they_are():
    ring = lived(20, "0,100t", 2)
    live(ring, "1", np.array([0]))
    ring.cut_episodes()
    # Lane 0: rows 0 and 2; lane 1 did not run and stays as it is.
    assert marked(ring.timeouts) == [2]
    assert counters(ring) == ([3, 2], [0, 0], [False, False])
    live(ring, "10,200")
    assert kept(ring) == [[0, 1], [10], [100], [200]]


@pytest.mark.parametrize(
    ("capacity", "text", "marks", "position", "wrapped"),
    [
        (20, "0,100 1,101", [2, 3], [3, 3], [False, False]),
        (4, "0 1 2", [2], [0], [True]),  # at the ring's end it has been around
        (4, "0 1 2 3", [3], [1], [True]),  # position 0 holds what the last step led to
    ],
)
def test_a_cut_episode_ends_at_its_last_step(capacity, text, marks, position, wrapped):
    ring = lived(capacity, text, len(position))
    ring.cut_episodes()
    assert marked(ring.timeouts) == marks
    assert counters(ring) == (position, [0] * len(position), wrapped)


def test_the_longest_episode_is_remembered_when_it_is_cut():
    ring = lived(20, "0 1 2 3 4")
    ring.cut_episodes()
    assert ring.steps_after(np.array([0])).tolist() == [4]
    live(ring, "10")
    assert kept(ring) == [[0, 1, 2, 3, 4], [10]]


# ---- whole episodes ----------------------------------------------------------------------------------


def test_a_whole_episode_is_as_its_steps():
    whole, by_step = make(), lived(20, "0 1 2t 10 11c")
    whole.add_episode(episode(0, 3, terminal=True))
    whole.add_episode(episode(10, 2))
    for name, array in whole.stored.items():
        np.testing.assert_array_equal(array, by_step.stored[name], err_msg=name)
    assert whole.position.tolist() == by_step.position.tolist() == [7]
    assert len(whole) == 5 and not whole.wrapped.any()


def test_without_next_observations_the_last_step_is_left_out_unless_it_ends():
    ring = make()
    ring.add_episode(episode(0, 3, next_obs=False))
    ring.add_episode(episode(10, 3, terminal=True, next_obs=False))
    assert kept(ring) == [[0, 1], [10, 11, 12]]
    # The observation that nobody acted on is what step 1 led to; a terminal without one ends with its own.
    assert ring.vectors[:7, 0].tolist() == [0, 1, 2, 10, 11, 12, 12]
    assert (marked(ring.timeouts), marked(ring.terminals)) == ([1], [5])


def test_an_episode_beside_another_environment():
    ring = make(12, 2)
    ring.add_episode(episode(0, 2), lane=1)
    assert rows(ring) == [None, 0, None, 1, *[None] * 8]
    assert ring.position.tolist() == [0, 3] and ring.vectors[5, 0] == 2
    live(ring, "100,50")
    assert kept(ring) == [[100], [0, 1], [50]]


@pytest.mark.parametrize(
    ("lengths", "position", "wrapped", "found"),
    [
        ([3], 4, False, [0, 1, 2, None, None]),
        ([4], 0, True, [0, 1, 2, 3, None]),
        # Rows 3, 4 hold the steps 10, 11; row 0 what 11 led to, in the place of 0.
        ([2, 2], 1, True, [None, 1, None, 10, 11]),
    ],
)
def test_episodes_up_to_the_rings_end_and_over_it(lengths, position, wrapped, found):
    ring = make(5)
    for number, length in enumerate(lengths):
        ring.add_episode(episode(10 * number, length))
    assert counters(ring) == ([position], [0], [wrapped])
    assert rows(ring) == found
    assert ring.vectors[position - 1, 0] == 10 * number + length


@pytest.mark.parametrize(
    ("length", "next_obs", "fits"),
    [(7, True, True), (8, True, False), (8, False, True), (1, False, False), (1, True, True)],
)
def test_an_episode_has_to_fit(length, next_obs, fits):
    ring = make(8)
    if fits:
        ring.add_episode(episode(0, length, next_obs=next_obs))
        assert len(ring) == length - (not next_obs)
    else:
        with pytest.raises(ValueError, match=f"{length - (not next_obs)} steps does not fit"):
            ring.add_episode(episode(0, length, next_obs=next_obs))


def test_an_episode_into_a_running_one_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        lived(20, "0").add_episode(episode(10, 2))


def test_steps_after_a_whole_episode_go_on_behind_it():
    """After add_episode() the memory that add() has of the step before is void."""
    ring = lived(20, "0c 1c")
    ring.add_episode(episode(10, 2))
    live(ring, "30")
    assert kept(ring) == [[0], [1], [10, 11], [30]]


def test_counted_anew():
    ring = make()
    ring.add_episode(episode(0, 3))
    ring.live[1] = False
    ring.count_steps()
    assert len(ring) == 2 and kept(ring) == [[0], [2]]


def test_steps_go_where_the_counters_say_after_they_were_changed():
    ring = lived(20, "0 1")
    ring.position[:], ring.running[:] = 10, 0
    ring.count_steps()
    live(ring, "30")
    assert marked(ring.live) == [0, 1, 10]


# ---- reading -----------------------------------------------------------------------------------------


def test_later_rows_are_those_of_the_same_environment():
    ring = make(8, 2)
    assert ring.later(np.array([1, 6]), 1).tolist() == [3, 0]
    assert ring.later(np.array([1, 6]), -1).tolist() == [7, 4]
    assert ring.later(np.array([0, 0]), np.array([2, 4])).tolist() == [4, 0]


@pytest.mark.parametrize(
    ("capacity", "text", "where", "before", "after"),
    [
        # Rows 0 .. 3, then 5 .. 7, still running.
        (30, "0 1 2 3t 10 11 12", [0, 1, 3, 5, 6, 7], [0, 1, 3, 0, 1, 2], [3, 2, 0, 2, 1, 0]),
        # The longest of a running episode counts too.
        (30, "0t 10 11 12 13 14", [2], [0], [4]),
        # A short episode after a long one: rows 0 .. 3, 5 and 6, 8 .. 10.
        (20, "0 1 2 3t 10 11t 20 21 22", [5, 6, 8, 10], [0, 1, 0, 2], [1, 0, 2, 0]),
        # Steps 5 and 6 at 0 and 1, the newest observation at 2, steps 3 and 4 at 3 and 4.
        (5, "0 1 2 3 4 5 6", [3, 4, 0, 1], [0, 1, 2, 3], [3, 2, 1, 0]),
        # 6 -> 0, 7 -> 1, 8 -> 2, the newest observation at 3; 4 and 5 are the oldest steps.
        (6, "0 1 2 3 4 5 6 7 8", [4, 5, 0, 2], [0, 1, 2, 4], [4, 3, 2, 0]),
        # What is left of an older episode does not follow a newer one, though its numbers would come next: position 0
        # holds step 0 of the new one, 1 its newest observation, so that two steps are left before the old step 4.
        (6, "0 1 2 3 4t 10", [0, 2, 3, 4], [0, 0, 1, 2], [0, 2, 1, 0]),
        # After an end nothing is at the next position yet, so one row more is left: position 5 and what it led to
        # at 0; 1, 2, 3 of the old episode.
        (6, "0 1 2 3t 10t", [1, 2, 3, 5], [0, 1, 2, 0], [2, 1, 0, 0]),
        # Lane 0 has one episode of 4 steps, lane 1 four of 1.
        (40, "0,100t 1,101t 2,102t 3c,103t", [0], [0], [3]),
    ],
)
def test_steps_before_and_after(capacity, text, where, before, after):
    ring = lived(capacity, text, 1 + ("," in text))
    assert ring.steps_before(np.array(where)).tolist() == before
    assert ring.steps_before(np.array(where), most=1).tolist() == [min(1, n) for n in before]
    assert ring.steps_after(np.array(where)).tolist() == after


def test_the_longest_of_a_whole_episode_counts():
    ring = make()
    ring.add_episode(episode(0, 3))
    assert ring.steps_after(np.array([0, 1, 2])).tolist() == [2, 1, 0]


def test_equal_numbers_of_another_episode_are_not_taken_for_this_one():
    """A dropped episode leaves its numbers behind, but no steps."""
    ring = lived(20, "0 1 2")
    ring.add(step([3], lost=[True]))
    live(ring, "50c")
    assert ring.number[:3].tolist() == [0, 1, 2]
    assert ring.steps_after(np.array([0])).tolist() == [0]


def test_episodes_come_lane_by_lane_from_the_oldest_on():
    ring = lived(10, "0,100 1,101 2t,102c 3,103 4,104 5t,105c 6,106", 2)
    # Each lane wrote 7 steps and two ends, 9 rows of 5: the last five hold 4, 5, (6), 6 and the newest.
    assert kept(ring) == [[4, 5], [6], [104, 105], [106]]
    found = list(ring.episodes())
    assert [e.terminals.tolist() for e in found] == [[0, 1], [0], [0, 0], [0]]
    assert [e.timeouts.tolist() for e in found] == [[0, 0], [0], [0, 1], [0]]
    assert [e.rewards.tolist() for e in found][0] == [40, 50]
    assert [e.actions[:, 0].tolist() for e in found][2] == [-104, -105]
    assert [e.next_obs["s"][:, 0].tolist() for e in found] == [[5, 6], [7], [105, 106], [107]]


def test_extras_of_the_steps_that_are_kept_stay_with_them():
    seen = []

    class Watched(StepRing):
        def add(self, step, lanes=None):
            seen.append(step)
            super().add(step, lanes)

    ring = Watched({"s": (1,)}, 1, 20, num_envs=2)
    whole = step([0, 100], lost=[True, False])
    whole.extras["log_prob"] = np.array([1.0, 2.0])
    ring.add(whole)
    assert seen[1].extras["log_prob"].tolist() == [2.0]
    assert seen[1].obs["s"].tolist() == [[100]] and seen[1].next_obs["s"].tolist() == [[101]]
    assert seen[1].lost is None
