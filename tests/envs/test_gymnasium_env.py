import re
import sys
import types

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from imitate.envs import gymnasium_env, make_env
from imitate.envs.env import random_actions
from imitate.envs.gymnasium_env import GymnasiumEnv, check_registered
from imitate.envs.spaces import ObservationSpace
from imitate.errors import EnvError
from imitate.system.trust import trust
from tests.refusals import refused


class Goal(gymnasium.Env):
    """Dict observations, an image, an index among three, and success on the second step."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-1.0, 1.0, (2, 2)),
            "image": spaces.Box(0, 255, (4, 4, 3), dtype=np.uint8),
            "mode": spaces.Discrete(3, start=1),
        }
    )
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        done = self.steps == 2
        return self._obs(), float(action), done, False, {"is_success": done}

    def _obs(self):
        return {
            "place": np.full((2, 2), 0.5, np.float32),
            "image": np.full((4, 4, 3), 7, np.uint8),
            "mode": np.int64(3),
        }


class Tupled(Goal):
    observation_space = spaces.Tuple((spaces.Discrete(2),))

    def _obs(self):
        return (np.int64(1),)


class Mixed(gymnasium.Env):
    """Remembers its actions."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.zeros(1, np.float32), 0.0, False, False, {"told": action}


PLACE = spaces.Box(-2.0, np.array([[3.0], [4.0]]), (2, 1), np.float32)
TOOL = spaces.Discrete(3, start=5)
gymnasium.register("ImitateMixed-v0", entry_point=Mixed)
gymnasium.register("ImitateGoal-v0", entry_point=Goal)
gymnasium.register("ImitateTupled-v0", entry_point=Tupled)


def test_box_is_flat_and_the_clock_truncates():
    env = GymnasiumEnv("Pendulum-v1")
    assert env.reset(seed=1)[0]["flat"].shape == (3,)
    assert (env.action_dim, env.action_low.tolist(), env.action_high.tolist()) == (1, [-2.0], [2.0])
    for step in range(200):
        _, reward, terminated, truncated, info = env.step(np.array([0.5]))
        assert (terminated, truncated) == (False, step == 199)
    assert reward < 0
    assert info["success"] is None and env.is_success() == {"task": None}, "unknown"
    env.close()


def test_discrete_actions_by_index_or_by_score():
    env = GymnasiumEnv("CartPole-v1")
    limits = env.action_low.tolist(), env.action_high.tolist()
    assert (env.action_dim, limits) == (2, ([0.0, 0.0], [1.0, 1.0]))
    outcomes = []
    for action in (np.array([0.1, 0.9]), np.array([1.0]), np.float64(1.0)):
        env.reset(seed=0)
        outcomes.append(env.step(action)[0]["flat"])
    env.reset(seed=0)
    left = env.step(np.array([1.0, 0.0]))[0]["flat"]
    assert (outcomes[0] == outcomes[1]).all()
    assert (outcomes[0] == outcomes[2]).all()
    assert outcomes[0][1] > left[1]  # pushed to the right, the cart's velocity is larger
    env.close()


@pytest.mark.parametrize(
    ("space", "parts"),
    [
        (spaces.Tuple((PLACE, TOOL)), lambda told: told),
        (spaces.Tuple((TOOL, PLACE)), lambda told: told[::-1]),
        (spaces.Dict({"at": PLACE, "use": TOOL}), lambda told: (told["at"], told["use"])),
    ],
)
def test_a_choice_and_numbers_beside_it_in_any_order(space, parts):
    env = GymnasiumEnv("ImitateMixed-v0", {"action_space": space})
    assert (env.num_choices, env.action_dim) == (3, 5)
    assert env.action_low.tolist() == [0, 0, 0, -2, -2]
    assert env.action_high.tolist() == [1, 1, 1, 3, 4]
    env.reset(seed=0)
    place, tool = parts(env.step(np.array([0.2, 0.5, 0.3, -1.5, 2.5]))[4]["told"])
    assert tool == 6 and place.tolist() == [[-1.5], [2.5]]


