"""Processes whose work is `eval`: it returns, raises, and ends its process, as the demo's name says."""

import functools
import os

import numpy as np
import pytest

from imitate.collection.demo_pool import DemoPool, Lost
from imitate.envs import make_env
from imitate.errors import EnvError

EVAL = functools.partial(functools.partial, eval)


def test_results_in_order_from_several_processes():
    slow = "__import__('time').sleep(0.5) or __import__('os').getpid()"
    demos = [slow, "1 + 1", "2 + 2", "__import__('numpy').arange(6).reshape(2, 3)", "''"]
    with DemoPool(EVAL, workers=2) as pool:
        found = dict(pool.results(demos))
    assert list(found) == demos
    assert found[slow] != os.getpid()
    assert (found["1 + 1"], found["2 + 2"], found["''"]) == (2, 4, "")
    np.testing.assert_array_equal(found[demos[3]], [[0, 1, 2], [3, 4, 5]])
    assert found[demos[3]].flags.writeable


def test_lost_demos_are_named_and_the_others_go_on():
    dies = "__import__('os')._exit(7)"
    with DemoPool(EVAL, workers=1) as pool:
        found = list(pool.results(["1", "1 / 0", dies, "2"]))
    assert found == [
        ("1", 1),
        ("1 / 0", Lost("ZeroDivisionError: division by zero")),
        (dies, Lost("its process died twice (exit code 7)", died=True)),
        ("2", 2),
    ]


def test_what_died_once_is_tried_again(tmp_path):
    flag = str(tmp_path / "was_here")
    first_time = (
        f"not __import__('os').path.exists({flag!r}) and __import__('os').mkdir({flag!r}) is None"
    )
    once = f"__import__('os')._exit(1) if {first_time} else 5"
    with DemoPool(EVAL, workers=1) as pool:
        assert list(pool.results([once, "6"])) == [(once, 5), ("6", 6)]


def test_processes_that_cannot_begin():
    prepare = functools.partial(make_env, {"type": 77})
    with pytest.raises(EnvError, match="env_args\\['type'\\] is 77"), DemoPool(prepare, 2) as pool:
        list(pool.results(["demo_0", "demo_1"]))
