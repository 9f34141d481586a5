"""Study of a flow policy on Stack with late predictions: five modes of inference, several latencies.

    imitate collect --env Stack --num 200 --workers 2 --seed 0 --out stack.hdf5
    python -m benchmarks.studies.late_chunks --data stack.hdf5 --out runs/late_chunks --picture late_chunks.png

Two policies are trained with the ready configuration and one seed: `plain`, and `prefix` with algo.prefix.max_delay 5.
A cell is a policy, a mode of inference, a latency and a number of executed actions, all from the same initial states.
The latency is counted in control steps, so the numbers are the same on every machine.
Trainings and episodes are kept under --out and not run again, so a study can be resumed, or extended by more
episodes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from imitate.functional.statistics import wilson_interval
from imitate.train.style import PANEL_INCHES, STYLE, color

CONFIG = "robosuite/stack/flow_policy"
MAX_DELAY = 5
POLICIES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "prefix": (f"algo.prefix.max_delay={MAX_DELAY}",),
}
WAYS = (
    *(("plain", "sync"), ("plain", "async"), ("plain", "rtc"), ("plain", "rtc-vjp")),
    ("prefix", "prefix"),
)
"""Policies and modes of inference."""
HORIZON = 300
AT_ONCE = 10
"""Number of episodes after which results are written."""
ARM = slice(0, 6)
"""Numbers of an action that move the arm, in [-1, 1] each: 1 is 5 cm or 0.5 rad in a control step."""


@dataclass(frozen=True)
class Cell:
    """Setting of one measurement."""

    policy: str
    inference: str
    latency_ms: float
    execute: int

    @property
    def name(self) -> str:
        """File name of the cell's numbers."""
        return (
            f"{self.policy}_{self.inference}_{self.latency_ms:g}ms_{self.execute}executed".replace(
                ".", "_"
            )
        )


def trained(out: Path, policy: str, data: Path, settings: Sequence[str]) -> Path:
    """Return the checkpoint of a policy, from the disk if it has been trained before."""
    folder = out / "policies" / policy
    kept = folder / "trained.json"
    if not kept.is_file():
        command = [sys.executable, "-m", "imitate", "train", "--config", CONFIG, "--json"]
        command += ["--dataset", str(data), "--output-dir", str(folder), "--quiet"]
        for setting in ("experiment.rollout.enabled=false", *POLICIES[policy], *settings):
            command += ["--set", setting]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        kept.write_text(done.stdout)
    return Path(json.loads(kept.read_text())["checkpoint"])


def measured(folder: Path, checkpoint: Path, cell: Cell, episodes: int) -> dict[str, Any]:
    """Return the numbers of a cell from the disk; play and save missing episodes."""
    kept = folder / f"{cell.name}.json"
    numbers = json.loads(kept.read_text()) if kept.is_file() else {**asdict(cell)}
    done = len(numbers.get("success", ()))
    if done < episodes:
        player = Player(checkpoint, cell)
        for start in range(done, episodes, AT_ONCE):
            for one in player.play(range(start, min(start + AT_ONCE, episodes))):
                for key, value in one.items():
                    numbers.setdefault(key, []).append(value)
            partial = kept.with_suffix(".partial")
            partial.write_text(json.dumps(numbers))
            partial.rename(kept)
        player.close()
    return {k: v[:episodes] if isinstance(v, list) else v for k, v in numbers.items()}


