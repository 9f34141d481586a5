"""Learners worked out by hand: updates that steps allow, shares of a batch, rollouts of environments that failed."""

from types import SimpleNamespace as Words

import numpy as np
import pytest
import torch

from imitate.system.ranks import ALONE
from imitate.train.online import learners as module
from imitate.train.online.learners import (
    Corrected,
    MixedBuffer,
    ReplayLearner,
    RolloutLearner,
    joined,
    stacked,
)
from imitate.train.online.steps import Collected, Step


class Source:
    """Its samples are its number."""

    def __init__(self, number, **more):
        self.number, self.more, self.sizes = number, more, []

    def sample(self, size):
        self.sizes.append(size)
        actions = torch.full((size, 2, 1), float(self.number))
        return {"actions": actions, "obs": {"s": actions}, **self.more}


@pytest.mark.parametrize(
    ("shares", "size", "sizes"),
    [
        ([0.25, 0.75], 8, [2, 6]),
        ([0.5, 0.5], 7, [3, 4]),  # both are rounded to 4, and the first takes the rest
        ([0.9, 0.1], 2, [2, 0]),
        ([1.0, 0.0], 3, [3]),
        ([0.3, 0.3, 0.4], 10, [3, 3, 4]),
    ],
)
def test_shares_of_a_batch(shares, size, sizes):
    sources = [Source(number) for number in range(len(shares))]
    batch = MixedBuffer(list(zip(sources, shares, strict=True))).sample(size)
    numbers = [n for n, count in enumerate(sizes) for _ in range(count)]
    assert batch["part"].tolist() == batch["actions"][:, 0, 0].tolist() == numbers
    assert batch["first_part"] == sizes[0] and torch.equal(batch["obs"]["s"], batch["actions"])
    assert "weight" not in batch
    assert [source.sizes for source in sources] == [[n] if n else [] for n in (*sizes, 0)][
        : len(sources)
    ]


@pytest.mark.parametrize(
    ("shares", "fits"),
    [
        ([0.5, 0.5 + 5e-7], True),
        ([0.5, 0.5005], False),
        ([0.5, 0.4995], False),
        ([1.5, -0.5], False),
    ],
)
def test_shares_sum_to_1(shares, fits):
    parts = [(Source(0), share) for share in shares]
    if fits:
        MixedBuffer(parts)
    else:
        with pytest.raises(ValueError, match="do not sum to 1"):
            MixedBuffer(parts)


def test_weights_that_a_part_lacks_are_1_and_other_keys_are_dropped():
    first = Source(0, weight=torch.full((2, 2), 0.5), own=torch.zeros(2))
    batch = MixedBuffer([(first, 0.5), (Source(1), 0.5)]).sample(4)
    assert batch["weight"].tolist() == [[0.5, 0.5]] * 2 + [[1.0, 1.0]] * 2
    assert "own" not in batch
    assert joined([{"a": torch.ones(1), "b": 3}]) == {"a": torch.ones(1), "b": 3}


class Memory:
    """A replay buffer that notes what becomes of it; ``rows`` are the samples' numbers."""

    draws = 0

    def __init__(self, count=5):
        self.count, self.added, self.dropped, self.priorities = count, [], [], []

    def __len__(self):
        return self.count

    def drop_episodes(self, lanes):
        self.dropped.append(lanes.tolist())

    def add(self, step, lanes):
        self.added.append(lanes.tolist())

    def sample(self, size):
        return {"index": torch.arange(size) + 10, "rewards": torch.zeros(size), "of": self}

    def update_priorities(self, rows, errors):
        self.priorities.append((rows.tolist(), errors.tolist()))


def algo(**more):
    words = {"ranks": ALONE, "nets": torch.nn.ModuleDict(), "auxiliaries": (), "gives_errors": True}
    made = Words(**{**words, "sample_errors": torch.tensor([1.0, 2.0, 3.0, 4.0]), **more})
    made.process_batch_for_training = lambda raw: raw
    made.preprocess = "preprocess"
    return made


def collected(count, lanes=2):
    zeros = np.zeros(lanes, np.float32)
    never = np.zeros(lanes, bool)
    obs = {"s": np.zeros((lanes, 1))}
    step = Step(obs, zeros[:, None], zeros, never, never, obs)
    return Collected([step] * count, np.arange(lanes), [], lost_lanes=np.array([1]))


def learner(memory=None, source=None, given=None, **more):
    memory = memory or Memory()
    words = {"batch_size": 3, "update_ratio": 0.5, "warmup_steps": 10, **more}
    return ReplayLearner(given or algo(), memory, source or memory, **words)


