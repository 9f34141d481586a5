"""OGBench's point mazes, with a small stand-in for the package: a ring around a wall, without the wall's effect."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from imitate.envs.worlds.ogbench_maze import DATASETS, OGBenchMaze, cells_away, corners

MAZE = np.array(
    [
        [1, 1, 1, 1, 1, 1],
        [1, 0, 0, 0, 0, 1],
        [1, 0, 1, 1, 0, 1],
        [1, 0, 0, 0, 0, 1],
        [1, 1, 1, 1, 1, 1],
    ]
)
TASKS = [((1, 1), (3, column)) for column in (1, 2, 3, 4, 4)]


class Ring(gymnasium.Env):
    """A mass that moves by a fifth of its action; a cell has a side of 1."""

    observation_space, action_space = spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (2,))
    maze_map = MAZE

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if "task_info" in options:
            start, goal = options["task_info"]["init_ij"], options["task_info"]["goal_ij"]
        else:
            assert 1 <= options["task_id"] <= 5
            start, goal = TASKS[options["task_id"] - 1]
        self.cells, self.goals = (start, goal), 0
        self.place = self.add_noise(self.ij_to_xy(start))
        self.set_goal(self.add_noise(self.ij_to_xy(goal)))
        return self.place.copy(), {"goal": self.cur_goal_xy}

    def ij_to_xy(self, cell):
        return np.array(cell, float)

    def add_noise(self, place):
        return place + np.random.uniform(-0.2, 0.2, 2)  # noqa: NPY002 - as the package

    def set_goal(self, goal_xy):
        self.cur_goal_xy, self.goals = goal_xy, self.goals + 1

    def get_xy(self):
        return self.place.copy()

    def get_oracle_subgoal(self, here, goal):
        return goal, None

    def step(self, action):
        self.place = self.place + 0.2 * action
        success = float(np.linalg.norm(self.place - self.cur_goal_xy) < 0.3)
        return self.place.copy(), success, success == 1.0, False, {"success": success}


@pytest.fixture(scope="module", autouse=True)
def stand_in():
    kept = dict(gymnasium.registry)
    for size, steps in (("medium", 4), ("giant", 9)):
        gymnasium.register(f"pointmaze-{size}-v0", Ring, max_episode_steps=steps)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(kept)


def recorded(kind, seed, steps=150):
    env = OGBenchMaze(f"pointmaze-medium-{kind}-v0")
    env.play()
    obs, _ = env.reset(seed=seed)
    places, outcomes, actions = [obs], [], []
    for _ in range(steps):
        actions.append(env.oracle_action())
        obs, *outcome = env.step(actions[-1])
        places.append(obs)
        outcomes.append(outcome)
    return env.inner, np.array(places), np.array(actions), outcomes


def test_an_evaluation_has_the_five_tasks_in_turn_or_one():
    env = OGBenchMaze("pointmaze-medium-navigate-v0")
    cells, goals = [], []
    for seed in range(100, 110):
        obs, info = env.reset(seed=seed)
        assert obs.dtype == info["goal"].dtype == np.float32
        cells.append(env.inner.cells)
        goals.append(info["goal"])
    assert cells == TASKS * 2
    assert not np.array_equal(goals[0], goals[5])  # its noise
    np.testing.assert_array_equal(env.reset(seed=100)[1]["goal"], goals[0])
    one = OGBenchMaze("pointmaze-medium-stitch-task3-v0")
    assert {(one.reset(seed=seed), one.inner.cells)[1] for seed in range(7)} == {TASKS[2]}
    drawn = {(env.reset(), env.inner.cells)[1] for _ in range(60)}
    assert drawn == set(TASKS)


def test_success_or_the_longest_episode_ends_an_evaluation():
    env = OGBenchMaze("pointmaze-medium-navigate-task1-v0")
    _, info = env.reset(seed=0)
    outcomes = [env.step(np.zeros(2))[1:] for _ in range(4)]
    assert [(end, over) for _, end, over, _ in outcomes] == [(False, False)] * 3 + [(False, True)]
    env.reset(seed=0)
    assert np.allclose(env.set_sim_state(np.array([*info["goal"], 0, 0])), info["goal"])
    _, reward, end, _, outcome = env.step(np.zeros(2))
    assert (reward, end, outcome) == (1.0, True, {"success": True})


Ring.data = type("Data", (), {"qpos": np.zeros(2), "qvel": np.zeros(2)})
Ring.set_state = lambda self, qpos, qvel: setattr(self, "place", np.array(qpos))
Ring.get_ob = Ring.get_xy


def test_a_recording_goes_on_after_success_to_another_goal():
    inner, places, actions, outcomes = recorded("navigate", seed=1)
    successes = sum(outcome["success"] for *_, outcome in outcomes)
    assert successes > 3 and inner.goals == successes + 1
    assert not any(end or over for _, end, over, _ in outcomes)
    assert np.abs(actions).max() == 1.0
    np.testing.assert_allclose(np.diff(places, axis=0), 0.2 * actions, atol=1e-5)


def test_a_stitched_recording_stays_at_a_goal_that_is_four_cells_away():
    inner, *_ = recorded("stitch", seed=2)
    start, goal = inner.cells
    assert goal in map(tuple, cells_away(MAZE, start, 4))
    assert inner.goals == 1


def test_the_noise_of_the_actions_has_the_authors_size():
    env = OGBenchMaze("pointmaze-medium-navigate-v0")
    env.reset(seed=0)
    env.inner.get_oracle_subgoal = lambda here, goal: (here, None)
    actions = np.array([env.oracle_action() for _ in range(2000)])
    inside = np.abs(actions) < 1
    assert inside.mean() == pytest.approx(0.954, abs=0.02)
    assert np.abs(actions[inside]).mean() == pytest.approx(0.36, abs=0.02)


def test_an_episode_follows_from_its_seed():
    first, again, other = (recorded("navigate", seed, 20)[2] for seed in (5, 5, 6))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_corners_and_distances():
    assert corners(MAZE).tolist() == [[1, 1], [1, 4], [3, 1], [3, 4]]
    assert cells_away(MAZE, (1, 1), 4).tolist() == [[2, 4], [3, 3]]
    assert cells_away(MAZE, (1, 1), 5).tolist() == [[3, 4]]
    assert len(cells_away(MAZE, (1, 1), 6)) == 0


def test_the_action_towards_the_next_cell_by_hand():
    env = OGBenchMaze("pointmaze-medium-navigate-v0")
    env.reset(seed=3)
    env.inner.place, env.inner.cur_goal_xy = np.zeros(2), np.array([3e-6, -4e-6])
    np.random.seed(7)  # noqa: NPY002
    found = [env.oracle_action() for _ in range(20)]
    # a way of 5e-6 by its length and 1e-6: 3 / 6 and -4 / 6
    noise = np.random.RandomState(7).normal(0, 0.5, (20, 2))  # noqa: NPY002
    np.testing.assert_allclose(found, np.clip([0.5, -4 / 6] + noise, -1, 1))
    assert env.metadata["render_fps"] == 10 and env.render_mode is None


def test_steps_and_names_of_the_datasets():
    assert len(DATASETS) == 4 * 2 * 6
    assert {(m.size, m.kind): m.steps for m in DATASETS.values() if m.task in (None, 5)} == {
        **{(size, "navigate"): 1000 for size in ("medium", "large", "teleport")},
        **{(size, "stitch"): 200 for size in ("medium", "large", "giant", "teleport")},
        ("giant", "navigate"): 2000,
    }
    assert DATASETS["pointmaze-large-stitch-task5-v0"].task == 5


def test_spaces_states_and_large_seeds(monkeypatch):
    env = OGBenchMaze("pointmaze-medium-navigate-task2-v0", "rgb_array")
    assert env.render_mode == "rgb_array"
    assert (
        np.isneginf(env.observation_space.low).all()
        and np.isposinf(env.observation_space.high).all()
    )
    assert env.observation_space.shape == env.action_space.shape == (2,)
    assert (env.action_space.low.max(), env.action_space.high.min()) == (-1.0, 1.0)
    goals = [env.reset(seed=seed)[1]["goal"].tolist() for seed in (7, 7 + 2**32, 8)]
    assert goals[0] == goals[1] != goals[2]
    monkeypatch.setattr(Ring.data, "qpos", np.array([1.0, 2.0]))
    monkeypatch.setattr(Ring.data, "qvel", np.array([3.0, 4.0]))
    assert env.get_sim_state().tolist() == [1, 2, 3, 4]
    seen = env.set_sim_state(np.array([5.0, 6, 7, 8]))
    assert seen.tolist() == [5, 6] and seen.dtype == np.float32
    drawn = []
    monkeypatch.setattr(Ring, "render", lambda self: "drawn")
    monkeypatch.setattr(Ring, "close", lambda self: drawn.append("closed"))
    assert env.render() == "drawn"
    env.close()
    assert drawn == ["closed"]
    assert gymnasium.spec("pointmaze-medium-navigate-v0").disable_env_checker is True


def test_a_stitched_episode_without_a_far_cell_stays_at_its_start(monkeypatch):
    monkeypatch.setattr(Ring, "maze_map", np.pad(np.zeros((1, 2), int), 1, constant_values=1))
    env = OGBenchMaze("pointmaze-medium-stitch-v0")
    env.play()
    env.reset(seed=0)
    assert env.inner.cells[0] == env.inner.cells[1]
    assert all(type(number) is int for number in env.inner.cells[0])
