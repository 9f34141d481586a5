"""Comparison of training and acting with LeRobot, with the same data, weights, sizes and batch size.

    python -m benchmarks.lerobot_training --lerobot /envs/lerobot/bin/python
    python -m benchmarks.lerobot_training --lerobot PYTHON --imitate PYTHON --json out.json

LeRobot writes two datasets of 600 frames, one with two cameras of 96 x 96 (h264) and one of vectors alone, and
policies with random weights: ACT of width 256 (MLPs of 1,024; else LeRobot's defaults: chunks of 100, four layers,
ResNet18 with frozen normalization), and a diffusion policy (horizon 16, U-Net of 128, 256, 512, crops of 84, one
ResNet18 with group norm, DDIM of ten steps). Each toolkit trains them with its own complete training function: loading,
preparation, update, logging. Both run in turns, each in a separate process with one thread, batches of 8, without
workers for loading, float32. Times are CPU seconds, medians over the turns; the first turn warms up.

``--imitate`` names the interpreter for imitate; with LeRobot's (h5py, gymnasium, pydantic and typer installed there)
both use the same version of torch. Without it imitate runs in the interpreter of this command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.row import Row, table
from benchmarks.turns import Turns, answer, serve_calls

CASES = {"act_images": "images", "act_vectors": "vectors", "diffusion_images": "images"}
TRAINED_STEPS = 50
BATCH = 8
EPISODE = 100
_SIZE_TOLERANCE = 1e-4
"""Parts of our networks that LeRobot's lack: positions of ACT's cameras, which are zero in an imported policy."""
ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Measure; return 1 if a target was not reached."""
    parser = argparse.ArgumentParser("python -m benchmarks.lerobot_training", description=__doc__)
    parser.add_argument("--lerobot", type=Path, help="Python of an environment with LeRobot")
    parser.add_argument("--imitate", type=Path, default=Path(sys.executable))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="number of updates in a turn")
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--folder", type=Path, help="folder that keeps datasets and policies")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        _serve(*args.child)
        return 0
    if args.lerobot is None:
        parser.error("--lerobot PYTHON is needed")
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name) / "made"
        os.environ |= {"OMP_NUM_THREADS": "1", "IMITATE_CACHE": f"{name}/cache"}
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
        )
        pair = Pair(args.imitate, args.lerobot, folder, Path(name))
        rows, report = [], {"versions": pair.versions()}
        for case in args.cases:
            figures = training(pair, case, args.rounds, args.steps)
            figures |= acting(pair, case, args.rounds)
            report[case] = figures
            rows += rows_of(case, figures)
    print(json.dumps(report["versions"]))
    print(table("lerobot_training", rows))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if any(row.met is False for row in rows) else 0