def test_updates_that_the_steps_allow():
    made = learner()
    made.take(collected(3))  # 6 of the 10 steps before the first update
    assert list(made.batches_due()) == [] and made.memory.dropped == [[1]]
    assert made.state_dict() | {"obs": 0, "demos": 0} == {
        **{"updates": 0, "obs": 0, "demos": 0, "owed": 0.0, "warmup_left": 4.0}
    }
    made.take(collected(3))  # two more than these, half an update each
    assert len(made.memory.added) == 6
    again = learner()
    again.load_state_dict(made.state_dict())
    for each in (made, again):
        assert len(list(each.batches_due())) == 1 and list(each.batches_due()) == []
        each.take(collected(3))
        assert len(list(each.batches_due(2))) == 2 and len(list(each.batches_due(2))) == 1
        assert each.updates == 4
        each.take(collected(1), counted=9)  # of all ranks
        assert len(list(each.batches_due())) == 4
        each.memory.count = 0
        each.take(collected(3))
        assert list(each.batches_due()) == []


def test_priorities_are_those_of_the_samples_from_the_replay_buffer():
    made = learner(warmup_steps=0)
    made.take(collected(1))
    (batch,) = made.batches_due()
    assert "part" not in batch
    made.learned({})
    assert made.memory.priorities == [([10, 11, 12], [1.0, 2.0, 3.0])]
    mixed = Words(sample=lambda size: {**Memory().sample(size), "first_part": 2, "part": "given"})
    made = learner(source=mixed, warmup_steps=0, demos=Memory())
    made.take(collected(1))
    (batch,) = made.batches_due()
    assert batch["part"] == "given"
    made.learned({})
    assert made.memory.priorities == [([10, 11], [1.0, 2.0])]
    for _ in made.demonstrations(3):
        made.learned({})
    assert (len(made.memory.priorities), made.updates) == (1, 3)
    without = learner(given=algo(gives_errors=False), warmup_steps=0)
    without.take(collected(1))
    assert len(list(without.batches_due())) == 1
    without.learned({})
    assert without.memory.priorities == [] and list(without.demonstrations(9)) == []


def test_samples_name_their_part_where_a_loss_needs_it():
    made = learner(given=algo(auxiliaries=("rnd",)), demos=Memory(), warmup_steps=0)
    made.take(collected(1))
    (batch,) = made.batches_due()
    assert batch["part"].tolist() == [0, 0, 0]
    assert next(made.demonstrations(9))["part"].tolist() == [1, 1, 1]


class Normalizer:
    def __init__(self, is_running):
        self.is_running, self.has_grown, self.seen, self.applied = is_running, False, 0, []

    def add_all(self, observations):
        self.seen += len(list(observations))

    def apply(self, preprocess):
        self.applied.append(self.seen)


@pytest.mark.parametrize(("is_running", "seen", "applied"), [(False, 5, [5]), (True, 7, [5])])
def test_statistics_are_those_of_the_steps_before_the_first_update(is_running, seen, applied):
    normalizer = Normalizer(is_running)
    made = learner(obs_normalizer=normalizer)
    for count in (3, 2, 1, 1):  # 6, 4, 2 and 2 steps
        made.take(collected(count))
    assert (normalizer.seen, normalizer.applied) == (seen, applied)
    normalizer.has_grown = True
    made.take(collected(1))
    assert normalizer.applied == ([5, 8] if is_running else [5])


def test_a_rollout_leaves_out_the_episodes_of_environments_that_failed():
    """Two lanes: the second ends an episode at step 0 and fails at step 2, so its steps 1 and 2 are void."""

    def step(number, end=False, lost=False):
        values = np.array([number, 10 + number], np.float32)
        never = np.zeros(2, bool)
        return Step(
            {"s": values[:, None]},
            values[:, None],
            values,
            np.array([False, end]),
            never,
            {"s": values[:, None] + 1},
            np.array([False, True]) if lost else None,
            {"log_prob": -values},
            signals=values[:, None],
        )

    found = stacked([step(0, end=True), step(1), step(2, lost=True), step(3)])
    assert found["mask"].tolist() == [[True, True], [True, False], [True, False], [True, True]]
    assert found["timeouts"].tolist() == [
        [False, False],
        [False, False],
        [False, True],
        [False, False],
    ]
    assert found["end_rows"].tolist() == [5, 6, 7]
    assert found["end_obs"]["s"].tolist() == [[13.0], [4.0], [14.0]]
    assert found["rewards"].tolist() == [[0, 10], [1, 11], [2, 12], [3, 13]]
    assert found["log_prob"].tolist() == [[0, -10], [-1, -11], [-2, -12], [-3, -13]]
    assert found["signals"].shape == (4, 2, 1) and found["terminals"][0].tolist() == [False, True]
    early = stacked([step(0), step(1, lost=True)])
    assert early["mask"].tolist() == [[True, False], [True, False]]


