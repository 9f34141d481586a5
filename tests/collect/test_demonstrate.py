from dataclasses import replace

import numpy as np
import pytest

from imitate.collect import demonstrate as module
from imitate.collect.demonstrate import MotionNoise, Plan, demonstrate, describe
from imitate.envs import make_env
from imitate.envs.experts import Habits, find_expert
from imitate.errors import EnvError, UserError

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": {}}
BRIEF = Plan(env_meta=LIFT, seed=0, horizon=15, keep_failures=True)
"""Beginnings of episodes."""


@pytest.fixture(scope="module")
def brief():
    return demonstrate(BRIEF, 0)


def noisy(scale, quality="better", pause=0.0, steps=2000):
    noise = MotionNoise(np.random.default_rng(0), scale, quality, pause)
    return np.stack([noise(np.array([0.2, 0, 0, 0, 0, 0, 1.0])) for _ in range(steps)])


def test_no_noise_changes_nothing():
    assert (noisy(0.0) == np.array([0.2, 0, 0, 0, 0, 0, 1.0])).all()


def test_noise_is_centred_grows_with_its_scale_and_spares_the_gripper():
    one, two = noisy(1.0), noisy(2.0)
    assert (one[:, 6] == 1.0).all()
    np.testing.assert_allclose(one[:, 3:6].std(axis=0), 0.03, rtol=0.1)
    np.testing.assert_allclose(two[:, 3:6].std(axis=0), 0.06, rtol=0.1)
    assert abs(one[:, 0].mean() - 0.2) < 0.05
    # pushes: some steps are far off, and neighbours are off together
    deviation = one[:, 1]
    assert 0.05 < (np.abs(deviation) > 0.15).mean() < 0.25
    assert np.corrcoef(deviation[:-1], deviation[1:])[0, 1] > 0.4
    assert np.abs(two).max() <= 1.0


def test_pauses_stop_the_motion_but_not_the_gripper():
    paused = noisy(0.0, quality="worse", pause=0.06)
    still = (paused[:, 0] == 0.0).mean()
    assert 0.1 < still < 0.5
    assert (paused[:, 6] == 1.0).all()


def test_noise_keeps_to_the_motion_axes_and_the_limits_of_the_action():
    noise = MotionNoise(np.random.default_rng(0), 1.0, "better", 0.0, axes=3, low=-0.1, high=0.1)
    taken = np.stack([noise(np.array([0.0, 0.0, 0.0, 0.05])) for _ in range(500)])
    assert (taken[:, 3] == 0.05).all()
    assert (taken[:, :3].std(axis=0) > 0.02).all()
    assert np.abs(taken).max() == 0.1
    short = MotionNoise(np.random.default_rng(0), 1.0, "better", 0.0, axes=2)
    taken = np.stack([short(np.array([0.0, 0.0, 0.5])) for _ in range(500)])
    assert (taken[:, 2] == 0.5).all()
    assert (np.abs(taken[:, :2]).max(axis=0) > 0.2).all()  # pushes
    none = MotionNoise(np.random.default_rng(0), 1.0, "better", 0.0, axes=0)
    assert (none(np.full(14, 2.0)) == 2.0).all()


PRESS = {"env_name": "metaworld:button-press-v3", "type": 2, "env_kwargs": {}}


def test_an_episode_of_metaworld_is_recorded_with_its_instruction():
    plan = Plan(env_meta=PRESS, seed=0, noise=0.0, hold_steps=3, signals=("obj_to_target",))
    demo = demonstrate(plan, 0)
    assert demo.signals["obj_to_target"].argmin() > 10 and demo.signals["obj_to_target"].min() >= 0
    with pytest.raises(UserError, match=r"--signals obj_to_tarjet: .*did you mean 'obj_to_target'"):
        demonstrate(replace(plan, signals=("obj_to_tarjet",)), 0)
    assert demo.success
    assert demo.attrs["language"] == "press the button"
    assert "model_file" not in demo.attrs
    assert demo.successes.argmax() == len(demo.actions) - 4
    assert demo.rewards.tolist() == demo.successes.astype(float).tolist()
    assert (demo.obs["hand_pos"][1:] == demo.next_obs["hand_pos"][:-1]).all()


def test_a_recording_ends_with_the_environments_own_clock():
    plan = Plan(env_meta=PRESS, noise=0.0, horizon=900, hold_steps=900, keep_failures=True)
    assert len(demonstrate(plan, 0).actions) == 500


@pytest.mark.robosuite
@pytest.mark.slow("makes the simulator")
def test_an_episode_depends_on_its_number_alone(brief):
    first, other, again = brief, demonstrate(BRIEF, 1), demonstrate(BRIEF, 0)
    assert (first.actions == again.actions).all()
    assert (first.states == again.states).all()
    assert all((first.obs[key] == again.obs[key]).all() for key in first.obs)
    assert first.attrs["seed"] != other.attrs["seed"]


@pytest.mark.robosuite
@pytest.mark.slow("makes the simulator")
def test_what_is_recorded():
    demo = demonstrate(Plan(env_meta=LIFT, seed=0, hold_steps=4), 0)
    steps = len(demo.actions)
    assert demo.success
    assert steps < 80
    assert demo.successes.argmax() == steps - 5  # the first success and four more steps
    assert demo.states.shape == (steps, 32)
    for key, values in demo.obs.items():
        assert len(values) == steps
        np.testing.assert_array_equal(values[1:], demo.next_obs[key][:-1])
    assert demo.rewards.tolist() == demo.successes.astype(float).tolist()
    assert np.abs(demo.actions).max() <= 1.0
    assert demo.attrs["model_file"].startswith("<mujoco")
    wanted = {"success": True, "quality": "better", "action_label": "executed"}
    assert wanted.items() <= demo.attrs.items()
    assert (demo.executed == demo.actions).all()


