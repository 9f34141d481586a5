"""Study of the returns of online RL: each method on its environment within a budget of steps, compared with a target.

    python -m benchmarks.studies.online_returns --seed 0 1 2
    python -m benchmarks.studies.online_returns --case sac_pendulum dqn_cartpole --seed 0

A cell is a case and a training seed, trained by `imitate train` with a ready configuration on one thread. Evaluations
are those of the training: deterministic, from the same initial states each time. The best of the last three counts (the
last, of a number of the training such as the cross-entropy of skills), and
a target is reached if every seed reaches it. Finished cells are kept under --out and not run again, and an
interrupted one is resumed from its last checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium
import numpy as np

from benchmarks.studies.episodes import played
from benchmarks.studies.results import kept, trained
from imitate.data.file.writer import DatasetWriter


@dataclass(frozen=True)
class Case:
    """A method, an environment, a budget.

    Attributes:
        config: ready configuration, which contains the budget.
        wanted: target of the best of the last three evaluations.
        metric: metric of the evaluations; with a "/", one of the training.
        settings: further options of the configuration.
        at_most: true if the metric has to stay below ``wanted``.
        limit: metric of the evaluations and what its last value has to stay below as well.
        upon: case from whose policy of the same seed it starts; ``wanted`` is then the required improvement.
        upon_key: key of the configuration that names this policy.
    """

    config: str
    wanted: float
    metric: str = "Return"
    settings: tuple[str, ...] = ()
    at_most: bool = False
    limit: tuple[str, float] | None = None
    upon: str = ""
    upon_key: str = "algo.base.checkpoint"


SUCCESS = "Success_Rate"
AT_END = "Success_Rate_At_End"
GOOD_AND_MEDIOCRE = (
    'train.data=[{"path": "datasets/lift/mixed.hdf5", "filter_key": "better", "demo_limit": 50}, '
    '{"path": "datasets/lift/mixed.hdf5", "filter_key": "worse", "demo_limit": 50}]'
)
SLOW = (
    'algo.rewards={"task": {"source": "reward"}, '
    '"speed": {"source": "info:joint_speed", "weight": 0, "at_most": 0.8}}',
    "algo.reward_weights.initial=0.003",
    "algo.reward_weights.optimizer.learning_rate.initial=0.0005",
)
FREE = (
    'algo.rewards={"task": {"source": "reward"}, '
    '"speed": {"source": "info:joint_speed", "weight": 0}}',
)
"""The speed is measured, but not limited."""
"""The mean speed of the fastest joint is at most 0.8 rad/s; the data are collected with `--signals joint_speed`. The
multiplier begins small, because costs add up over an episode whose reward is 1."""
CARTPOLE_EXPERT = "train.data=datasets/cartpole/expert.hdf5"
PENDULUM_EXPERT = "train.data=datasets/pendulum/expert.hdf5"
FEW_ON_LIFT = (
    'train.data=[{"path": "datasets/lift/scripted.hdf5", "demo_limit": 3}]',
    *("train.num_epochs=4", "experiment.rollout.rate=4", "experiment.rollout.horizon=150"),
)
FEW_ON_STACK = 'train.data=[{"path": "datasets/stack/scripted.hdf5", "demo_limit": 80}]'
RANDOM_FILE = Path("datasets/pendulum/random.hdf5")
RANDOM_PENDULUM = (
    *(f"train.data={RANDOM_FILE}", "train.online.enabled=false"),
    *("train.action_config.actions.normalization=auto", "experiment.epoch_every_n_steps=500"),
    *("train.num_epochs=4", "experiment.rollout.rate=1", "algo.target_tau=0.02"),
    *("algo.near.share=0", "train.batch_size=256"),
)
"""2,000 updates from a file of 4,000 random steps."""
FROM_FEW_ON_LIFT = (
    'train.data=[{"path": "datasets/lift/scripted.hdf5", "demo_limit": 20}]',
    *("train.online.enabled=true", "train.online.demo_ratio=0.5", "train.online.horizon=150"),
    *("train.online.pretrain_updates=2000", "train.online.update_ratio=0.5"),
    *("algo.near.share=1.0", "algo.near.until=0.5", "experiment.epoch_every_n_steps=2500"),
    *("train.num_epochs=10", "experiment.rollout.rate=1", "experiment.rollout.horizon=150"),
)
"""20 demonstrations with a reward at success alone, then 25,000 steps."""
LARGE = ("train.reward.scale=100",)
TO_THE_END = ("experiment.rollout.n=100", "experiment.rollout.terminate_on_success=false")
"""Settings of the evaluations: an arm that only passes the goal has not reached it, and 20 episodes are too few to
distinguish 10 % from 25 % by the best of three evaluations."""
CASES = {
    "sac_pendulum": Case("sac/sac_pendulum", -200.0),
    "oac_pendulum": Case("sac/oac_pendulum", -200.0),
    "sarsa_pendulum": Case("sac/sac_pendulum", -200.0, settings=("algo.target=data",)),
    **{
        f"taac_{form}_pendulum": Case("taac/taac_pendulum", -200.0, settings=(f"algo.form={form}",))
        for form in ("action", "linear", "quadratic")
    },
    "mdq_pendulum": Case("mdq/mdq_pendulum", -200.0),
    "tqc_pendulum": Case("tqc/tqc_pendulum", -200.0),
    "qr_sac_pendulum": Case("tqc/qr_sac_pendulum", -200.0),
    "td3_pendulum": Case("td3/td3_pendulum", -200.0),
    "ddpg_pendulum": Case("ddpg/ddpg_pendulum", -200.0),
    "mbrl_pendulum": Case("mbrl/mbrl_pendulum", -300.0),
    "tdmpc2_pendulum": Case("tdmpc2/tdmpc2_pendulum", -200.0),
    "tdmpc2_pendulum_file": Case("tdmpc2/tdmpc2_pendulum", -300.0, settings=RANDOM_PENDULUM),
    "tdmpc2_lift": Case("tdmpc2/tdmpc2", 0.9, SUCCESS, FROM_FEW_ON_LIFT),
    "tdmpc2_lift_uncloned": Case(
        "tdmpc2/tdmpc2", 0.9, SUCCESS, (*FROM_FEW_ON_LIFT, "algo.weights.cloning=0")
    ),
    "tdmpc2_lift_policy": Case(
        "tdmpc2/tdmpc2", 0.9, SUCCESS, (*FROM_FEW_ON_LIFT, "algo.plan=false")
    ),
    "ppo_cartpole": Case("ppo/ppo_cartpole", 475.0),
    "ppo_popart": Case("ppo/ppo_cartpole", 475.0, settings=(*LARGE, "algo.popart=0.1")),
    "ppo_large_rewards": Case("ppo/ppo_cartpole", 475.0, settings=LARGE),
    "ppo_trust_region": Case("ppo/ppo_cartpole", 475.0, settings=("algo.trust_region=0.01",)),
    **{
        f"ppo_entropy_{rule}": Case(
            "ppo/ppo_cartpole", 475.0, settings=(f"algo.entropy.rule={rule}",)
        )
        for rule in ("sgd", "stages")
    },
    "merlin_recall": Case("merlin/merlin_recall", 0.95, SUCCESS),
    "ppo_recall": Case("ppo/ppo_recurrent", 0.95, SUCCESS),
    "ppo_recall_windows_of_4": Case("ppo/ppo_recurrent", 0.95, SUCCESS, ("train.seq_length=4",)),
    "ppo_recall_without_memory": Case(
        "ppo/ppo_recurrent", 0.7, SUCCESS, ("algo.rnn.enabled=false",), at_most=True
    ),
    "ppg_cartpole": Case("ppg/ppg_cartpole", 475.0),
    "a2c_cartpole": Case("a2c/a2c_cartpole", 475.0),
    "muzero_cartpole": Case("muzero/muzero_cartpole", 450.0),
    "muzero_pendulum": Case("muzero/muzero_pendulum", -300.0),
    "dqn_cartpole": Case("dqn/dqn_cartpole", 450.0),
    "sac_cartpole": Case("sac/sac_cartpole", 450.0),
    "sac_inverted_pendulum": Case("sac/sac_inverted_pendulum", 950.0),
    "gail_cartpole": Case("gail/gail_cartpole", 380.0, settings=(CARTPOLE_EXPERT,)),
    "dac_pendulum": Case("dac/dac_pendulum", -225.0, settings=(PENDULUM_EXPERT,)),
    "rlpd_lift": Case("robosuite/lift/rlpd", 0.9, SUCCESS, (GOOD_AND_MEDIOCRE,)),
    "rlpd_slow_lift": Case(
        "robosuite/lift/rlpd",
        0.9,
        SUCCESS,
        (GOOD_AND_MEDIOCRE, *SLOW),
        limit=("Rollout/Rewards/speed", 0.8),
    ),
    "rlpd_free_lift": Case("robosuite/lift/rlpd", 0.9, SUCCESS, (GOOD_AND_MEDIOCRE, *FREE)),
    "sac_lift": Case("robosuite/lift/sac", 150.0),
    "bc_stack": Case(
        "robosuite/stack/bc_gaussian",
        0.4,
        SUCCESS,
        (FEW_ON_STACK, "experiment.rollout.horizon=150", "experiment.rollout.rate=40"),
    ),
    "residual_stack": Case(
        "robosuite/stack/residual", 0.2, SUCCESS, (FEW_ON_STACK,), upon="bc_stack"
    ),
    "rnd_mountain_car": Case("sac/sac_rnd", 90.0),
    "sac_mountain_car": Case("sac/sac_rnd", 0.1, settings=("algo.auxiliary={}",), at_most=True),
    "diayn_pendulum": Case("sac/sac_diayn", 0.6, "Train/auxiliary/skills/Loss", at_most=True),
    "bc_lift": Case("robosuite/lift/bc_gaussian", 0.0, SUCCESS, FEW_ON_LIFT),
    "prior_lift": Case(
        "sac/sac_prior", 0.2, SUCCESS, upon="bc_lift", upon_key="algo.prior.checkpoint"
    ),
    "sac_sparse_lift": Case("sac/sac_prior", 0.2, SUCCESS, ("algo.prior=null",), at_most=True),
    "her_fetch_reach": Case("her/her_fetch_reach", 0.95, AT_END, TO_THE_END),
    "fetch_reach_without_her": Case(
        "her/her_fetch_reach",
        0.2,
        AT_END,
        ("train.online.hindsight.enabled=false", *TO_THE_END),
        at_most=True,
    ),
}


def record_random(path: Path) -> None:
    """Record 20 episodes of uniformly random actions in Pendulum, unless the file exists."""
    if path.is_file():
        return
    generator, env = np.random.default_rng(0), gymnasium.make("Pendulum-v1")
    path.parent.mkdir(parents=True, exist_ok=True)
    with DatasetWriter(path, {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}) as writer:
        for number in range(20):
            writer.append_episode(
                played(env, number, lambda obs: generator.uniform(-2, 2, 1).astype(np.float32))
            )


def cell(name: str, seed: int, out: Path) -> dict[str, Any]:
    """Return the numbers of one training, from the disk if it has been run before."""
    folder = out / name / f"seed{seed}"
    return kept(folder, lambda: _measured(name, seed, folder, out))


def _measured(name: str, seed: int, folder: Path, out: Path) -> dict[str, Any]:
    case = CASES[name]
    wanted, settings = case.wanted, case.settings
    if settings is RANDOM_PENDULUM:
        record_random(RANDOM_FILE)
    if case.upon:
        before = cell(case.upon, seed, out)
        wanted += reached(before)
        settings += (f"{case.upon_key}={before['checkpoint']}",)
    own = (f"train.seed={seed}", f"experiment.name={name}")
    results, lines = trained(folder, case.config, (*own, *settings))
    key = case.metric if "/" in case.metric else f"Rollout/{case.metric}"
    records = [line for line in lines if key in line]
    return {
        "case": name,
        "seed": seed,
        "steps": results["step"],
        "cpu_s": results["times"]["train_cpu_s"],
        "checkpoint": results["checkpoint"],
        "metric": case.metric,
        "wanted": wanted,
        "curve": [(r["step"], r[key]) for r in records],
        "limited": [r[case.limit[0]] for r in records] if case.limit else [],
    }


def reached(numbers: dict[str, Any]) -> float:
    """Return the best of the last three evaluations; of the training's metrics the last."""
    values = [value for _, value in numbers["curve"][-3:]]
    return values[-1] if "/" in numbers["metric"] else max(values)


