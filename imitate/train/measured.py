"""Settings that are ``auto`` and decided by measuring a few updates on this machine's CPU.

``train.precision`` and ``train.num_threads``: what a processor's flags promise is not what its updates take. The
updates are those of a second copy of the algorithm, which is thrown away, and draw from random generators that are put
back. The training therefore is, bit for bit, that of a configuration with the chosen values.

Other values give other last digits, so the first decision for a setting is kept in the cache, and later runs of it on
this machine, with any seed, take it from there. A run has the chosen values in its configuration: a resumed one
measures nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from imitate.algo.algo import Algo, Batch
from imitate.config import Config
from imitate.cpu import cpu_model
from imitate.data import SequenceDataset, ShuffledBatches
from imitate.data.file.cache import cache_folder
from imitate.errors import ConfigError
from imitate.functional.products import onednn_is_faster
from imitate.models.precision import autocast, has_fast_bf16
from imitate.plain_files import read_json
from imitate.ranks import Ranks
from imitate.run_folder import write_text
from imitate.seeding import preserved_rng, torch_threads
from imitate.train.frozen import put_blank_features
from imitate.train.loading import make_loader

MARGIN = 1.1
"""The simpler setting (fp32, fewer threads) is taken unless another is so many times as fast."""
ROUNDS = 5
MOST_S = 1.5
"""No further round begins after so many seconds."""
TURN_S = 0.01
"""Least duration of a turn, which has one update or several."""
HOPELESS = 3.0
"""A candidate whose first update takes so many times as long as that of the fastest is not tried again."""

_MATTERS = (
    "batch_size",
    "seq_length",
    "frame_stack",
    "gradient_accumulation",
    "max_grad_norm",
    "cache_features",
)
"""Keys of ``train`` on which the time of an update depends."""


class Candidate(NamedTuple):
    """A precision and a number of threads; None: torch's default."""

    precision: str
    threads: int | None


@dataclass(frozen=True)
class Decision:
    """Measured settings.

    Attributes:
        chosen: dotted keys of the configuration and their values.
        milliseconds: of an update, by the words for each candidate; empty where there was only one.
        clock: "cpu" or "wall".
        kept: file of the cache that it comes from; None where it was measured now.
    """

    chosen: dict[str, Any]
    milliseconds: dict[str, float]
    clock: str
    kept: str | None = None

    @property
    def line(self) -> str:
        """The decision for people."""
        values = ", ".join(f"{key}: {value}" for key, value in self.chosen.items())
        times = ", ".join(f"{name} {ms:.3g} ms" for name, ms in self.milliseconds.items())
        if not times:
            return f"{values} (the only choice on this machine)"
        if self.kept is None:
            return f"{values}, measured: an update takes {times} ({self.clock} time)"
        return f"{values}, as measured here before: {times}; to measure again, remove {self.kept}"


def decide(
    config: Config,
    device: torch.device,
    train_set: Any,
    make_trial: Callable[[Config], Algo],
    ranks: Ranks,
) -> Decision | None:
    """Decide the settings that are ``auto``, the same on all ranks.

    Args:
        config: of a new run, resolved but for these settings.
        device: where the algorithm will live.
        train_set: its data.
        make_trial: builds a copy of the algorithm that is ready to learn.
        ranks: the processes that train together; the times of the first count.

    Returns:
        None where nothing is ``auto``, or nothing can be measured: on other devices than a CPU, and where shards come
        in windows. There bf16 is taken where the device has it, and torch's default number of threads.
    """
    keys = [key for key in ("precision", "num_threads") if config.train[key] == "auto"]
    if not keys or device.type != "cpu" or not isinstance(train_set, SequenceDataset):
        return None
    candidates = _candidates(config)

    def chosen(best: Candidate) -> dict[str, Any]:
        values = {"precision": best.precision, "num_threads": best.threads}
        return {f"train.{key}": values[key] for key in keys}

    if len(candidates) == 1:
        decision = Decision(chosen(candidates[0]), {}, "cpu")
    else:
        digest = _digest(config, keys, train_set, candidates, ranks)
        path = cache_folder("measured") / f"{digest}.json"
        decision = _kept(path) or _measured(
            config, device, train_set, make_trial, ranks, candidates, chosen
        )
        decision = decision if decision.kept else keep(path, decision)
    return Decision(**ranks.gather(vars(decision))[0])


