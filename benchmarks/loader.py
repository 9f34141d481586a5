"""Benchmark of batches per second through a standard DataLoader: ours, a bare gather, robomimic's."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.demos import OBS_KEYS
from benchmarks.measuring import Contestant, Spent, compare, drawn, timed
from benchmarks.peer import Bench
from benchmarks.row import Row
from imitate.data import SequenceDataset, ShuffledBatches

BATCH_SIZE = 100


def run(bench: Bench) -> list[Row]:
    """Measure low-dimensional data as in Lift with sequences of 1 and 10, in RAM and from the file."""
    torch.set_num_threads(1)
    return [*_low_dim(bench, 1), *_low_dim(bench, 10), *_from_the_file(bench)]


def _low_dim(bench: Bench, seq_length: int) -> list[Row]:
    dataset = SequenceDataset(bench.data, OBS_KEYS, seq_length=seq_length)
    case = f"loader_seq{seq_length}"
    contestants = {
        "training": _batches(_exact_loader(dataset)),
        "plain": _batches(DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)),
        "bare": _bare(dataset, seq_length),
        **bench.peer.contestants(case),
    }
    counts = {"training": 3000, "plain": 3000, "bare": 3000, "peer": 150}
    spent = compare(contestants, {name: counts[name] for name in contestants})
    peer, source = bench.peer.per_s(case, spent), bench.peer.source_of(case)
    name = f"low-dim, sequence {seq_length}"
    wanted = 10_000 if seq_length == 10 else None
    return [
        _row(f"{name}, exact shuffling", spent["training"], wanted, peer, source),
        _row(f"{name}, shuffle=True", spent["plain"], wanted, peer, source),
        _row(f"{name}, bare gather of the seven arrays", spent["bare"]),
    ]


def _from_the_file(bench: Bench) -> list[Row]:
    dataset = SequenceDataset(bench.data, OBS_KEYS, seq_length=10, hdf5_cache_mode=None)
    contestants = {"none": _batches(_exact_loader(dataset))}
    return [_row("low-dim, sequence 10, nothing in RAM", compare(contestants, 20)["none"])]


def _exact_loader(dataset: SequenceDataset) -> DataLoader[Any]:
    return DataLoader(dataset, batch_sampler=ShuffledBatches(len(dataset), BATCH_SIZE, seed=0))


def _batches(loader: DataLoader[Any]) -> Contestant:
    return drawn(batch for _ in itertools.count() for batch in loader)


def _bare(dataset: SequenceDataset, seq_length: int) -> Contestant:
    """Gather batches by one index operation per array, without a DataLoader; windows may cross the ends of demos."""
    everything = dataset[list(range(len(dataset)))]
    arrays = [everything["obs"][key][:, 0].contiguous() for key in OBS_KEYS]
    arrays += [everything[key][:, 0].contiguous() for key in ("actions", "rewards", "dones")]
    offsets = torch.arange(seq_length)

    def iterate(n: int) -> None:
        for start in torch.randint(0, len(dataset) - seq_length, (n, BATCH_SIZE)):
            rows = (start[:, None] + offsets).flatten()
            for array in arrays:
                array.index_select(0, rows)

    return timed(iterate)


def _row(
    name: str,
    spent: Spent,
    wanted: float | None = None,
    peer: float | None = None,
    source: str = "",
) -> Row:
    note = f"wall {1 / spent.wall_s:,.0f}/s"
    return Row(name, 1 / spent.cpu_s, "batches/CPU s", wanted, False, peer, source, note)
