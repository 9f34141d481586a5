"""Ranks forked from a process that has imported torch, in place of torchrun, which imports it once more for each."""

import os
import runpy
import socket
import sys
from contextlib import contextmanager

import torch

from tests import fork_server


@contextmanager
def started_ranks(program, *arguments, world=2):
    """Start ranks of a program; those that still run at the end are killed.

    Args:
        program: path of a file, or name of a module.
        arguments: of its command line.
        world: number of ranks.

    Yields:
        The processes, by rank.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": probe.getsockname()[1]}
    argv = [str(program), *map(str, arguments)]
    ranks = [
        fork_server.context().Process(
            target=_run, args=(argv, {"RANK": rank, "LOCAL_RANK": rank, **shared})
        )
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def ended(ranks):
    """Wait for the end of all ranks; their exit codes."""
    for rank in ranks:
        rank.join(600)
    return [rank.exitcode for rank in ranks]


def run_ranks(program, *arguments, world=2):
    """Run a program on ranks to its end; their exit codes."""
    with started_ranks(program, *arguments, world=world) as ranks:
        return ended(ranks)


def _run(argv, environment):
    os.environ.update({name: str(value) for name, value in environment.items()})
    sys.argv = argv
    torch.set_num_threads(1)  # torch has read OMP_NUM_THREADS long ago
    run = runpy.run_path if argv[0].endswith(".py") else runpy.run_module
    run(argv[0], run_name="__main__")
