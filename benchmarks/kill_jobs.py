"""Small jobs of long-running commands for :mod:`benchmarks.kills`, with functions to start them and compare results."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from imitate.data import DatasetWriter, Episode
from imitate.system.run_folder import runs_in

ENV = "Pendulum-v1"
UNLIKE = ("Timing/", "time", "wall", "cpu", "seconds", "workers", "first_error", "warnings")
"""Prefixes of keys whose values differ from run to run: times, and notes on repeated attempts."""


@dataclass(frozen=True)
class Job:
    """A command and its results.

    Attributes:
        name: name of the command.
        begin: function from the folder of the job to the arguments of ``imitate``.
        resume: the same function, for the command after a kill.
        result: function from the folder to the result, which kills must not change.
        is_done: function that returns true if the finished file exists, so that there is nothing to resume.
        is_alike: function that compares a result with the undisturbed one.
        goes_on_ray: true if the command has workers, which ``--on`` can place on other machines.
    """

    name: str
    begin: Callable[[Path], list[str]]
    resume: Callable[[Path], list[str]]
    result: Callable[[Path], Any]
    is_done: Callable[[Path], bool] = lambda at: False
    is_alike: Callable[[Any, Any], bool] = operator.eq
    goes_on_ray: bool = True


def jobs(inputs: Path) -> dict[str, Job]:
    """Return all jobs, by name.

    Args:
        inputs: folder with the files of :func:`write_inputs` and, for ``eval`` and ``render``, the undisturbed
            results of ``online`` and ``collect``.
    """
    online, features = _train(inputs, "online"), _train(inputs, "features")
    collect, render = _collect, _render(inputs)
    made = [
        Job("collect", collect, _and_resume(collect), _demonstrations, is_done=_has_file),
        Job(
            "online",
            online,
            _resumed(online, "sac"),
            lambda at: _training(at, "sac"),
            is_alike=learned_alike,
        ),
        Job(
            "features",
            features,
            _resumed(features, "features"),
            lambda at: (_training(at, "features"), _computed_features(at)),
            goes_on_ray=False,
        ),
        Job("sweep", _sweep(inputs), _sweep(inputs), _trainings, is_alike=_all_learned_alike),
        Job("eval", _eval(inputs), _eval(inputs), _evaluations),
        Job("render", render, _and_resume(render), _demonstrations, is_done=_has_file),
    ]
    return {job.name: job for job in made}


def write_inputs(folder: Path) -> None:
    """Write the configurations, and demonstrations for the trainings on a file."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with DatasetWriter(
        folder / "features.hdf5", {"type": 4, "env_name": "a robot"}, overwrite=True
    ) as writer:
        for _ in range(8):
            images = rng.integers(0, 256, (250, 32, 32, 3)).astype(np.uint8)
            ends = np.zeros(250, dtype=bool)
            actions = rng.uniform(-1, 1, (250, 2))
            writer.append_episode(Episode({"camera": images}, actions, np.zeros(250), ends, ends))
    meta = {"type": 2, "env_name": ENV, "env_kwargs": {}}
    with DatasetWriter(folder / "sweep.hdf5", meta, overwrite=True) as writer:
        for _ in range(8):
            obs, ends = rng.normal(size=(200, 3)).astype(np.float32), np.zeros(200, dtype=bool)
            rewards = np.zeros(200, np.float32)
            writer.append_episode(Episode({"flat": obs}, obs[:, :1] / 9, rewards, ends, ends))
    rollout = {"enabled": True, "n": 2, "horizon": 100, "rate": 2, "num_workers": 1}
    flat = {"modalities": {"obs": {"low_dim": ["flat"]}}}
    online = {
        **{"env": ENV, "num_envs": 2, "num_workers": 2, "collect_steps": 10},
        **{"warmup_steps": 200, "update_ratio": 0.2, "buffer_size": 2000},
    }
    trunk = {"backbone_class": "VC1", "pool_class": "SpatialMeanPool"}
    trunk["backbone_kwargs"] = {"size": "tiny", "image_size": 64, "freeze": True}
    images = {
        "modalities": {"obs": {"low_dim": [], "rgb": ["camera"]}},
        "encoder": {"rgb": {"core_class": "VisualCore", "core_kwargs": trunk}},
    }
    actor_critic = {"actor": {"layer_dims": [16]}, "critic": {"layer_dims": [16]}}
    actor = {"actor_layer_dims": [16]}
    on_file = {"seed": [1, 2], "data": str(folder / "sweep.hdf5"), "num_epochs": 20}
    on_images = {"data": str(folder / "features.hdf5"), "num_epochs": 6}
    for file, name, steps, evaluations, train, algo, observation in (
        ("online", "sac", 200, rollout, {"num_epochs": 8, "online": online}, actor_critic, flat),
        ("sweep", "bc", 100, {**rollout, "rate": 10}, on_file, actor, flat),
        ("features", "features", 50, {"enabled": False}, on_images, actor, images),
    ):
        tree = {
            "algo_name": "sac" if file == "online" else "bc",
            "experiment": {
                "name": name,
                "epoch_every_n_steps": steps,
                "rollout": evaluations,
                "logging": {"log_tb": False},
                "render_video": False,
                "save": {"every_n_epochs": None, "every_n_seconds": 0.2},
            },
            "train": {"cuda": False, "num_threads": 1, "seed": 3, "batch_size": 16, **train},
            "algo": algo,
            "observation": observation,
        }
        (folder / f"{file}.json").write_text(json.dumps(tree, indent=1))


# ---- commands ------------------------------------------------------------------------------------


def _collect(at: Path) -> list[str]:
    options = ["--num", "6", "--workers", "2", "--seed", "5"]
    return ["collect", "--env", "Lift", "--out", str(at / "demos.hdf5"), *options]