@pytest.mark.parametrize("part", [spaces.Discrete(2), spaces.MultiBinary(2)])
def test_other_actions_are_refused(part):
    with pytest.raises(EnvError, match="a Tuple or Dict of one each"):
        GymnasiumEnv("ImitateMixed-v0", {"action_space": spaces.Tuple((TOOL, part))})
    with pytest.raises(EnvError, match="is MultiDiscrete, but only Box, .* wrap the environment"):
        GymnasiumEnv("ImitateMixed-v0", {"action_space": spaces.MultiDiscrete([3, 2])})


def test_dict_image_and_discrete_observations():
    env = GymnasiumEnv("ImitateGoal-v0")
    obs, info = env.reset(seed=0)
    assert obs["place"].tolist() == [0.5, 0.5, 0.5, 0.5]
    assert (obs["image"].shape, obs["image"].dtype) == ((4, 4, 3), np.uint8)
    assert obs["mode"].tolist() == [0.0, 0.0, 1.0]
    assert info["success"] is None
    assert env.step(np.array([0.0, 0.0, 1.0]))[1] == 7.0  # the third action counts from 5
    assert env.is_success() == {"task": False}
    _, _, terminated, _, info = env.step(np.array([0.0]))
    assert (terminated, info["success"], env.is_success()) == (True, True, {"task": True})
    env.reset()
    assert env.is_success() == {"task": None}
    env.close()


def test_errors_say_what_to_do():
    with pytest.raises(EnvError, match="did you mean 'Pendulum-v1'"):
        GymnasiumEnv("Pendulm-v1")
    with pytest.raises(EnvError, match="no_such_argument"):
        GymnasiumEnv("Pendulum-v1", {"no_such_argument": 1})
    with pytest.raises(EnvError, match="render=True"):
        GymnasiumEnv("Pendulum-v1").render()
    with pytest.raises(EnvError, match="Tuple.*FlattenObservation"):
        GymnasiumEnv("ImitateTupled-v0").reset(seed=0)


@pytest.mark.render
def test_several_rewards_are_refused_or_named():
    class Several(Goal):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, np.array([1.0, 0.5]), *rest

    gymnasium.register("Several-v0", Several, disable_env_checker=True)
    env = GymnasiumEnv("Several-v0", {})
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"Several-v0: the reward has shape \(2,\); expected one"):
        env.step(np.zeros(env.action_dim))
    named = make_env({**env.serialize(), "reward_parts": True})
    named.reset(seed=0)
    _, reward, _, _, info = named.step(np.zeros(env.action_dim))
    assert (reward, info["reward:0"], info["reward:1"]) == (1.5, 1.0, 0.5)
    assert named.serialize()["reward_parts"]


def test_random_actions_by_hand():
    share = np.array([[0.0, 0.5, 0.25], [0.99, 0.5, 0.75]])
    low, high = np.array([0.0, 0.0, -np.inf]), np.array([1.0, 1.0, 3.0])
    given = random_actions(share, low, high, num_choices=2)
    np.testing.assert_allclose(given, [[1, 0, 0], [0, 1, 2]])
    allowed = np.array([[0, 1], [1, 0]])
    np.testing.assert_allclose(
        random_actions(share, low, high, 2, allowed)[:, :2], [[0, 1], [1, 0]]
    )
    np.testing.assert_allclose(random_actions(share, low, high)[1], [0.99, 0.5, 2.0])


def test_frames_have_the_wanted_size():
    env = GymnasiumEnv("InvertedPendulum-v5", render=True)
    env.reset(seed=0)
    frame = env.render(height=40, width=60)
    assert (frame.shape, frame.dtype) == ((40, 60, 3), np.uint8)
    assert frame.std() > 5
    env.close()


