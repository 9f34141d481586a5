"""Metrics of a run: running means on the device, and one JSON line on disk per epoch and evaluation."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from imitate.errors import ConfigError
from imitate.system.plain_files import appended, read_text
from imitate.system.run_folder import to_json, write_text


class EpochMeans:
    """Means of scalar tensors, summed on their own device; nothing is read back before the epoch ends."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, info: Mapping[str, Any]) -> None:
        """Add one step's scalars.

        Raises:
            ConfigError: an algorithm's `train_on_batch` returned something else.
        """
        if not isinstance(info, Mapping):
            raise ConfigError(
                f"train_on_batch() of the algorithm returned {type(info).__name__}: return a "
                "dict of values to log, such as {'Loss': loss}"
            )
        sums, counts = self.sums, self.counts
        for key, value in info.items():
            if key in sums:
                sums[key] += value.detach() if isinstance(value, Tensor) else value
                counts[key] += 1
            else:
                value = torch.as_tensor(value).detach()
                if value.numel() != 1:
                    raise ConfigError(
                        f"train_on_batch() of the algorithm returned '{key}' of shape {tuple(value.shape)}: return "
                        "single numbers, such as its mean"
                    )
                sums[key] = value.to(_dtype_of_sums(value.device), copy=True)
                counts[key] = 1

    def means(self) -> dict[str, Tensor]:
        """Return the mean of every key over the steps that had it."""
        return {key: total / self.counts[key] for key, total in self.sums.items()}

    def state(self) -> dict[str, Any]:
        """Return the sums so far, for a checkpoint in the middle of an epoch."""
        return {
            "sums": {key: total.detach().cpu().clone() for key, total in self.sums.items()},
            "counts": dict(self.counts),
        }

    def load_state(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore the sums from `state()`."""
        dtype = _dtype_of_sums(device)
        self.sums = {k: total.to(device, dtype, copy=True) for k, total in state["sums"].items()}
        self.counts = dict(state["counts"])


def _dtype_of_sums(device: torch.device) -> torch.dtype:
    """Return float64 for the CPU and float32 for others, which are slow in float64 or lack it (MPS)."""
    return torch.float64 if device.type == "cpu" else torch.float32


_MAX_BYTES, _LARGEST = 2**30, 1e300


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and abs(value) < _LARGEST)


class MetricsFile:
    """File `metrics.jsonl`: appended to, flushed after every line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line."""
        line = to_json({**record, "time": round(time.time(), 3)})
        with appended(self.path) as handle:
            handle.write(line + "\n")

    def read(self) -> list[dict[str, Any]]:
        """Read every complete line. Lines that a kill cut short and values that are not numbers are skipped."""
        if not self.path.is_file():
            return []
        records = []
        for line in read_text(self.path, _MAX_BYTES).splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and type(record.get("epoch")) is int:
                records.append({k: v for k, v in record.items() if k == "kind" or _is_number(v)})
        return records

    def truncate(self, epoch: int) -> None:
        """Remove the lines of later epochs, so that a resumed run writes no line twice."""
        if self.path.is_file():
            kept = [to_json(record) + "\n" for record in self.read() if record["epoch"] <= epoch]
            write_text(self.path, "".join(kept))
