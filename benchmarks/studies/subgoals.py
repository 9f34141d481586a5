"""A picture of the subgoals that a hierarchical policy names in an episode of Stack, beside what it then reaches.

    python -m benchmarks.studies.subgoals --agent runs/stack_hbc/last.pth --out docs/images/subgoals.png

Plays one episode and prints how far off the named subgoals were when their time came, beside the error of "all stays
as it is".
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate import policy_from_checkpoint
from imitate.envs import make_env
from imitate.policy.rollout_policy import RolloutPolicy

Values = NDArray[np.float64]

PLACES = {
    "hand": ("robot0_eef_pos", 0),
    "cube A, to be stacked": ("object", 0),
    "cube B": ("object", 7),
}
"""Observation, and first of its three numbers, of each place in Stack."""
AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Recorded:
    """An episode.

    Attributes:
        places: {name: (T, 3)} metres.
        named: steps at which a subgoal was named.
        subgoals: {name: (number named, 3)}.
        horizon: steps until a subgoal is to be reached.
    """

    places: dict[str, Values]
    named: list[int]
    subgoals: dict[str, Values]
    horizon: int
    success: bool


def play(policy: RolloutPolicy, env: Any, seed: int, horizon: int, steps: int) -> Recorded:
    """One episode, to its success or its end."""
    interval = policy.algo.algo_config.subgoal_update_interval
    obs, _ = env.reset(seed=seed)
    policy.start_episode()
    seen: list[dict[str, Any]] = [obs]
    named: list[int] = []
    subgoals: list[dict[str, Any]] = []
    for step in range(steps):
        action = policy(obs)
        if step % interval == 0:
            named.append(step)
            subgoals.append({key: value[0] for key, value in policy.subgoal().items()})
        obs, *_ = env.step(action)
        seen.append(obs)
        if env.is_success()["task"]:
            break
    return Recorded(
        places=of_places(seen),
        named=named,
        subgoals=of_places(subgoals),
        horizon=horizon,
        success=bool(env.is_success()["task"]),
    )


def of_places(observations: list[dict[str, Any]]) -> dict[str, Values]:
    """{name: (N, 3)} of N observations."""
    return {
        name: np.stack([np.asarray(obs[key][start : start + 3], float) for obs in observations])
        for name, (key, start) in PLACES.items()
    }


def errors(recorded: Recorded) -> dict[str, tuple[float, float]]:
    """Per place the mean distance in metres of subgoal and reached place, and of place then and place reached."""
    steps = np.array(recorded.named)
    steps = steps[steps + recorded.horizon < len(recorded.places["hand"])]
    result = {}
    for name, way in recorded.places.items():
        reached = way[steps + recorded.horizon]
        off = np.linalg.norm(recorded.subgoals[name][: len(steps)] - reached, axis=1)
        moved = np.linalg.norm(way[steps] - reached, axis=1)
        result[name] = (float(off.mean()), float(moved.mean()))
    return result


def draw(recorded: Recorded, title: str, out: Path) -> None:
    """The way of each place over time, and from where a subgoal was named a line to it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    grid = figure.subplots(len(PLACES), len(AXES), sharex=True)
    for row, (name, way) in zip(grid, recorded.places.items(), strict=True):
        for number, (axes, axis) in enumerate(zip(row, AXES, strict=True)):
            axes.plot(100 * way[:, number], color="0.45", linewidth=2, label="reached")
            for step, subgoal in zip(recorded.named, recorded.subgoals[name], strict=True):
                ends = (step, step + recorded.horizon)
                heights = (100 * way[step, number], 100 * subgoal[number])
                axes.plot(ends, heights, color="tab:orange", linewidth=1)
                axes.plot(*(pair[1] for pair in (ends, heights)), "o", color="tab:orange", ms=5)
            middle = np.mean(axes.get_ylim())
            half = max(
                3.0, np.ptp(axes.get_ylim()) / 2
            )  # noise of millimetres is not to fill a panel
            axes.set_ylim(middle - half, middle + half)
            axes.set_title(f"{name}: {axis}", fontsize=10)
            axes.grid(alpha=0.3)
        row[0].set_ylabel("cm")
    for axes in grid[-1]:
        axes.set_xlabel("step")
    handles = [grid[0][0].lines[0], grid[0][0].lines[2]]
    figure.legend(
        handles, ["reached", "subgoal, when it is due"], loc="outside lower right", ncols=2
    )
    figure.suptitle(title, fontsize=11)
    FigureCanvasAgg(figure)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=90)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--agent", required=True, help="checkpoint of hbc or iris, trained on Stack"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/images/subgoals.png"))
    parser.add_argument("--seed", type=int, default=0, help="of the initial state")
    parser.add_argument("--steps", type=int, default=300, help="at most so many")
    args = parser.parse_args()
    policy, ckpt = policy_from_checkpoint(device="cpu", ckpt_path=args.agent)
    config = json.loads(ckpt["config"])
    section = config["algo"].get("value_planner", config["algo"])
    env = make_env(ckpt["env_metadata"], obs_keys=policy.obs_keys)
    try:
        horizon = section["planner"]["subgoal_horizon"]
        recorded = play(policy, env, args.seed, horizon, args.steps)
    finally:
        env.close()
    ended = "success" if recorded.success else "no success"
    steps = len(recorded.places["hand"]) - 1
    draw(
        recorded,
        f"{config['algo_name']} on Stack, seed {args.seed}: {ended} after {steps} steps",
        args.out,
    )
    for name, (off, moved) in errors(recorded).items():
        print(f"{name}: subgoals {100 * off:.1f} cm off; moved {100 * moved:.1f} cm meanwhile")
    print(args.out)


if __name__ == "__main__":
    main()