def row(name: str, cells: Sequence[dict[str, Any]]) -> str:
    """Return a line of the table: all seeds of a case."""
    case = CASES[name]
    values = [reached(numbers) for numbers in cells]
    wanted = [numbers["wanted"] for numbers in cells]
    pairs = list(zip(values, wanted, strict=True))
    met = all(v < w if case.at_most else v >= w for v, w in pairs)
    limited = ""
    if case.limit:
        metric, most = case.limit
        last = [numbers["limited"][-1] for numbers in cells]
        met = met and all(value < most for value in last)
        limited = f"; {metric.rpartition('/')[2]} {', '.join(f'{value:.2f}' for value in last)}"
    digits = 2 if "/" in case.metric or case.metric in (SUCCESS, AT_END) else 0
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    sign = "below " if case.at_most else ""
    bars = ", ".join(f"{bar:g}" for bar in dict.fromkeys(wanted))
    return (
        f"| {name} | `{case.config}` | {cells[0]['steps']} | {case.metric.lower().replace('_', ' ')} "
        f"| {sign}{bars} | {each}{limited} | {'yes' if met else 'no'} "
        f"| {fmean(numbers['cpu_s'] for numbers in cells):.0f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2], help="training seeds")
    parser.add_argument("--out", type=Path, default=Path("runs/online"))
    args = parser.parse_args(arguments)
    cells: dict[str, list[dict[str, Any]]] = {}
    for seed, name in itertools.product(args.seed, args.case):
        cells.setdefault(name, []).append(cell(name, seed, args.out))
        print(f"seed {seed}", row(name, cells[name][-1:]), flush=True)
    print(
        "\n| case | configuration | steps | measured | wanted | seeds | reached | CPU s |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for name in args.case:
        print(row(name, cells[name]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