# ---- named rewards ---------------------------------------------------------------------------------


def test_named_rewards_of_the_steps_that_were_taken_are_shown_to_their_weights(monkeypatch):
    shown = []
    weights = Words(names=("a", "b"), observe=lambda signals, ranks: shown.append((signals, ranks)))
    monkeypatch.setattr(module, "reward_weights_in", lambda nets: weights)
    zeros, never = np.zeros(2, np.float32), np.zeros(2, bool)
    plain = ({}, zeros[:, None], zeros, never, never, {})
    signals = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    steps = [
        Step(*plain, np.array([False, True]), signals=signals),
        Step(*plain),
        Step(*plain, signals=signals),
    ]
    for made in (learner(), rollout_learner()):
        made.take(Collected(steps, np.arange(2), [], lost_lanes=np.array([], int)))
        made.take(Collected(steps[1:2], np.arange(2), [], lost_lanes=np.array([], int)))
        (found, ranks), (nothing, _) = shown
        assert found.tolist() == [[1, 2], [1, 2], [3, 4]] and nothing.shape == (0, 2)
        assert ranks is ALONE
        shown.clear()


# ---- rollouts --------------------------------------------------------------------------------------


class Rollouts:
    """An algorithm whose batches are numbered, two for each pass; ``calls`` has what it was asked."""

    def __init__(self, ranks=ALONE, **config):
        self.ranks, self.nets, self.preprocess, self.kept = ranks, {}, "preprocess", ["old"]
        self.config = Words(rollout_epochs=config.pop("epochs", 1))
        self.prepares_each_pass, self.expert_passes = False, 0
        self.calls, self.number, self.length = [], 0, 4
        vars(self).update(config)

    def rollout_rewards(self, rollout):
        return rollout["rewards"] + 1

    def prepare_rollout(self, rollout):
        self.calls.append(rollout["rewards"].tolist())
        return {"log_prob": torch.zeros(self.length)}

    def minibatches(self, batch, size):
        for _ in range(2):
            self.number += 1
            yield {"number": self.number, "size": size, "log_prob": torch.zeros(size)}

    def after_rollout(self, rollout, batch, size):
        yield {"number": "after", "size": size}

    def leaves_rollout(self, info):
        return info.get("large", False)

    def process_batch_for_training(self, raw):
        return ("processed", raw)


class Scaler:
    """Doubles rewards."""

    seen = ()

    def __call__(self, rewards, ends, lanes, mask):
        self.seen = (ends.tolist(), lanes.tolist(), mask.tolist())
        return rewards * 2

    def state_dict(self):
        return "rewards"

    def load_state_dict(self, state):
        self.loaded = state


def rollout_learner(given=None, **more):
    words = {"rollout_steps": 2, "batch_size": 3, "reward_scaler": Scaler(), **more}
    return RolloutLearner(given or Rollouts(), **words)


def numbers(batches):
    return [batch["number"] for batch in batches]


def test_a_rollout_is_learned_from_when_it_is_whole_and_then_dropped():
    scaler = Scaler()
    made = rollout_learner(Rollouts(epochs=2), reward_scaler=scaler)
    made.take(collected(1))
    assert numbers(made.batches_due()) == [] and made.updates == 0
    made.take(collected(1))
    assert numbers(made.batches_due(0)) == [] and made.algo.calls == []
    assert numbers(made.batches_due(3)) == [1, 2, 3] and made.updates == 3
    # The next rollout is gathered before the rest of this one is learned from.
    made.take(collected(3))
    batches = list(made.batches_due())
    assert numbers(batches) == [4, "after", 5, 6, 7, 8, "after"] and made.updates == 10
    assert {batch["size"] for batch in batches} == {3}
    # Rewards of the algorithm, scaled: (0 + 1) * 2; each rollout is prepared once.
    assert made.algo.calls == [[[2.0, 2.0]] * 2, [[2.0, 2.0]] * 3]
    assert numbers(made.batches_due()) == []
    ends, lanes, mask = [[False] * 2] * 3, [0, 1], [[True] * 2] * 3
    assert scaler.seen == (ends, lanes, mask)