class Player:
    """Player of a cell's episodes, with the starts and random numbers of `imitate eval --seed 0`."""

    def __init__(self, checkpoint: Path, cell: Cell) -> None:
        import torch

        from imitate.envs import make_env
        from imitate.evaluate.settings import Lateness
        from imitate.policy.loading import policy_from_checkpoint

        torch.set_num_threads(1)
        self.policy, ckpt = policy_from_checkpoint(ckpt_path=checkpoint, device="cpu")
        self.env_meta = ckpt["env_metadata"]
        self.env = make_env(self.env_meta, obs_keys=self.policy.obs_keys)
        self.late = Lateness(cell.latency_ms, cell.inference, cell.execute)  # type: ignore[arg-type]

    def play(self, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Return the numbers of an episode from each start."""
        return [self._episode(seed) for seed in seeds]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _episode(self, seed: int) -> dict[str, Any]:
        from imitate.evaluate.episodes import LatePolicy
        from imitate.system.seeding import seed_everything

        seed_everything(seed)
        obs, _ = self.env.reset(seed=seed)
        self.policy.start_episode()
        late = LatePolicy(self.policy, self.late, self.env_meta)
        actions, borders, success = [], [], False
        while len(actions) < HORIZON and not success:
            chunks = late.counts.accepted
            actions.append(late(obs))
            borders.append(late.counts.accepted > chunks)
            obs, *_ = self.env.step(actions[-1])
            success = bool(self.env.is_success()["task"])
        at, within = jumps(np.array(actions), np.array(borders))
        return {"success": success, "steps": len(actions), "at_borders": at, "within": within}


def jumps(actions: np.ndarray, borders: np.ndarray) -> tuple[float, float]:
    """Return the mean distance of an action from the previous one, at the first action of chunks and elsewhere.

    Args:
        actions: executed actions (T, A).
        borders: (T,) booleans, true at the first executed action of a chunk; the first chunk does not count.
    """
    size = np.linalg.norm(np.diff(actions[:, ARM], axis=0), axis=1)
    border = borders[1:] & (np.cumsum(borders)[1:] > 1)
    return _mean(size[border]), _mean(size[~border])


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def row(numbers: dict[str, Any]) -> str:
    """Return a line of the table."""
    wins, total = sum(numbers["success"]), len(numbers["success"])
    low, high = wilson_interval(wins, total)
    at, within = (
        fmean(value for value in numbers[key] if value == value) for key in ("at_borders", "within")
    )
    return (
        f"| {numbers['latency_ms']:g} ms | {numbers['inference']} | {numbers['execute']} | {wins}/{total} "
        f"| {100 * low:.0f} - {100 * high:.0f} % | {steps_to_success(numbers):g} | {at:.3f} | {within:.3f} |"
    )


HEADER = (
    "| latency | inference | executed | success | 95 % interval | steps to success, median | jump at chunk borders "
    "| elsewhere |"
)


def steps_to_success(numbers: dict[str, Any]) -> float:
    """Return the median number of control steps of the successful episodes."""
    steps = [
        steps
        for steps, success in zip(numbers["steps"], numbers["success"], strict=True)
        if success
    ]
    return median(steps) if steps else float("nan")


def draw(cells: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw success, steps to success and jumps at chunk borders over the latency, a line per mode of inference."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(cell["inference"] for cell in cells))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(PANEL_INCHES[0] * 3, PANEL_INCHES[1]), layout="constrained")
        FigureCanvasAgg(figure)
        success, steps, jump = figure.subplots(1, 3)
        for number, name in enumerate(names):
            line = [cell for cell in cells if cell["inference"] == name]
            latency = np.array([cell["latency_ms"] for cell in line]) + 3.0 * number - 6.0
            wins = [sum(cell["success"]) for cell in line]
            totals = [len(cell["success"]) for cell in line]
            rate = np.divide(wins, totals)
            bounds = np.array([wilson_interval(*p) for p in zip(wins, totals, strict=True)]).T
            style: Any = {"color": color(number, len(names)), "marker": "o", "label": name}
            success.errorbar(latency, rate, yerr=np.abs(bounds - rate), **style)
            steps.plot(latency, [steps_to_success(cell) for cell in line], **style)
            jump.plot(latency, [np.nanmean(cell["at_borders"]) for cell in line], **style)
        for panel, words in (
            (success, "success rate"),
            (steps, "control steps to success, median"),
            (jump, "jump at chunk borders"),
        ):
            panel.set(xlabel="latency, ms", ylabel=words)
        success.set_ylim(-0.03, 1.03)
        figure.legend(*success.get_legend_handles_labels(), loc="outside right upper")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="demonstrations of Stack")
    parser.add_argument("--out", type=Path, default=Path("runs/late_chunks"))
    parser.add_argument("--latency-ms", nargs="+", type=float, default=[0.0, 100.0, 200.0])
    parser.add_argument("--execute", nargs="+", type=int, default=[8], help="8 is the policy's own")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2, help="cells that are measured at a time")
    parser.add_argument("--set", nargs="*", default=[], help="further settings of the trainings")
    parser.add_argument("--picture", type=Path, default=None, help="PNG to write")
    args = parser.parse_args()
    checkpoints = {name: trained(args.out, name, args.data, args.set) for name in POLICIES}
    folder = args.out / "cells"
    folder.mkdir(parents=True, exist_ok=True)
    cells = [
        Cell(*way, latency, execute)
        for execute in args.execute
        for latency in args.latency_ms
        for way in WAYS
    ]
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        waiting = [
            pool.submit(measured, folder, checkpoints[cell.policy], cell, args.episodes)
            for cell in cells
        ]
        results = []
        for one in waiting:
            results.append(one.result())
            print(row(results[-1]), flush=True)
    print(f"\n{HEADER}\n|{'---|' * HEADER.count(' |')}")
    print("\n".join(row(numbers) for numbers in results))
    if args.picture is not None:
        draw(results, args.picture)
        print(args.picture)


if __name__ == "__main__":
    main()
