"""Settings and fixtures for the whole suite."""

import gc
import importlib.util
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from imitate.system.memory import return_freed_memory
from imitate.train import trainer
from imitate.train.sweep import sweep
from tests import fork_server, preloaded, sets
from tests import virtual_time as virtual
from tests.device import simulated_gpu

# Until all tests are collected: their objects stay, and each garbage collection would pass through all of them.
gc.disable()

# Two threads that fight for one core are many times slower than one.
torch.set_num_threads(1)

# Before the first backward pass of the process: torch then counts the devices that there are. Beside CUDA it would take
# the simulated device for the accelerator, and refuse backward passes on the GPU.
if not torch.cuda.is_available():
    simulated_gpu.register()

# A shell that starts this in the background lets it ignore Ctrl-C, and every process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples at each run, however busy the machine. Others: pytest --hypothesis-profile default.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

GROWN_MB = 150
"""A process of pytest that has grown this much since it gave back last gives back memory after the test."""

pytest_plugins = ["tests.times"]


def pytest_addoption(parser):
    sets.add_options(parser)
    parser.addoption(
        "--random-order",
        type=int,
        metavar="SEED",
        help="shuffle the files, and the tests within each",
    )


def pytest_ignore_collect(collection_path, config):
    return sets.without_tests(collection_path, config) or None


def pytest_collection_modifyitems(config, items):
    sets.select(config, items)
    seed = config.getoption("--random-order")
    if seed is not None:
        shuffled = random.Random(seed)
        place = {path: shuffled.random() for path in dict.fromkeys(item.path for item in items)}
        # Files stay whole, because fixtures of a module are made once.
        items.sort(key=lambda item: (place[item.path], shuffled.random()))
    # First, and so all in the first of several processes, because of which only one starts a Ray cluster; of them
    # those first that need one node of it, before the second one is started.
    items.sort(
        key=lambda item: (item.get_closest_marker("ray") is None, "[ray_node]" not in item.nodeid)
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let garbage collections pass by the hundreds of thousands of objects that the collected tests are made of."""
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_finish(session):
    if any(item.get_closest_marker("robosuite") for item in session.items):
        fork_server.PRELOADED.append("tests.simulator")


@pytest.fixture(autouse=True)
def same_start():
    """Each test begins with the same global generators, and leaves threads, number format and environment as before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    # `torch.manual_seed` formats the stack for each kind of device that might be there, which takes milliseconds.
    torch.default_generator.manual_seed(0)
    environ, threads, dtype = dict(os.environ), torch.get_num_threads(), torch.get_default_dtype()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    for name in environ.keys() | os.environ.keys():
        if name == "PYTEST_CURRENT_TEST" or os.environ.get(name) == environ.get(name):
            continue
        if name in environ:
            os.environ[name] = environ[name]
        else:
            del os.environ[name]


@pytest.fixture(autouse=True)
def no_picture(monkeypatch, request):
    """Trainings and sweeps draw no learning curves, but in tests that are marked 'draws'."""
    if not request.node.get_closest_marker("draws"):
        monkeypatch.setattr(trainer, "draw_curves", lambda folder: None)
        monkeypatch.setattr(sweep, "draw_settings", lambda _, paths, **words: paths)


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


demo_files = _load("demo_files")
ray_cluster = _load("ray_cluster")
two_nodes, ray_nodes = ray_cluster.two_nodes, ray_cluster.ray_nodes
ray_node, backend = ray_cluster.ray_node, ray_cluster.backend
http_files = _load("http_files")


@pytest.fixture(scope="session")
def make_demo_file():
    """`make_demo_file` of demo_files.py, for tests that choose the folder themselves."""
    return demo_files.make_demo_file


@pytest.fixture
def demo_file(tmp_path):
    """Writes a demonstration file into the test's folder: see `make_demo_file` in demo_files.py for its arguments."""

    def make(name="demos.hdf5", **kwargs):
        return demo_files.make_demo_file(tmp_path / name, **kwargs)

    return make


@pytest.fixture(scope="session")
def file_server():
    """`FileServer` of http_files.py."""
    return http_files.FileServer


_cache_numbers = itertools.count()


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    """Decoded images go to a folder of the test, which is there once something is written to it."""
    # Not `mktemp`, which looks at all folders of all tests for a free number.
    folder = tmp_path_factory.getbasetemp() / "caches" / str(next(_cache_numbers))
    monkeypatch.setenv("IMITATE_CACHE", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def forked_workers(request):
    """Worker processes are forked from one that has imported torch, which takes milliseconds. See fork_server.py."""
    context = fork_server.context()
    if request.config.getoption("--times"):  # its imports are not the first test's that has workers
        first = context.Process(target=int)
        first.start()
        first.join()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("imitate.crew.local.CONTEXT", context)
        yield


@pytest.fixture
def spawned_workers(monkeypatch):
    """Worker processes of this test start as users' do, as new interpreters."""
    monkeypatch.setattr("imitate.crew.local.CONTEXT", multiprocessing.get_context("spawn"))


@pytest.fixture
def virtual_time(monkeypatch):
    """The time of `imitate.system.clock` passes only while all threads of the test wait. See virtual_time.py."""
    time = virtual.VirtualTime()
    time.replace(monkeypatch)
    yield time
    time.end()


@pytest.fixture(scope="session")
def preloaded_commands():
    """A folder for the PATH, with a command ``imitate`` that starts in milliseconds. See preloaded.py."""
    with preloaded.preloaded_commands() as folder:
        yield folder


@pytest.fixture(scope="session")
def imitate(preloaded_commands):
    """Function that runs the command ``imitate`` in a folder, and returns the completed process with its output.

    With ``check`` (default) it has to succeed; ``path`` are more folders of modules.
    """

    def run(*words, cwd, check=True, path=(), **options):
        path = [str(Path(__file__).parents[1]), *map(str, path)]
        done = subprocess.run(
            [str(preloaded_commands / "imitate"), *map(str, words)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            **options,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


_left_mb = 0.0


def pytest_runtest_logfinish(nodeid, location):
    """Free what tests have left, where it is much: closed environments, MuJoCo's meshes, what the C library keeps."""
    global _left_mb
    if sys.platform != "linux" or _resident_mb() < _left_mb + GROWN_MB:
        return
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None:
        mujoco.mj_clearCache(mujoco.mj_getCache())
    gc.collect()
    return_freed_memory()
    _left_mb = _resident_mb()


def _resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.fixture(autouse=True, scope="session")
def trusted_modules():
    """The environments of tests/train/point_mass_env are trusted; `same_start` ends the trust of a single test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMITATE_TRUST_MODULES", "goals,point_mass,tools")
        yield