class Drawing(Goal):
    """Draws a red frame; its own ``draw`` is something else."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, render_mode=None):
        pass

    def render(self):
        return np.full((8, 8, 3), (255, 0, 0), np.uint8)

    def draw(self):
        raise AssertionError


class DrawingCameras(Drawing):
    def draw(self, camera_name, height, width):
        return np.full((height, width, 3), len(camera_name or ""), np.uint8)


def test_an_environment_draws_its_cameras_if_its_draw_takes_one():
    frames = []
    for name, kind in (("Drawing-v0", Drawing), ("DrawingCameras-v0", DrawingCameras)):
        gymnasium.register(name, kind, disable_env_checker=True)
        env = GymnasiumEnv(name, render=True)
        env.reset(seed=0)
        frames.append(env.render(height=4, width=6, camera_name="top"))
    assert all(frame.shape == (4, 6, 3) for frame in frames)
    assert (frames[0] == (255, 0, 0)).all()
    assert (frames[1] == 3).all()


def test_an_environment_without_pictures_is_refused_in_plain_words_before_it_is_made(recwarn):
    gymnasium.register("NoPictures-v0", Goal, disable_env_checker=True)
    with pytest.raises(EnvError, match="NoPictures-v0 cannot render: omit the video"):
        GymnasiumEnv("NoPictures-v0", render=True)
    assert not recwarn.list
    assert GymnasiumEnv("NoPictures-v0").reset(seed=0)


def test_an_environment_that_takes_any_keyword_may_draw():
    class Undeclared(Drawing):
        metadata = {"render_modes": []}

        def __init__(self, **kwargs):
            assert kwargs == {"render_mode": "rgb_array"}

    gymnasium.register("Undeclared-v0", Undeclared, disable_env_checker=True)
    env = GymnasiumEnv("Undeclared-v0", render=True)
    env.reset(seed=0)
    assert env.render(height=4, width=6).shape == (4, 6, 3)


def test_a_missing_module_of_environments_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(EnvError, match=r"do: pip install 'gymnasium-robotics>=1.4.2,<1.5'"):
        GymnasiumEnv("gymnasium_robotics:FetchReach-v4")
    trust("no_such_module")
    with pytest.raises(EnvError, match="no_such_module.*install it, or correct the name"):
        GymnasiumEnv("no_such_module:Thing-v0")


class Nested(Goal):
    """A Dict within a Dict, and a list of what is left to do."""

    observation_space = spaces.Dict(
        {
            "goal": spaces.Dict({"light switch": spaces.Box(-1.0, 1.0, (2,), np.float64)}),
            "robot arm": spaces.Box(-1.0, 1.0, (3,), np.float64),
        }
    )

    def step(self, action):
        obs, _, done, _, _ = super().step(action)
        return obs, 0.0, done, False, {"tasks_to_complete": [] if done else ["kettle"]}

    def _obs(self):
        return {"goal": {"light switch": np.full(2, 0.25)}, "robot arm": np.zeros(3)}


def test_a_dict_within_a_dict_and_success_when_nothing_is_left_to_do():
    gymnasium.register("Nested-v0", Nested)
    try:
        env = GymnasiumEnv("Nested-v0")
        obs, _ = env.reset(seed=0)
        shapes = {key: value.shape for key, value in obs.items()}
        assert shapes == {"robot arm": (3,), "goal_light_switch": (2,)}
        assert (obs["goal_light_switch"] == 0.25).all()
        assert env.step(np.array([1.0, 0.0, 0.0]))[4]["success"] is False
        assert env.step(np.array([1.0, 0.0, 0.0]))[4]["success"] is True
    finally:
        del gymnasium.registry["Nested-v0"]


def box(*shape, dtype=np.uint8):
    return spaces.Box(0, 255, shape, dtype)


@pytest.mark.parametrize(
    ("space", "shapes"),
    [
        (box(3, 24, 32), {"image": (24, 32, 3)}),
        (box(4, 84, 84), {"image": (84, 84, 4)}),
        (box(84, 84), {"image": (84, 84, 1)}),
        (box(24, 32, 1, dtype=np.float32), {"image": (24, 32, 1)}),
        (box(3, 24, 32, dtype=np.float32), {"image": (24, 32, 3)}),
        (box(24, 24, dtype=np.float32), {"flat": (576,)}),  # a matrix, or rays with features
        (box(8, 8, 12), {"flat": (768,)}),  # a board
        (spaces.Dict({"eye": spaces.Dict({"l": box(3, 24, 32)})}), {"eye_l": (24, 32, 3)}),
        (box(84, 84, 12), "has shape (84, 84, 12) of uint8, which is not a supported layout"),
        (box(4, 84, 84, 3), "which is not a supported layout"),
        (spaces.Dict({"a_b": box(2), "a": spaces.Dict({"b": box(2)})}), "have the name 'a_b'"),
    ],
)
def test_images_in_any_known_layout_are_images_and_others_are_named(space, shapes):
    if isinstance(shapes, str):
        with pytest.raises(EnvError, match=re.escape(shapes)):
            ObservationSpace("Odd-v0", space).observe(space.sample(), {})
        return
    raw = space.sample()
    obs = ObservationSpace("Odd-v0", space).observe(raw, {})
    assert {key: value.shape for key, value in obs.items()} == shapes
    if "image" in obs and raw.shape[0] in (3, 4):
        np.testing.assert_array_equal(obs["image"][5, 7], raw[:, 5, 7])


def test_an_observation_that_is_not_asked_for_may_have_any_layout():
    space = spaces.Dict({"stack": box(4, 84, 84, 3), "pos": box(2)})
    assert ObservationSpace("Odd-v0", space, ["pos"]).observe(space.sample(), {}).keys() == {"pos"}


class Maze(gymnasium.Env):
    """Its goal is a state, as in OGBench."""

    observation_space, action_space = spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (2,))

    def __init__(self, with_goal=True):
        self._with_goal = with_goal

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        info = {"goal": self.np_random.uniform(5, 6, 2)} if self._with_goal else {}
        return np.zeros(2), info


def test_the_goal_of_an_episode_is_an_observation():
    for name, with_goal in (("GoalMaze-v0", True), ("NoGoal-v0", False)):
        gymnasium.register(name, Maze, kwargs={"with_goal": with_goal})
    env = GymnasiumEnv("GoalMaze-v0")
    env.reset(seed=3)
    goal = env.get_goal()
    assert (goal["flat"] > 5).all()
    env.reset(seed=4)
    assert not np.array_equal(env.get_goal()["flat"], goal["flat"])
    other = GymnasiumEnv("NoGoal-v0")
    other.reset(seed=0)
    with pytest.raises(EnvError, match="put an observation of the goal"):
        other.get_goal()


# ---- part by part --------------------------------------------------------------------------------


class Plain(gymnasium.Env):
    """A number; the outcome of a step is that of the class."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space, action_space = spaces.Box(-9, 9, (1,)), spaces.Box(-1, 1, (1,))
    outcome = (0.5, False, False, {})
    closed = 0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"begun": True}

    def step(self, action):
        return np.ones(1, np.float32), *self.outcome

    def close(self):
        type(self).closed += 1