@pytest.mark.robosuite
@pytest.mark.slow("makes the simulator")
def test_labels_of_the_expert_differ_from_what_was_executed(brief):
    clean = demonstrate(replace(BRIEF, label="expert"), 0)
    assert (clean.executed == brief.actions).all()
    assert np.abs(clean.actions - clean.executed).max() > 0.05
    assert clean.attrs["action_label"] == "expert"


@pytest.mark.robosuite
@pytest.mark.slow("makes the simulator")
def test_failures_are_kept_or_replaced(monkeypatch):
    kept = demonstrate(Plan(env_meta=LIFT, horizon=3, keep_failures=True), 0)
    assert (len(kept.actions), kept.attempts) == (3, 1)
    assert kept.success is kept.attrs["success"] is False
    monkeypatch.setattr(module, "MAX_ATTEMPTS", 2)
    with pytest.raises(EnvError, match="failed 2 times in a row at episode 0.*--horizon"):
        demonstrate(Plan(env_meta=LIFT, horizon=3), 0)


@pytest.mark.robosuite
@pytest.mark.slow("makes the simulator")
def test_a_simulator_that_blows_up_is_replaced(monkeypatch):
    made = []

    def make(meta, **words):
        env = make_env(meta, **words)
        if not made:
            env.base_env.step = None  # calling it raises TypeError
        made.append(env)
        return env

    monkeypatch.setattr(module, "make_env", make)
    # A description of its own: simulators of other tests are kept by theirs.
    demo = demonstrate(replace(BRIEF, env_meta={**LIFT, "env_kwargs": {"horizon": 999}}), 0)
    assert len(made) == 2
    assert len(demo.actions) == 15
    assert demo.attempts == 2
    assert demo.problems[0].startswith("episode 0, attempt 0: TypeError")


@pytest.mark.parametrize(
    ("kwargs", "names"),
    [
        ({"use_camera_obs": True, "camera_names": ["agentview"]}, ["agentview"]),
        ({"use_camera_obs": True, "camera_names": "agentview"}, ["agentview"]),
        ({"use_camera_obs": False, "camera_names": ["agentview"]}, None),
        (None, None),
    ],
)
def test_the_environment_has_the_cameras_of_its_description(kwargs, names, monkeypatch):
    made = []

    class Described:
        def __init__(self, meta, **words):
            made.append(words)

        def serialize(self):
            return made[0]

    monkeypatch.setattr(module, "make_env", Described)
    plan = Plan(env_meta={"env_name": "its own", "env_kwargs": kwargs})
    assert describe(plan) == {"camera_names": names}


@pytest.mark.robosuite
def test_description_is_complete():
    meta = describe(Plan(env_meta=LIFT))
    assert meta["env_version"].startswith("1.5")
    assert meta["env_kwargs"]["control_freq"] == 20


@pytest.mark.robosuite
@pytest.mark.nightly
def test_a_person_waits_and_takes_longer():
    lengths, still = {}, {}
    for name, habits in (("plain", None), ("person", Habits())):
        demos = [demonstrate(Plan(env_meta=LIFT, habits=habits), number) for number in range(2)]
        assert [demo.success for demo in demos] == [True] * 2
        lengths[name] = sum(len(demo.actions) for demo in demos)
        motion = np.concatenate([np.abs(demo.actions[:, :6]).max(axis=1) for demo in demos])
        still[name] = float((motion == 0.0).mean())
    assert lengths["person"] > 1.5 * lengths["plain"]
    assert still["plain"] == 0.0  # noise moves the expert all the time
    assert 0.15 < still["person"] < 0.6


@pytest.mark.robosuite
@pytest.mark.nightly
def test_a_person_tries_a_missed_grasp_again():
    always = replace(Habits(), miss_probability=1.0)
    missed = demonstrate(Plan(env_meta=LIFT, habits=always, horizon=250, keep_failures=True), 0)
    closes = np.diff(missed.actions[:, 6]) > 0
    assert closes.sum() >= 2
    assert not missed.success  # each try closes above the cube
    never = replace(Habits(), miss_probability=0.0)
    held = demonstrate(Plan(env_meta=LIFT, habits=never), 0)
    assert (np.diff(held.actions[:, 6]) > 0).sum() == 1
    assert held.success


def test_a_person_gets_twice_the_experts_steps():
    expert = find_expert("Lift")
    assert Plan(env_meta=LIFT).attempt_steps(expert) == 200
    assert Plan(env_meta=LIFT, habits=Habits()).attempt_steps(expert) == 400
    assert Plan(env_meta=LIFT, habits=Habits(), horizon=30).attempt_steps(expert) == 30


def test_noise_of_two_arms_spares_both_grippers():
    layout = find_expert("TwoArmLift").layout
    noise = MotionNoise(np.random.default_rng(0), 1.0, "better", 0.0, arms=2)
    executed = np.stack([noise(np.zeros(14)) for _ in range(500)])
    assert (executed[:, [6, 13]] == 0.0).all()
    assert (executed.std(axis=0)[layout.motion] > 0.02).all()
    assert abs(np.corrcoef(executed[:, 0], executed[:, 7])[0, 1]) < 0.5


def test_two_arms_have_no_mixed_demonstrators():
    with pytest.raises(UserError, match="--quality mixed: TwoArmLift has two arms"):
        Plan(env_meta={"env_name": "TwoArmLift", "type": 1}, qualities=("better", "worse"))
