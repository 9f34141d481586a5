"""OGBench's datasets, with a small stand-in for the package: one object that an oracle pushes."""

import sys
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from imitate.collect.demonstrate import Plan, demonstrate
from imitate.envs import make_env
from imitate.envs.experts import find_expert
from imitate.errors import EnvError
from tests.refusals import refused

ADAPTER = "imitate.envs.worlds.ogbench"
CUBE = slice(14, 17)
GOAL = np.array([0.02, 0.03, 0.02])


class Scene(gymnasium.Env):
    """Actions move the object; the goal of task 2, and of the default one, is ``GOAL``."""

    observation_space, action_space = spaces.Box(-9, 9, (3,)), spaces.Box(-1, 1, (5,))

    def __init__(self, buttons=False, thing="cube", mode="task", task=0, terminate_at_goal=True):
        self.thing = thing
        self.buttons = np.zeros(2, np.int64) if buttons else None
        self.records, self.goal = mode == "data_collection", GOAL + (0 if task in (0, 2) else 5)
        self.ends = terminate_at_goal
        self.model = type("Model", (), {"nq": 21, "nv": 20})
        self.data = type("Data", (), {})()
        self.targets = 0
        Scene.latest = self

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.data.qpos, self.qvel = np.zeros(21), np.zeros(20)
        self.data.qpos[CUBE] = [*self.np_random.uniform(-0.1, 0.1, 2), 0.02]
        self.set_new_target(0.0)
        return self.compute_observation(), self._info()

    def set_new_target(self, p_stack):
        self.stacking = p_stack
        self.target = np.array([*self.np_random.uniform(-0.2, 0.2, 2), 0.02])
        self.targets += 1
        return self.compute_observation(), self._info()

    def _info(self):
        state = {"qpos": self.data.qpos, "qvel": self.qvel}
        if self.buttons is not None:
            state["button_states"] = self.buttons
        now = {name: value.copy() for name, value in state.items()}
        return {**now, "privileged/target_task": self.thing, "target": self.target}

    def step(self, action):
        before = {f"prev_{name}": x for name, x in self._info().items()}
        reward = self.compute_reward()
        self.data.qpos[CUBE][:2] += 0.1 * np.asarray(action)[:2]
        info = {**self._info(), **before, "success": reward == 0}
        return self.compute_observation(), reward, self.ends and reward == 0, False, info

    def set_state(self, qpos, qvel, *buttons):
        self.data.qpos[:], self.qvel[:] = qpos, qvel
        if self.buttons is not None:
            self.buttons[:] = buttons[0]

    def compute_observation(self):
        return self.data.qpos[CUBE].copy()

    def render(self):
        return self

    def close(self):
        self.closed = True

    def compute_reward(self):
        near = np.linalg.norm(self.data.qpos[CUBE] - self.goal) <= 0.04
        return float(near) - 1.0


class Oracle:
    """Pushes the object to the target with noise."""

    made = []

    def __init__(self, env, **settings):
        self.done = False
        self.made.append((type(self).__name__, settings, self))

    def reset(self, obs, info):
        self.target, self.done = info["target"], False

    def select_action(self, obs, info):
        away = self.target - obs
        self.done = np.linalg.norm(away) < 0.04
        noise = np.random.normal(0, 0.1, 2)  # noqa: NPY002 - as the package's oracles
        return [*(5 * away[:2] + noise), 0.0, 0.0, 0.0]


STACKING = {
    "cube-single": (0.0, 0.0),
    "cube-double": (0.0, 0.25),
    "cube-triple": (0.05, 0.35),
    "cube-quadruple": (0.1, 0.5),
    "cube-octuple": (0.0, 0.35),
}


@pytest.fixture(scope="module", autouse=True)
def stand_in():
    """The package's modules and environments."""
    names = [
        f"ogbench.manipspace.oracles.{way}.{thing}_{way}"
        for way in ("plan", "markov")
        for thing in ("button", "cube", "drawer", "window")
    ]
    parents = {".".join(name.split(".")[:k]) for name in names for k in range(1, 5)}
    kept = {name: sys.modules.pop(name, None) for name in (ADAPTER, *parents, *names)}
    for name in (*parents, *names):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None, origin="/packages/ogbench/__init__.py")
    for name in names:
        _, _, _, way, file = name.split(".")
        oracle = file.split("_")[0].title() + way.title() + "Oracle"
        setattr(sys.modules[name], oracle, type(oracle, (Oracle,), {}))
    for world in ("scene", "puzzle-3x3", *STACKING):
        thing = "button" if world == "puzzle-3x3" else "cube"
        kwargs = {"buttons": world not in STACKING, "thing": thing}
        gymnasium.register(f"{world}-v0", Scene, kwargs=kwargs)
        for task in (0, 1, 2):
            suffix = f"-task{task}" if task else ""
            name = f"{world}-singletask{suffix}-v0"
            gymnasium.register(name, Scene, max_episode_steps=7, kwargs={**kwargs, "task": task})
    yield
    for name, module in kept.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