@pytest.fixture
def registered():
    """Registers classes, and makes their environments."""
    kept = dict(gymnasium.registry)

    def make(kind, kwargs=None, **words):
        gymnasium.register("Part-v0", kind, disable_env_checker=True, order_enforce=False)
        return GymnasiumEnv("Part-v0", kwargs, **words)

    yield make
    gymnasium.registry.clear()
    gymnasium.registry.update(kept)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Pendulum-v1", None),
        ("json.decoder:Any-v0", None),
        ("Pendulm-v1", "gymnasium has no environment 'Pendulm-v1' (|); did you mean 'Pendulum-v1'"),
        ("no_such.deep:A-v0", "no_such.deep:A-v0: cannot be imported (No module named 'no_such'); do: "),
    ],
)  # fmt: skip
def test_names_before_a_worker_makes_the_environment(name, words):
    if words is None:
        return check_registered(name)
    with refused(words, error=EnvError):
        check_registered(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ALE/Pong-v5", "; name it with the module that registers it, as in my_package:ALE/Pong-v5"),
        ("own_envs:Pendulm", "; did you mean 'own_envs:Pendulum-v1'?"),
        (
            "own_envs:Arm",
            "; register it in own_envs: gymnasium.register(id='Arm-v0', entry_point='own_envs:Arm'), "
            "and name it own_envs:Arm-v0",
        ),
    ],
)  # fmt: skip
def test_a_name_that_is_not_registered(name, words, monkeypatch):
    module = types.ModuleType("own_envs")
    module.Arm = Goal
    monkeypatch.setitem(sys.modules, "own_envs", module)
    monkeypatch.setenv("IMITATE_TRUST_MODULES", "own_envs")
    with pytest.raises(EnvError) as error:
        GymnasiumEnv(name)
    assert str(error.value).endswith(words)


