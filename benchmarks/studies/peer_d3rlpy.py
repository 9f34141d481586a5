"""d3rlpy's IQL and TD3+BC on given arrays, with the settings of ours; locomotion.py runs it where d3rlpy is installed.

    PYTHON benchmarks/studies/peer_d3rlpy.py ARRAYS.npz REPORT.json --env Hopper-v5 --method iql --seed 1 --updates 9000

Needs d3rlpy and gymnasium alone. Its own evaluators are not used, so that both toolkits play the same episodes.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import fmean

import d3rlpy
import gymnasium
import numpy as np
import torch
from d3rlpy.optimizers import AdamFactory, CosineAnnealingLRFactory

EVALUATIONS, EPISODES = 10, 10


def make(method: str, updates: int):  # noqa: ANN201 (the type is another package's)
    """The algorithm, as in configs/iql/iql_locomotion.json and configs/td3_bc/td3_bc_locomotion.json."""
    rates = {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4, "batch_size": 256}
    if method == "td3_bc":
        scaler = d3rlpy.preprocessing.StandardObservationScaler()
        config = d3rlpy.algos.TD3PlusBCConfig(**rates, alpha=2.5, observation_scaler=scaler)
    else:
        cosine = AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=updates))
        config = d3rlpy.algos.IQLConfig(
            **rates,
            expectile=0.7,
            weight_temp=3.0,
            actor_optim_factory=cosine,
            reward_scaler=d3rlpy.preprocessing.ReturnBasedRewardScaler(multiplier=1000.0),
        )
    return config.create(device="cpu:0")


def play(algo: object, env_id: str, seed: int) -> float:
    """Return of one episode."""
    env = gymnasium.make(env_id)
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        action = algo.predict(np.asarray(observation, dtype=np.float32)[None])[0]
        observation, reward, terminated, truncated, _ = env.step(np.clip(action, -1.0, 1.0))
        total, over = total + float(reward), terminated or truncated
    return total


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arrays", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--env", required=True)
    parser.add_argument("--method", choices=("iql", "td3_bc"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--test-seed", type=int, default=10_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    d3rlpy.seed(args.seed)
    with np.load(args.arrays) as arrays:
        dataset = d3rlpy.dataset.MDPDataset(
            observations=arrays["observations"].astype(np.float32),
            actions=arrays["actions"].astype(np.float32),
            rewards=arrays["rewards"].astype(np.float32),
            terminals=arrays["terminals"].astype(np.float32),
            timeouts=arrays["timeouts"].astype(np.float32),
        )
    algo = make(args.method, args.updates)
    algo.build_with_dataset(dataset)
    epoch = args.updates // EVALUATIONS
    returns, cpu_s, begun = [], 0.0, time.process_time()
    fitter = algo.fitter(
        dataset,
        n_steps=epoch * EVALUATIONS,
        n_steps_per_epoch=epoch,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
    )
    for _ in fitter:
        cpu_s += time.process_time() - begun
        starts = range(args.test_seed, args.test_seed + EPISODES)
        returns.append(fmean(play(algo, args.env, seed) for seed in starts))
        begun = time.process_time()
    args.report.write_text(json.dumps({"returns": returns, "cpu_s": cpu_s}))


if __name__ == "__main__":
    main()
