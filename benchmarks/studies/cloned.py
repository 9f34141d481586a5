"""Study of RL that improves a cloned policy, on a task of seconds: the point that moves to a goal.

    python -m benchmarks.studies.cloned --out runs/cloned              minutes; finished cells are not run again
    python -m benchmarks.studies.cloned --out runs/cloned --algo dsrl --seed 0 1 2 --epochs 3
    python -m benchmarks.studies.cloned --out runs/cloned --algo reinflow --seed 0 --epochs 20
    python -m benchmarks.studies.cloned --out runs/cloned --algo flow best advantage    no environment steps

The demonstrations are of two kinds of person: one goes to the goal, the other passes beside it at twice the distance
that counts as reached. So a flow policy that clones them (`flow`) succeeds in about half of the episodes. A cell is an
algorithm and a training seed: the same flow policy, or the same demonstrations, the same networks, steps and rewards
(at success alone), then 100 episodes from initial states that no training begins with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.studies.episodes import played
from benchmarks.studies.results import cell, row
from imitate.data.file.writer import DatasetWriter

WORLD, ENV = "point_world", "point_world:Reach-v0"
EXAMPLE = Path(__file__).parents[2] / "examples" / WORLD
KEYS = ("position", "goal")
DEMOS, FIRST_SEED, BESIDE = 60, 100_000, 0.2
EPISODES = ("--episodes", "100", "--workers", "1", "--env", ENV, "--trust", WORLD)
STEPS, WARMUP = 1000, 500
"""Environment steps of an epoch, and of the cloned policy before the first update."""
FLOW = {
    "train": {"seq_length": 8, "frame_stack": 1, "batch_size": 64, "num_epochs": 1},
    "algo": {
        "horizon": {"observation_horizon": 1, "action_horizon": 4, "prediction_horizon": 8},
        "mlp": {"hidden_dim": 64, "num_blocks": 2},
        "optim_params": {"policy": {"learning_rate": {"initial": 0.001}}},
    },
}
RATES = {
    name: {"learning_rate": {"initial": 1e-3}}
    for name in ("critic", "actor", "noise_critic", "temperature", "flow", "value")
} | {"policy": {"learning_rate": {"initial": 3e-4}}}
ON_POLICY = {"warmup_policy": "policy", "warmup_steps": WARMUP}
ON_DEMOS = {"warmup_policy": "policy", "pretrain_updates": 2000, "demo_ratio": 0.5}
ALGOS: dict[str, dict[str, Any]] = {
    "dsrl": {"algo": {"n_step": 4}, "online": ON_POLICY},
    "reinflow": {
        "algo": {"n_step": 4, "noise": {"min_std": 0.1, "max_std": 0.4}},
        "train": {"batch_size": 64},
        "online": {"collect_steps": 250, "num_envs": 4, "warmup_steps": 0},
    },
    "residual": {"online": ON_POLICY},
    "ibrl": {"online": ON_POLICY},
    "rlpd": {
        "algo": {"actor": {"update_freq": 1}, "critic": {"ensemble": {"n": 3}}},
        "online": {"warmup_steps": WARMUP, "demo_ratio": 0.5, "update_ratio": 1},
    },
    "qc": {
        "algo": {"n_step": 4, "flow": {"num_steps": 4, "num_candidates": 16}},
        "online": ON_DEMOS,
    },
}

CLONED: dict[str, dict[str, Any]] = {
    "flow": {},
    "best": {"train": {"filter_best": 0.25}},
    "advantage": {"algo": {"advantage": {"enabled": True, "lookahead": 4, "layer_dims": [64, 64]}}},
}
"""Flow policies that clone all demonstrations, the best quarter, or all under the condition of good actions."""


def record(path: Path) -> None:
    """Record the demonstrations of both kinds of person."""
    generator, env = np.random.default_rng(0), gymnasium.make(ENV)
    with DatasetWriter(path, {"env_name": ENV, "type": 2, "env_kwargs": {}}) as writer:
        for number in range(DEMOS):
            start, _ = env.reset(seed=FIRST_SEED + number)
            way = start["goal"] - start["position"]
            side = BESIDE * np.array([-way[1], way[0]]) / np.linalg.norm(way)
            aim = start["goal"] + (0, 1, 0, -1)[number % 4] * side

            def act(obs: dict[str, Any], aim: Any = aim) -> Any:
                action = 5 * (aim - obs["position"]) + 0.3 * generator.normal(size=2)
                return np.clip(action, -1, 1).astype(np.float32)

            writer.append_episode(played(env, FIRST_SEED + number, act))


def configuration(folder: Path, name: str, tree: dict[str, Any]) -> str:
    """Write a configuration with this task's observations; return its path."""
    train = {"obs_normalization": None, "cuda": False, **tree.pop("train", {})}
    whole = {
        "algo_name": name,
        "experiment": {"name": name, "epoch_every_n_steps": STEPS, "logging": {"log_tb": False}},
        "train": train,
        "observation": {"modalities": {"obs": {"low_dim": list(KEYS)}}},
        **tree,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(whole, indent=2))
    return str(path)