def test_the_description_of_an_environment(registered):
    env = registered(Plain, {"render_mode": "human"})
    assert env.serialize() == {
        **{"env_name": "Part-v0", "env_version": gymnasium.__version__, "type": 2},
        "env_kwargs": {},
    }
    assert isinstance(env.unwrapped, Plain) and env.unwrapped.render_mode is None
    assert env.reset(seed=3)[1] == {"begun": True, "success": None} and not env.gives_mask
    before = Plain.closed
    env.close()
    assert Plain.closed == before + 1


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        ((0.5, np.bool_(True), 0, {"success": 1}), (0.5, True, False, True)),
        ((np.array([2.0]), np.array([True]), np.True_, {}), (2.0, True, True, None)),
        ((1, False, True, {"is_success": 0.0}), (1.0, False, True, False)),
        ((1, False, False, {"tasks_to_complete": []}), (1.0, False, False, True)),
        ((1, False, False, {"tasks_to_complete": [], "success": False}), (1.0, False, False, False)),
    ],
)  # fmt: skip
def test_the_outcome_of_a_step(registered, outcome, found):
    env = registered(type("Part", (Plain,), {"outcome": outcome}))
    env.reset()
    _, reward, ended, over, info = env.step(np.zeros(1))
    assert (reward, ended, over, info["success"]) == found
    assert type(ended) is type(over) is bool and env.is_success() == {"task": found[3]}


def test_a_batch_of_environments_is_refused(registered):
    outcome = (np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {})
    env = registered(type("Part", (Plain,), {"outcome": outcome}))
    env.reset()
    words = "Part-v0: the environment returns a batch (terminated has shape (2,), the reward (2,))"
    with refused(words, error=EnvError):
        env.step(np.zeros(1))


@pytest.mark.parametrize(
    ("error", "kwargs", "raised", "words"),
    [
        (TypeError("no key"), None, EnvError, "Part-v0 does not accept its env_kwargs: no key"),
        (ValueError("odd"), {"render": 1}, EnvError, "does not accept its env_kwargs: odd"),
        (OSError(), {"render": 1}, EnvError, "does not accept its env_kwargs: OSError"),
        (ValueError("odd"), None, ValueError, "^odd$"),
        (RuntimeError("own"), {"render": 1}, RuntimeError, "^own$"),
        (gymnasium.error.DependencyNotInstalled("get it\nnow"), None, EnvError, "^Part-v0: get it$"),
        (ImportError("gone"), None, EnvError, "cannot be imported .gone.; do: install it, or corr"),
    ],
)  # fmt: skip
def test_errors_of_constructors(registered, error, kwargs, raised, words):
    def fail(self, render_mode=None, **kwargs):
        raise error

    with pytest.raises(raised, match=words):
        registered(type("Part", (Plain,), {"__init__": fail}), kwargs)


@pytest.mark.parametrize(
    ("module", "raised"), [("own", ValueError), ("gymnasium_robotics", EnvError)]
)
def test_an_own_module_s_errors_keep_their_traceback(registered, monkeypatch, module, raised):
    def fail(self, render_mode=None, **kwargs):
        raise ValueError("odd")

    loaded = []
    monkeypatch.setattr(
        "imitate.envs.gymnasium_env.module_of_env", lambda *names: loaded.append(names)
    )
    with pytest.raises(EnvError):
        registered(type("Part", (Plain,), {"__init__": fail}), {"size": 1})
    with pytest.raises(raised, match="odd"):
        GymnasiumEnv(f"{module}:Part-v0", {"size": 1})
    assert loaded == [(f"{module}:Part-v0", None)]


