"""A robot for tests that notes every call with its time, and fails on request."""

import threading

import numpy as np

from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
from imitate.system import clock


class FakeRobot(Robot):
    """Two joints and a camera. ``faults`` maps the name of a call to a function that is run in it."""

    observation_shapes = {"state": (2,), "camera": (4, 4, 3)}

    def __init__(self, limits=None, pose=None, faults=None, stamped=True):
        self.limits = limits or ActionLimits(low=[-1.0, -1.0], high=[1.0, 1.0])
        self.faults = faults or {}
        self.calls = []
        self.stamped, self.frozen, self.nan = stamped, False, False
        self.age_s, self.values = 0.0, None
        self.measured = pose
        self._tick = 0
        self._lock = threading.Lock()

    def note(self, name, value=None):
        with self._lock:
            self.calls.append((clock.now(), name, value))
        if name in self.faults:
            self.faults[name]()

    def observe(self):
        self.note("observe")
        self._tick += not self.frozen
        state = np.full(2, np.nan if self.nan else 0.0, np.float32)
        camera = np.full((4, 4, 3), self._tick % 251, np.uint8)
        stamp = clock.now() - self.age_s if self.stamped else None
        return Observation(self.values or {"state": state, "camera": camera}, stamp)

    def send(self, action):
        self.note("send", action.copy())

    def hold(self):
        self.note("hold")

    def stop(self):
        self.note("stop")

    def pose(self, observation):
        return self.measured

    def times(self, name):
        return [when for when, call, _ in self.calls if call == name]

    @property
    def sent(self):
        return np.array([value for _, call, value in self.calls if call == "send"])

    def last_calls(self):
        return [call for _, call, _ in self.calls if call in ("send", "hold", "stop")]


class Constant:
    """A policy that always wants the same, or what a function of the step gives."""

    control_freq = 100.0
    obs_keys = ("state",)

    def __init__(self, action=(0.1, 0.2)):
        self.action, self.step, self.cuts, self.episodes = action, 0, 0, []

    def start_episode(self, lang=None):
        self.episodes.append(lang)
        self.step = 0

    def cut_plan(self):
        self.cuts += 1

    def __call__(self, ob):
        self.step += 1
        wanted = self.action(self.step) if callable(self.action) else self.action
        return None if wanted is None else np.array(wanted, dtype=float)


class Scripted(Teleoperator):
    """A person who acts and presses keys in given steps: {step: Guidance}."""

    def __init__(self, script):
        self.script, self.step, self.followed = script, 0, []

    def guide(self, observation):
        self.step += 1
        return self.script.get(self.step, Guidance())

    def follow(self, action):
        self.followed.append(action)


class Pushing(Teleoperator):
    """A person who always does the same."""

    def __init__(self, action):
        self.action = np.array(action, dtype=float)

    def guide(self, observation):
        return Guidance(self.action)


class Unplugged(Pushing):
    """The same, with a device whose release fails."""

    def close(self):
        raise OSError("bus error")


class Judging(Teleoperator):
    """A person who lets the policy act for three steps, and then presses the next of some keys."""

    def __init__(self, verdicts):
        self.verdicts, self.step = list(verdicts), 0

    def guide(self, observation):
        self.step += 1
        pressed = self.verdicts[self.step // 3 - 1] if self.step % 3 == 0 else None
        return Guidance(events=frozenset({pressed} if pressed else ()))
