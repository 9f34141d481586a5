"""Worker processes forked from one that has imported torch: they start in milliseconds rather than seconds."""

import multiprocessing
import os
import runpy
import sys
import tempfile
from multiprocessing import reduction
from multiprocessing.context import ForkServerContext, ForkServerProcess

PRELOADED = [
    "imitate.train.trainer",
    "imitate.evaluate.worker",
    "imitate.train.online.central.collector",
    "imitate.collect.collect",
    "imitate.collect.render",
    "pytest",
    "tests.no_picture",
]


def context():
    """Context of multiprocessing whose processes have the environment variables, folder and output of this one.

    Those of a fork server alone would have what the server had when it started.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    return _Context()


def run_module(name, *words, folder=".", path=()):
    """Run a module as ``python -m`` does, in a fork of the server; return its exit code and what it printed.

    It runs in a folder, and finds the modules of the folders in ``path``.
    """
    with tempfile.NamedTemporaryFile() as output:
        args = (name, *words), str(folder), list(map(str, path)), output.name
        process = context().Process(target=_run_module, args=args)
        process.start()
        process.join()
        return process.exitcode, output.read().decode()


def _run_module(argv, folder, path, output):
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.argv = list(map(str, argv))
    sys.path[:0] = path
    os.chdir(folder)
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


class _Process(ForkServerProcess):
    def start(self):
        self._output, self._environ = _Output(), dict(os.environ)
        super().start()

    def run(self):
        os.environ.clear()
        os.environ.update(self._environ)
        super().run()


class _Context(ForkServerContext):
    Process = _Process


class _Output:
    """Standard output and error of this process, also those of the one that reads this."""

    def __reduce__(self):
        return _redirect, (reduction.DupFd(1), reduction.DupFd(2))


def _redirect(*streams):
    for number, stream in enumerate(streams, start=1):
        descriptor = stream.detach()
        os.dup2(descriptor, number)
        os.close(descriptor)
    return _Output()
