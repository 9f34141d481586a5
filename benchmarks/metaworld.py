"""Benchmark of four policies on ten tasks of Meta-World, with the same settings for all tasks.

    python -m benchmarks.metaworld --out runs/metaworld                  hours; finished cells are not run again
    python -m benchmarks.metaworld --out runs/metaworld --table          the table of the finished cells
    python -m benchmarks.metaworld --table --cells docs/results/metaworld.json    the published table
    python -m benchmarks.metaworld --task push-v3 --policy bc --seed 0   one cell
    python -m benchmarks.metaworld --experts --out runs/metaworld        success of all 50 experts

Each task has 50 demonstrations of `imitate collect` with its default noise. A cell is one policy of one task and one
training seed: `imitate train` on one thread, then `imitate eval` from 50 initial states, seeds 0 to 49. The multi-task
    policy
is a flow policy on the files of all chosen tasks that reads its task as a one-hot vector. The first seed of all cells
comes first. `--cells FILE` adds each finished cell to a JSON file and skips those that it contains, so that another
machine can continue.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from benchmarks.studies.results import IMITATE, KnownCells, run, trained_and_played
from imitate.collect.demonstrate import Plan, demonstrate
from imitate.envs.experts.metaworld import INSTRUCTIONS
from imitate.functional.statistics import wilson_interval

TASKS = {
    "reach-v3": "easy",
    "button-press-v3": "easy",
    "drawer-open-v3": "easy",
    "door-open-v3": "easy",
    "hammer-v3": "medium",
    "peg-insert-side-v3": "medium",
    "push-v3": "hard",
    "pick-place-v3": "hard",
    "assembly-v3": "hard",
    "stick-push-v3": "very hard",
}
"""Difficulty by task, as in Seo et al. 2023, arXiv:2206.14244."""
POLICIES = ("bc", "flow_policy", "act")
MULTI = "multi_task"
OBS = ("hand_pos", "gripper", "object_pos", "object_quat", "object2_pos", "object2_quat", "goal")
DEMOS, EPISODES = 50, 50
MULTI_EPOCHS = 60
Cell = dict[str, Any]


def demonstrations(task: str, out: Path) -> Path:
    """Return the file of a task's demonstrations; collect them if it is missing."""
    path = (out / "demos" / f"{task}.hdf5").resolve()
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [*IMITATE, "collect", "--env", f"metaworld:{task}", "--num", str(DEMOS)]
        run([*command, "--seed", "0", "--resume", "--out", str(path)], path.with_suffix(".log"))
    return path


def cells(policy: str, tasks: list[str], seed: int, out: Path, *, make: bool = True) -> list[Cell]:
    """Return one policy's numbers, one entry per task; if it has been run before, read them from the disk.

    Args:
        policy: a name in ``POLICIES``, for a single task, or ``MULTI``.
        tasks: tasks to learn together.
        seed: seed of the training.
        out: folder of the benchmark.
        make: false to return nothing for a training that has not been run.
    """
    name = tasks[0] if policy != MULTI else f"{len(tasks)}_tasks"
    folder = out / policy / f"{name}_seed{seed}"
    kept = folder / "cells.json"
    if not kept.is_file() and make:
        files = [demonstrations(task, out) for task in tasks]
        settings = [f"train.seed={seed}"]
        entries = [
            {"path": str(path), "key": task} for path, task in zip(files, tasks, strict=True)
        ]
        settings.append(f"train.data={json.dumps(entries)}")
        if policy == MULTI:
            modalities = json.dumps([*OBS, "lang_emb"])
            settings.append(f"observation.modalities.obs.low_dim={modalities}")
            settings.append(f"train.num_epochs={MULTI_EPOCHS}")
        config = f"metaworld/{policy if policy != MULTI else 'flow_policy'}"
        evaluation = ["--episodes", str(EPISODES), "--workers", "1", "--horizon", "500"]
        results, played = trained_and_played(folder, config, settings, evaluation)
        found = [
            {
                "task": task,
                "policy": policy,
                "seed": seed,
                "steps": results["step"],
                "train_cpu_s": results["times"]["train_cpu_s"],
                "successes": measured["successes"],
                "episodes": measured["episodes"],
            }
            for task, measured in zip(tasks, played, strict=True)
        ]
        kept.write_text(json.dumps(found, indent=2))
    return json.loads(kept.read_text()) if kept.is_file() else []


