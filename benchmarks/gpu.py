"""Training steps on a GPU, compared with robomimic's and Stable-Baselines3's, as a JSON file and a Markdown table.

    python -m benchmarks gpu --json gpu.json --markdown gpu.md
    python -m benchmarks gpu --robomimic PEER/bin/python --sb3 PEER/bin/python
    python -m benchmarks gpu --dry                        tests the benchmark on the CPU, without measuring

Each toolkit runs whole steps: batch, preparation, update, logging. They take turns on the same GPU, each in a separate
process with one thread. Wall seconds are measured until the GPU has finished its work. The table has the median, the
smallest and the largest figure of the rounds; the first round warms up. Batches: 100; images 16; SAC and PPO 256.

Ours runs as configured by default, then with ``train.data_on_device``, then also with bf16, and then also compiled into
CUDA graphs. A variant that fails is in the table with its error. Exit code: 0; 1 if a variant failed or a
target was missed; 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.__main__ import machine
from benchmarks.demos import OBS_KEYS, find_or_make, made_up, words
from benchmarks.image_step import image_config
from benchmarks.measuring import Contestant, all_rounds, timed
from benchmarks.online_step import ROLLOUT, ppo_rounds, sac_updates
from benchmarks.peer import Peer, stable_baselines
from benchmarks.peer_cases import CAMERAS
from benchmarks.trained import make_config, steps_of
from imitate.config import Config, load_config
from imitate.train.devices import device_in_use
from imitate.train.setup import build, resolve

NO_GPU = 2
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "step by step": {"train.cuda_graph": False},
    "data on device": {"train.data_on_device": True},
    "and bf16": {"train.data_on_device": True, "train.precision": "bf16"},
    "compiled": {"train.compile": True},
}


@dataclass(frozen=True)
class Case:
    """A training whose steps are measured.

    Attributes:
        config: configuration made from the demonstrations, or None for online RL.
        peer: name of the case of robomimic or Stable-Baselines3, or None without one.
        wanted: target of the speed relative to the peer.
        steps: number of steps in a round.
    """

    peer: str | None
    wanted: float
    steps: int
    config: Callable[[Path], Config] | None = None
    online: Callable[[str], Callable[[int], None]] | None = None
    per_step: int = 1


def _ready(name: str) -> Callable[[Path], Config]:
    """Return a ready configuration for the benchmarks' observations, with batches of 100."""

    def config(data: Path) -> Config:
        changes = {
            "train.batch_size": 100,
            "observation.modalities.obs.low_dim": list(OBS_KEYS),
            "experiment.rollout.enabled": False,
        }
        return resolve(load_config(name).with_overrides(changes), data, None)

    return config


CASES = {
    "bc": Case("step_bc", 5.0, 200, lambda data: make_config(data, recurrent=False)),
    "bc_rnn_gmm": Case("step_bc_rnn_gmm", 5.0, 50, lambda data: make_config(data, recurrent=True)),
    "bc_transformer": Case("step_bc_transformer", 5.0, 50, _ready("bc/bc_transformer")),
    "diffusion_policy": Case(None, 5.0, 50, _ready("diffusion_policy/diffusion_policy")),
    "bc_image": Case("step_image", 3.0, 20, lambda data: image_config(data, "fp32")),
    "sac": Case("sac", 1.0, 100, online=sac_updates),
    "ppo": Case(
        "ppo CartPole-v1", 1.0, 1, online=lambda device: ppo_rounds("CartPole-v1", device),
        per_step=ROLLOUT,
    ),
}  # fmt: skip


@dataclass
class Figures:
    """Steps per wall second of a case.

    Attributes:
        per_s: steps per second of each round, by contestant.
        errors: messages of the contestants that failed.
    """

    case: str
    per_s: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def times(self) -> float | None:
        """Return our fastest median divided by the peer's, or None if one of them is missing."""
        ours = [statistics.median(v) for k, v in self.per_s.items() if k != "peer"]
        return (
            max(ours) / statistics.median(self.per_s["peer"])
            if ours and "peer" in self.per_s
            else None
        )

    @property
    def met(self) -> bool | None:
        """Return true if the target is reached, or None if there is no peer to compare with."""
        return None if self.times is None else self.times >= CASES[self.case].wanted

    def to_dict(self) -> dict[str, Any]:
        """Return the case as a dictionary that can be written as JSON."""
        wanted = CASES[self.case].wanted
        figures = {"per_s": self.per_s, "errors": self.errors, "times_peer": self.times}
        return {**figures, "wanted": wanted, "met": self.met}


def main(argv: Sequence[str]) -> int:
    """Measure, write the files and print the table; the module describes the exit code."""
    args = _arguments(argv)
    if not args.dry and not torch.cuda.is_available():
        print(
            "error: torch sees no CUDA device here, so there is nothing to measure; --dry tests the benchmark on the "
            "CPU",
            file=sys.stderr,
        )
        return NO_GPU
    torch.set_num_threads(1)
    device = torch.device("cpu" if args.dry else args.device)
    report = {"dry": args.dry, "device": _device_words(device), "machine": machine()}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(device_in_use(device))
        peers = _Peers(args, device, Path(folder), stack)
        report |= {"data": words(peers.data), "peers": peers.words}
        variants = {name: VARIANTS[name] for name in args.variants}
        found: list[Figures] = []
        for name in args.cases:
            found.append(_measured(name, peers, device, args.rounds, args.dry, variants))
            report["cases"] = {figures.case: figures.to_dict() for figures in found}
            text = markdown(report, found)
            _write(args, report, text)  # after each case: a later one may end the process
    print(text)
    return int(any(figures.errors or figures.met is False for figures in found))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", help="device: cuda, cuda:1 ...")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument(
        "--rounds", type=int, default=7, help="number of rounds, besides the first one"
    )
    parser.add_argument("--data", type=Path, metavar="FILE", help="demonstrations of Lift")
    parser.add_argument(
        "--robomimic", type=Path, metavar="PYTHON", help="interpreter that has robomimic"
    )
    parser.add_argument(
        "--robomimic-source",
        type=Path,
        metavar="PATH",
        help="robomimic's source folder, if it is not installed",
    )
    parser.add_argument("--sb3", type=Path, metavar="PYTHON", help="Stable-Baselines3's")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument(
        "--dry", action="store_true", help="test on the CPU, with one step per round"
    )
    return parser.parse_args(argv)


