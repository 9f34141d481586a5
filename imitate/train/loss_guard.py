"""Detection of a loss that becomes non-finite or explodes, with a description of its batch.

A loss explodes if for `PATIENCE` steps in a row it is above `median + FACTOR * scale`, where `median` is the median
of the last `WINDOW` losses, and `scale` is the larger of the first steps' typical |loss| and the recent median |loss|.
The scale includes the first steps because a loss near zero (a regression that fits) may well rise a thousandfold and
still be small; it includes the recent ones because a value loss may grow by orders of magnitude in a good run.
Losses may be negative (likelihoods). A non-finite gradient norm counts as a non-finite loss.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FACTOR = 1000.0
WINDOW = 1000
FIRST = 50
PATIENCE = 10
BLOCK = 100


@dataclass(frozen=True)
class BadLoss:
    """A loss that is not finite or has exploded.

    Attributes:
        step: step of the loss.
        value: the loss; NaN if only another rank knows it.
        reason: reason in words, such as "not finite".
        index: (B,) sample numbers of its batch, or None if unknown.
    """

    step: int
    value: float
    reason: str
    index: Tensor | None


class LossGuard:
    """Checks the losses: on a CPU each one at once, on an accelerator in blocks, so that no step waits."""

    def __init__(self, device: torch.device) -> None:
        self._block = 1 if device.type == "cpu" else BLOCK
        self._waiting: list[tuple[int, list[Any], list[Any], Any]] = []
        self.reset()

    def reset(self) -> None:
        """Forget all losses seen, after a rollback."""
        self._waiting.clear()
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._first_scale: float | None = None
        self._limit = math.inf
        self._seen = 0
        self._high = 0

    def add(self, step: int, info: Mapping[str, Any], index: Any) -> BadLoss | None:
        """Add the losses in a step's ``info``, with the sample numbers of its batch; return a bad loss, or None.

        The bad loss may be of an earlier step, because losses on an accelerator are checked in blocks.
        """
        losses = [value for key, value in info.items() if "loss" in key.lower()]
        if not losses:
            return None
        norms = [value for key, value in info.items() if "grad_norm" in key.lower()]
        self._waiting.append((step, losses, norms, index))
        return self.check() if len(self._waiting) >= self._block else None

    def check(self) -> BadLoss | None:
        """Check the losses not read yet, in one transfer; return a bad loss, or None. Call it before every save."""
        waiting, self._waiting = self._waiting, []
        numbers = self._read([x for _, losses, norms, _ in waiting for x in (*losses, *norms)])
        for step, losses, norms, index in waiting:
            values = [next(numbers) for _ in losses]
            loss = next((x for x in values if not math.isfinite(x)), max(values))
            rest = [next(numbers) for _ in norms]
            if not all(map(math.isfinite, rest)):
                return BadLoss(step, loss, "with a gradient that is not finite", index)
            reason = self._judge(loss)
            if reason is not None:
                return BadLoss(step, loss, reason, index)
        return None

    def _read(self, values: list[Any]) -> Iterator[float]:
        if self._block == 1 or not values:
            return iter([float(value) for value in values])
        return iter(torch.stack([torch.as_tensor(value).float() for value in values]).tolist())

    def _judge(self, value: float) -> str | None:
        if not math.isfinite(value):
            return "not finite"
        self._high = self._high + 1 if value > self._limit else 0
        if self._high >= PATIENCE:
            return f"above {self._limit:.3g} for {PATIENCE} steps in a row"
        if self._high == 0:
            self._recent.append(value)
        self._seen += 1
        if self._seen % FIRST == 0:
            typical = statistics.median(map(abs, self._recent))
            if self._first_scale is None:
                self._first_scale = typical
            scale = max(self._first_scale, typical, 1e-6)
            self._limit = statistics.median(self._recent) + FACTOR * scale
        return None


def weights_are_finite(nets: torch.nn.Module) -> bool:
    """Return true if every weight is finite, with one transfer from the device."""
    weights = [p.detach() for p in nets.parameters() if p.is_floating_point()]
    if not weights:
        return True
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(weights)])
    return bool(torch.isfinite(norms).all())


def describe_batch(dataset: Any, index: Any, limit: int = 8) -> str:
    """Describe the demos and steps of a batch, briefly."""
    steps: dict[str, list[int]] = {}
    for sample in torch.as_tensor(index).flatten().tolist():
        demo, step = dataset.demo_of(int(sample))
        steps.setdefault(str(demo), []).append(int(step))
    words = [
        f"{demo} steps {', '.join(map(str, sorted(set(at))[:4]))}"
        for demo, at in sorted(steps.items())
    ]
    more = f" and {len(words) - limit} more demos" if len(words) > limit else ""
    return "; ".join(words[:limit]) + more


def bad_input(dataset: Any, index: Any) -> str | None:
    """Return the demo, step and key where a batch's raw values are not finite, or None if all are finite."""
    samples = [int(sample) for sample in torch.as_tensor(index).flatten().tolist()]
    for sample in samples:
        for key, value in _leaves(dataset[sample], ""):
            if torch.is_floating_point(value) and not bool(torch.isfinite(value).all()):
                demo, step = dataset.demo_of(sample)
                return f"{demo}, window at step {step}: '{key}' holds NaN or inf"
    return None


def _leaves(tree: Mapping[str, Any], prefix: str) -> list[tuple[str, Tensor]]:
    leaves: list[tuple[str, Tensor]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves += _leaves(value, f"{prefix}{key}/")
        elif not isinstance(value, str):
            leaves.append((prefix + key, torch.as_tensor(value)))
    return leaves
