import sys

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer

from imitate.envs import make_env
from imitate.envs.experts import Style, find_expert
from imitate.envs.experts.metaworld import INSTRUCTIONS
from imitate.envs.worlds.drawing import ModelCameras
from imitate.envs.worlds.metaworld import PARTS, MetaWorldEnv
from imitate.errors import EnvError


def task(name, **kwargs):
    return {"env_name": f"metaworld:{name}", "type": 2, "env_kwargs": kwargs}


@pytest.fixture(scope="module")
def drawer():
    env = make_env(task("drawer-open-v3"))
    yield env
    env.close()


def expert_for(name):
    return find_expert(f"metaworld:{name}")(Style.sample(np.random.default_rng(0)))


def test_observations_have_the_same_names_and_sizes_in_all_tasks(drawer):
    push = make_env(task("push-v3"))
    sizes = {
        "hand_pos": (3,),
        "gripper": (1,),
        "object_pos": (3,),
        "object_quat": (4,),
        "object2_pos": (3,),
        "object2_quat": (4,),
        "goal": (3,),
    }
    for env in (drawer, push):
        obs, _ = env.reset(seed=0)
        assert {key: value.shape for key, value in obs.items()} == sizes
    assert (obs["object2_pos"] == 0).all()
    assert obs["object_quat"] @ obs["object_quat"] == pytest.approx(1.0)
    # The range that push-v3 draws its goals from.
    assert (obs["goal"] >= (-0.1, 0.8, 0.01)).all()
    assert (obs["goal"] <= (0.1, 0.9, 0.02)).all()
    assert (push.action_low == -1).all()
    assert push.action_dim == 4
    push.close()


def test_a_recorded_state_goes_on_as_it_did_with_its_fixtures_in_place(drawer):
    drawer.reset(seed=4)
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 4))
    for action in actions[:6]:
        drawer.step(action)
    state = drawer.get_state()
    follows = [drawer.step(action)[0] for action in actions[6:]]
    drawer.reset(seed=5)  # the drawer stands elsewhere
    drawer.reset_to(state)
    for action, expected in zip(actions[6:], follows, strict=True):
        obs = drawer.step(action)[0]
        for key in expected:
            np.testing.assert_array_equal(obs[key], expected[key])
    started, _ = drawer.reset(seed=4)
    assert np.abs(started["object_pos"] - obs["object_pos"]).max() < 0.2


@pytest.mark.parametrize("shaped", [False, True])
def test_the_expert_solves_the_task_and_rewards_are_of_the_kind_asked_for(shaped):
    env, expert = (
        make_env(task("button-press-v3", reward_shaping=shaped)),
        expert_for("button-press-v3"),
    )
    obs, _ = env.reset(seed=0)
    rewards, solved = [], False
    while not solved and len(rewards) < 150:
        obs, reward, terminated, truncated, info = env.step(expert.act(obs))
        assert not (terminated or truncated)
        solved = info["success"]
        rewards.append(reward)
    assert solved is True
    assert env.is_success() == {"task": True}
    assert (rewards[-1] > 1.0) == shaped
    assert any(0.0 < reward < 1.0 for reward in rewards) == shaped
    env.close()


def test_an_episode_ends_after_500_steps_by_the_clock(drawer):
    drawer.reset(seed=0)
    ends = [drawer.step(np.zeros(4))[2:4] for _ in range(500)]
    assert ends[-2:] == [(False, False), (False, True)]


@pytest.mark.filterwarnings("ignore:Constant")  # of Meta-World, for actions beyond their limits
@pytest.mark.parametrize("name", ["peg-insert-side-v3", "stick-push-v3", "basketball-v3"])
def test_the_expert_acts_as_metaworlds_policy_on_the_whole_vector(name):
    from metaworld.policies import ENV_POLICY_MAP

    env, expert, policy = MetaWorldEnv(name), expert_for(name), ENV_POLICY_MAP[name]()
    env.reset(seed=2)
    action = np.zeros(4)
    for _ in range(20):
        vector = env.inner.step(action)[0]
        action = expert.act({key: vector[part] for key, part in PARTS.items()})
        np.testing.assert_allclose(action, np.clip(policy.get_action(vector), -1, 1), rtol=1e-6)
    env.close()


def test_each_task_has_an_expert_and_words_of_its_own():
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    assert set(INSTRUCTIONS) == set(ALL_V3_ENVIRONMENTS)
    assert len(set(INSTRUCTIONS.values())) == 50
    assert find_expert("metaworld:push-v3").instruction == "push the object to the goal"


def test_a_task_that_does_not_exist():
    with pytest.raises(EnvError, match="no environment 'metaworld:psh-v3'"):
        make_env(task("psh-v3"))


def test_a_missing_package_is_named_with_its_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    monkeypatch.setitem(sys.modules, "metaworld.policies", None)
    monkeypatch.delitem(sys.modules, "imitate.envs.worlds.metaworld", raising=False)
    with pytest.raises(EnvError, match="metaworld.*pip install 'metaworld>=3.1,<3.2'"):
        make_env(task("push-v3"))
    with pytest.raises(EnvError, match="metaworld.*pip install 'metaworld>=3.1,<3.2'"):
        find_expert("metaworld:push-v3")


