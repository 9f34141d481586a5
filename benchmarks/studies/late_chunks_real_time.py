"""The study `late_chunks` in real time: a slow policy server, and a simulated robot that does not wait for it.

    python -m benchmarks.studies.late_chunks --data stack.hdf5 --out runs/late_chunks
    python -m benchmarks.studies.late_chunks_real_time --out runs/late_chunks

The server lies in this process; each of its predictions is made slower by the latency. `imitate run ws://... --robot
sim` moves the simulated robot in another process, from the same starts for all cells. The clock counts here, so run
it on a quiet machine: a robot that is late is stopped. Finished cells are kept under --out and not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.studies.late_chunks import HORIZON, POLICIES, trained
from imitate.functional.statistics import wilson_interval

WAYS = (
    *(("plain", "sync"), ("plain", "blend"), ("plain", "rtc"), ("plain", "rtc-vjp")),
    ("prefix", "prefix"),
)
"""Policies, and `--join` of `imitate run --async`; sync is without it."""
MOST_S = 30.0
"""Longest wait for the server: a slow one is not a lost one."""
STOPPED = 1
"""Exit code of `imitate run` where the robot was stopped."""


@dataclass(frozen=True)
class Cell:
    """Setting of one measurement."""

    policy: str
    join: str
    latency_ms: float


@contextlib.contextmanager
def slow_server(checkpoint: Path, latency_ms: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Serve a policy each of whose predictions takes longer by a latency; its address and its environment."""
    import torch

    from imitate.deploy.served import ServedPolicy
    from imitate.deploy.server import PolicyServer
    from imitate.policy.loading import policy_from_checkpoint

    torch.set_num_threads(1)
    policy, ckpt = policy_from_checkpoint(ckpt_path=checkpoint, device="cpu")
    # The encoder runs once in each prediction, and not where an action comes from the plan.
    encoder = policy.algo.active_nets["policy"].encoder
    encoder.register_forward_pre_hook(lambda *_: time.sleep(1e-3 * latency_ms))
    with PolicyServer(ServedPolicy(policy), port=0) as server:
        yield server.url, ckpt["env_metadata"]


def measured(
    folder: Path, checkpoint: Path, cell: Cell, episodes: int, seed: int
) -> dict[str, Any]:
    """Numbers of a cell, from the disk if it has been measured from as many starts."""
    kept = folder / f"{cell.policy}_{cell.join}_{cell.latency_ms:g}ms.json"
    if kept.is_file():
        numbers = json.loads(kept.read_text())
        if len(numbers["episodes"]) == episodes:
            return numbers
    with slow_server(checkpoint, cell.latency_ms) as (url, env_meta):
        env_file = folder / "env_args.json"
        env_file.write_text(json.dumps(env_meta))
        reports = played(url, env_file, cell.join, seed, episodes)
    numbers = {**asdict(cell), "episodes": reports}
    partial = kept.with_suffix(".partial")
    partial.write_text(json.dumps(numbers))
    partial.rename(kept)
    return numbers


def played(url: str, env_file: Path, join: str, seed: int, episodes: int) -> list[dict[str, Any]]:
    """Reports of episodes that begin from successive seeds; after one that was stopped the next begins anew."""
    reports: list[dict[str, Any]] = []
    while len(reports) < episodes:
        command = [sys.executable, "-m", "imitate", "run", url, "--robot", "sim", "--json"]
        command += ["--env", str(env_file), "--robot-arg", f"seed={seed + len(reports)}"]
        command += ["--episodes", str(episodes - len(reports)), "--steps", str(HORIZON)]
        command += ["--timeout-s", str(MOST_S)]
        command += [] if join == "sync" else ["--async", "--join", join]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, STOPPED):
            raise SystemExit(done.stderr)
        reports += json.loads(done.stdout)
    return reports


def row(numbers: dict[str, Any]) -> str:
    """A line of the table."""
    episodes = numbers["episodes"]
    ended = [one for one in episodes if one["report"] is not None]
    held = {id(one): sum(one["report"]["held"].values()) for one in ended}
    steps = [one["report"]["steps"] + held[id(one)] for one in ended if one["success"]]
    wins, total = len(steps), len(episodes)
    low, high = wilson_interval(wins, total)
    cells = (
        f"{numbers['latency_ms']:g} ms",
        numbers["join"],
        f"{wins}/{total}",
        f"{100 * low:.0f} - {100 * high:.0f} %",
        f"{median(steps):g}" if steps else "",
        sum(held.values()),
        sum(one["report"]["long_gaps"] for one in ended),
        sum(one["failure"] is not None for one in episodes),
    )
    return f"| {' | '.join(map(str, cells))} |"


HEADER = (
    "| latency | inference | success | 95 % interval | control steps to success, median | held steps | gaps above 1.2 "
    "periods | stopped |"
)


def table(results: Sequence[dict[str, Any]]) -> str:
    """The whole table."""
    return "\n".join((HEADER, f"|{'---|' * 8}", *map(row, results)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/late_chunks"),
        help="of benchmarks.studies.late_chunks",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("none"),
        help="demonstrations, where nothing is trained yet",
    )
    parser.add_argument("--latency-ms", nargs="+", type=float, default=[0.0, 100.0, 200.0])
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    checkpoints = {name: trained(args.out, name, args.data, ()) for name in POLICIES}
    folder = args.out / "real_time"
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for latency in args.latency_ms:
        for policy, join in WAYS:
            cell = Cell(policy, join, latency)
            results.append(measured(folder, checkpoints[policy], cell, args.episodes, args.seed))
            print(row(results[-1]), flush=True)
    print("\n" + table(results))


if __name__ == "__main__":
    main()