def named(dataset):
    return {"env_name": f"ogbench:{dataset}", "type": 2, "env_kwargs": {}}


def recorded(dataset, index=0, **settings):
    return demonstrate(Plan(named(dataset), horizon=200, **settings), index)


@pytest.mark.parametrize("world", ["cube-single", "scene"])
def test_a_task_ends_at_success_or_its_longest_episode(world):
    env = make_env(named(f"{world}-play-singletask-task2-v0"))
    obs, _ = env.reset(seed=0)
    assert obs["flat"].dtype == np.float32
    outcomes = [env.step(np.zeros(5))[1:] for _ in range(7)]
    assert [over for _, _, over, _ in outcomes] == [False] * 6 + [True]
    state = env.get_state()["states"]
    assert len(state) == (43 if world == "scene" else 41)
    state[CUBE] = GOAL
    np.testing.assert_allclose(env.reset_to({"states": state})["flat"], GOAL, rtol=1e-6)
    _, reward, terminated, _, info = env.step(np.zeros(5))
    assert (reward, terminated, info["success"]) == (0.0, True, True)


@pytest.mark.parametrize(
    "dataset", ["cube-single-play-singletask-v0", "scene-noisy-singletask-task2-v0"]
)
def test_rewards_are_those_of_the_state_before_the_action_and_end_nothing(dataset):
    demo = recorded(dataset)
    near = np.linalg.norm(demo.states[:, CUBE] - GOAL, axis=1) <= 0.04
    assert 0 < near.sum() < len(near) == 200
    np.testing.assert_array_equal(demo.rewards, near - 1.0)
    np.testing.assert_array_equal(demo.successes, near)
    np.testing.assert_array_equal(demo.obs["flat"], demo.states[:, CUBE].astype(np.float32))


def test_an_oracle_moves_the_object_to_one_target_after_another():
    env = make_env(named("cube-single-play-singletask-v0"))
    expert = find_expert(env.name)(None)
    expert.attach(env)
    env.reset(seed=1)
    scene = env.unwrapped
    for _ in range(60):
        scene.step(expert.act({}))
    assert scene.inner.targets == 1  # of the task
    other = recorded("cube-single-play-singletask-v0")
    steps = np.linalg.norm(np.diff(other.states[:, CUBE], axis=0), axis=1)
    assert (steps > 0.02).sum() > 20  # it moves again and again


def test_an_episode_follows_from_its_seed():
    first, again, third = (
        recorded("scene-noisy-singletask-v0", index, seed=3).actions for index in (0, 0, 1)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, third)
    task = recorded("scene-noisy-singletask-task1-v0", 0, seed=3)
    assert np.array_equal(task.actions, first) and not task.successes.any()  # its goal is far


@pytest.mark.parametrize(
    ("y", "z", "lost"),
    [
        (0.28, 0.02, False),
        (0.29, 0.02, True),
        (-0.3, 0.07, False),
        (-0.3, 0.05, True),
        (-0.3, 0.09, True),
        (-0.3, 0.06, False),
        (-0.3, 0.08, False),
        (-0.299, 0.05, False),
    ],
)
def test_an_episode_of_a_scene_ends_where_the_cube_is_lost(y, z, lost):
    env = make_env(named("scene-play-singletask-v0")).unwrapped
    env.play()
    env.reset(seed=0)
    Scene.latest.data.qpos[CUBE] = [0.0, y, z]
    with pytest.raises(RuntimeError, match="left the visible part") if lost else nullcontext():
        env.step(np.zeros(5))


def test_mazes_are_recorded_too():
    assert find_expert("ogbench:pointmaze-giant-navigate-task2-v0").horizon == 2000
    assert find_expert("ogbench:pointmaze-giant-stitch-v0").horizon == 200
    assert find_expert("ogbench:cube-single-play-singletask-v0").horizon == 1000


def test_names_and_a_missing_package_are_refused_with_a_remedy(monkeypatch):
    with refused("no dataset 'cube-singel-play-singletask-v0'|cube-single-play", error=EnvError):
        find_expert("ogbench:cube-singel-play-singletask-v0")
    monkeypatch.delitem(sys.modules, ADAPTER)
    monkeypatch.setitem(sys.modules, "ogbench", None)
    with refused("ogbench|pip install 'ogbench>=1.2,<1.3' 'dm-control<=1.0.41'", error=EnvError):
        find_expert("ogbench:cube-single-play-singletask-v0")


def playing(dataset, seed):
    env = make_env(named(dataset)).unwrapped
    Oracle.made.clear()
    env.play()
    env.play()  # a second call changes nothing
    return env, env.reset(seed=seed), {name: settings for name, settings, _ in Oracle.made}


