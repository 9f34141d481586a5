"""How far a cluster takes collection, training and evaluation, from figures measured here.

    python -m benchmarks.scale                                    measure where nothing is saved, tables, picture
    python -m benchmarks.scale --measure                          measure anew

Measured, in CPU seconds: a step and a reset of Lift (states; two cameras of 84 x 84 drawn by the CPU), a call of BC,
an update of SAC with batches of 256, the weights of its actor, the start of a worker. Assumed: 10 Gb/s, 32 cores a
machine, a GPU learner with 1,000 updates/s from states, 150 from images; a policy of images with 12 ms a call and 20 MB
of weights; 0.5 ms for a request to a central policy worker. What the model leaves out: stragglers, episodes of unequal
length, cold starts of machines.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import scale_model as model
from benchmarks.scale_inputs import found_or_measured
from benchmarks.scale_model import Inputs

FIGURES = Path(__file__).with_name("scale_inputs.json")
PICTURE = Path("docs/images/scale.png")
WORKERS = (1, 2, 4, 16, 64, 128, 256, 1024)
GPU_UPDATES_S, GPU_IMAGE_UPDATES_S = 1000.0, 150.0
IMAGE_WEIGHTS = 20e6
Table = tuple[str, list[str], list[list[Any]]]


def inputs_of(figures: dict[str, Any]) -> dict[str, Inputs]:
    """Return the inputs of the cases: one core as learner, a GPU, images with a GPU."""
    cpu = Inputs(
        env_s=figures["env_s"],
        act_s=figures["act_s"],
        reset_s=figures["reset_s"],
        start_s=figures["start_s"],
        updates_s=1.0 / figures["update_s"],
        weights_bytes=figures["weights_bytes"],
        obs_bytes=4 * 19,
    )
    images = replace(
        cpu,
        env_s=figures["image_env_s"],
        reset_s=figures["image_reset_s"],
        act_s=12e-3,
        updates_s=GPU_IMAGE_UPDATES_S,
        weights_bytes=IMAGE_WEIGHTS,
        obs_bytes=2 * 84 * 84 * 3 + 76,
        chunk_steps=50,
        central_item_s=60e-6,
    )
    return {
        "states, one core": cpu,
        "states, GPU": replace(cpu, updates_s=GPU_UPDATES_S),
        "images, GPU": images,
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """Return title, header and rows of each table."""
    cases = inputs_of(figures)
    states, gpu, images = cases.values()
    return [
        (
            "Collection, environment steps/s",
            ["collectors", "states", "states, central policy", "the same, 16 a request", "images"],
            [
                [
                    n,
                    model.collected(states, n),
                    model.collected_centrally(states, n),
                    model.collected_centrally(states, n, envs_per_request=16),
                    model.collected(images, n),
                ]
                for n in WORKERS
            ],
        ),
        (
            "Collectors that keep a learner busy",
            ["learner", "1 update a step", "1 in 4 steps", "1 in 20 steps"],
            [
                [name, *(model.saturating(i, r) for r in (1, 1 / 4, 1 / 20))]
                for name, i in cases.items()
            ],
        ),
        (
            "Weights: least seconds between two versions",
            ["MB", "collectors", "a copy per machine", "a copy per collector"],
            [_weights_row(states, mb, n) for mb in (1, 20, 100) for n in (16, 128, 1024)],
        ),
        (
            "Staleness, updates (GPU, states)",
            ["steps a chunk", "weights every s", "mean age s", "most", "simulated mean", "most"],
            [_staleness_row(gpu, steps, push) for steps in (20, 200) for push in (0.1, 1.0, 10.0)],
        ),
        (
            "Evaluation, minutes",
            ["workers", "50 episodes", "50, images", "1,000 x 50", "the same, workers not kept"],
            [_evaluation_row(states, images, n) for n in WORKERS],
        ),
        (
            "Replay buffer",
            ["observations", "GB for 1 M steps", "MB/s drawn", "updates/s over 10 Gb/s"],
            [
                [name, model.stored_gb(i), model.sample_bytes_s(i) / 1e6, model.remote_updates_s(i)]
                for name, i in (("states", gpu), ("images", images))
            ],
        ),
    ]


def _weights_row(inputs: Inputs, mb: int, n: int) -> list[Any]:
    given = replace(inputs, weights_bytes=mb * 1e6)
    one = model.least_push_interval(given, n)
    return [mb, n, one, model.least_push_interval(given, n, copy_per_node=False)]


def _staleness_row(inputs: Inputs, steps: int, push_s: float) -> list[Any]:
    given = replace(inputs, chunk_steps=steps)
    simulated = model.simulated_staleness(given, 16, push_s, seconds=max(20.0, 5 * push_s))
    return [steps, push_s, model.age_s(given, push_s), model.most_stale(given, push_s), *simulated]


def _evaluation_row(states: Inputs, images: Inputs, n: int) -> list[Any]:
    seconds = (
        model.evaluated_s(states, n, 50, 50),
        model.evaluated_s(images, n, 50, 50),
        model.evaluated_s(states, n, 50_000, 100),
        model.evaluated_s(states, n, 50_000, 100, pools=1000),
    )
    return [n, *(value / 60 for value in seconds)]


def speed_ups(figures: dict[str, Any]) -> dict[str, Callable[[int], float]]:
    """Return the lines of the picture: times faster than one worker, as functions of the number of workers."""
    states, gpu, images = inputs_of(figures).values()

    def of_evaluation(inputs: Inputs, episodes: int, steps: int) -> Callable[[int], float]:
        one = model.evaluated_s(inputs, 1, episodes, steps)
        return lambda n: one / model.evaluated_s(inputs, n, episodes, steps)

    def of_training(inputs: Inputs, ratio: float) -> Callable[[int], float]:
        one = model.trained(inputs, 1, ratio)
        return lambda n: model.trained(inputs, n, ratio) / one

    return {
        "evaluation: 100 checkpoints x 10 tasks x 50": of_evaluation(states, 50_000, 100),
        "evaluation: 50 episodes, images": of_evaluation(images, 50, 50),
        "evaluation: 50 episodes, states": of_evaluation(states, 50, 50),
        "SAC from images, GPU, 1 update a step": of_training(images, 1),
        "SAC from states, GPU, 1 update in 20 steps": of_training(gpu, 1 / 20),
        "SAC from states, GPU, 1 update a step": of_training(gpu, 1),
        "SAC from states, one core, 1 update a step": of_training(states, 1),
    }


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draw times faster than one worker over the number of workers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots()
    counts = [round(2 ** (k / 4)) for k in range(41)]
    axes.plot(counts, counts, color="0.7", linestyle=":", label="as many times as workers")
    for label, of in speed_ups(figures).items():
        style = "--" if label.startswith("evaluation") else "-"
        axes.plot(counts, [of(n) for n in counts], style, label=label)
    axes.axvspan(16, 64, color="0.94", zorder=0)
    axes.text(32, 700, "one large\nmachine", ha="center", va="top", fontsize=8, color="0.4")
    axes.set(xscale="log", yscale="log", xlabel="workers, a core each", ylim=(0.9, 1100))
    axes.set_ylabel("times faster than one worker")
    axes.legend(fontsize=8, loc="upper left")
    axes.grid(visible=True, color="0.9")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def markdown(title: str, header: list[str], rows: list[list[Any]]) -> str:
    """Return a table with three digits."""
    cells = [header, ["---"] * len(header), *([_cell(value) for value in row] for row in rows)]
    return "\n".join([f"\n{title}\n", *("| " + " | ".join(line) + " |" for line in cells)])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> int:
    """Print the tables and draw the picture."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--measure", action="store_true", help="measure anew")
    parser.add_argument("--inputs", type=Path, default=FIGURES, help="JSON file of the figures")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="PNG to write")
    args = parser.parse_args()
    figures = found_or_measured(args.inputs, anew=args.measure)
    print(json.dumps(figures))
    for made in tables(figures):
        print(markdown(*made))
    draw(figures, args.picture)
    print(f"\n{args.picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
