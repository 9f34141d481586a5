import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imitate.config.data_needs import Transitions
from imitate.data.batches.rewards import RewardTransform
from imitate.data.file.episode import Episode
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.goals import Hindsight
from imitate.train.online.learners import ReplayLearner
from imitate.train.online.replay import PrioritizedReplay, ReplayBuffer
from imitate.train.online.steps import Step
from tests.tiny import tiny_algo


def near(achieved, desired):
    """0 within half a unit of the goal, else -1."""
    return np.where(np.abs(achieved - desired).max(-1) < 0.5, 0.0, -1.0)


def obs(places, goals):
    places = np.array(places, np.float32).reshape(-1, 1)
    goals = np.broadcast_to(np.array(goals, np.float32).reshape(-1, 1), places.shape)
    return {"observation": -places, "achieved_goal": places, "desired_goal": goals}


def step(before, after, goals, ends="-", lost=None):
    """Of as many environments as there are letters in ``ends``: t(erminal), c(lock) or -."""
    return Step(
        obs(before, goals),
        np.zeros((len(ends), 1), np.float32),
        near(obs(after, goals)["achieved_goal"], obs(after, goals)["desired_goal"]),
        np.array([e == "t" for e in ends]),
        np.array([e == "c" for e in ends]),
        obs(after, goals),
        lost,
    )


def buffer(
    capacity=20, strategy="future", share=1.0, ends_at_goal=False, kind=ReplayBuffer, **more
):
    shapes = {"observation": (1,), "achieved_goal": (1,), "desired_goal": (1,)}
    hindsight = Hindsight(near, share, strategy, ends_at_goal)
    return kind(shapes, 1, capacity, hindsight=hindsight, **more)


def walk(memory, places, goal=9, end="c"):
    """One environment goes through these places; with ``end`` '-' it is still on its way."""
    for i, (before, after) in enumerate(zip(places[:-1], places[1:], strict=True)):
        memory.add(step([before], [after], [goal], end if i == len(places) - 2 else "-"))


def table(batch):
    """By place: the next place, the goal before and after, the reward, the discount."""
    goals = ("achieved_goal", "desired_goal")
    columns = [batch[part][goal] for goal in goals for part in ("obs", "next_obs")]
    columns += [batch[key].view(-1, 1, 1) for key in ("n_step_rewards", "discounts")]
    assert torch.equal(batch["obs"]["observation"], -batch["obs"]["achieved_goal"])
    rows = torch.stack([column[:, -1, 0] for column in columns], 1).tolist()
    return {row[0]: tuple(row[1:]) for row in rows}


def whole(memory):
    return memory.at(np.flatnonzero(memory.live))


HALF = Transitions(discount=0.5)


def test_final_goals_of_an_episode_that_is_over_and_of_one_that_runs():
    memory = buffer(strategy="final", transitions=HALF)
    walk(memory, [0, 1, 2, 3])
    walk(memory, [20, 21, 22], end="-")
    assert table(whole(memory)) == {
        0: (1, 3, 3, -1, 0.5),
        1: (2, 3, 3, -1, 0.5),
        2: (3, 3, 3, 0, 0.5),
        20: (21, 22, 22, -1, 0.5),
        21: (22, 22, 22, 0, 0.5),
    }
    memory.add(step([22], [23], [9]))
    assert table(whole(memory))[20] == (21, 23, 23, -1, 0.5)
    # What is stored stays as it was lived through.
    assert [e.obs["desired_goal"][:, 0].tolist() for e in memory.episodes()] == [[9] * 3] * 2
    assert [e.rewards.tolist() for e in memory.episodes()] == [[-1] * 3] * 2


@pytest.mark.parametrize(
    ("strategy", "place", "goals"),
    [("future", 0, {1, 2, 3, 4}), ("future", 2, {3, 4}), ("episode", 2, {1, 2, 3, 4})],
)
def test_goals_are_drawn_uniformly(strategy, place, goals):
    memory = buffer(strategy=strategy, transitions=HALF)
    walk(memory, [0, 1, 2, 3, 4])
    walk(memory, [20, 21])
    batch = memory.at(np.full(4000, place))
    drawn, counts = np.unique(batch["obs"]["desired_goal"][:, 0, 0].numpy(), return_counts=True)
    assert set(drawn.tolist()) == goals
    assert np.abs(counts / 4000 - 1 / len(goals)).max() < 0.04
    reached = batch["obs"]["desired_goal"][:, 0, 0] == place + 1
    assert torch.equal(batch["rewards"][:, 0], torch.where(reached, 0.0, -1.0))