def test_each_pass_is_prepared_where_the_algorithm_asks_for_it():
    made = rollout_learner(Rollouts(epochs=3, prepares_each_pass=True))
    made.take(collected(2))
    assert len(list(made.batches_due())) == 7 and len(made.algo.calls) == 3


def test_a_large_step_ends_the_passes_over_a_rollout():
    made = rollout_learner(Rollouts(epochs=3))
    for first in (1, 4):  # and the next rollout begins anew
        made.take(collected(2))
        found = []
        for batch in made.batches_due():
            found.append(batch["number"])
            made.learned({"large": batch["number"] == first + 2})
        assert found == [first, first + 1, first + 2, "after"]


def test_the_first_passes_have_demonstrations():
    demos = Source(9)
    made = rollout_learner(Rollouts(epochs=3, expert_passes=2), demos=demos)
    made.take(collected(2))
    batches = list(made.batches_due())
    assert ["expert" in batch for batch in batches] == [True] * 4 + [False] * 3
    assert batches[0]["expert"][0] == "processed" and demos.sizes == [3] * 4


def test_a_rollout_without_samples_has_no_batch_and_ranks_have_as_many_as_the_fewest():
    made = rollout_learner(Rollouts(length=0))
    made.take(collected(2))
    assert numbers(made.batches_due()) == ["after"]
    for fewest, found in ((1, [1, "after"]), (7, [1, 2, "after"])):
        ranks = Words(world=2, table=lambda own, fewest=fewest: np.array([[own], [fewest]]))
        made = rollout_learner(Rollouts(ranks=ranks))
        made.take(collected(2))
        assert numbers(made.batches_due()) == found


def test_statistics_follow_a_rollout_after_it_was_learned_from():
    added, applied = [], []
    normalizer = Words(
        add=lambda seen: added.append(seen["s"].tolist()), apply=applied.append, state_dict=list
    )
    made = rollout_learner(obs_normalizer=normalizer)
    steps = [*collected(1).steps, lost_in_lane_1()]
    made.take(Collected(steps, np.arange(2), []))
    for _ in made.batches_due():
        assert not added
    assert added == [[[0.0], [7.0]]] and applied == ["preprocess"]


def lost_in_lane_1():
    values, never = np.array([7.0, 8.0], np.float32), np.zeros(2, bool)
    obs = {"s": values[:, None]}
    return Step(obs, values[:, None], values, never, never, obs, np.array([False, True]))


def test_what_a_learner_of_rollouts_keeps():
    made = rollout_learner()
    made.take(collected(2))
    list(made.batches_due())
    state = made.state_dict()
    assert state == {
        "updates": 3,
        "obs": None,
        "demos": None,
        "rewards": "rewards",
        "kept": ["old"],
    }
    again, kept = rollout_learner(), state["kept"]
    again.algo.kept[:] = ["other"]
    again.load_state_dict(state)
    assert (again.updates, again.algo.kept) == (3, ["old"]) and again.algo.kept is not kept


# ---- corrections -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "most"), [(1, 1), (8, 8), (4000, 1700)])
def test_corrections_are_as_likely_as_demonstrated_steps(size, most):
    """Two of six rows, beside four demonstrated ones: a third of the samples."""

    class Demos(Source):
        def __len__(self):
            return 4

    marks = np.array([False, True, False, True, False, True])
    memory = Words(
        intervened=marks, filled=2, num_envs=2, generator=np.random.default_rng(0)
    )  # the last two rows were not written yet
    memory.at = lambda rows: {"actions": torch.as_tensor(rows), "obs": {}}
    demos = Demos(-1)
    demos.sample = lambda count: {"actions": torch.full((count,), -1), "obs": {}}
    drawn = [Corrected(demos, memory).sample(size)["actions"].tolist() for _ in range(20)]
    for rows in drawn:
        assert len(rows) == size and set(rows) <= {-1, 1, 3}
        own = [row for row in rows if row > 0]
        assert rows[: len(own)] == own and len(own) <= most
        if size > 100:
            assert 1100 < len(own) < 1560 and {1, 3} <= set(own)
    memory.intervened = np.zeros(6, bool)
    before = memory.generator.bit_generator.state
    assert Corrected(demos, memory).sample(3)["actions"].tolist() == [-1] * 3
    assert memory.generator.bit_generator.state == before