def test_a_mask_in_an_info(registered):
    names = {
        "action_space": spaces.Discrete(2),
        "outcome": (0.0, False, False, {"action_mask": [1, 0]}),
    }
    env = registered(type("Part", (Plain,), names))
    env.reset()
    assert env.gives_mask is False
    assert env.step(np.zeros(1))[0]["action_mask"].tolist() == [1, 0] and env.gives_mask is True


class Stateful(Plain):
    state = np.array([1.0, 2.0])

    def get_sim_state(self):
        return self.state

    def set_sim_state(self, state):
        self.state = state
        return state[:1]


def test_an_environments_own_states(registered):
    env = registered(Stateful)
    env.reset()
    found = env.get_state()
    assert list(found) == ["states"] and found["states"].tolist() == [1, 2]
    assert env.reset_to({"states": [3, 4]})["flat"].tolist() == [3]
    assert env.get_state()["states"].tolist() == [3, 4]
    words = "Part-v0: the recorded state has shape (3,), but the environment's has (2,); use the"
    with refused(words, error=EnvError):
        env.reset_to({"states": np.zeros(3)})
    plain = registered(Plain)
    plain.unwrapped.reset = lambda **words: pytest.fail("it is refused before a reset")
    for call in (plain.get_state, lambda: plain.reset_to({"states": np.zeros(2)})):
        with refused(
            "Part-v0: the state of this environment can be neither read nor set, because",
            error=EnvError,
        ):
            call()


def test_states_of_mujoco():
    env, action = GymnasiumEnv("Reacher-v5"), np.array([0.5, -0.5])
    env.reset(seed=1)
    for _ in range(3):
        seen = env.step(action)[0]["flat"]
    state = env.get_state()["states"]
    assert state.shape == (9,) and state[0] > 0
    np.testing.assert_allclose(np.cos(state[1:3]), seen[:2])
    follows = env.step(action)[0]["flat"]
    env.reset(seed=2)
    np.testing.assert_allclose(env.reset_to({"states": state})["flat"], seen, atol=1e-4)
    assert env.get_state()["states"][0] == state[0]
    np.testing.assert_allclose(env.step(action)[0]["flat"], follows, atol=1e-6)
    with refused("has shape (8,), but the environment's has (9,)", error=EnvError):
        env.reset_to({"states": state[:8]})
    env.close()


class Reaching(Plain):
    box = spaces.Box(-9, 9, (2,), np.float32)
    observation_space = spaces.Dict({"achieved_goal": box, "desired_goal": box})

    def compute_reward(self, achieved, desired, info):
        assert achieved.dtype == desired.dtype == np.float32 and info == {}
        if achieved.shape[0] > 2:
            raise KeyError("speed")
        return -np.abs(achieved - desired).sum(axis=1)


def test_rewards_of_goals(registered):
    env = registered(Reaching)
    found = env.goal_rewards(np.float64([[1, 2], [0, 0]]), np.float64([[0, 0], [0, 0]]))
    assert found.tolist() == [-3, 0]
    words = (
        "Part-v0: compute_reward fails for 3 goals at once and an empty info (KeyError: 'speed')"
    )
    with refused(words, error=EnvError):
        env.goal_rewards(np.zeros((3, 2)), np.zeros((3, 2)))
    without = type("Part", (Plain,), {"observation_space": Reaching.observation_space})
    vector = type("Part", (Plain,), {"compute_reward": Reaching.compute_reward})
    for kind in (Plain, without, vector):
        with refused("Part-v0: the environment has no goals: it needs the vectors", error=EnvError):
            registered(kind).goal_rewards(np.zeros((1, 2)), np.zeros((1, 2)))


class Frames(Plain):
    def render(self):
        return np.arange(18.0).reshape(2, 3, 3)


def test_frames_are_resized_by_repeating_pixels(registered):
    env = registered(Frames, render=True)
    assert env.unwrapped.render_mode == "rgb_array"
    frame = env.render(height=4, width=3)
    assert frame.dtype == np.uint8 and frame[:, 0, 0].tolist() == [0, 0, 9, 9]
    assert frame[0, :, 1].tolist() == [1, 4, 7] and frame.flags.c_contiguous
    assert env.render().shape == (256, 256, 3)

    def missing(self):
        raise gymnasium.error.DependencyNotInstalled("get pygame\n!")

    env = registered(type("Part", (Plain,), {"render": missing}), render=True)
    with pytest.raises(EnvError, match="^Part-v0: get pygame$"):
        env.render()