def test_a_share_of_the_samples_has_other_goals():
    memory = buffer(strategy="final", share=0.8, transitions=HALF)
    walk(memory, [0, 1, 2, 3])
    goals = memory.sample(5000)["obs"]["desired_goal"]
    assert float((goals == 3).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((goals == 9).float().mean()) == pytest.approx(0.2, abs=0.02)


def test_rewards_are_transformed_after_they_are_told():
    memory = buffer(strategy="final", transitions=HALF, reward=RewardTransform(10.0, 1.0))
    walk(memory, [0, 1, 2])
    assert {k: row[3] for k, row in table(whole(memory)).items()} == {0: -9.0, 1: 1.0}


def test_terminals_stay_where_goals_do_not_end_episodes():
    memory = buffer(strategy="final", transitions=HALF)
    walk(memory, [0, 1, 2], end="t")
    assert {k: row[4] for k, row in table(whole(memory)).items()} == {0: 0.5, 1: 0.0}


def test_where_goals_end_episodes_the_new_goal_does_and_the_old_one_no_more():
    memory = buffer(strategy="episode", ends_at_goal=True, transitions=HALF)
    walk(memory, [0, 1, 2], goal=2, end="t")
    batch = memory.at(np.repeat([0, 1], 200))
    for place in (0, 1):
        mine = batch["obs"]["achieved_goal"][:, 0, 0] == place
        at_goal = batch["obs"]["desired_goal"][mine, 0, 0] == place + 1
        assert 0 < at_goal.sum() < at_goal.numel()
        assert torch.equal(batch["dones"][mine, 0], at_goal.float())
        assert torch.equal(batch["discounts"][mine], 0.5 - 0.5 * at_goal.float())


def test_a_terminal_of_another_kind_stays_whatever_the_goal():
    memory = buffer(strategy="episode", ends_at_goal=True, transitions=HALF)
    walk(memory, [0, 1, 2], goal=9, end="t")
    batch = memory.at(np.full(100, 1))
    assert set(batch["obs"]["desired_goal"].flatten().tolist()) == {1.0, 2.0}
    assert batch["dones"].min() == 1


def test_frames_have_one_goal_and_each_its_reward():
    memory = buffer(strategy="final", transitions=HALF, frame_stack=3)
    walk(memory, [0, 1, 2, 2])
    batch = memory.at(np.array([0, 2]))
    assert batch["obs"]["achieved_goal"][..., 0].tolist() == [[0, 0, 0], [0, 1, 2]]
    assert batch["obs"]["desired_goal"][..., 0].tolist() == [[2, 2, 2], [2, 2, 2]]
    assert batch["next_obs"]["desired_goal"][..., 0].tolist() == [[2, 2, 2], [2, 2, 2]]
    assert batch["rewards"].tolist() == [[-1, -1, -1], [-1, 0, 0]]


def test_priorities_and_goals_go_together():
    memory = buffer(strategy="final", kind=PrioritizedReplay, transitions=HALF)
    walk(memory, [0, 1, 2, 3])
    memory.update_priorities(np.arange(3), np.array([0.0, 0.0, 5.0], np.float32))
    assert table(memory.sample(20)) == {2: (3, 3, 3, 0, 0.5)}


def test_a_copy_draws_the_same_goals(tmp_path):
    memory = buffer(12)
    walk(memory, list(range(9)))
    walk(memory, list(range(20, 26)), end="-")
    memory.sample(7)
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    other = buffer(12, seed=9)
    other.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    for each in (memory, other):
        each.add(step([25], [26], [9]))
    first, second = memory.sample(200), other.sample(200)
    assert torch.equal(first["obs"]["desired_goal"], second["obs"]["desired_goal"])
    assert torch.equal(first["rewards"], second["rewards"])


def test_demonstrations_are_relabelled_likewise():
    """Whole episodes of several lengths, the shorter one last."""
    memory = buffer(strategy="final", transitions=HALF)
    for places in ([0, 1, 2, 3, 4], [20, 21, 22]):
        last = len(places) - 2
        before, after, count = obs(places[:-1], [9]), obs(places[1:], [9]), last + 1
        ends = np.zeros(count), np.arange(count) == last
        memory.add_episode(Episode(before, np.zeros((count, 1)), -np.ones(count), *ends, after))
    goals = {place: row[1] for place, row in table(whole(memory)).items()}
    assert goals == {0: 4, 1: 4, 2: 4, 3: 4, 20: 22, 21: 22}


def test_episodes_that_were_cut_keep_their_goals():
    memory = buffer(strategy="final", transitions=HALF)
    walk(memory, [0, 1, 2, 3], end="-")
    memory.cut_episodes()
    walk(memory, [20, 21])
    goals = {place: row[1] for place, row in table(whole(memory)).items()}
    assert goals == {0: 3, 1: 3, 2: 3, 20: 21}


@settings(max_examples=25, deadline=None)
@given(
    capacity=st.integers(4, 40),
    lanes=st.integers(1, 3),
    seed=st.integers(0, 1000),
    strategy=st.sampled_from(["future", "final", "episode"]),
    regular=st.booleans(),
)
def test_goals_are_of_the_same_episode_and_of_the_future(capacity, lanes, seed, strategy, regular):
    """Places are 10,000 * environment + 100 * episode + step; episodes end, are lost, are overwritten."""
    rng = np.random.default_rng(seed)
    memory = buffer(capacity * lanes, strategy, num_envs=lanes)
    where = 10_000 * np.arange(lanes)
    for number in range(60):
        # With regular ends, episodes come to lie exactly over older ones.
        ends = number % 5 == 4 if regular else rng.random(lanes) < 0.2
        lost = None if regular else rng.random(lanes) < 0.03
        letters = "".join("c" if end else "-" for end in np.broadcast_to(ends, lanes))
        memory.add(step(where, where + 1, [-5], letters, lost))
        over = ends if lost is None else ends | lost
        where = np.where(over, where // 100 * 100 + 100, where + 1)
        if not len(memory):
            continue
        batch = whole(memory)
        place = batch["obs"]["achieved_goal"][:, 0, 0].numpy()
        goal = batch["obs"]["desired_goal"][:, 0, 0].numpy()
        assert np.array_equal(goal // 100, place // 100)
        assert strategy == "episode" or (goal > place).all()
        if strategy == "final":
            newest = {p // 100: p + 1 for p in np.sort(place)}
            assert goal.tolist() == [newest[p // 100] for p in place]


class Bits:
    """Each action turns one of ``size`` bits; wanted are certain bits. There is no reward on the way."""

    name = "bits"

    def __init__(self, size):
        self.size = self.num_choices = self.action_dim = size
        self.action_low, self.action_high = np.zeros(size), np.ones(size)

    def reset(self, *, seed=None):
        rng = np.random.default_rng(seed)
        self.bits, self.goal = rng.integers(2, size=(2, self.size)).astype(np.float32)
        return self.shown(), {}

    def step(self, action):
        self.bits = self.bits.copy()
        self.bits[int(np.argmax(action))] = 1 - self.bits[int(np.argmax(action))]
        there = bool((self.bits == self.goal).all())
        return self.shown(), float(there) - 1.0, there, False, {"success": there}

    def shown(self):
        return {"achieved_goal": self.bits, "desired_goal": self.goal}

    @staticmethod
    def goal_rewards(achieved, desired):
        return (achieved == desired).all(-1) - 1.0

    def close(self):
        pass


def success_after_online_rl(share, episodes, size=6):
    """Episodes that were played, until most of the last 100 reached their bits, and the share of these that did."""
    section = {
        "discount": 0.9,
        "epsilon": {"schedule": [[0, 0.5], [0.5, 0.02]]},
        "target_update_freq": 1,
        "target_tau": 0.05,
        "optim_params": {"critic": {"learning_rate": {"initial": 0.005}}},
    }
    obs = {"achieved_goal": size, "desired_goal": size}
    algo = tiny_algo("dqn", obs=obs, action=size, hidden=(64,), algo=section)
    config, shapes = algo.global_config, dict.fromkeys(obs, (size,))
    group = EnvGroup(lambda: Bits(size), np.arange(4), seed=0, horizon=size)
    limits = group.envs[0].action_low, group.envs[0].action_high
    collector = LocalCollector(group, algo, *limits, num_choices=size)
    words = {"transitions": config.algo.data_needs(config).transitions, "num_envs": 4}
    words["hindsight"] = Hindsight(Bits.goal_rewards, share, ends_at_goal=True)
    memory = ReplayBuffer(shapes, size, 10_000, **words)
    pace = {"batch_size": 128, "update_ratio": 0.25, "warmup_steps": 200}
    learner = ReplayLearner(algo, memory, memory, **pace)
    algo.set_train()
    records, success = [], 0.0
    while len(records) < episodes and success < 0.8:
        collector.progress = len(records) / 600
        collected = collector.collect(4)
        learner.take(collected)
        records += collected.episodes
        for _ in learner.updates_due(1):
            pass
        success = sum(record.success for record in records[-100:]) / 100
    return len(records), success


@pytest.mark.slow("learns from hundreds of episodes, with hindsight and without")
def test_goals_that_chance_never_reaches_are_learned_in_hindsight_alone():
    episodes, success = success_after_online_rl(0.8, 600)
    assert success >= 0.8
    assert success_after_online_rl(0.0, episodes)[1] < 0.2
