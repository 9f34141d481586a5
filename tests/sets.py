"""The sets of tests: fast (what a change needs), quick (before a commit), nightly (rare things at great cost)."""

import os
from pathlib import Path

import torch

SETS = ("fast", "quick", "nightly", "all")
NOT_QUICK = ("later", "slow", "ray", "robosuite", "render", "browser", "alone")
"""Marks of tests that start clusters, simulators or browsers, or take long for what they show."""
QUICK_ROOMS = (
    *("algo/test_contract.py", "algo/slots/dynamics/", "config/", "data/", "deploy/"),
    *("functional/", "models/", "policy/", "system/", "train/online/"),
)
"""Folders and files of tests/ that start no training; `--changed` adds what reaches a change from others."""


def add_options(parser):
    """Add the options of pytest that choose a set."""
    parser.addoption(
        "--set",
        choices=SETS,
        default="fast",
        help="fast (default): all that are not marked 'nightly'; quick: units and contracts of a few configurations; "
        "nightly: those marked so; a test or a file that is named runs whatever its mark",
    )
    parser.addoption(
        "--alone",
        choices=("with", "without", "only"),
        default="with",
        help="tests marked 'alone': with all others (default), left out, or nothing else",
    )


def without_tests(path, config):
    """Tell whether the chosen set has no test in a file, which is then not imported."""
    if config.getoption("--set") != "quick" or not path.name.startswith("test_"):
        return False
    node = path.relative_to(config.rootpath).as_posix()
    named = any(name.startswith(node) for name in _named(config))
    return not named and not _in_quick_room(node)


def select(config, items):
    """Leave out the tests that are not in the chosen set."""
    chosen, alone = config.getoption("--set"), config.getoption("--alone")
    named = _named(config)
    kept, left_out = [], []
    for item in items:
        wanted = item.nodeid.startswith(named) or _in_set(item, chosen)
        keep = wanted and _at_its_time(item, alone) and _can_run(item)
        (kept if keep else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _named(config):
    """Return the beginnings of ids that files and tests on the command line have."""
    return tuple(_node(argument, config) for argument in config.args if ".py" in argument)


def _node(argument, config):
    """Return the id of a file or test that is named on the command line."""
    path, *names = argument.split("::")
    relative = os.path.relpath(config.invocation_params.dir / path, config.rootpath)
    return "::".join([Path(relative).as_posix(), *names])


def _in_set(item, chosen):
    nightly = item.get_closest_marker("nightly") is not None
    if chosen == "quick":
        return not nightly and _is_quick(item)
    return chosen == "all" or nightly == (chosen == "nightly")


def _is_quick(item):
    if item.get_closest_marker("quick") is not None:
        return True
    return _in_quick_room(item.nodeid) and not any(map(item.get_closest_marker, NOT_QUICK))


def _in_quick_room(node):
    return node.startswith(tuple(f"tests/{room}" for room in QUICK_ROOMS))


def _at_its_time(item, alone):
    """Tell whether a test runs now: those that need the machine to themselves run after all others."""
    return alone == "with" or bool(item.get_closest_marker("alone")) == (alone == "only")


def _can_run(item):
    """Tell whether the machine has the device of a test; scripts/gpu_check.sh runs those that need CUDA."""
    return not item.get_closest_marker("cuda") or torch.cuda.is_available()