class Child:
    """A process that answers requests with lines of JSON."""

    def __init__(self, command: list[str]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (the child writes to it)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
        )

    def request(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        """Return the process's next line of JSON and skip its other lines."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answered: dict[str, Any] = json.loads(line)
                return answered
        self._errors.seek(0)
        raise RuntimeError(f"the child ended early: {self._errors.read()[-2000:]}")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Pair:
    """Processes of both toolkits, with the same datasets and policies.

    Args:
        imitate, lerobot: paths of the interpreters.
        folder: folder of datasets and policies, made if it is missing.
        outputs: folder for the runs.
    """

    def __init__(self, imitate: Path, lerobot: Path, folder: Path, outputs: Path) -> None:
        self.commands = {
            "imitate": [str(imitate), "-m", "benchmarks.lerobot_training", "--child"],
            "LeRobot": [str(lerobot), "-m", "benchmarks.peer_lerobot_training"],
        }
        self.folder, self._outputs, self._runs = folder, outputs, 0
        if not folder.exists():
            maker = Child([*self.commands["LeRobot"], "make", str(folder)])
            maker.read()
            maker.close()

    def versions(self) -> dict[str, Any]:
        """Return the versions of both toolkits."""
        found = {}
        for name, command in self.commands.items():
            child = Child([*command, "versions"])
            found[name] = child.read()
            child.close()
        return found

    def trainings(self, case: str) -> dict[str, Child]:
        """Start a training of each toolkit."""
        self._runs += 1
        policy, data = str(self.folder / case), str(self.folder / CASES[case])
        return {
            name: Child(
                [
                    *command,
                    "train",
                    policy,
                    data,
                    str(self._outputs / f"{name}_{self._runs}"),
                    str(BATCH),
                ]
            )
            for name, command in self.commands.items()
        }

    def policies(self, case: str) -> dict[str, Child]:
        """Start a policy of each toolkit."""
        return {
            name: Child([*command, "act", str(self.folder / case)])
            for name, command in self.commands.items()
        }


def training(pair: Pair, case: str, rounds: int, steps: int) -> dict[str, Any]:
    """Train in turns; return the figures by toolkit, medians over rounds."""
    starts: dict[str, list[float]] = {name: [] for name in pair.commands}
    for _ in range(min(2, rounds - 1)):  # weights that are not trained
        for name, child in pair.trainings(case).items():
            starts[name].append(child.read()["start_s"])
            child.close()
    children = pair.trainings(case)
    hello = {name: child.read() for name, child in children.items()}
    counts = {name: said["parameters"] for name, said in hello.items()}
    if abs(counts["imitate"] / counts["LeRobot"] - 1) > _SIZE_TOLERANCE:
        raise RuntimeError(f"{case}: the networks differ in size: {counts}")
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in children}
    for number in range(rounds + 1):
        for name, child in children.items():
            figures = child.request(n=steps if number else 3)
            if number:
                turns[name].append(figures)
    for child in children.values():
        child.close()
    return {
        "parameters": counts,
        "step_s": _medians(turns, "step_s"),
        "data_s": _medians(turns, "data_s"),
        "start_s": {
            name: statistics.median([*starts[name], said["start_s"]])
            for name, said in hello.items()
        },
        "turns": turns,
    }


def acting(pair: Pair, case: str, rounds: int) -> dict[str, Any]:
    """Act in turns on the same observations; return the figures by toolkit, medians over rounds."""
    config = json.loads((pair.folder / case / "config.json").read_text())
    shapes = {
        name: [*feature["shape"][1:], 3] if feature["type"] == "VISUAL" else feature["shape"]
        for name, feature in config["input_features"].items()
    }
    children = pair.policies(case)
    found: dict[str, Any] = {}
    actions = {}
    for name, child in children.items():
        child.read()
        actions[name] = json.loads(child.request(shapes=shapes, n=16)["actions"])
    if config["type"] == "act":  # a diffusion policy draws noise
        found["action_difference"] = max(
            abs(a - b)
            for ours, theirs in zip(*actions.values(), strict=True)
            for a, b in zip(ours, theirs, strict=True)
        )
    for what, n in (("predict", 20), ("episode", EPISODE)):
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in children}
        for number in range(rounds + 1):
            for name, child in children.items():
                figures = child.request(case=what, n=n)
                if number:
                    turns[name].append(figures)
        found[f"{what}_s"] = _medians(turns, "call_s")
    for child in children.values():
        child.close()
    return found


def _medians(turns: dict[str, list[dict[str, Any]]], figure: str) -> dict[str, float]:
    return {
        name: statistics.median(turn[figure] for turn in found) for name, found in turns.items()
    }


def rows_of(case: str, figures: dict[str, Any]) -> list[Row]:
    """Return the lines of the table, with ratios of both toolkits' times."""
    step, start = figures["step_s"], figures["start_s"]
    whole = {name: start[name] + TRAINED_STEPS * step[name] for name in step}
    share = {name: f"{100 * figures['data_s'][name] / step[name]:.1f} %" for name in step}
    lines = [
        _row(f"{case}: update", step, 1e3, "ms", 1.5, note=f"loading {_both(share)}"),
        _row("  start", start, 1, "s", None),
        _row(f"  start and {TRAINED_STEPS} updates", whole, 1, "s", 1.4),
    ]
    limit = 0.8 if case.startswith("act") else None
    for what in ("predict", "episode"):
        called = figures[f"{what}_s"]
        words = "call that predicts" if what == "predict" else f"call, mean of {EPISODE}"
        lines.append(_row(f"  {words}", called, 1e3, "ms", limit, at_most=True))
    return lines


def _row(
    name: str,
    spent: dict[str, float],
    factor: float,
    unit: str,
    wanted: float | None,
    *,
    at_most: bool = False,
    note: str = "",
) -> Row:
    ratio = spent["LeRobot"] / spent["imitate"]
    shown = {who: f"{factor * value:.3g}" for who, value in spent.items()}
    words = f"{_both(shown)} {unit}" + (f"; {note}" if note else "")
    return Row(
        name,
        1 / ratio if at_most else ratio,
        "of LeRobot's time" if at_most else "times as fast",
        wanted,
        at_most=at_most,
        note=words,
    )


def _both(values: dict[str, str]) -> str:
    return f"{values['imitate']}, LeRobot {values['LeRobot']}"


# ---- processes of ours ---------------------------------------------------------------------------


def _serve(mode: str, *rest: str) -> None:
    import torch

    torch.set_num_threads(1)
    if mode == "versions":
        from imitate.train.setup import package_versions

        answer(python=sys.version.split()[0], **package_versions())
    elif mode == "train":
        _train(*rest)
    else:
        _act(Path(rest[0]))


def _train(policy: str, data: str, output: str, batch_size: str) -> None:
    """Train in turns, as `imitate train --init POLICY --dataset DATA` does."""
    from imitate.algo.base.algo import Algo
    from imitate.policy.checkpoint import load_checkpoint
    from imitate.train.trainer import train

    turns = Turns(
        Algo.train_on_batch,
        lambda algo, *rest: sum(p.numel() for p in algo.nets.parameters() if p.requires_grad),
    )

    def update(*args: Any) -> Any:
        return turns(*args)

    Algo.train_on_batch = update  # type: ignore[method-assign]
    train(
        str(load_checkpoint(policy)["config"]),
        dataset=data,
        output_dir=output,
        overrides=(
            f"experiment.ckpt_path={policy}",
            "experiment.epoch_every_n_steps=100000",
            "experiment.rollout.enabled=false",
            "train.num_epochs=1",
            f"train.batch_size={batch_size}",
            "train.num_threads=1",
            "train.device=cpu",
        ),
    )


def _act(folder: Path) -> None:
    """Answer requests for calls of a policy."""
    from imitate.policy.loading import policy_from_checkpoint

    def own_name(name: str) -> str:
        kind, _, camera = name.removeprefix("observation.").partition(".")
        return f"{camera}_image" if camera else kind

    policy, _ = policy_from_checkpoint(ckpt_path=folder, device="cpu")
    answer(ready=1)
    serve_calls(policy, policy.start_episode, own_name)


if __name__ == "__main__":
    sys.exit(main())
