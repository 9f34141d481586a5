"""Copies of environments without their processes: the adapter, and what is done with a copy that hangs or dies."""

import multiprocessing
import os

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from imitate.envs import vector
from imitate.envs.vector import AsGymnasium, HungCopiesError, VectorEnv, make_vector_env
from imitate.errors import EnvError
from tests.refusals import refused


class Small:
    """Observes a number and an image; succeeds in step 2."""

    action_low, action_high = np.array([-1.0, -2.0]), np.array([1.0, 2.0])

    def __init__(self):
        self.seeds, self.closed = [], False

    def reset(self, *, seed=None):
        self.seeds.append(seed)
        self.number = 0
        return {"s": np.zeros(2), "i": np.zeros((2, 3, 3), np.uint8)}, {"a": 1}

    def step(self, action):
        self.number += 1
        info = {"b": 2, "success": None if self.number == 1 else self.number == 2}
        return {"s": action}, 0.5, self.number == 4, False, info

    def close(self):
        self.closed = True


def test_an_environment_with_gymnasiums_interface():
    small = Small()
    env = AsGymnasium(small)
    assert small.seeds == [0]
    image, numbers = env.observation_space["i"], env.observation_space["s"]
    assert (image.shape, image.dtype, image.low.max(), image.high.min()) == (
        (2, 3, 3),
        "u1",
        0,
        255,
    )
    assert numbers.shape == (2,) and numbers.dtype == np.float64
    assert np.isneginf(numbers.low).all() and np.isposinf(numbers.high).all()
    assert env.action_space.low.tolist() == [-1, -2] and env.action_space.high.tolist() == [1, 2]
    assert env.action_space.dtype == np.float32
    assert env.reset(seed=7)[1] == {"a": 1} and small.seeds == [0, 7]
    drawn = [(env.reset(seed=7), env.np_random.random())[1] for _ in range(2)]
    assert drawn[0] == drawn[1]
    steps = [env.step(np.ones(2))[2:] for _ in range(4)]
    assert [step[:2] for step in steps] == [(False, False)] * 3 + [(True, False)]
    assert [step[2] for step in steps] == [
        {"b": 2},
        *({"b": 2, "success": found} for found in (True, False, False)),
    ]
    env.close()
    assert small.closed


@pytest.mark.parametrize(("limit", "over"), [(None, [0, 0, 0]), (1, [1, 1, 1]), (2, [0, 1, 1])])
def test_the_limit_of_an_episode(limit, over):
    env = AsGymnasium(Small(), limit)
    for _ in range(2):
        env.reset()
        assert [env.step(np.ones(2))[3] for _ in range(3)] == over


class Pipe:
    def __init__(self, ready):
        self.ready, self.closed = ready, False

    def poll(self):
        return self.ready

    def close(self):
        self.closed = True


class Process:
    def __init__(self, alive):
        self.alive, self.calls = alive, []

    def is_alive(self):
        return self.alive

    def kill(self):
        self.calls.append("kill")

    def join(self):
        self.calls.append("join")


@pytest.fixture
def copies(monkeypatch):
    """Three copies, of which some have died or hang; notes the calls of gymnasium's class."""
    calls = []

    def begin(self, env_fns, **kwargs):
        calls.append((len(env_fns), kwargs))

    def noted(name, error=None):
        def call(self, *args, **kwargs):
            calls.append((name, args, kwargs))
            if error is not None and self.error is not None:
                raise self.error
            return name

        return call

    monkeypatch.setattr(AsyncVectorEnv, "__init__", begin)
    for name in ("reset_async", "step_async", "close_extras"):
        monkeypatch.setattr(AsyncVectorEnv, name, noted(name))
    for name in ("reset_wait", "step_wait"):
        monkeypatch.setattr(AsyncVectorEnv, name, noted(name, True))
    monkeypatch.setattr(AsyncVectorEnv, "close", lambda self, **k: self.close_extras(**k))

    def make(error=None, ready=(True, False, False), alive=(True, True, True)):
        env = VectorEnv([None] * 3, "Env", 2.5, context="fork")
        env.error = error
        env.parent_pipes = [Pipe(each) for each in ready]
        env.processes = [Process(each) for each in alive]
        return env

    make.calls = calls
    return make


