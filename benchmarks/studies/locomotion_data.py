"""A locomotion file in D4RL's layout whose episodes come from really different policies.

    git clone https://github.com/DLR-RM/rl-trained-agents
    python -m benchmarks.studies.locomotion_data --agents rl-trained-agents --env HalfCheetah --kind mixed --out x.hdf5

Each episode is by one agent that another algorithm has trained (SAC, TQC, PPO, TRPO, A2C, ARS), with a little noise, or
by chance alone: other gaits, not noise around one. ``mixed`` takes all of them in turn, ``medium_expert`` the best for
one episode in five and the middling ones for the rest. Only weights are read from the agents' files, no code: torch's
safe loader, and an unpickler that knows nothing but numpy's arrays for the statistics of observations.
"""

from __future__ import annotations

import argparse
import io
import pickle
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
Policy = Callable[[Array], Array]
AGENTS = ("sac", "tqc", "ppo", "trpo", "a2c", "ars")
KINDS = {
    "mixed": (*AGENTS, "random"),
    "medium_expert": ("best", "middle", "middle", "middle", "middle"),
}
RELU = {("ppo", "HalfCheetah")}
"""Agents on PPO-like policies whose layers end in ReLU, by their published settings; else tanh."""
SEED = 2_000_000
TRIALS = 3
"""Episodes that rank the agents for ``medium_expert``."""


class _ArraysOnly(pickle.Unpickler):
    """Reads arrays of numpy; everything else becomes an empty object."""

    ALLOWED = ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer")

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in self.ALLOWED:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        return type(name, (), {"__init__": lambda self, *_, **__: None})


def statistics(path: Path) -> tuple[Array, Array, float]:
    """Mean and standard deviation of observations, and where normalized ones are clipped."""
    kept = vars(_ArraysOnly(io.BytesIO(path.read_bytes())).load())
    rms = vars(kept["obs_rms"])
    return rms["mean"], np.sqrt(rms["var"] + kept["epsilon"]), float(kept["clip_obs"])


def layers_of(weights: dict[str, torch.Tensor]) -> list[tuple[Array, Array | float]]:
    """Weight and bias of each layer of the actor, in order."""
    names = ("actor.latent_pi", "mlp_extractor.policy_net", "actor.mu", "action_net")
    found = []
    for name in names:
        keys = [k for k in weights if k.startswith(name) and k.endswith("weight")]
        for key in sorted(keys):
            bias = weights.get(key.replace("weight", "bias"))
            found.append((weights[key].numpy(), 0.0 if bias is None else bias.numpy()))
    return found


def load_agent(folder: Path, algorithm: str, env: str) -> Policy:
    """The deterministic policy of a published agent, without the toolkit that trained it."""
    home = folder / algorithm / f"{env}-v3_1"
    with zipfile.ZipFile(home / f"{env}-v3.zip") as archive:
        stored = io.BytesIO(archive.read("policy.pth"))
    layers = layers_of(torch.load(stored, map_location="cpu", weights_only=True))
    squashed = algorithm in ("sac", "tqc")
    is_relu = squashed or (algorithm, env) in RELU
    kept = home / f"{env}-v3" / "vecnormalize.pkl"
    mean, std, clip = statistics(kept) if kept.is_file() else (0.0, 1.0, np.inf)

    def act(observation: Array) -> Array:
        hidden = np.clip((observation - mean) / std, -clip, clip)
        for weight, bias in layers[:-1]:
            hidden = weight @ hidden + bias
            hidden = np.maximum(hidden, 0.0) if is_relu else np.tanh(hidden)
        weight, bias = layers[-1]
        out = weight @ hidden + bias
        return np.tanh(out) if squashed else np.clip(out, -1.0, 1.0)

    return act


def load_agents(folder: Path, env_name: str, env: gymnasium.Env[Array, Array]) -> dict[str, Policy]:
    """All agents that act on the plain observation; some were also told the time."""
    observation, _ = env.reset(seed=0)
    usable = {}
    for name in AGENTS:
        policy = load_agent(folder, name, env_name)
        try:
            policy(observation)
        except ValueError:
            print(f"{name}: wants other observations than {env_name}'s, left out", flush=True)
        else:
            usable[name] = policy
    return usable


