"""Normalized scores on locomotion data: any file of D4RL or Minari, one command.

    python -m benchmarks.studies.locomotion --data halfcheetah_mixed.hdf5 walker2d_mixed.hdf5 --seed 1 2 3
    python -m benchmarks.studies.locomotion --data hopper_medium_replay-v2.hdf5 --env Hopper-v5 --updates 50000
    python -m benchmarks.studies.locomotion --data FILE --method iql td3_bc --peer-python PYTHON    d3rlpy's beside ours

Files are converted once (`imitate dataset convert`). A cell is a file, a method and a training seed; it is trained by
`imitate train` on one thread and plays ten episodes from the same starts ten times on the way. Reported are the last
of these evaluations and the best, which nobody can choose without the simulator. Finished cells are kept under --out
and not run again. A score is 100 (return - random) / (expert - random), with the returns of the file's attributes,
else those of D4RL, else of --reference.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from benchmarks.studies.results import IMITATE, run
from imitate.data import DatasetFile

D4RL_RETURNS = {
    "HalfCheetah": (-280.18, 12135.0),
    "Hopper": (-20.27, 3234.3),
    "Walker2d": (1.63, 4592.3),
    "Ant": (-325.6, 3879.7),
}
"""Of a random and of an expert policy, by the environment's name without version."""
TEST_SEED = 10_000
EVALUATIONS = 10
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""Quantile 0.975 of Student's t by the number of seeds."""
FLAT = 'observation.modalities.obs={"low_dim": ["flat"]}'
LAYERS = ("algo.actor.layer_dims=[256, 256]", "algo.critic.layer_dims=[256, 256]")
RETURN_RANGE = 'train.reward={"scale": 1000, "normalization": "return_range"}'
CLONING = (
    FLAT,
    "train.obs_normalization=mean_std",
    "train.batch_size=256",
    "algo.actor_layer_dims=[256, 256]",
    "algo.optim_params.policy.learning_rate.initial=0.0003",
)
STRONG_PENALTIES = ("algo.actor.bc_weight=0.1", "algo.critic.bc_weight=0.1")
"""The paper chooses both per dataset, up to 0.1 and 0.5; 0.01 is for a million transitions, not for fifty thousand."""
CQL = (
    # CORL's choice for locomotion.
    *("algo.critic.target_q_gap=null", "algo.critic.cql_weight=10"),
    *("algo.optim_params.actor.learning_rate.initial=0.00003", "algo.actor.bc_start_steps=0"),
    "algo.actor.initial_entropy_weight=1",
    # A sixth of the time that 256 with 10 samples of each distribution take.
    *("train.batch_size=128", "algo.critic.num_random_actions=4"),
)
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bc": ("bc/bc", CLONING),
    "bc_filtered": ("bc/bc", (*CLONING, "train.filter_best=0.2")),
    "iql": ("iql/iql_locomotion", ()),
    "td3_bc": ("td3_bc/td3_bc_locomotion", ()),
    "rebrac": ("rebrac/rebrac_locomotion", ("train.batch_size=256", *STRONG_PENALTIES)),
    "awac": ("awac/awac", (FLAT, RETURN_RANGE, *LAYERS)),
    "cql": ("cql/cql", (FLAT, *LAYERS, *CQL)),
}
"""Ready configuration, and what is set besides."""
PEER_METHODS = ("iql", "td3_bc")


def converted(source: Path, out: Path, env: str | None) -> Path:
    """The source as a demonstration file, made once."""
    target = out / source.stem / "data.hdf5"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [*IMITATE, "dataset", "convert", str(source), str(target)]
        run([*command, *(["--env", env] if env else [])], target.with_suffix(".log"))
    return target


def references(data: Path) -> tuple[float, float]:
    """Returns of a random and of an expert policy."""
    with DatasetFile(data) as file:
        attrs, env = file.file_attrs, str(file.env_meta["env_name"]).split("-")[0]
    for low, high in (
        ("ref_random_return", "ref_expert_return"),
        ("minari.ref_min_score", "minari.ref_max_score"),
    ):
        if low in attrs and high in attrs:
            return float(attrs[low]), float(attrs[high])
    if env not in D4RL_RETURNS:
        raise SystemExit(f"{data}: no returns to normalize by for {env}; give --reference LOW HIGH")
    return D4RL_RETURNS[env]


def cell(
    data: Path, method: str, seed: int, updates: int, folder: Path, peer: str | None = None
) -> dict[str, Any]:
    """Returns of the evaluations of one training, from the disk if it has been run before."""
    kept = folder / "cell.json"
    if kept.is_file():
        numbers: dict[str, Any] = json.loads(kept.read_text())
        return numbers
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    trained = _trained_by_peer if peer else _trained
    returns, cpu_s = trained(data, method, seed, updates, folder, peer)
    numbers = {"updates": updates, "returns": returns, "cpu_s": cpu_s}
    kept.write_text(json.dumps(numbers))
    return numbers


