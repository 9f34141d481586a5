"""Metrics of a run: means computed on the device; output to JSON lines, TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from imitate.errors import ConfigError
from imitate.system.extras import install_command
from imitate.system.plain_files import appended, read_text
from imitate.system.run_folder import RunFolder, to_json, write_text
from imitate.train.console import Console


class EpochMeans:
    """Means of scalar tensors, summed on their own device; nothing is transferred before the epoch ends."""

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


_MAX_BYTES, _LARGEST = 2**27, 1e300


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and abs(value) < _LARGEST)


class MetricsFile:
    """The file `metrics.jsonl`, flushed after every appended line."""

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
            if (
                isinstance(record, dict)
                and type(epoch := record.get("epoch")) is int
                and _is_number(epoch)
            ):
                records.append({k: v for k, v in record.items() if k == "kind" or _is_number(v)})
        return records

    def truncate(self, epoch: int) -> None:
        """Remove the lines of later epochs, so that a resumed run writes no line twice."""
        if self.path.is_file():
            kept = [to_json(record) + "\n" for record in self.read() if record["epoch"] <= epoch]
            write_text(self.path, "".join(kept))


class RunLogger:
    """Logger of records (tags such as `Train/Loss` to floats) to every destination in the configuration."""

    def __init__(self, folder: RunFolder, config: Any, console: Console, epoch: int = 0) -> None:
        self.metrics = MetricsFile(folder.metrics)
        self._console = console
        self._tensorboard: Any = None
        self._wandb: Any = None
        settings = config.experiment.logging
        if settings.log_tb:
            writer = import_module("torch.utils.tensorboard").SummaryWriter
            self._tensorboard = writer(
                str(folder.tensorboard), purge_step=epoch + 1 if epoch else None
            )
        if settings.log_wandb:
            self._wandb = import_wandb().init(
                project=settings.wandb_proj_name,
                name=config.experiment.name,
                id=f"{folder.path.parent.name}-{folder.path.name}",
                resume="allow",
                dir=str(folder.path),
                config=config.to_dict(),
            )

    def record(self, kind: str, epoch: int, step: int, numbers: Mapping[str, float]) -> None:
        """Log `numbers` of an epoch (`kind` "epoch") or of an evaluation ("rollout")."""
        self.metrics.append({"kind": kind, "epoch": epoch, "step": step, **numbers})
        if self._tensorboard is not None:
            for tag, value in numbers.items():
                self._tensorboard.add_scalar(tag, value, epoch)
            self._tensorboard.flush()
        if self._wandb is not None:
            try:
                # An evaluation in the background belongs to an earlier epoch, so no step is passed.
                self._wandb.log({**numbers, "epoch": epoch})
            except Exception as error:  # a lost connection must not end a training
                self._console.say(
                    f"warning: Weights & Biases does not accept numbers any more ({error})"
                )
                self._wandb = None

    def debug(
        self, epoch: int, scalars: Mapping[str, float], histograms: Mapping[str, Tensor]
    ) -> None:
        """Write numbers that only TensorBoard gets."""
        for tag, value in scalars.items():
            self._tensorboard.add_scalar(tag, value, epoch)
        for tag, values in histograms.items():
            self._tensorboard.add_histogram(tag, values.detach().float().cpu(), epoch)

    def close(self) -> None:
        """Flush and close."""
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def import_wandb() -> Any:
    """Import the wandb module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module("wandb")
    except ImportError:
        raise ConfigError(
            f"experiment.logging.log_wandb is true but wandb is not installed: {install_command('wandb')}, "
            "or --set experiment.logging.log_wandb=false"
        ) from None