@pytest.mark.parametrize(
    ("dataset", "oracles"),
    [
        ("cube-double-play", {"CubePlanOracle": {"noise": 0.1, "noise_smoothing": 0.5}}),
        ("cube-double-noisy", {"CubeMarkovOracle": {"min_norm": 0.4}}),
        ("puzzle-3x3-noisy", {"ButtonMarkovOracle": {"gripper_always_closed": True, "min_norm": 0.4}}),
        (
            "scene-noisy",
            {
                "CubeMarkovOracle": {"min_norm": 0.4, "max_step": 100},
                **{f"{name}MarkovOracle": {"min_norm": 0.4} for name in ("Button", "Drawer", "Window")},
            },
        ),
    ],
)  # fmt: skip
def test_the_oracles_have_the_authors_settings(dataset, oracles):
    env, _, found = playing(f"{dataset}-singletask-v0", 0)
    assert found == oracles
    assert env.metadata == {"render_modes": ["rgb_array"], "render_fps": 20}
    scene = Scene.latest
    assert env.render() is scene is not env.inner
    env.close()
    assert scene.closed and env.inner.closed


@pytest.mark.parametrize(
    ("world", "low", "high"),
    [*((world, *range_) for world, range_ in STACKING.items()), ("scene", 0.5, 0.5)],
)
def test_a_new_target_is_stacked_with_the_probability_of_the_episode(world, low, high):
    env, *_ = playing(f"{world}-play-singletask-v0", 3)
    Oracle.made[0][2].done = True
    env.step(np.zeros(5))
    drawn = np.random.RandomState(3).uniform()  # noqa: NPY002
    assert Scene.latest.stacking == pytest.approx(low + (high - low) * drawn)


@pytest.mark.parametrize(("world", "often"), [("scene", 0.1), ("puzzle-3x3", 0.2)])
def test_noisy_actions_by_hand(world, often):
    env, *_ = playing(f"{world}-noisy-singletask-v0", 4)
    for _, _, oracle in Oracle.made:
        oracle.select_action = lambda obs, info: [0.5, -2.0, 0.0, 0.0, 0.0]
    random = np.random.RandomState(4)  # noqa: NPY002
    random.uniform()  # the probability of stacking
    noise = random.uniform(0, 0.1)
    for _ in range(100):
        if random.rand() < often:
            wanted = random.uniform(-1, 1, 5)
        else:
            wanted = [0.5, -2.0, 0, 0, 0] + random.normal(0, noise * np.array([1, 1, 1, 3, 10]))
        np.testing.assert_allclose(env.oracle_action(), np.clip(wanted, -1, 1))


def test_spaces_states_and_seeds():
    env = make_env(named("scene-play-singletask-task2-v0")).unwrapped
    assert env.render_mode is None and env.observation_space.shape == (3,)
    assert (
        np.isneginf(env.observation_space.low).all()
        and np.isposinf(env.observation_space.high).all()
    )
    assert env.observation_space.dtype == env.action_space.dtype == np.float32
    assert env.action_space.shape == (5,) and env.action_space.low.max() == -1.0
    assert env.action_space.high.min() == 1.0
    drawn = [(env.reset(seed=9), env.np_random.random())[1] for _ in range(2)]
    assert drawn[0] == drawn[1]
    state = env.get_sim_state()
    state[:21] += 0.125
    state[21:41], state[41:] = 0.5, (1, 0)
    assert env.set_sim_state(state).tolist() == state[CUBE].astype(np.float32).tolist()
    assert env.inner.qvel.tolist() == [0.5] * 20
    assert env.inner.buttons.tolist() == [1, 0] and env.inner.buttons.dtype == np.int64
    assert env.task_reward(state[:21], state[21:41], state[41:]) == -1.0
    state[CUBE] = GOAL
    assert env.task_reward(state[:21], state[21:41], state[41:]) == 0.0
    plain = make_env(named("cube-single-play-singletask-v0")).unwrapped
    plain.reset(seed=0)
    assert plain.get_sim_state().shape == (41,)
    assert plain.task_reward(state[:21], state[21:41]) == 0.0
    assert plain.set_sim_state(state[:41]).tolist() == GOAL.astype(np.float32).tolist()


def test_large_seeds_and_names_of_datasets():
    actions = []
    for seed in (6, 6 + 2**32):
        env, *_ = playing("cube-single-noisy-singletask-v0", seed)
        actions.append(env.oracle_action())
    assert not np.array_equal(*actions)  # gymnasium's generator takes the whole number
    sets = sys.modules[ADAPTER].DATASETS
    assert len(sys.modules[ADAPTER].TASKS_OF_SCENES) == 10 * 2 * 6
    found = sets["puzzle-4x6-noisy-singletask-task5-v0"]
    assert (found.world, found.kind, found.task, found.steps) == ("puzzle-4x6", "noisy", 5, 1000)
    chances = {
        name: sets[f"{name}-singletask-v0"].random_actions
        for name in ("scene-play", "scene-noisy", "puzzle-3x3-noisy", "puzzle-3x3-play")
    }
    assert chances == {
        "scene-play": 0.0,
        "scene-noisy": 0.1,
        "puzzle-3x3-noisy": 0.2,
        "puzzle-3x3-play": 0.0,
    }
    assert gymnasium.spec("scene-play-singletask-v0").disable_env_checker is True
