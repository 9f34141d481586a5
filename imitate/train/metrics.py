"""Metrics of a run: means, histograms and the gradient noise scale.

They are written as JSON lines, and to TensorBoard and Weights & Biases.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from imitate.algo.base.algo import Algo, Batch
from imitate.algo.slots.density import own_distribution
from imitate.errors import ConfigError
from imitate.models.actor import Actor, PolicyAndValue
from imitate.system.extras import install_command
from imitate.system.plain_files import appended, fresh, json_value, lines_of, replaced
from imitate.system.run_folder import RunFolder, to_json
from imitate.train.console import Console


class EpochMeans:
    """Means of scalar tensors, summed on their device; nothing is transferred before the epoch ends."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, info: Mapping[str, Any]) -> None:
        """Add one step's scalars.

        Raises:
            ConfigError: an algorithm's `train_on_batch` did not return a dict of single numbers.
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
        """Return the sums so far, for a checkpoint that is saved within an epoch."""
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


_LONGEST_LINE, _KEPT_BYTES, _LARGEST = 2**16, 2**25, 1e300


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

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every complete line. Lines that a kill cut short and values that are not numbers are skipped."""
        return (record for record, _ in self._sized())

    def read(self) -> list[dict[str, Any]]:
        """Return all records or, if they are too many, evenly spread ones and the last of each kind."""
        spreads = _Spread(), _Spread()
        for place, (record, size) in enumerate(self._sized()):
            spreads[record.get("kind") == "rollout"].add(place, record, size)
        kept = {place: record for spread in spreads for place, record in spread.all()}
        return [kept[place] for place in sorted(kept)]

    def truncate(self, epoch: int) -> None:
        """Remove the lines of later epochs, so that a resumed run writes no line twice."""
        if self.path.is_file():
            with replaced(self.path) as temporary, fresh(temporary, "w") as handle:
                for record in self.records():
                    if record["epoch"] <= epoch:
                        handle.write(to_json(record) + "\n")

    def _sized(self) -> Iterator[tuple[dict[str, Any], int]]:
        if not self.path.is_file():
            return
        for line in lines_of(self.path, _LONGEST_LINE):
            try:
                record = json_value(line)
            except (ValueError, RecursionError):
                continue
            if (
                isinstance(record, dict)
                and type(epoch := record.get("epoch")) is int
                and _is_number(epoch)
            ):
                yield {k: v for k, v in record.items() if k == "kind" or _is_number(v)}, len(line)


class _Spread:
    """Evenly spread records of a stream, and its last one: at most `_KEPT_BYTES` of text."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, dict[str, Any], int]] = []
        self._last: tuple[int, dict[str, Any], int] | None = None
        self._count = self._bytes = 0
        self._stride = 1

    def add(self, place: int, record: dict[str, Any], size: int) -> None:
        """Add the next record and the size of its line."""
        self._last = place, record, size
        if self._count % self._stride == 0:
            self._kept.append(self._last)
            self._bytes += size
        self._count += 1
        while self._bytes > _KEPT_BYTES:
            self._kept, self._stride = self._kept[::2], 2 * self._stride
            self._bytes = sum(size for *_, size in self._kept)

    def all(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield positions and records; the last record may come twice."""
        for place, record, _ in (*self._kept, *filter(None, [self._last])):
            yield place, record


class RunLogger:
    """Logger of records (floats by tag, such as `Train/Loss`) to every destination in the configuration."""

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
                    f"warning: Weights & Biases did not accept the numbers of epoch {epoch} ({error})"
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
        """Write what is buffered, and close all destinations."""
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def import_wandb() -> Any:
    """Import the wandb module.

    Raises:
        ConfigError: wandb is not installed.
    """
    try:
        return import_module("wandb")
    except ImportError:
        raise ConfigError(
            f"experiment.logging.log_wandb is true but wandb is not installed: {install_command('wandb')}, "
            "or --set experiment.logging.log_wandb=false"
        ) from None