def _trained(
    data: Path, method: str, seed: int, updates: int, folder: Path, _: str | None
) -> tuple[list[float], float]:
    config, settings = METHODS[method]
    settings = (
        *(f"train.data={data}", f"train.seed={seed}", "train.num_threads=1"),
        *(f"experiment.name={method}", "experiment.render_video=false"),
        f"experiment.epoch_every_n_steps={updates // EVALUATIONS}",
        f"train.num_epochs={EVALUATIONS}",
        *("experiment.rollout.n=10", "experiment.rollout.rate=1"),
        *("experiment.rollout.horizon=1000", f"experiment.rollout.seed={TEST_SEED}"),
        "experiment.rollout.num_workers=0",
        *settings,
    )
    command = [*IMITATE, "train", "--config", config, "--output-dir", str(folder)]
    run([*command, *itertools.chain(*(("--set", s) for s in settings))], folder / "train.log")
    results = max(folder.glob("*/*/results.json"))
    lines = (results.parent / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    returns = [r["Rollout/Return"] for r in records if r.get("kind") == "rollout"]
    return returns, float(json.loads(results.read_text())["times"]["train_cpu_s"])


def _trained_by_peer(
    data: Path, method: str, seed: int, updates: int, folder: Path, peer: str | None
) -> tuple[list[float], float]:
    arrays, report = folder / "arrays.npz", folder / "peer.json"
    write_arrays(data, arrays)
    with DatasetFile(data) as file:
        env = file.env_meta["env_name"]
    script = Path(__file__).with_name("peer_d3rlpy.py")
    command = [str(peer), str(script), str(arrays), str(report), "--env", env, "--method", method]
    command += ["--seed", str(seed), "--updates", str(updates), "--test-seed", str(TEST_SEED)]
    with (folder / "peer.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    arrays.unlink()
    told = json.loads(report.read_text())
    return told["returns"], told["cpu_s"]


def write_arrays(data: Path, target: Path) -> None:
    """Write all steps of a file as flat arrays, as the other package reads them."""
    keys = {"observations": "obs/flat", **{k: k for k in ("actions", "rewards", "terminals")}}
    with DatasetFile(data) as file:
        demos = file.demos()
        arrays = {
            name: np.concatenate([file.read(demo, key) for demo in demos])
            for name, key in {**keys, "timeouts": "timeouts"}.items()
        }
    np.savez(target, **arrays)


def interval(scores: Sequence[float]) -> str:
    """Mean and half of the 95 % interval over seeds."""
    mean = fmean(scores)
    if len(scores) not in T_95:
        return f"{mean:.1f}"
    return f"{mean:.1f} ± {T_95[len(scores)] * stdev(scores) / math.sqrt(len(scores)):.1f}"


def row(
    name: str, method: str, cells: Sequence[dict[str, Any]], reference: tuple[float, float]
) -> str:
    """A line of the table: all seeds of one method on one file."""
    low, high = reference
    scores = [[100 * (r - low) / (high - low) for r in c["returns"]] for c in cells]
    last, best = [s[-1] for s in scores], [max(s) for s in scores]
    each = ", ".join(f"{score:.1f}" for score in last)
    cpu_s = fmean(c["cpu_s"] for c in cells)
    return (
        f"| {name} | {method} | {cells[0]['updates']} | {interval(last)} | {each} "
        f"| {interval(best)} | {cpu_s:.0f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", type=Path, required=True, help="files or folders")
    parser.add_argument("--env", help="gymnasium's name of the environment, where files lack it")
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3], help="training seeds")
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--reference", nargs=2, type=float, metavar=("LOW", "HIGH"))
    parser.add_argument("--peer-python", help="interpreter with d3rlpy, for its IQL and TD3+BC")
    parser.add_argument("--out", type=Path, default=Path("runs/locomotion"))
    args = parser.parse_args(arguments)
    peers = [m for m in args.method if m in PEER_METHODS] if args.peer_python else []
    columns = [(m, m, None) for m in args.method]
    columns += [(f"d3rlpy {m}", m, args.peer_python) for m in peers]
    cells: dict[tuple[Path, str], list[dict[str, Any]]] = {}
    for seed, source, (label, method, peer) in itertools.product(args.seed, args.data, columns):
        data = converted(source, args.out, args.env)
        name = label.replace(" ", "_")
        folder = args.out / source.stem / name / f"seed{seed}_updates{args.updates}"
        numbers = cell(data, method, seed, args.updates, folder, peer)
        cells.setdefault((source, label), []).append(numbers)
        reference = tuple(args.reference) if args.reference else references(data)
        print(row(source.stem, f"{label}, seed {seed}", [numbers], reference), flush=True)
    print("\n| data | method | updates | last | seeds | best | CPU s |\n|" + "---|" * 7)
    for source in args.data:
        data = converted(source, args.out, args.env)
        reference = tuple(args.reference) if args.reference else references(data)
        for label, *_ in columns:
            print(row(source.stem, label, cells[source, label], reference))
    return 0


if __name__ == "__main__":
    sys.exit(main())
