"""Processes that train together, and their communication.

Each process is a rank. Collectives do nothing in a single process. All ranks have to call them in the same order.
Everything but gradients and weights is exchanged on the CPU, by gloo.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from imitate.errors import ConfigError, TrainingError

RESUME = "start all processes again with --resume and the run folder"


@contextmanager
def collective() -> Iterator[None]:
    """Raise TrainingError with a message of one line if a collective operation in the body fails.

    Raises:
        TrainingError: another process has ended.
    """
    try:
        yield
    except RuntimeError as error:
        words = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        raise TrainingError(
            f"another process of this training is gone ({words[:200]}); see its output for the "
            f"reason. To continue, {RESUME}"
        ) from error


@dataclass(frozen=True)
class Ranks:
    """The position of this process among the processes of one training.

    Attributes:
        rank: number of this process; rank 0 writes the files.
        world: number of processes.
        local: number of this process on its machine, also the number of its GPU.
    """

    rank: int = 0
    world: int = 1
    local: int = 0

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is true on any rank."""
        if self.world == 1:
            return flags
        risen = torch.tensor(flags, dtype=torch.int32)
        with collective():
            dist.all_reduce(risen, op=dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in risen.tolist())

    def table(self, values: ArrayLike) -> NDArray[np.float64]:
        """Gather the numbers (K,) of all ranks to (world, K); K must be equal on all ranks."""
        own = np.atleast_1d(np.asarray(values, dtype=np.float64))
        if self.world == 1:
            return own[None]
        rows = torch.empty(self.world, len(own), dtype=torch.float64)
        with collective():
            dist.all_gather(list(rows), torch.from_numpy(own))
        return rows.numpy()

    def total(self, value: float) -> float:
        """Return the sum of a number over the ranks."""
        return value if self.world == 1 else float(self.table(value).sum())

    def gather(self, value: Any) -> list[Any]:
        """Gather a value of each rank, which must be plain data, because it is sent as JSON."""
        if self.world == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = self.table(len(own))[:, 0].astype(int)
        texts = torch.zeros(self.world, int(sizes.max()), dtype=torch.uint8)
        padded = texts[0].clone()
        padded[: len(own)] = own
        with collective():
            dist.all_gather(list(texts), padded)
        return [
            json.loads(text[:size].numpy().tobytes())
            for text, size in zip(texts, sizes, strict=True)
        ]

    def share(self, module: nn.Module) -> None:
        """Copy the weights and buffers of rank 0 to all ranks."""
        if self.world > 1:
            with collective():
                for tensor in (*module.parameters(), *module.buffers()):
                    data = tensor.data
                    sent = (
                        data.contiguous()
                    )  # nccl refuses convolution kernels in channels-last layout
                    dist.broadcast(sent, src=0)
                    if sent is not data:
                        data.copy_(sent)

    def mean_and_std(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and sample standard deviation (N - 1) over the values (B,) of all ranks, as scalar tensors."""
        if self.world == 1:
            return values.mean(), values.std()
        own = values.detach().cpu().double()  # on the CPU, because MPS has no float64
        sums = self.table([len(own), float(own.sum()), float(own.square().sum())]).sum(0)
        count, mean = sums[0], sums[1] / sums[0]
        variance = max(sums[2] - count * mean**2, 0.0) / max(count - 1, 1)
        return values.new_tensor(mean), values.new_tensor(variance**0.5)

    def seed(self, seed: int) -> int:
        """Return the seed of this rank's own random numbers; for rank 0 it is ``seed``."""
        return seed + 1_000_003 * self.rank

    def draw_apart(self, seed: int) -> None:
        """Seed torch differently on this rank than on rank 0, which keeps its generator."""
        if self.rank > 0:
            torch.manual_seed(self.seed(seed))

    def part_of(self, batch_size: int) -> slice:
        """Return the samples of each batch for this rank.

        Raises:
            ConfigError: the ranks cannot share a batch equally.
        """
        self.share_of(batch_size, "train.batch_size")
        return slice(self.rank, None, self.world)

    def share_of(self, count: int, key: str) -> int:
        """Return each rank's share of ``count``.

        Args:
            count: number of samples, environments or processes of all ranks.
            key: key in the configuration, for the message.

        Raises:
            ConfigError: the ranks cannot share them equally.
        """
        if count % self.world:
            raise ConfigError(
                f"{key} is {count}, which {self.world} processes cannot share equally: "
                f"set it to a multiple of {self.world}"
            )
        return count // self.world


ALONE = Ranks()
"""A process that trains by itself."""