def play(
    env: gymnasium.Env[Array, Array], policy: Policy, seed: int, noise: float
) -> dict[str, Any]:
    """One episode; ``actions`` are those that were carried out."""
    random = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    rows: dict[str, list[Any]] = {key: [] for key in ("observations", "actions", "rewards")}
    over = terminated = False
    while not over:
        wanted = policy(observation) + random.normal(0.0, noise, env.action_space.shape)
        action = np.clip(wanted, -1.0, 1.0).astype(np.float32)
        rows["observations"].append(observation)
        rows["actions"].append(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        rows["rewards"].append(float(reward))
        over = terminated or truncated
    return {**rows, "final": observation, "terminated": terminated}


def random_policy(seed: int) -> Policy:
    """Uniform actions."""
    random = np.random.default_rng(seed)
    return lambda _: random.uniform(-1.0, 1.0, 6)


def ranked(policies: dict[str, Policy], env: gymnasium.Env[Array, Array]) -> list[str]:
    """Names, the best first, by mean return."""
    returns = {
        name: np.mean([sum(play(env, policy, SEED - 1 - k, 0.0)["rewards"]) for k in range(TRIALS)])
        for name, policy in policies.items()
    }
    for name, mean in returns.items():
        print(f"{name}: mean return {mean:.0f}", flush=True)
    return sorted(returns, key=lambda name: -returns[name])


def collect(
    folder: Path, env_name: str, kind: str, rows: int, out: Path
) -> list[tuple[str, float]]:
    """Write the file; agent and return of each episode."""
    env = gymnasium.make(f"{env_name}-v5")
    policies = load_agents(folder, env_name, env)
    order = ranked(policies, env)
    roles = {"best": order[:1], "middle": order[2:5]}
    turns = [role for role in KINDS[kind] if role not in AGENTS or role in policies]
    random = np.random.default_rng(SEED)
    episodes: list[tuple[str, dict[str, Any]]] = []
    while sum(len(e["rewards"]) for _, e in episodes) < rows:
        number = len(episodes)
        role = turns[number % len(turns)]
        name = str(random.choice(roles[role])) if role in roles else role
        seed = SEED + number
        policy = random_policy(seed) if name == "random" else policies[name]
        episodes.append((name, play(env, policy, seed, float(random.uniform(0.0, 0.2)))))
    with h5py.File(out, "w") as file:
        for key in ("observations", "actions", "rewards"):
            values = np.concatenate([np.asarray(e[key], dtype=np.float32) for _, e in episodes])
            file.create_dataset(key, data=values, compression="gzip", shuffle=True)
        ends = [(np.arange(len(e["rewards"])) == len(e["rewards"]) - 1, e) for _, e in episodes]
        file["terminals"] = np.concatenate([last & e["terminated"] for last, e in ends])
        file["timeouts"] = np.concatenate([last & (not e["terminated"]) for last, e in ends])
        final = np.stack([e["final"] for _, e in episodes]).astype(np.float32)
        file["metadata/episode_final_observation"] = final
        file["metadata/episode_agent"] = np.array([n for n, _ in episodes], dtype="S8")
        file.attrs.update(env_id=f"{env_name}-v5", kind=kind, seed=SEED)
    return [(name, float(sum(e["rewards"]))) for name, e in episodes]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=Path, required=True, help="clone of rl-trained-agents")
    parser.add_argument("--env", choices=("HalfCheetah", "Walker2d"), required=True)
    parser.add_argument("--kind", choices=KINDS, default="mixed")
    parser.add_argument("--rows", type=int, default=50_000, help="at least; episodes are whole")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    episodes = collect(args.agents, args.env, args.kind, args.rows, args.out)
    for name in dict.fromkeys(name for name, _ in episodes):
        returns = [total for who, total in episodes if who == name]
        print(f"{args.out}: {len(returns)} episodes by {name}, mean return {np.mean(returns):.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