@pytest.mark.render
@pytest.mark.slow("draws in software")
def test_images_of_the_corners_are_turned_upright():
    env = MetaWorldEnv("push-v3", camera_names=["corner2", "gripperPOV"], camera_size=32)
    obs, _ = env.reset(seed=0)
    viewer = OffScreenViewer(env.inner.model, env.inner.data, 32, 32)
    viewer.make_context_current()
    raw = {
        name: viewer.render("rgb_array", camera_id=env.inner.model.camera(name).id)
        for name in ("corner2", "gripperPOV")
    }
    np.testing.assert_array_equal(obs["corner2_image"], raw["corner2"][::-1, ::-1])
    np.testing.assert_array_equal(obs["gripperPOV_image"], raw["gripperPOV"])
    env.close()
    env = make_env(task("push-v3"), render=True)
    env.reset(seed=0)
    assert env.render(height=24, width=40, camera_name="topview").shape == (24, 40, 3)
    with pytest.raises(EnvError, match="no camera 'topvew'; did you mean 'topview'"):
        env.render(camera_name="topvew")
    large = env.render(
        height=500, width=700, camera_name="topview"
    )  # Meta-World's buffer: 480 x 480
    assert large.shape == (500, 700, 3)
    assert large[:, 500:].mean() > 20
    env.close()
    with pytest.raises(EnvError, match="no camera 'corner9'.*corner"):
        make_env(task("push-v3", camera_names=["corner9"]))


@pytest.mark.render
@pytest.mark.slow("draws in software")
def test_images_without_shadows():
    env = MetaWorldEnv("push-v3", camera_names=["corner2"], camera_size=48, shadows=False)
    drawn = env.reset(seed=0)[0]["corner2_image"].astype(int)
    viewer = OffScreenViewer(env.inner.model, env.inner.data, 48, 48)
    viewer.make_context_current()
    camera = env.inner.model.camera("corner2").id
    shadowed = viewer.render("rgb_array", camera_id=camera)[::-1, ::-1].astype(int)
    viewer.scn.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
    plain = viewer.render("rgb_array", camera_id=camera)[::-1, ::-1].astype(int)
    env.close()
    np.testing.assert_array_equal(drawn, plain)
    assert np.abs(drawn - shadowed).max() > 20


def test_defaults_seeds_and_the_end(monkeypatch):
    spec = gymnasium.spec("push-v3")
    assert (spec.max_episode_steps, spec.disable_env_checker) == (500, True)
    env, drawn, closed = MetaWorldEnv("push-v3"), [], []
    assert env.metadata == {"render_modes": ["rgb_array"], "render_fps": 80}
    assert {key: (part.start, part.stop) for key, part in PARTS.items()} == {
        "hand_pos": (0, 3),
        "gripper": (3, 4),
        "object_pos": (4, 7),
        "object_quat": (7, 11),
        "object2_pos": (11, 14),
        "object2_quat": (14, 18),
        "goal": (36, 39),
    }
    goals = []
    for _ in range(2):
        env.reset(seed=3)
        goals.append([env.reset()[0]["goal"].tolist() for _ in range(2)])
    assert goals[0] == goals[1] and goals[0][0] != goals[0][1]
    place = env.observation_space["goal"]
    np.testing.assert_allclose(place.low, [-0.1, 0.8, 0.01])
    np.testing.assert_allclose(place.high, [0.1, 0.9, 0.02])
    assert env.render_mode is None and env.observation_space["gripper"].dtype == np.float64
    outcomes = []
    for size in (1.0, 7.0):  # actions are clipped
        obs, info = env.reset(seed=3)
        assert info == {"success": False}
        outcomes.append(env.step(np.array([size, -size, size, -size])))
    np.testing.assert_array_equal(outcomes[0][0]["hand_pos"], outcomes[1][0]["hand_pos"])
    assert outcomes[0][1:4] == (0.0, False, False) and outcomes[0][4]["success"] is False
    assert not np.array_equal(outcomes[0][0]["hand_pos"], obs["hand_pos"])
    obs["goal"][:] = 9.0
    assert env.step(np.zeros(4))[0]["goal"].max() < 1.0
    numbers = [(env.reset(seed=3), env.np_random.random())[1] for _ in range(2)]
    assert numbers[0] == numbers[1]  # gymnasium's own generator, too
    monkeypatch.setattr(ModelCameras, "draw", lambda self, *frame: drawn.append(frame))
    monkeypatch.setattr(ModelCameras, "close", lambda self: closed.append("cameras"))
    env.render()
    env.draw("topview", 3, 4)
    assert drawn == [("corner2", 480, 480), ("topview", 3, 4)]
    monkeypatch.setattr(env.inner, "close", lambda: closed.append("inner"))
    env.close()
    assert closed == ["cameras", "inner"]
    observed = MetaWorldEnv("push-v3", camera_names=["corner"]).observation_space["corner_image"]
    assert observed.shape == (84, 84, 3)
