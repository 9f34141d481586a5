"""A robot as an environment: the loop's safety, the info of each step, and names."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from imitate.deploy.robot import robot_env
from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.loop import Safety
from imitate.deploy.robot.robot import Guidance, Observation, Robot
from imitate.deploy.robot.robot_env import RobotEnv
from imitate.envs import Env, make_env
from imitate.errors import EnvError, RobotError, UserError
from imitate.evaluate.environments import named_env
from imitate.system import clock
from imitate.system.trust import trust, trust_env
from tests.deploy.fake_robot import FakeRobot, Pushing, Scripted
from tests.refusals import refused

PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
CALM = Safety(late=0)  # other processes of the machine must not end a test
RATE = 50.0


class Stepping(Robot):
    """A point that moves by its actions, whose time stands still between them; ``script`` maps calls to faults."""

    observation_shapes = {"place": (1,), "camera": (4, 4, 3)}
    in_step = True
    rate_hz = 10.0

    def __init__(self, goal=np.inf, end=np.inf, step=None, resets=True):
        self.limits = ActionLimits(low=[-1.0], high=[1.0], step=step)
        self.goal, self.end, self.resets = goal, end, resets
        self.calls, self.place, self.ticks = [], 0.0, 0

    def observe(self):
        self.ticks += 1
        camera = np.full((4, 4, 3), self.ticks % 251, np.uint8)
        return Observation({"place": np.array([self.place]), "camera": camera}, clock.now())

    def send(self, action):
        self.calls.append(float(action[0]))
        self.place += float(action[0])

    def hold(self):
        self.calls.append("hold")

    def stop(self):
        self.calls.append("stop")

    def pose(self, observation):
        return np.zeros(1)

    def reset(self):
        return self.reset_to(0)

    def reset_to(self, start):
        self.place, self.ticks = float(start), 0
        return self.observe() if self.resets else None

    def success(self):
        return self.place > self.goal

    def ended(self):
        return self.place > self.end


@pytest.fixture
def opened():
    """RobotEnv that is closed at the end."""
    with ExitStack() as envs:

        def make(robot, *args, **rest):
            envs.callback((env := RobotEnv(robot, *args, **rest)).close)
            return env

        yield make


@pytest.fixture
def begun(opened):
    """RobotEnv that has been reset."""

    def make(robot, *args, **rest):
        env = opened(robot, *args, **rest)
        env.reset(seed=0)
        return env

    return make


def pressing(event, step=1):
    return Scripted({step: Guidance(events=frozenset({event}))})


# ---- steps ---------------------------------------------------------------------------------------


def test_a_step_sends_the_action_and_returns_what_follows_from_it(opened):
    env = opened(Stepping(goal=1.0))
    obs, info = env.reset(seed=0)
    assert obs["place"] == 0.0
    assert not info["success"]
    obs, reward, terminated, truncated, info = env.step(np.array([0.7]))
    np.testing.assert_allclose(obs["place"], [0.7])
    assert (reward, terminated, truncated) == (0.0, False, False)
    obs, reward, _, _, info = env.step(np.array([0.5]))
    np.testing.assert_allclose(obs["place"], [1.2])
    assert reward == 1.0 and info["success"] and env.is_success() == {"task": True}


def test_it_is_an_environment_of_both_kinds(opened):
    from gymnasium.utils.env_checker import check_env

    env = opened(Stepping())
    assert isinstance(env, Env)
    check_env(env, skip_render_check=True)
    obs, _ = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    assert obs["camera"].dtype == np.uint8
    assert env.render(height=8, width=8).shape == (8, 8, 3)
    meta = {"env_name": "robot", "type": 4, "env_kwargs": {"control_freq": 10.0}}
    assert env.serialize() == meta
    with pytest.raises(EnvError, match="cannot be set to a recorded state"):
        env.reset_to({})


def test_the_limits_of_the_robot_hold_and_the_executed_action_is_told(begun):
    robot = Stepping(step=0.25)
    env = begun(robot, reward=lambda obs, action: obs["place"][0] + 10 * action[0])
    steps = [env.step(np.array([5.0])) for _ in range(3)]
    executed = [step[4]["executed_action"][0] for step in steps]
    np.testing.assert_allclose(executed, [0.25, 0.5, 0.75])
    assert robot.calls[:3] == [0.25, 0.5, 0.75]
    assert steps[0][1] == pytest.approx(0.25 + 2.5)  # a reward of one's own sees what was executed


def test_an_action_that_is_not_finite_is_never_sent_and_stops_the_robot(begun):
    robot = Stepping()
    env = begun(robot)
    with refused("not finite", error=RobotError):
        env.step(np.array([np.nan]))
    assert robot.calls[-1] == "stop"
    assert all(isinstance(call, str) for call in robot.calls)
    with refused("call reset", error=EnvError):
        env.step(np.array([0.0]))


def test_ends_are_terminals_and_the_horizon_truncates(begun):
    env = begun(Stepping(end=1.0), horizon=4)
    ends = [env.step(np.array([0.6]))[2:4] for _ in range(2)]
    assert ends == [(False, False), (True, False)]
    with refused("call reset", error=EnvError):
        env.step(np.array([0.0]))
    env.reset(seed=0)
    assert [env.step(np.array([0.0]))[3] for _ in range(4)] == [False, False, False, True]


class Wide(Stepping):
    """A robot with two cameras and a reward."""

    observation_shapes = {"front_image": (2, 4, 3), "wrist_image": (3, 2, 3)}

    def observe(self):
        self.ticks += 1
        front, wrist = (
            np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
            np.full((3, 2, 3), 99, np.uint8),
        )
        values = {"place": np.array([self.place]), "front_image": front, "wrist_image": wrist}
        return Observation({**values, "ticks": np.array([self.ticks], np.uint8)}, clock.now())

    def reward(self):
        return 2.5


def test_spaces_of_a_robot(opened):
    robot = Wide()
    robot.limits = ActionLimits(low=[-1.0], high=[3.0], margin=0.25)
    env = opened(robot, obs_keys=["place", "wrist_image"])
    assert list(env.observation_space) == ["place", "wrist_image"]
    place, wrist = env.observation_space["place"], env.observation_space["wrist_image"]
    assert (place.low.tolist(), place.high.tolist(), place.dtype) == (
        [-np.inf],
        [np.inf],
        "float32",
    )
    assert (wrist.low.max(), wrist.high.min(), wrist.shape) == (0, 255, (3, 2, 3))
    assert (env.action_low.tolist(), env.action_high.tolist()) == ([-0.75], [2.75])
    assert (env.action_dim, env.action_space.low, env.action_space.high) == (1, -0.75, 2.75)
    with refused(
        "robot: the robot gives no observation 'top', but only place, front_image, ", error=EnvError
    ):
        RobotEnv(Wide(), obs_keys=["place", "top"])


def test_a_frame_shows_the_nearest_pixels_of_a_camera(opened):
    env = opened(Wide())
    assert env.render(height=4, width=2)[..., 0].tolist() == [[0, 6], [0, 6], [12, 18], [12, 18]]
    for name in (None, "front", "other"):
        assert (
            env.render(height=2, width=4, camera_name=name).tolist()
            == np.arange(24).reshape(2, 4, 3).tolist()
        )
    frame = env.render(camera_name="wrist")
    assert frame.shape == (256, 256, 3) and (frame == 99).all() and frame.dtype == np.uint8
    env._seen = {"place": np.zeros(1)}
    with refused("robot: the robot has no camera", error=EnvError):
        env.render()


def test_between_episodes_a_robot_is_observed_anew_and_its_own_reward_counts(opened):
    env = opened(Wide())
    first = int(env.observe()["ticks"][0])
    assert int(env.observe()["ticks"][0]) == first + 1
    _, info = env.reset(seed=5)
    assert env.np_random_seed == 5
    assert (info["executed_action"].tolist(), info["intervened"], info["held"]) == (
        [0.0],
        False,
        False,
    )
    assert (info["interventions"], info["discarded"], info["success"]) == (0, False, False)
    begun = int(env.observe()["ticks"][0])
    assert int(env.observe()["ticks"][0]) == begun
    assert env.step(np.array([0.5]))[1] == 2.5
    with refused("the state of a real robot and its scene cannot be read", error=EnvError):
        env.get_state()


def test_a_robot_of_any_rate_needs_one(opened):
    robot = Stepping()
    robot.rate_hz = None
    with refused(
        "robot: the robot has no control rate of its own: set control_freq", error=UserError
    ):
        RobotEnv(robot)
    assert robot.calls == ["stop"]
    assert opened(robot, 7).rate_hz == 7.0


# ---- a person ------------------------------------------------------------------------------------


def test_a_person_overrides_and_judges(begun):
    script = {2: Guidance(np.array([-0.5])), 3: Guidance(np.array([-0.25]), frozenset({"success"}))}
    hand = Scripted(script)
    env = begun(Stepping(), teleoperator=hand)
    steps = [env.step(np.array([0.1])) for _ in range(3)]
    infos = [step[4] for step in steps]
    assert [info["intervened"] for info in infos] == [False, True, True]
    np.testing.assert_allclose([i["executed_action"][0] for i in infos], [0.1, -0.5, -0.25])
    assert (infos[-1]["interventions"], infos[-1]["success"]) == (1, True)
    assert [step[2] for step in steps] == [False, False, True]
    assert steps[-1][1] == 1.0
    np.testing.assert_allclose(np.ravel(hand.followed), [0.1, -0.5, -0.25])


@pytest.mark.parametrize(
    ("event", "ends", "discarded"),
    [("failure", (1, 0), False), ("end", (0, 1), False), ("discard", (0, 1), True)],
)
def test_events_end_an_episode(begun, event, ends, discarded):
    env = begun(Stepping(), teleoperator=pressing(event))
    _, _, terminated, truncated, info = env.step(np.array([0.1]))
    assert (terminated, truncated) == ends
    assert (info["success"], info["discarded"]) == (False, discarded)


def test_quit_stops_the_robot_for_good(begun):
    robot = Stepping()
    env = begun(robot, teleoperator=pressing("quit"))
    with refused("quit", error=RobotError):
        env.step(np.array([0.1]))
    assert robot.calls[-1] == "stop"


@pytest.mark.parametrize(
    ("step", "options", "moved"), [(None, {}, 0.5), (0.5, {"slow": 0.1}, 0.05)]
)
def test_a_person_prepares_the_scene_where_the_robot_cannot(opened, step, options, moved):
    robot, hand = Stepping(step=step, resets=False), pressing("success", step=2)
    hand.script[1] = Guidance(np.array([0.5]))
    obs, _ = opened(robot, teleoperator=hand, **options).reset(seed=0)
    sent = [call for call in robot.calls if isinstance(call, float)]
    assert sent == pytest.approx([moved])  # the person moved it meanwhile, in slow motion too
    np.testing.assert_allclose(obs["place"], [moved])


def test_without_anybody_to_prepare_the_scene_nothing_moves(opened, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    robot = Stepping(resets=False)
    env = opened(robot)
    with refused("nobody can confirm that the scene is ready", error=RobotError):
        env.reset(seed=0)
    assert robot.calls == []
    opened(Stepping(resets=False), prepare=False).reset(seed=0)


def test_a_person_at_a_terminal_prepares_the_scene(opened, monkeypatch, capsys):
    class Terminal:
        read = 0

        def isatty(self):
            return True

        def readline(self):
            self.read += 1

    monkeypatch.setattr(sys, "stdin", Terminal())
    opened(Stepping(resets=False)).reset(seed=0)
    assert sys.stdin.read == 1
    assert capsys.readouterr().err == "prepare the scene, then press Enter: "
    opened(Stepping()).reset(seed=0)
    opened(Stepping(resets=False), prepare=False).reset(seed=0)
    assert sys.stdin.read == 1


def test_a_person_who_quits_while_preparing_begins_no_episode(opened, capsys):
    robot = Stepping(resets=False)
    env = opened(robot, teleoperator=pressing("quit"))
    with refused("a person ended the run at the device (quit)", error=RobotError):
        env.reset(seed=0)
    assert capsys.readouterr().err == "prepare the scene, then press success at the device\n"
    with refused("call reset() before step()", error=EnvError):
        env.step(np.zeros(1))


# ---- while time passes ----


@pytest.fixture
def running(virtual_time, begun):
    """An environment of a robot, reset."""

    def make(robot, **rest):
        return begun(robot, RATE, prepare=False, **{"safety": CALM, **rest})

    return make


def test_steps_keep_their_rate(running):
    robot = FakeRobot()
    env = running(robot)
    for _ in range(20):
        env.step(np.array([0.1, 0.1]))
    np.testing.assert_allclose(np.diff(robot.times("send")), 1 / RATE)
    assert env.counts == {"steps": 20, "held": 0, "interventions": 0}


def test_a_learner_that_takes_its_time_leaves_no_robot_moving(running):
    robot = FakeRobot(pose=np.array([0.3, 0.0]), limits=ActionLimits([-1] * 2, [1] * 2, step=0.1))
    env = running(robot, safety=Safety(late=0, hold_s=0.29))
    env.step(np.array([0.4, 0.0]))
    sent = robot.times("send")[-1]
    clock.sleep(0.8)  # an update
    holds = [when - sent for when in robot.times("hold") if when > sent]
    stops = [when - sent for when in robot.times("stop") if when > sent]
    # Each step waits for 9/10 of its period; the wait began with the observation after the action, at 0.02 s.
    np.testing.assert_allclose(holds, 0.038 + 0.02 * np.arange(len(holds)))
    assert stops[0] == pytest.approx(0.318)
    assert holds[-1] <= stops[0]
    # The action that was decided on what was seen before the update is not sent.
    info = env.step(np.array([1.0, 0.0]))[4]
    assert info["held"]
    np.testing.assert_allclose(info["executed_action"], [0.3, 0.0])
    # The next one is limited from where the robot is, not from the last command.
    robot.measured = np.array([-0.5, 0.0])
    clock.sleep(0.8)
    env.step(np.array([1.0, 0.0]))
    info = env.step(np.array([1.0, 0.0]))[4]
    assert not info["held"]
    np.testing.assert_allclose(info["executed_action"], [-0.4, 0.0])
    assert env.counts["held"] == 2


def test_an_action_of_before_a_pause_is_not_sent_by_a_robot_without_stamps_either(running):
    robot = FakeRobot(stamped=False)
    env = running(robot, safety=Safety(late=0, hold_s=0.3))
    for pause_s in (0.2, 0.8):  # within and beyond the time after which the robot is stopped
        env.step(np.array([0.1, 0.0]))
        clock.sleep(pause_s)
        assert env.step(np.array([0.7, 0.0]))[4]["held"]
    assert 0.7 not in robot.sent


def test_a_person_moves_nothing_that_the_learner_does_not_know_of(running):
    robot = FakeRobot()
    running(robot, teleoperator=Pushing([0.5, 0.0])).step(np.zeros(2))
    clock.sleep(0.4)
    assert len(robot.sent) == 1


def test_a_hanging_driver_is_stopped_by_the_watchdog_and_told(running):
    robot = FakeRobot()
    robot.faults["send"] = lambda: clock.sleep(1.0 if len(robot.times("send")) == 3 else 0)
    env = running(robot, safety=Safety(late=0, watchdog_s=0.2))
    with pytest.raises(RobotError, match="watchdog"):
        for _ in range(5):
            env.step(np.zeros(2))
    assert len(robot.sent) == 3
    # 0.2 s after the step before it ended
    assert robot.times("stop")[0] - robot.times("send")[1] == pytest.approx(0.2)


def test_closing_stops_and_nothing_follows(running):
    robot = FakeRobot()
    env = running(robot)
    env.step(np.zeros(2))
    env.close()
    env.close()
    assert robot.last_calls()[-1] == "stop"
    clock.sleep(0.1)
    assert robot.last_calls()[-1] == "stop"


def test_closing_stops_robot_and_device_once_and_reports_late_steps(running, monkeypatch, caplog):
    class Device(Pushing):
        closed = 0

        def close(self):
            self.closed += 1

    released = []
    monkeypatch.setattr(robot_env.AtExit, "release", lambda self: released.append(self))
    robot, device = FakeRobot(), Device([0.5, 0.0])
    robot.close = lambda: robot.note("close")
    robot.faults["send"] = lambda: clock.sleep(0.025)  # longer than a period of 0.02 s
    env = running(robot, teleoperator=device)
    for _ in range(3):
        env.step(np.zeros(2))
    env.reset()
    assert env.counts["late"] == 3
    for _ in range(3):
        env.step(np.zeros(2))
    env.close()
    env.close()
    assert [name for _, name, _ in robot.calls][-2:] == ["stop", "close"]
    assert (device.closed, released) == (1, [env._at_exit])
    assert [record.getMessage() for record in caplog.records] == [
        "robot: of 6 control steps at 50 Hz 0 held the pose because the action came too late, "
        "6 were late, 4 were a person's"  # not in the first step of an episode
    ]


def test_a_robot_that_never_began_is_stopped_and_released_without_a_word(opened, caplog):
    robot = FakeRobot()
    robot.close = lambda: robot.note("close")
    opened(robot, RATE).close()
    assert [name for _, name, _ in robot.calls] == ["observe", "stop", "close"]
    assert caplog.records == []


# ---- however a process ends ----

SCRIPT = """
import sys, threading, numpy as np
from imitate.system import clock
from imitate.deploy.robot.loop import Safety
from imitate.deploy.robot.robot_env import RobotEnv
from tests.deploy.fake_robot import FakeRobot

