"""Benchmark of the start of a fresh process, until the help, a loaded policy, or the first update."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.peer import Bench
from benchmarks.row import Row
from benchmarks.trained import make_config, make_setup
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint

ROUNDS = 5
HELP = "import sys; sys.argv = ['imitate', '--help']; from imitate.cli.main import main; main()"
TORCH = "import torch"
POLICY = """
import sys
from imitate import policy_from_checkpoint
policy_from_checkpoint("cpu", sys.argv[1])
"""
FIRST_STEP = """
import os, sys
from imitate.algo.base.algo import Algo
from imitate.train.trainer import train
update = Algo.train_on_batch
def first(self, *args, **kwargs):
    update(self, *args, **kwargs)
    os._exit(0)
Algo.train_on_batch = first
train(sys.argv[1], output_dir=sys.argv[2], quiet=True)
"""
WANTED_S = {"imitate --help": 0.3, "policy_from_checkpoint, BC 2x1024": 1.0, "first step": 3.0}


def run(bench: Bench) -> list[Row]:
    """Measure the CPU seconds of each start, as medians of rounds in turn; ``import torch`` is measured separately."""
    setup = make_setup(bench.data, recurrent=False)
    policy, config = bench.folder / "policy.pth", bench.folder / "config.json"
    saved = checkpoint_dict(
        setup.algo, env_metadata=setup.env_metas[0], shape_metadata=setup.shape_metadata
    )
    save_checkpoint(saved, policy)
    config.write_text(make_config(bench.data, recurrent=False).to_json())
    commands = {
        "imitate --help": [HELP],
        "import torch": [TORCH],
        "policy_from_checkpoint, BC 2x1024": [POLICY, str(policy)],
        "first step": [FIRST_STEP, str(config), str(bench.folder / "runs")],
    }
    spent: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(ROUNDS + 1):
        for name, command in commands.items():
            taken = _cpu_s(command)
            if number > 0:  # the first start compiles files
                spent[name].append(taken)
    return [
        Row(name, statistics.median(seconds), "CPU s", WANTED_S.get(name), at_most=True)
        for name, seconds in spent.items()
    ]


def _cpu_s(command: list[str]) -> float:
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", *command],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
