"""Episodes per second of ``imitate eval`` on Lift with one worker and with two; several evaluations with kept workers.

python -m benchmarks.evaluation CHECKPOINT        only the last part
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.bench import Bench
from benchmarks.row import Row, table
from imitate.evaluate.evaluate import EvalJob, evaluate, evaluate_all
from imitate.evaluate.job import subject_of
from imitate.evaluate.settings import EvalSettings

EPISODES = 60
SHORT = EvalSettings(episodes=6, workers=2, mode="processes", step_timeout_s=60.0)
"""Settings of each evaluation with kept or fresh workers."""
ROUNDS = 3
IMITATE = (sys.executable, "-m", "imitate.cli.main")


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
    return [*rows, *kept_workers(checkpoint)]


def kept_workers(checkpoint: Path) -> list[Row]:
    """Evaluate two checkpoints in two environments, as one queue, and one after the other with fresh workers."""
    copy = checkpoint.with_name("again.pth")
    copy.write_bytes(checkpoint.read_bytes())
    subjects = [subject_of(checkpoint), subject_of(copy)]
    meta = subjects[0].env_meta
    dense = {**meta, "env_kwargs": {**meta["env_kwargs"], "reward_shaping": True}}
    places = [(subject, env) for subject in subjects for env in (meta, dense)]

    def one_queue() -> None:
        for _ in evaluate_all([EvalJob(*place, SHORT) for place in places], workers=2):
            pass

    def fresh() -> None:
        for subject, env in places:
            evaluate(subject.file, env, SHORT)

    wall, cpu = [], []
    for _ in range(ROUNDS):
        (queue_wall, queue_cpu), (fresh_wall, fresh_cpu) = _measured(one_queue), _measured(fresh)
        wall.append(fresh_wall / queue_wall)
        cpu.append(fresh_cpu / queue_cpu)
    copy.unlink()
    what = f"{len(places)} evaluations of {SHORT.episodes} episodes: fresh workers / kept ones"
    note = f"{ROUNDS} rounds, in turn"
    return [
        Row(f"{what}, seconds", median(wall), "x", 1.2, note=note),
        Row(f"{what}, CPU seconds", median(cpu), "x", 1.2, note=note),
    ]


def _measured(work: Callable[[], None]) -> tuple[float, float]:
    """Return the wall seconds, and the CPU seconds of this process and its ended children."""
    started, before = time.perf_counter(), sum(os.times()[:4])
    work()
    return time.perf_counter() - started, sum(os.times()[:4]) - before


def _train(bench: Bench) -> Path:
    command = [
        *IMITATE,
        "train",
        "--config",
        "robosuite/lift/bc",
        "--dataset",
        str(bench.data),
        "--quiet",
        "--json",
    ]
    command += [
        "--output-dir",
        str(bench.folder / "runs"),
        "--set",
        "experiment.rollout.enabled=false",
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Path(json.loads(done.stdout)["checkpoint"])


def _evaluate(bench: Bench, checkpoint: Path, workers: int) -> dict[str, float]:
    target = bench.folder / f"workers{workers}.json"
    command = [*IMITATE, "eval", "--agent", str(checkpoint), "--episodes", str(EPISODES), "--quiet"]
    command += ["--workers", str(workers), "--mode", "processes", "--json", str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    report: dict[str, float] = json.loads(target.read_text())["evaluations"][0]
    return report


if __name__ == "__main__":
    print(table("evaluation", kept_workers(Path(sys.argv[1]))))