class Told(FakeRobot):
    def note(self, name, value=None):
        super().note(name, value)
        if name in ("send", "stop"):
            print(name, flush=True)

robot, how = Told(), sys.argv[1]
env = RobotEnv(robot, 50.0, safety=Safety(late=0, hold_s=600.0, watchdog_s=600.0), prepare=False)
env.reset()
while how == "signal" or len(robot.sent) < 4:
    env.step(np.zeros(2))
if how == "raise":
    raise ValueError("the learner failed")
if how == "hang":  # a driver that hangs while the environment is closed
    hangs, leave = threading.Event(), env._exchange.leave
    robot.faults["observe"] = lambda: hangs.set() or clock.sleep(600)
    hangs.wait()
    env._exchange.leave = lambda: leave() or print("closing", flush=True)
    env.close()
"""


@pytest.mark.slow("processes that end in several ways")
@pytest.mark.parametrize(
    ("how", "after", "number", "code"),
    [
        ("raise", None, None, 1),
        ("exit", None, None, 0),
        ("signal", "send", signal.SIGTERM, 128 + signal.SIGTERM),
        ("signal", "send", signal.SIGINT, 128 + signal.SIGINT),
        ("hang", "closing", signal.SIGTERM, 128 + signal.SIGTERM),
    ],
)
def test_however_a_process_ends_the_robot_is_at_rest(preloaded_commands, how, after, number, code):
    forked = (preloaded_commands / "imitate", "--program")
    with subprocess.Popen(
        [*((sys.executable, "-c") if how == "exit" else forked), SCRIPT, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == after and lines.count("send") == 4:
                process.send_signal(number)
                after = None
    assert process.returncode == code
    assert lines.count("send") >= 4 and lines[-1] == "stop"


# ---- by name -------------------------------------------------------------------------------------


@pytest.fixture
def nothing_trusted(monkeypatch, tmp_path):
    monkeypatch.setenv("IMITATE_TRUST_MODULES", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


HERE = "tests.deploy.robot.test_robot_env"


def half_of_the_action(obs, action):
    return 0.5 * action[0]


def named(**kwargs):
    return {"env_name": f"robot:{HERE}:Stepping", "type": 4, "env_kwargs": kwargs}


def test_no_file_moves_a_robot(nothing_trusted):
    for trusted in ([], [HERE]):  # a module is not a robot
        list(map(trust, trusted))
        with refused(
            "a file names this robot, and connecting to the robot could move it", error=EnvError
        ):
            make_env(named())
    trust(f"robot:{HERE}:Stepping")
    reward = f"{HERE}:half_of_the_action"
    trust_env(named(reward=reward))
    env = make_env(named(options={"goal": 0.5}, reward=reward))
    env.reset(seed=1)
    _, reward, *_, info = env.step(np.full(1, 0.5))
    assert (reward, info["success"]) == (0.25, True)
    env.close()


@pytest.mark.parametrize("key", ["take_over", "reward"])
def test_no_file_runs_code_by_a_robots_arguments(nothing_trusted, key):
    trust(f"robot:{HERE}:Stepping")
    with refused("--trust some_module:thing", error=EnvError):
        make_env(named(**{key: "some_module:thing"}))


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"rate": 3}, "unknown key 'rate'"),
        ({"reward": f"{HERE}:nothing"}, "not a module:function"),
        ({"limits": {"high": [2.0]}}, "looser than the robot's own"),
        ({"safety": {"patience": 3}}, "patience"),
        ({"options": {"colour": 3}}, "cannot be made"),
    ],
)
def test_arguments_that_do_not_fit_are_one_line(kwargs, words):
    trust_env(named(**kwargs))
    with refused(words, error=UserError):
        make_env(named(**kwargs))


def test_a_simulated_robot_by_name_begins_with_the_seed():
    meta = named_env("robot:sim:Pendulum-v1")
    meta["env_kwargs"]["options"]["in_step"] = True
    env, plain = make_env(meta), make_env(PENDULUM)
    for seed in (7, 8, 7):
        starts = [one.reset(seed=seed)[0]["flat"] for one in (env, plain)]
        np.testing.assert_allclose(*starts)
        for _ in range(3):
            mine, other = (one.step(np.array([1.5])) for one in (env, plain))
            np.testing.assert_allclose(mine[0]["flat"], other[0]["flat"], rtol=1e-6)
            assert mine[1] == pytest.approx(other[1])
    env.close()


def test_names_of_robots():
    lift = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
    meta = named_env("robot:sim", lift)
    assert meta["env_name"] == "robot:sim:Lift"
    assert meta["env_kwargs"] == {"options": {"env_meta": lift}, "control_freq": 20}
    arm = named_env("robot:arm", lift)
    assert arm == {"env_name": "robot:arm", "type": 4, "env_kwargs": {"control_freq": 20}}
    own = {**arm, "env_kwargs": {"control_freq": 5, "take_over": "keyboard"}}
    assert named_env("robot:arm", own) == own
    with refused("no environment given", error=UserError):
        named_env("robot:sim", {})


@pytest.mark.parametrize(
    ("text", "kwargs", "keys", "made", "rate", "safety"),
    [
        ("robot:arm", {}, None, ("arm", {}), None, Safety()),
        (
            "robot:sim:Lift",
            {"options": {"env_meta": {"a": 1}}, "control_freq": 20},
            ["object", "top_image"],
            ("sim", {"env_meta": {"a": 1}, "rate_hz": 20, "cameras": ["top"]}),
            20,
            Safety(frozen=0, frozen_pose=0),
        ),
        (
            "robot:sim",
            {"options": {"env_meta": {}, "cameras": ["x"]}, "safety": {"frozen": 3, "late": 1}},
            None,
            ("sim", {"env_meta": {}, "cameras": ["x"]}),
            None,
            Safety(frozen=3, frozen_pose=0, late=1),
        ),
    ],
)
def test_arguments_of_a_robot_by_name(monkeypatch, text, kwargs, keys, made, rate, safety):
    monkeypatch.setattr(robot_env, "check_trusted", lambda meta: None)
    monkeypatch.setattr(robot_env, "make_robot", lambda name, **options: (name, options))
    monkeypatch.setattr(robot_env, "make_teleoperator", lambda name, **options: (name, options))
    monkeypatch.setattr(robot_env, "RobotEnv", lambda *args, **rest: (args, rest))
    meta = {"env_name": text, "env_kwargs": kwargs}
    args, rest = robot_env.robot_env(meta, keys)
    given = (*made, args[1])
    assert (
        args[0][0],
        {**args[0][1], "cameras": list(args[0][1].get("cameras", []))},
        args[1],
    ) == (
        given[0],
        {"cameras": [], **given[1]},
        rate,
    )
    others = {"horizon": None, "obs_keys": keys, "prepare": True, "meta": meta}
    plain = {"teleoperator": None, "reward": None, "slow": 1.0, "limits": {}}
    assert rest == {"name": text, "safety": safety, **plain, **others}
    meta["env_kwargs"] = {**kwargs, "take_over": "pad", "take_over_options": {"index": 1}}
    assert robot_env.robot_env(meta, keys)[1]["teleoperator"] == ("pad", {"index": 1})


@pytest.mark.parametrize("key", ["options", "take_over_options", "limits", "safety"])
def test_groups_of_arguments_are_dicts(key):
    trust_env(named())
    with refused(f"env_kwargs['{key}'] is [1]; expected a dict", error=EnvError):
        make_env(named(**{key: [1]}))