def _candidates(config: Config) -> list[Candidate]:
    """Return what is tried, the simpler settings first."""
    train = config.train
    precisions: list[str] = [train.precision]
    threads: list[int | None] = [None]
    if train.precision == "auto":
        precisions = ["fp32"]
        if has_fast_bf16(torch.device("cpu")) and _allows_bf16(config):
            precisions.append("bf16")
    if train.num_threads == "auto":
        most = torch.get_num_threads()
        threads = [*sorted({1, max(1, most // 2), most})]
    elif train.num_threads is not None:
        threads = [train.num_threads]
    return [Candidate(*pair) for pair in product(precisions, threads)]


def _allows_bf16(config: Config) -> bool:
    try:
        return not config.algo.conflicts(config.with_overrides({"train.precision": "bf16"}))
    except ConfigError:
        return False


def _measured(
    config: Config,
    device: torch.device,
    train_set: SequenceDataset,
    make_trial: Callable[[Config], Algo],
    ranks: Ranks,
    candidates: Sequence[Candidate],
    chosen: Callable[[Candidate], dict[str, Any]],
) -> Decision:
    plain = {"train.precision": "fp32", "train.num_threads": None, "train.compile": False}
    with preserved_rng():
        trial = make_trial(config.with_overrides(plain))
        size = ranks.share_of(config.train.batch_size, "train.batch_size")
        order = ShuffledBatches(len(train_set), size, config.train.seed)
        raw = next(iter(make_loader(train_set, order, 0, device)))
        if config.train.cache_features:
            put_blank_features(trial, train_set, raw)
        batch = trial.process_batch_for_training(raw)
        one_count = len({candidate.threads for candidate in candidates}) == 1
        clock = time.process_time if one_count else time.perf_counter
        seconds = update_seconds(trial, batch, candidates, clock)
    fastest = min(seconds.values())
    best = next(one for one in candidates if seconds[one] <= MARGIN * fastest)
    times = {_words(one, config): round(1e3 * seconds[one], 4) for one in candidates}
    return Decision(chosen(best), times, "cpu" if one_count else "wall")


def update_seconds(
    trial: Algo, batch: Batch, candidates: Sequence[Candidate], clock: Callable[[], float]
) -> dict[Candidate, float]:
    """Return the seconds of an update with each candidate: the least over turns, which alternate.

    The first turn warms up and does not count, but for candidates that are hopeless.

    Args:
        trial: learns; its weights are of no use afterwards.
        batch: prepared.
        candidates: what is tried.
        clock: of CPU time where all have the same number of threads, else of wall time.
    """
    trial.set_train()
    seconds: dict[Candidate, float] = {}
    parts = trial.global_config.train.gradient_accumulation
    began = time.perf_counter()
    for number in range(ROUNDS + 1):
        limit = HOPELESS * min(seconds.values(), default=math.inf)
        for one in candidates:
            if seconds.get(one, 0.0) > limit:
                continue
            for learner in {id(each): each for each in (trial, *trial.learners)}.values():
                learner.autocast = autocast(one.precision, trial.device)
            # The first round says how many updates make a turn that a clock can measure.
            updates = 1 if number == 0 else max(1, round(TURN_S / seconds[one] / parts))
            with torch_threads(one.threads):
                start = clock()
                for _ in range(updates * parts):
                    trial.train_on_batch(dict(batch), 1)
                spent = max(clock() - start, 1e-6) / (updates * parts)
            seconds[one] = spent if number <= 1 else min(spent, seconds[one])
        if number > 0 and time.perf_counter() - began > MOST_S:
            break
    return seconds


def _words(one: Candidate, config: Config) -> str:
    words = [one.precision] if config.train.precision == "auto" else []
    if config.train.num_threads == "auto":
        words.append(f"{one.threads} thread{'' if one.threads == 1 else 's'}")
    return " ".join(words)


def _digest(
    config: Config,
    keys: Sequence[str],
    train_set: SequenceDataset,
    candidates: Sequence[Candidate],
    ranks: Ranks,
) -> str:
    """Return the digest of what a decision holds for: the settings, the work of an update, and the machine."""
    described = {
        "decided": keys,
        "algo": [config.algo_name, config.algo.to_dict(), config.observation.to_dict()],
        "train": [config.train[key] for key in _MATTERS],
        "preprocess": [entry.to_dict() for entry in config.train.preprocess],
        "shapes": {key: list(shape) for key, shape in train_set.obs_shapes.items()},
        "candidates": candidates,
        "ranks": ranks.world,
        "machine": [cpu_model(), os.cpu_count(), torch.get_num_threads(), torch.__version__],
    }
    if onednn_is_faster():  # decisions of before it was used do not hold
        described["products"] = "oneDNN"
    text = json.dumps(described, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kept(path: Path) -> Decision | None:
    """Return the decision in a file of the cache; None where there is none, or it cannot be read."""
    with suppress(OSError, ValueError, TypeError):
        return Decision(**read_json(path), kept=str(path))
    return None


def keep(path: Path, decision: Decision) -> Decision:
    """Write a decision into the cache, and return the one that is there: of two at the same time, the first counts.

    A file that cannot be read is replaced.
    """
    values = {name: value for name, value in vars(decision).items() if name != "kept"}
    own = path.with_name(f"{path.stem}-{os.getpid()}")
    with suppress(OSError):  # a cache that may only be read
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_text(own, json.dumps(values) + "\n")
            os.link(own, path)
        except FileExistsError:
            first = _kept(path)
            if first is not None:
                return first
            own.replace(path)
        finally:
            own.unlink(missing_ok=True)
    return decision
