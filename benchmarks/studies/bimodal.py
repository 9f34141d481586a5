"""Two equally good ways around an obstacle: which policies take one of them, and which the mean of both.

    python -m benchmarks.studies.bimodal --out docs/images/bimodal.png

Demonstrations go from left to right, above or below a disc, at random. Where the ways part, the mean of the
demonstrated actions leads into the disc: the squared error asks for just that, a distribution over actions does not.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from imitate import algo_factory, load_config
from imitate.data import DatasetWriter, Episode, SequenceDataset, ShuffledBatches
from imitate.functional.statistics import wilson_interval
from imitate.models.preprocess import Preprocess
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.train.loading import make_loader

RADIUS = 0.35
"""Of the disc, in the middle."""
GOAL = np.array([1.0, 0.0])
REACHED = 0.15
SPEED = 0.1
"""Way per step at an action of length 1."""
HORIZON = 40
EVERY = ("bc", "bc_gmm", "flow_policy", "diffusion_policy", "vq_bet")

Positions = NDArray[np.float64]


class Walk(NamedTuple):
    """Walks of N points: positions (T, N, 2), and whether each reached the goal without touching the disc."""

    positions: Positions
    success: NDArray[np.bool_]


def write_demos(path: Path, count: int = 100, seed: int = 0) -> None:
    """Walks by way of a point above or below the disc, with noise."""
    random = np.random.default_rng(seed)
    meta = {"type": 2, "env_name": "disc", "env_kwargs": {}}
    with DatasetWriter(path, meta, overwrite=True) as writer:
        for number in range(count):
            side = 1.0 if number % 2 else -1.0
            position = _starts(random, 1)[0]
            observed, actions = [], []
            while np.linalg.norm(position - GOAL) > REACHED / 2:
                target = np.array([0.0, 0.65 * side]) if position[0] < -0.1 else GOAL
                way = target - position
                action = way / max(np.linalg.norm(way), SPEED) + random.normal(0, 0.1, 2)
                action = np.clip(action, -1, 1)
                observed.append(position)
                actions.append(action)
                position = position + SPEED * action
            ends = np.zeros(len(actions), dtype=bool)
            ends[-1] = True
            writer.append_episode(
                Episode(
                    {"position": np.array(observed, dtype=np.float32)},
                    np.array(actions, dtype=np.float32),
                    ends.astype(np.float32),
                    ends,
                    np.zeros_like(ends),
                )
            )


def trained(name: str, data: Path, steps: int, seed: int = 0) -> RolloutPolicy:
    """A policy after so many updates."""
    tree = configuration(name)
    config = load_config(tree)
    train = config.train
    dataset = SequenceDataset(
        data,
        obs_keys=("position",),
        frame_stack=train.frame_stack,
        seq_length=train.seq_length,
        get_pad_mask=True,
    )
    torch.manual_seed(seed)
    algo = algo_factory(config.algo_name, config, {"position": (2,)}, 2)
    algo.preprocess = Preprocess.from_statistics(
        {"position": (2,)},
        {"position": "low_dim"},
        {"actions": 2},
        dataset.statistics(),
        obs_normalization="mean_std",
        action_config={"actions": {"normalization": "min_max"}},
    )
    algo.set_train()
    per_epoch = config.experiment.epoch_every_n_steps
    batches = ShuffledBatches(len(dataset), train.batch_size, seed)
    loader = make_loader(dataset, batches, 0, torch.device("cpu"))
    for step, batch in zip(range(steps), loader, strict=False):
        epoch = step // per_epoch + 1
        algo.train_on_batch(algo.process_batch_for_training(batch), epoch)
        if (step + 1) % per_epoch == 0:
            algo.on_epoch_end(epoch)
    return RolloutPolicy(algo, -np.ones(2), np.ones(2))


def configuration(name: str) -> dict[str, Any]:
    """A small network of each kind."""
    learning = {
        "optimizer_type": "adamw",
        "learning_rate": {"initial": 0.001, "scheduler_type": "cosine", "warmup_steps": 50},
    }
    mlp = {"enabled": True, "hidden_dim": 256, "num_blocks": 3}
    horizon = {"observation_horizon": 1, "prediction_horizon": 8, "action_horizon": 4}
    window = {"frame_stack": 1, "seq_length": 8}
    algos: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
        "bc": ("bc", {"actor_layer_dims": [128, 128]}, {}),
        "bc_gmm": ("bc", {"actor_layer_dims": [128, 128], "gmm": {"enabled": True}}, {}),
        "flow_policy": ("flow_policy", {"mlp": mlp, "horizon": horizon}, window),
        "diffusion_policy": (
            "diffusion_policy",
            {
                "unet": {"enabled": False},
                "mlp": mlp,
                "horizon": horizon,
                "ddpm": {"enabled": False},
                "ddim": {"enabled": True},
            },
            window,
        ),
        "vq_bet": (
            "vq_bet",
            {
                "chunk": {"size": 8, "execute": 4},
                "vq": {"pretrain_epochs": 3, "latent_dim": 32},
                "transformer": {"embed_dim": 64, "num_layers": 2, "num_heads": 4},
            },
            window,
        ),
    }
    algo_name, section, train = algos[name]
    return {
        "algo_name": algo_name,
        "algo": {"optim_params": {"policy": learning}, **section},
        "experiment": {"epoch_every_n_steps": 100},
        "train": {"batch_size": 256, "num_epochs": 20, **train},
        "observation": {"modalities": {"obs": {"low_dim": ["position"]}}},
    }


def walk(policy: RolloutPolicy, count: int = 100, seed: int = 1) -> Walk:
    """Let the policy walk from ``count`` starts at once."""
    torch.manual_seed(seed)
    position = _starts(np.random.default_rng(seed), count)
    touched = reached = np.zeros(count, dtype=bool)
    positions = [position]
    policy.start_episode()
    for _ in range(HORIZON):
        action = policy({"position": position.astype(np.float32)}, batched_ob=True)
        moving = ~(touched | reached)
        position = position + SPEED * action * moving[:, None]
        touched = touched | (np.linalg.norm(position, axis=1) < RADIUS)
        reached = reached | (np.linalg.norm(position - GOAL, axis=1) < REACHED)
        positions.append(position)
    return Walk(np.array(positions), reached & ~touched)


def draw(walks: dict[str, Walk], path: Path) -> None:
    """A panel per policy: its ways, green where they reached the goal."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    figure = Figure(figsize=(2.6 * len(walks), 2.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(walks), squeeze=False)[0]
    for axes, (name, result) in zip(panels, walks.items(), strict=True):
        axes.add_patch(Circle((0, 0), RADIUS, color="0.8"))
        axes.plot(*GOAL, "*", color="black", markersize=10)
        for number in range(min(40, result.positions.shape[1])):
            color = "tab:green" if result.success[number] else "tab:red"
            axes.plot(*result.positions[:, number].T, color=color, linewidth=0.8, alpha=0.6)
        axes.set(
            title=f"{name}\n{result.success.mean():.0%}",
            xlim=(-1.15, 1.2),
            ylim=(-0.9, 0.9),
            xticks=[],
            yticks=[],
            aspect="equal",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def _starts(random: np.random.Generator, count: int) -> Positions:
    """Starts on the left, near the axis."""
    return np.array([-1.0, 0.0]) + random.normal(0, 0.005, (count, 2))


def main() -> None:
    """Train every policy, let it walk, print the table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("bimodal.png"), help="the picture")
    parser.add_argument("--steps", type=int, default=2000, help="updates of each policy")
    parser.add_argument("--policies", nargs="+", choices=EVERY, default=list(EVERY))
    args = parser.parse_args()
    data = args.out.with_suffix(".hdf5")
    write_demos(data)
    walks = {}
    for name in args.policies:
        walks[name] = walk(trained(name, data, args.steps))
        count, total = int(walks[name].success.sum()), len(walks[name].success)
        low, high = wilson_interval(count, total)
        print(f"{name:20} {count}/{total}  95 % interval {low:.0%} - {high:.0%}")
    data.unlink()
    draw(walks, args.out)
    print(args.out)


if __name__ == "__main__":
    main()