SHOWN = ("actions", "rewards", "returns", "advantages", "values")
"""Entries of a batch whose histograms are written."""


class NoiseScale:
    """Gradient noise scale of one network, of McCandlish et al. 2018 (arXiv:1812.06162), appendix A.

    It is the number of samples at which the noise of a batch's gradient is as large as the gradient: tr(S) / |G|^2,
    with the covariance S of one sample's gradient and the true gradient G. With the gradients g and h of two batches of
    B samples, |g - h|^2 / 2 estimates tr(S) / B, and g h estimates |G|^2, both without bias. The two batches are those
    of consecutive updates, between which the weights hardly change.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._first: Tensor | None = None
        self._noise = self._signal = 0.0

    def add(self, gradient: Tensor) -> None:
        """Add the gradient (D,) of an update."""
        if self._first is None:
            self._first = gradient
            return
        first, self._first = self._first, None
        self._noise += float((first - gradient).square().sum() / 2.0)
        self._signal += float(first @ gradient)

    def value(self) -> float | None:
        """Return the scale of the updates so far, and forget them; None if their noise hides the gradient."""
        noise, signal, self._noise, self._signal = self._noise, self._signal, 0.0, 0.0
        return self._batch_size * noise / signal if signal > 0 else None


class Debug:
    """Numbers of an epoch that only TensorBoard gets.

    Args:
        algo: the algorithm in training; its optimizers are watched.
        batch_size: samples of an update.
    """

    def __init__(self, algo: Algo, batch_size: int) -> None:
        self._algo, self._batch_size = algo, batch_size
        self._scales: dict[str, NoiseScale] = {}
        self._batch: Batch | None = None
        for learner in algo.learners:
            learner.optimization.watch = self._watch

    def add(self, batch: Batch) -> None:
        """Remember the batch of the latest update."""
        self._batch = batch

    def scalars(self) -> dict[str, float]:
        """Return the gradient noise scale of each network in the epoch."""
        found = {name: scale.value() for name, scale in self._scales.items()}
        return {f"Debug/Gradient_Noise_Scale/{k}": x for k, x in found.items() if x is not None}

    def histograms(self) -> dict[str, Tensor]:
        """Return values of the latest batch: actions, rewards and others, and the policy's standard deviations."""
        batch = self._batch or {}
        shown = {f"Debug/{key.title()}": batch[key] for key in SHOWN if key in batch}
        stds = policy_stds(self._algo, batch.get("obs", {}))
        return shown if stds is None else {**shown, "Debug/Policy_Std": stds}

    def _watch(self, name: str, weights: Sequence[nn.Parameter], norm: Tensor) -> None:
        """Add the gradient of a step, as it was before clipping."""
        parts = [weight.grad.flatten() for weight in weights if weight.grad is not None]
        gradient = torch.cat(parts).float()
        scale = norm / gradient.norm().clamp(min=torch.finfo(torch.float32).tiny)
        self._scales.setdefault(name, NoiseScale(self._batch_size)).add(gradient * scale)


@torch.no_grad()
def policy_stds(algo: Algo, obs: Mapping[str, Any]) -> Tensor | None:
    """Return the standard deviations (B, ..., A) of the policy, before a tanh; None for a policy without any."""
    net = dict(algo.nets.items()).get(algo.main_net)
    plain = not algo.goal_shapes and getattr(algo, "memory", None) is None
    if not obs or not plain or not isinstance(net, Actor | PolicyAndValue):
        return None
    frames = {
        key: x if x.dim() > 1 + len(algo.obs_shapes[key]) else x.unsqueeze(1)
        for key, x in obs.items()
        if key in algo.obs_shapes
    }
    policy = own_distribution(algo, frames)
    stds: Tensor | None = getattr(getattr(policy, "base", policy), "stds", None)
    return stds