def test_calls_have_the_limit(copies):
    env = copies()
    assert copies.calls == [(3, {"context": "fork"})]
    assert env.reset(seed=1) == "reset_wait" and env.step("actions") == "step_wait"
    assert copies.calls[1:] == [
        ("reset_async", (), {"seed": 1}),
        ("reset_wait", (), {"timeout": 2.5}),
        ("step_async", ("actions",), {}),
        ("step_wait", (), {"timeout": 2.5}),
    ]


@pytest.mark.parametrize("call", ["reset", "step"])
def test_copies_that_hang_are_named_and_ended(copies, call):
    env = copies(multiprocessing.TimeoutError())
    with pytest.raises(HungCopiesError) as caught:
        getattr(env, call)(**({} if call == "reset" else {"actions": 1}))
    assert str(caught.value) == f"Env: copies [1, 2]: {call}() did not return within 2.5 s"
    assert caught.value.copies == (1, 2)
    assert caught.value.reason == f"{call}() did not return within 2.5 s"
    assert [process.calls for process in env.processes] == [["kill", "join"]] * 3
    assert all(pipe.closed for pipe in env.parent_pipes)


@pytest.mark.parametrize("error", [EOFError(), BrokenPipeError(), ConnectionResetError()])
@pytest.mark.parametrize("call", ["reset", "step"])
def test_copies_that_die_are_named(copies, call, error):
    env = copies(error, alive=(False, True, False))
    with refused("Env: the process of copy [0, 2] ended during a call (the simu", error=EnvError):
        getattr(env, call)(**({} if call == "reset" else {"actions": 1}))
    env = copies(error)
    with refused("Env: the process of copy ? ended", error=EnvError):
        env.step(1)
    assert env.processes[0].calls == ["kill", "join"]


@pytest.mark.parametrize(
    ("alive", "terminate", "killed"),
    [((True,) * 3, False, False), ((True, True, False), False, True), ((True,) * 3, True, True)],
)
def test_processes_end_by_a_signal_if_one_is_gone(copies, alive, terminate, killed):
    env = copies(alive=alive)
    env.parent_pipes[1] = None
    copies.calls.clear()
    env.close_extras(terminate=terminate)
    assert [bool(process.calls) for process in env.processes] == [killed] * 3
    wanted = [("close_extras", (), {"timeout": None, "terminate": False})]
    assert copies.calls == ([] if killed else wanted)
    assert env.parent_pipes[0].closed is env.parent_pipes[2].closed is killed


@pytest.mark.parametrize("child", [False, True])
def test_each_process_makes_its_environment(copies, monkeypatch, child):
    made, ends = [], []
    monkeypatch.setattr(vector, "make_env", lambda *a, **k: made.append((a, k)) or Small())
    monkeypatch.setattr(vector, "end_with_parent", lambda: ends.append(True))
    begun = []
    monkeypatch.setattr(AsyncVectorEnv, "__init__", lambda self, fns, **k: begun.append((fns, k)))
    meta = {"env_name": "A", "type": 2}
    make_vector_env(meta, 3, obs_keys=["s"], max_episode_steps=2)
    ((functions, words),) = begun
    assert words == {"context": "spawn", "autoreset_mode": AutoresetMode.NEXT_STEP}
    assert len(functions) == 3
    if child:
        monkeypatch.setattr(os, "getpid", lambda: -1)
    env = functions[0]()
    assert ends == [True] * child
    options = {"obs_keys": ["s"], "render": False, "camera_names": None, "camera_size": None}
    assert made == [((meta,), options)]
    env.reset()
    assert [env.step(np.ones(2))[3] for _ in range(2)] == [False, True]
    with refused("pettingzoo:a has several agents, which vectorized", error=EnvError):
        make_vector_env({"env_name": "pettingzoo:a", "type": 2}, 2)