@pytest.mark.parametrize(
    ("metadata", "takes_mode", "words"),
    [
        ({"render_modes": ["human"]}, True, None),
        ({}, True, None),
        ({"render_modes": ["rgb_array"]}, False, "does not accept its env_kwargs"),
        ({"render_modes": []}, False, "Part-v0 cannot render: omit the video"),
        (3, False, "Expect the environment metadata to be dict"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of gymnasium, about the metadata
def test_which_environments_can_draw(registered, metadata, takes_mode, words):
    """A constructor without ``render_mode`` is refused unless the metadata lists images."""

    def begin(self):
        self.render_mode = "rgb_array"

    names = {"metadata": metadata} if takes_mode else {"metadata": metadata, "__init__": begin}
    kind = type("Part", (Frames,), names)
    if words is None:
        assert registered(kind, render=True).render(height=2, width=2).shape == (2, 2, 3)
        return
    with refused(words, error=EnvError):
        registered(kind, render=True)


def test_triton_and_opengl_are_prepared_before_images_are_drawn(registered, monkeypatch):
    calls = []
    monkeypatch.setattr(gymnasium_env, "load_triton", lambda: calls.append("triton"))
    monkeypatch.setattr(gymnasium_env, "prepare_gl", lambda: calls.append("gl"))
    registered(Plain)
    assert calls == []
    registered(Plain, render=True)
    assert calls == ["triton"]
    registered(type("Part", (Plain,), {"observation_space": box(4, 4, 3)}))
    assert calls == ["triton", "triton"]
    kind = type("Part", (Plain,), {"__module__": "own.MuJoCo_tasks"})
    registered(kind)
    assert calls == ["triton", "triton"]
    registered(kind, render=True)
    assert calls == ["triton", "triton", "triton", "gl"]


def test_a_name_that_is_not_registered_is_quoted_with_a_near_one_of_its_module():
    trust("json.decoder")
    with pytest.raises(EnvError) as caught:
        GymnasiumEnv("json.decoder:Pendulm-v1")
    assert "did you mean 'json.decoder:Pendulum-v1'" in str(caught.value)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "parts",
    [
        {"_get_obs": lambda self: np.zeros(1)},
        {"_get_obs": lambda self: np.zeros(1), "model": types.SimpleNamespace(nq=1)},
        {"_get_obs": lambda self: np.zeros(1), "data": types.SimpleNamespace(qpos=np.zeros(1))},
        {"model": types.SimpleNamespace(nq=1), "data": types.SimpleNamespace(qpos=np.zeros(1))},
    ],
)
def test_a_simulator_has_a_model_data_and_observations(registered, parts):
    env = registered(type("Part", (Plain,), parts))
    with refused(
        "Part-v0: the state of this environment can be neither read nor set", error=EnvError
    ):
        env.get_state()


def test_functions_of_unknown_signature_may_take_a_keyword():
    assert gymnasium_env.takes_keyword(dict, "render_mode") is True
    assert gymnasium_env.takes_keyword(lambda a, render_mode: 0, "render_mode") is True
    assert gymnasium_env.takes_keyword(lambda a, **more: 0, "render_mode") is True
    assert gymnasium_env.takes_keyword(lambda a, *more: 0, "render_mode") is False


@pytest.mark.parametrize("made", ["own_room.py", "own_room"])
def test_a_module_of_the_present_folder_is_refused_with_the_way_to_import_it(
    made, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / made
    with pytest.raises(EnvError, match="do: install it, or correct the name"):
        check_registered("own_room:Own-v0")
    path.write_text("") if made.endswith(".py") else path.mkdir()
    monkeypatch.setattr(gymnasium_env, "find_spec", lambda name: None)
    with pytest.raises(
        EnvError, match="own_room is in this folder.*PYTHONPATH=. before the command"
    ):
        check_registered("own_room:Own-v0")