def merged(tree: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return a tree of two levels with the keys of another laid over it."""
    return {key: {**tree.get(key, {}), **more.get(key, {})} for key in {**tree, **more}}


def small(name: str, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of an algorithm with networks of two layers of 64."""
    algo = {**tree.get("algo", {}), "discount": 0.97, "optim_params": _rates(name)}
    for net in {"qc": ("actor", "critic", "flow"), "reinflow": ("net",)}.get(
        name, ("actor", "critic")
    ):
        algo[net] = {**algo.get(net, {}), "layer_dims": [64, 64]}
    online = {"enabled": True, "env": ENV, "end_at_success": True, **tree["online"]}
    return {"algo": algo, "train": {"batch_size": 128, **tree.get("train", {}), "online": online}}


def _rates(name: str) -> dict[str, Any]:
    """Return the learning rates of the networks that an algorithm has."""
    has = {
        "dsrl": ("critic", "actor", "noise_critic", "temperature"),
        "rlpd": ("critic", "actor", "temperature"),
        "qc": ("critic", "flow"),
        "reinflow": ("policy", "value"),
    }
    return {net: RATES[net] for net in has.get(name, ("critic", "actor"))}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--algo", nargs="+", default=list(ALGOS), choices=[*CLONED, *ALGOS])
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2], help="training seeds")
    parser.add_argument("--epochs", type=int, default=3, help=f"of {STEPS} environment steps")
    parser.add_argument("--out", default="runs/cloned")
    args = parser.parse_args()
    sys.path.insert(0, str(EXAMPLE))
    os.environ["PYTHONPATH"] = f"{EXAMPLE}:{os.environ.get('PYTHONPATH', '')}"
    os.environ["IMITATE_TRUST_MODULES"] = WORLD
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    demos = out / "demos.hdf5"
    if not demos.is_file():
        record(demos)
    data = f"train.data={demos}"
    config = configuration(out, "flow_policy", dict(FLOW))
    twice = f"experiment.epoch_every_n_steps={2 * STEPS}"
    base = cell(
        out / "flow",
        {"task": "reach", "variant": "flow", "seed": 0},
        config,
        [data, twice],
        EPISODES,
    )
    print(row(base), flush=True)
    for seed in args.seed:
        for name in [name for name in args.algo if name in CLONED]:
            own = out / f"clone_{name}"
            own.mkdir(exist_ok=True)
            config = configuration(own, "flow_policy", merged(FLOW, CLONED[name]))
            of = {"task": "reach", "variant": name, "seed": seed}
            settings = [data, twice, f"train.seed={seed}"]
            print(row(cell(own / f"seed{seed}", of, config, settings, EPISODES)), flush=True)
        for name in [name for name in args.algo if name in ALGOS]:
            config = configuration(out, name, small(name, ALGOS[name]))
            settings = [f"train.seed={seed}", f"train.num_epochs={args.epochs}"]
            frozen = name in ("dsrl", "reinflow", "residual", "ibrl")
            settings += [f"algo.base.checkpoint={base['checkpoint']}" if frozen else data]
            of = {"task": "reach", "variant": name, "seed": seed}
            folder = out / name / f"seed{seed}_epochs{args.epochs}"
            print(row(cell(folder, of, config, settings, EPISODES)), flush=True)


if __name__ == "__main__":
    main()
