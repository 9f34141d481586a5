"""Episodes per second of ``imitate eval`` on Lift with one worker and with two."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from benchmarks.peer import Bench
from benchmarks.row import Row
from benchmarks.trained import IMITATE, train_command

EPISODES = 60


def run(bench: Bench) -> list[Row]:
    """Train BC for a few seconds, then evaluate the same episodes with one worker and with two."""
    checkpoint = _train(bench)
    rows, per_s = [], {}
    for workers in (1, 2):
        started = time.perf_counter()
        report = _evaluate(bench, checkpoint, workers)
        whole = time.perf_counter() - started
        per_s[workers] = EPISODES / report["wall_s"]
        note = f"{report['successes']}/{EPISODES} succeed, mean {report['mean_length']:.0f} steps, {whole:.0f} s in all"
        rows.append(
            Row(f"BC on Lift, {workers} worker(s)", per_s[workers], "episodes/s", note=note)
        )
    rows.append(Row("two workers: times one", per_s[2] / per_s[1], "x", 1.6))
    return rows


def _train(bench: Bench) -> Path:
    done = subprocess.run(
        train_command(bench, "--json"), check=True, stdout=subprocess.PIPE, text=True
    )
    return Path(json.loads(done.stdout)["checkpoint"])


def _evaluate(bench: Bench, checkpoint: Path, workers: int) -> dict[str, float]:
    target = bench.folder / f"workers{workers}.json"
    command = [*IMITATE, "eval", "--agent", str(checkpoint), "--episodes", str(EPISODES), "--quiet"]
    command += ["--workers", str(workers), "--mode", "processes", "--out", str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    report: dict[str, float] = json.loads(target.read_text())["evaluations"][0]
    return report