def _train(inputs: Path, name: str) -> Callable[[Path], list[str]]:
    return lambda at: [
        *("train", "--config", str(inputs / f"{name}.json")),
        *("--output-dir", str(at / "runs")),
    ]


def _and_resume(begin: Callable[[Path], list[str]]) -> Callable[[Path], list[str]]:
    return lambda at: [*begin(at), "--resume"]


def _resumed(begin: Callable[[Path], list[str]], name: str) -> Callable[[Path], list[str]]:
    def resume(at: Path) -> list[str]:
        runs = runs_in(at / "runs" / name)
        return ["train", "--resume", str(runs[-1])] if runs else begin(at)

    return resume


def _sweep(inputs: Path) -> Callable[[Path], list[str]]:
    return lambda at: [
        *("sweep", str(inputs / "sweep.json"), "--workers", "2"),
        *("--output-dir", str(at / "runs")),
    ]


def _eval(inputs: Path) -> Callable[[Path], list[str]]:
    def begin(at: Path) -> list[str]:
        run = runs_in(inputs / "online" / "runs" / "sac")[-1]
        agents = [str(run / "checkpoints" / name) for name in ("last.pth", "best.pth")]
        options = ["--episodes", "60", "--horizon", "200", "--workers", "2"]
        files = ["--table", str(at / "table.json"), "--resume", "--out", str(at / "all.json")]
        return ["eval", "--agent", agents[0], "--agent", agents[1], *options, *files]

    return begin


def _render(inputs: Path) -> Callable[[Path], list[str]]:
    return lambda at: [
        *("dataset", "render", str(inputs / "collect" / "demos.hdf5")),
        *("--out", str(at / "drawn.hdf5"), "--cameras", "agentview", "--size", "32"),
        *("--workers", "2", "--first", "3"),
    ]


# ---- results -------------------------------------------------------------------------------------


def _has_file(at: Path) -> bool:
    return any(at.glob("*.hdf5"))


def _demonstrations(at: Path) -> Any:
    (path,) = at.glob("*.hdf5")
    found: dict[str, str] = {}

    def note(name: str, node: h5py.Group | h5py.Dataset) -> None:
        if isinstance(node, h5py.Dataset):
            found[name] = hashlib.sha256(np.ascontiguousarray(node[()]).tobytes()).hexdigest()
        else:
            found[name] = repr(sorted((key, str(value)) for key, value in node.attrs.items()))

    with h5py.File(path) as file:
        file.visititems(note)
    return found


@dataclass(frozen=True)
class Learned:
    """Metrics of a training run.

    Attributes:
        epochs: the line of each epoch.
        evaluations: the line of each evaluation, in the order of their epochs.
        left_out: epochs that were not evaluated, according to the log, because an earlier evaluation was still running.
        sure: number of epochs that had ended before a collector was lost, from the log, or None if none was lost. The
            lost episodes are replaced by ones with other seeds, so later numbers differ from run to run.
    """

    epochs: list[Any]
    evaluations: list[Any]
    left_out: frozenset[int] = frozenset()
    sure: int | None = None


def learned_alike(one: Learned, other: Learned) -> bool:
    """Return true if two runs have the same epochs and evaluations, with equal numbers.

    Evaluations that one of the runs skipped are not compared, nor are the numbers of epochs that ended after
    one of them had lost a collector.
    """
    left_out = one.left_out | other.left_out
    sure = min(run.sure if run.sure is not None else len(run.epochs) for run in (one, other))

    def compared(lines: list[Any]) -> list[Any]:
        known = [line for line in lines if line["epoch"] not in left_out]
        return [line if line["epoch"] <= sure else line["epoch"] for line in known]

    return (
        len(one.epochs) == len(other.epochs)
        and one.epochs[:sure] == other.epochs[:sure]
        and compared(one.evaluations) == compared(other.evaluations)
    )


def _all_learned_alike(some: dict[str, Learned], others: dict[str, Learned]) -> bool:
    return some.keys() == others.keys() and all(
        learned_alike(run, others[name]) for name, run in some.items()
    )


def _training(at: Path, name: str) -> Learned:
    return _learned(runs_in(at / "runs" / name)[-1])


def _computed_features(at: Path) -> dict[str, str]:
    """Return the digest of each file of features in the cache of a job."""
    return {
        path.name.partition("-")[0]: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (at / "cache" / "features").glob("*.features")
    }


def _trainings(at: Path) -> dict[str, Learned]:
    folders = sorted(path for path in (at / "runs" / "bc").iterdir() if path.is_dir())
    return {folder.name: _learned(runs_in(folder)[-1]) for folder in folders}


def _learned(run: Path) -> Learned:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines.sort(key=lambda line: line["epoch"] if line["kind"] == "rollout" else 0)
    log = (run / "log.txt").read_text()
    return Learned(
        [_alike(line) for line in lines if line["kind"] == "epoch"],
        [_alike(line) for line in lines if line["kind"] == "rollout"],
        frozenset(map(int, re.findall(r"evaluation of epoch (\d+) skipped", log))),
        _sure(log),
    )


def _sure(log: str) -> int | None:
    before, lost, _ = log.partition("its episodes are discarded, and another worker replaces it")
    ended = re.findall(r"^epoch (\d+)/", before, re.MULTILINE)
    return (int(ended[-1]) if ended else 0) if lost else None


def _evaluations(at: Path) -> Any:
    return _alike(json.loads((at / "all.json").read_text())["evaluations"])


def _alike(value: Any) -> Any:
    """Remove values that differ from run to run."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not any(k.startswith(word) for word in UNLIKE)}
        return {key: _alike(item) for key, item in kept.items()}
    return [_alike(item) for item in value] if isinstance(value, list) else value
