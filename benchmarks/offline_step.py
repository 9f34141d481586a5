"""Benchmark of updates of offline RL on one thread: ours, as in ``imitate train``, and robomimic's.

Both have the sizes of robomimic's templates: layers of 300 and 400, in TD3+BC of 256 and 256, two critics, and in CQL
ten actions of each kind. Ours normalizes observations throughout, robomimic where its template does (TD3+BC).
"""

from __future__ import annotations

import torch

from benchmarks.measuring import Contestant, compare, timed
from benchmarks.peer import Bench
from benchmarks.peer_cases import OFFLINE_STEPS, offline_name
from benchmarks.row import Row
from benchmarks.trained import config_of, setup_of, steps_of

UPDATES = {"iql": 60, "td3_bc": 60, "cql": 4}
"""Number of updates in a round."""

WANTED = {"iql": 1.6, "td3_bc": 1.6, "cql": 1.3}


def run(bench: Bench) -> list[Row]:
    """Measure updates per CPU second, in fp32."""
    torch.set_num_threads(1)
    return [
        row for name, sizes in OFFLINE_STEPS.items() for n in sizes for row in _rows(name, n, bench)
    ]


def _rows(algo_name: str, batch_size: int, bench: Bench) -> list[Row]:
    case = offline_name(algo_name, batch_size)
    contestants = {"ours": _ours(algo_name, batch_size, bench), **bench.peer.contestants(case)}
    spent = compare(contestants, UPDATES[algo_name])
    ours, peer = 1 / spent["ours"].cpu_s, bench.peer.per_s(case, spent)
    name, source = f"{algo_name}, batch {batch_size}", bench.peer.source_of(case)
    return [
        Row(name, ours, "updates/CPU s", None, False, peer, source),
        Row(f"{name}: times robomimic's", ours / peer, "x", WANTED[algo_name]),
    ]


def _ours(algo_name: str, batch_size: int, bench: Bench) -> Contestant:
    train = {"batch_size": batch_size, "obs_normalization": "mean_std"}
    return timed(steps_of(setup_of(config_of(bench.data, algo_name, train))))
