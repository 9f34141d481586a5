"""CPU seconds of training until Lift is solved from 294 of 300 starts: three training seeds, 100 starts each.

Takes an hour, so it runs only when it is named.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.bench import Bench
from benchmarks.row import Row
from benchmarks.studies.results import HORIZONS

SEEDS = (1, 2, 3)
STARTS = 100
ENOUGH = 294
IMITATE = (sys.executable, "-m", "imitate.cli.main")
# Epochs of 100 updates to try, and the CPU seconds wanted.
BUDGETS = {"bc": ((2, 5, 10), 10.0), "bc_rnn_gmm": ((4, 8, 15), 90.0)}


def run(bench: Bench) -> list[Row]:
    """The first budget at which enough starts succeed, or the last one."""
    return [row for variant in BUDGETS for row in _rows(variant, bench)]


def _rows(variant: str, bench: Bench) -> list[Row]:
    epochs, wanted_s = BUDGETS[variant]
    rows = []
    for budget in epochs:
        cells = [_cell(variant, seed, budget, bench) for seed in SEEDS]
        successes = sum(cell["successes"] for cell in cells)
        cpu_s = max(cell["cpu_s"] for cell in cells)
        each = ", ".join(f"{cell['successes']:.0f}" for cell in cells)
        note = f"{successes:.0f}/{STARTS * len(SEEDS)} starts succeed ({each} of {STARTS})"
        solved = successes >= ENOUGH
        target = wanted_s if solved or budget == epochs[-1] else None
        # A budget that solves nothing has needed more time than there is.
        value = cpu_s if solved or target is None else float("inf")
        rows.append(
            Row(
                f"{variant}, {100 * budget} updates",
                value,
                "CPU s",
                target,
                at_most=True,
                note=note,
            )
        )
        if solved:
            break
    return rows


def _cell(variant: str, seed: int, epochs: int, bench: Bench) -> dict[str, float]:
    command = [
        *IMITATE,
        "train",
        "--config",
        f"robosuite/lift/{variant}",
        "--dataset",
        str(bench.data),
        "--quiet",
    ]
    command += ["--json", "--output-dir", str(bench.folder / "runs"), "--epochs", str(epochs)]
    command += ["--set", f"train.seed={seed}", "--set", "experiment.rollout.enabled=false"]
    command += ["--set", "train.num_threads=1"]
    trained = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    )
    target = bench.folder / "eval.json"
    command = [
        *IMITATE,
        "eval",
        "--agent",
        trained["checkpoint"],
        "--episodes",
        str(STARTS),
        "--horizon",
        str(HORIZONS["lift"]),
        "--quiet",
    ]
    command += ["--workers", "2", "--seed", str(1000 * seed), "--json", str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    successes = json.loads(target.read_text())["evaluations"][0]["successes"]
    return {"successes": successes, "cpu_s": trained["times"]["train_cpu_s"]}
