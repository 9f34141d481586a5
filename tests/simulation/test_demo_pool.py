"""Processes whose work is `eval`: it returns, raises, and ends its process, as the demo's name says."""

import functools
import os
import sys
import time

import numpy as np
import pytest

from imitate.envs import make_env
from imitate.envs.watched import watched
from imitate.errors import EnvError
from imitate.simulation.demo_pool import DemoPool, Lost


class Evaluating:
    """`eval` with `env`, which hangs in the call whose name is its action, seed or camera."""

    def __init__(self, beat):
        self.env = watched(Hanging, beat)

    def __call__(self, demo):
        return eval(demo, {"env": self.env})


class Hanging:
    def reset(self, seed=None):
        return self.call("reset", seed)

    def step(self, action):
        return self.call("step", action)

    def reset_to(self, state):
        return self.call("reset_to", state)

    def render(self, camera_name=None):
        return self.call("render", camera_name)

    def call(self, name, argument):
        time.sleep(1000 if argument == name else 0)
        return name


def hanging_make(beat):
    watched(functools.partial(time.sleep, 1000), beat)


def test_results_in_order_from_several_processes():
    slow = "__import__('time').sleep(0.5) or __import__('os').getpid()"
    demos = [slow, "1 + 1", "2 + 2", "__import__('numpy').arange(6).reshape(2, 3)", "''"]
    with DemoPool(Evaluating, workers=2) as pool:
        found = dict(pool.results(demos))
    assert list(found) == demos
    assert found[slow] != os.getpid()
    assert (found["1 + 1"], found["2 + 2"], found["''"]) == (2, 4, "")
    np.testing.assert_array_equal(found[demos[3]], [[0, 1, 2], [3, 4, 5]])
    assert found[demos[3]].flags.writeable


def test_lost_demos_are_named_and_the_others_go_on():
    dies = "__import__('os')._exit(7)"
    with DemoPool(Evaluating, workers=1) as pool:
        found = list(pool.results(["1", "1 / 0", dies, "2"]))
    assert found == [
        ("1", 1),
        ("1 / 0", Lost("ZeroDivisionError: division by zero")),
        (dies, Lost("its process died (exit code 7), in 2 tries", died=True)),
        ("2", 2),
    ]


def test_what_died_once_is_tried_again(tmp_path):
    flag = str(tmp_path / "was_here")
    first_time = (
        f"not __import__('os').path.exists({flag!r}) and __import__('os').mkdir({flag!r}) is None"
    )
    once = f"__import__('os')._exit(1) if {first_time} else 5"
    with DemoPool(Evaluating, workers=1) as pool:
        assert list(pool.results([once, "6"])) == [(once, 5), ("6", 6)]
        assert pool.problems == [f"{once}: its process died (exit code 1); tried again"]


@pytest.mark.parametrize(
    "call",
    ["reset(seed='reset')", "step('step')", "reset_to('reset_to')", "render(camera_name='render')"],
)
def test_a_demo_that_hangs_is_lost_by_name_and_the_others_go_on(call):
    hangs = f"env.{call}"
    with DemoPool(Evaluating, workers=2, step_timeout_s=1.0) as pool:
        found = dict(pool.results(["env.step(0)", hangs, "3"]))
    name = call.partition("(")[0]
    lost = Lost(f"{name}() did not return within 1 s, in 2 tries", died=True)
    assert found == {"env.step(0)": "step", hangs: lost, "3": 3}
    assert pool.problems == [f"{hangs}: {name}() did not return within 1 s; tried again"]


def test_making_an_environment_may_take_longer_but_not_for_ever():
    with DemoPool(hanging_make, workers=1, step_timeout_s=0.2) as pool:
        ((_, lost),) = pool.results(["demo_0"])
    assert lost == Lost("making the environment did not return within 1 s, in 2 tries", died=True)


def test_what_exits_is_told_as_that():
    exits = "__import__('sys').exit(3)"
    with DemoPool(Evaluating, workers=1) as pool:
        assert list(pool.results([exits, "1"])) == [
            (exits, Lost("the environment called sys.exit(3)")),
            ("1", 1),
        ]
    with (
        pytest.raises(EnvError, match="the environment called sys.exit"),
        DemoPool(sys.exit, 1) as pool,
    ):
        list(pool.results(["demo_0"]))


def unmakable(env_meta, beat):
    return make_env(env_meta)


def test_processes_that_cannot_begin():
    prepare = functools.partial(unmakable, {"type": 77})
    with pytest.raises(EnvError, match="env_args\\['type'\\] is 77"), DemoPool(prepare, 2) as pool:
        list(pool.results(["demo_0", "demo_1"]))