def finished(known: KnownCells, policy: str, tasks: list[str], seed: int) -> list[Cell]:
    """Return the known cells of one training, one per task; empty if it has not been run with these tasks."""
    of = known.of(policy=policy, seed=seed)
    if policy != MULTI:
        return [cell for cell in of if cell["task"] in tasks]
    return of if {cell["task"] for cell in of} == set(tasks) else []


def table(found: list[Cell]) -> str:
    """Return the table, a line per task and a column per policy: successes, interval, CPU seconds."""
    policies = [name for name in (*POLICIES, MULTI) if any(c["policy"] == name for c in found)]
    lines = [f"| task | | {' | '.join(policies)} |", "|" + "---|" * (len(policies) + 2)]
    for task, difficulty in TASKS.items():
        columns = [
            _words([c for c in found if (c["task"], c["policy"]) == (task, policy)])
            for policy in policies
        ]
        lines.append(f"| {task} | {difficulty} | {' | '.join(columns)} |")
    return "\n".join(lines)


def _words(group: list[Cell]) -> str:
    if not group:
        return ""
    successes, episodes = (sum(c[key] for c in group) for key in ("successes", "episodes"))
    low, high = wilson_interval(successes, episodes)
    cpu = sum(c["train_cpu_s"] for c in group) / len(group)
    return f"{successes}/{episodes} ({100 * low:.0f} - {100 * high:.0f} %), {cpu:.0f} s"


def experts(out: Path, starts: int) -> None:
    """Print the expert's success rate in each task, without noise and with the default noise of `imitate collect`."""
    kept = out / f"experts_{starts}.json"
    found: dict[str, dict[str, int]] = json.loads(kept.read_text()) if kept.is_file() else {}
    out.mkdir(parents=True, exist_ok=True)
    for task in INSTRUCTIONS:
        if task not in found:
            found[task] = {str(noise): _solved(task, noise, starts) for noise in (0.0, 1.0)}
            kept.write_text(json.dumps(found, indent=1))
        counts = (f"{found[task][noise]}/{starts}" for noise in ("0.0", "1.0"))
        print(f"| {task} | {' | '.join(counts)} |", flush=True)


def _solved(task: str, noise: float, starts: int) -> int:
    env_meta = {"env_name": f"metaworld:{task}", "type": 2, "env_kwargs": {}}
    plan = Plan(env_meta, seed=1, noise=noise, keep_failures=True, hold_steps=0)
    return sum(demonstrate(plan, number).success for number in range(starts))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument(
        "--policy", nargs="+", default=[*POLICIES, MULTI], choices=[*POLICIES, MULTI]
    )
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2], help="training seeds")
    parser.add_argument("--out", type=Path, default=Path("runs/metaworld"))
    parser.add_argument("--cells", type=Path, help="JSON file of finished cells, read and written")
    parser.add_argument(
        "--table", action="store_true", help="print the finished cells without running others"
    )
    parser.add_argument(
        "--experts", action="store_true", help="print the success of the experts instead"
    )
    parser.add_argument("--starts", type=int, default=20, help="of each expert")
    args = parser.parse_args()
    if args.experts:
        experts(args.out, args.starts)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found, known = [], KnownCells(args.cells)
    for seed in args.seed:
        for policy in args.policy:
            groups = [args.task] if policy == MULTI else [[task] for task in args.task]
            for tasks in groups:
                there = finished(known, policy, tasks, seed)
                if not there:
                    there = cells(policy, tasks, seed, args.out, make=not args.table)
                    known.add(there)
                found += there
    print(table(found))


if __name__ == "__main__":
    main()
