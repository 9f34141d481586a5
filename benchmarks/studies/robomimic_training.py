"""robomimic's BC-RNN-GMM, trained by its own script on the same file and evaluated from the same starts as ours.

    python -m benchmarks.studies.robomimic_training --data datasets/stack/scripted.hdf5 --task stack --seed 1 2 3 \
        --peer-python PYTHON --peer-source ROBOMIMIC

The configuration is robomimic's own template ``bc.json`` with the recurrent network and the mixture switched on, as in
its study (sequences of 10 steps, two layers of 400, no layers behind them); only the number of updates is the option's.
CPU seconds are those of the whole process, its start included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.studies.results import HORIZONS, IMITATE, row, run

UPDATES_PER_EPOCH = 100


def configuration(template: dict[str, Any], data: Path, out: Path, args: Any) -> dict[str, Any]:
    """Return robomimic's template as a training of BC-RNN-GMM without rollouts.

    Args:
        template: content of ``robomimic/exps/templates/bc.json``.
        data: the demonstrations.
        out: folder of the run.
        args: with ``seed`` and ``epochs``.
    """
    experiment, train, algo = template["experiment"], template["train"], template["algo"]
    experiment |= {"name": "bc_rnn_gmm", "validate": False, "render_video": False}
    experiment["rollout"]["enabled"] = False
    experiment["logging"] |= {"terminal_output_to_txt": False, "log_tb": False}
    experiment["save"] |= {"every_n_epochs": args.epochs, "on_best_rollout_success_rate": False}
    train |= {"data": str(data), "output_dir": str(out), "seed": args.seed, "cuda": False}
    train |= {"num_epochs": args.epochs, "seq_length": 10}
    algo["gmm"]["enabled"] = algo["rnn"]["enabled"] = True
    algo["actor_layer_dims"] = []
    modalities = template["observation"]["modalities"]["obs"]
    modalities["low_dim"] = [
        *("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"),
        "object",
    ]
    return template


def cell(folder: Path, args: Any) -> dict[str, Any]:
    """Train with robomimic, evaluate with ``imitate eval``; a finished cell is read from the disk."""
    kept = folder / "cell.json"
    if kept.is_file():
        numbers: dict[str, Any] = json.loads(kept.read_text())
        return numbers
    folder.mkdir(parents=True, exist_ok=True)
    template = json.loads(
        (args.peer_source / "robomimic" / "exps" / "templates" / "bc.json").read_text()
    )
    config = folder / "config.json"
    config.write_text(
        json.dumps(configuration(template, args.data.resolve(), folder / "run", args))
    )
    script = args.peer_source / "robomimic" / "scripts" / "train.py"
    environ = {**os.environ, "PYTHONPATH": str(args.peer_source), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "train.log").open("w") as log:
        command = [str(args.peer_python), str(script), "--config", str(config)]
        subprocess.run(command, check=True, env=environ, stdout=log, stderr=log)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (checkpoint,) = (folder / "run").glob("**/model_epoch_*.pth")
    report = folder / "eval.json"
    evaluate = [*IMITATE, "eval", "--agent", str(checkpoint), "--seed", "0", "--json", str(report)]
    evaluate += ["--episodes", str(args.episodes), "--horizon", str(HORIZONS[args.task])]
    run([*evaluate, "--workers", str(args.workers)], folder / "eval.log")
    (measured,) = json.loads(report.read_text())["evaluations"]
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    numbers = {
        **{"task": args.task, "variant": "robomimic BC-RNN-GMM", "seed": args.seed},
        **{"steps": UPDATES_PER_EPOCH * args.epochs, "train_cpu_s": spent},
        **{"successes": measured["successes"], "episodes": measured["episodes"]},
    }
    kept.write_text(json.dumps(numbers, indent=2))
    return numbers


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the demonstrations")
    parser.add_argument("--task", required=True, choices=tuple(HORIZONS))
    parser.add_argument("--seed", nargs="+", type=int, default=[1], help="training seeds")
    parser.add_argument("--epochs", type=int, default=25, help="of 100 updates")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--peer-python", type=Path, required=True, help="has robomimic and torch")
    parser.add_argument("--peer-source", type=Path, required=True, help="a checkout of robomimic")
    parser.add_argument("--out", type=Path, default=Path("runs/robomimic"))
    args = parser.parse_args()
    for seed in args.seed:
        args.seed = seed
        folder = args.out.resolve() / args.task / f"seed{seed}_epochs{args.epochs}"
        print(row(cell(folder, args)), flush=True)


if __name__ == "__main__":
    main()