class _Peers:
    """The data, and the other toolkits that are installed."""

    def __init__(
        self, args: argparse.Namespace, device: torch.device, folder: Path, stack: ExitStack
    ) -> None:
        short = [30] * 4
        self.data = made_up(folder / "made_up.hdf5", short) if args.dry else None
        self.data = self.data or find_or_make(folder, args.data)
        cameras = (*CAMERAS,)
        lengths = short if args.dry else [42] * 50
        needs_images = "bc_image" in args.cases
        self.images = made_up(folder / "images.hdf5", lengths, cameras) if needs_images else None
        peer = Peer(args.robomimic, args.robomimic_source, self.data, str(device))
        self._robomimic = stack.enter_context(peer)
        self._sb3 = None
        if args.sb3 is not None:
            self._sb3 = stack.enter_context(stable_baselines(args.sb3, str(device)))
        self.words = {
            "robomimic": peer.words if peer.live else "not measured",
            "Stable-Baselines3": "not measured"
            if self._sb3 is None
            else self._sb3.hello["version"],
        }

    def of(self, name: str) -> Path:
        """Return the demonstrations of a case."""
        return self.images if name == "bc_image" and self.images is not None else self.data

    def contestants(self, name: str) -> dict[str, Contestant]:
        """Return ``{"peer": ...}`` if the case has a peer, else an empty dict."""
        case = CASES[name]
        if case.peer is None:
            return {}
        if case.online is not None:
            return {} if self._sb3 is None else {"peer": self._sb3.contestant(case.peer)}
        return self._robomimic.contestants(case.peer, self.of(name))


def _measured(
    name: str,
    peers: _Peers,
    device: torch.device,
    rounds: int,
    dry: bool,
    variants: dict[str, dict[str, Any]],
) -> Figures:
    case, figures = CASES[name], Figures(name)
    contestants = peers.contestants(name)
    variants = {"default": {}} if case.online is not None else variants
    for variant, changes in variants.items():
        if dry and "train.compile" in changes:
            continue  # compilation takes minutes, and differs from a GPU's
        try:
            iterate = _iterate(case, peers.of(name), device, changes, dry)
            ours = timed(iterate, str(device))
            ours(1)
        except Exception as error:  # the other figures are still measured
            figures.errors[variant] = _message(error)
        else:
            contestants[variant] = ours
    steps = 1 if dry else case.steps
    try:
        spent = all_rounds(contestants, dict.fromkeys(contestants, steps), 1 if dry else rounds)
    except Exception as error:
        figures.errors["rounds"] = _message(error)
        return figures
    figures.per_s = {k: [case.per_step / s.wall_s for s in costs] for k, costs in spent.items()}
    return figures


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def _write(args: argparse.Namespace, report: dict[str, Any], text: str) -> None:
    for path, content in ((args.json, json.dumps(report, indent=2)), (args.markdown, text)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n")


def _iterate(
    case: Case, data: Path, device: torch.device, changes: dict[str, Any], dry: bool
) -> Callable[[int], None]:
    """Run ``n`` steps as ``imitate train`` does."""
    if case.online is not None:
        return case.online(str(device))
    assert case.config is not None
    config = case.config(data).with_overrides(changes | ({"train.batch_size": 4} if dry else {}))
    torch.manual_seed(0)
    return steps_of(build(config, device), drop_last=True)


def _device_words(device: torch.device) -> str:
    if device.type != "cuda":
        return "cpu"
    return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"


def markdown(report: dict[str, Any], found: Sequence[Figures]) -> str:
    """Return the table for docs/results.md, with machine and versions above it."""
    host = report["machine"]
    said = [f"{name}: {words}" for name, words in report["peers"].items()]
    lines = [
        *(
            ["**This is a dry run on the CPU; its figures are meaningless.**", ""]
            if report["dry"]
            else []
        ),
        f"{report['device']}; {host['cpu']}, {host['cores']} cores; torch {host['torch']}, Python {host['python']}, "
        f"imitate {host['imitate']}; {host['date']}. {'; '.join(said)}. Data: {report['data']}.",
        "",
        "| case | variant | steps/s | smallest - largest | times the peer | wanted |",
        "|---|---|---|---|---|---|",
    ]
    for figures in found:
        peer = figures.per_s.get("peer")
        for variant, values in figures.per_s.items():
            middle = statistics.median(values)
            times = "" if peer is None else f"{middle / statistics.median(peer):.2f}"
            wanted = f"{CASES[figures.case].wanted:g}" if peer is not None else ""
            spread = f"{min(values):.1f} - {max(values):.1f}"
            lines.append(
                f"| {figures.case} | {variant} | {middle:.1f} | {spread} | {times} | {wanted} |"
            )
        for variant, error in figures.errors.items():
            lines.append(f"| {figures.case} | {variant} | failed: {error} | | | |")
    return "\n".join(lines)
