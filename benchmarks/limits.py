"""Limits of this processor, beside what training and acting reach: products, an LSTM, random crops. One thread.

    python -m benchmarks limits

An LSTM's training step cannot take less time than its matrix products alone, a crop not less than copying its result.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.bench import Bench
from benchmarks.measuring import Contestant, all_rounds, timed
from benchmarks.row import Row
from imitate.functional.products import onednn_product
from imitate.models.precision import has_fast_bf16
from imitate.models.randomizers import CropRandomizer

BATCH, STEPS, INPUT, HIDDEN, LAYERS = 100, 10, 19, 400, 2
IMAGES, SIZE, CROP = 32, 84, 76
CALLS = 10


def run(bench: Bench) -> list[Row]:
    """Rates of products, an LSTM's share of them, and a crop beside a copy, in turns."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, weight = torch.randn(BATCH, 1024), torch.randn(1024, 1024)
    images = torch.rand(IMAGES, 3, SIZE, SIZE)
    crop = CropRandomizer((3, SIZE, SIZE), CROP, CROP)
    crop.train()
    result = crop.randomize(images, 1)
    calls: dict[str, Callable[[], object]] = {
        "MKL": lambda: F.linear(x, weight),
        "oneDNN": lambda: onednn_product(x, weight),
        "lstm fp32": _lstm(torch.float32),
        "crop": lambda: crop.randomize(images, 1),
        "copy": lambda: torch.empty_like(result).copy_(result),
    }
    if has_fast_bf16(torch.device("cpu")):
        low_x, low_weight = x.bfloat16(), weight.bfloat16()
        calls["oneDNN bf16"] = lambda: F.linear(low_x, low_weight)
        calls["lstm bf16"] = _lstm(torch.bfloat16)
    rounds = all_rounds(
        {name: _repeated(call) for name, call in calls.items()}, dict.fromkeys(calls, CALLS), 5
    )
    spent = {name: statistics.median(one.cpu_s for one in costs) for name, costs in rounds.items()}
    work = 2 * x.numel() * len(weight) / 1e9
    rates = {name: work / spent[name] for name in calls if name.startswith(("MKL", "oneDNN"))}
    rows = [
        Row(f"product of {BATCH} x 1024 x 1024, {name}", rate, "GFLOP/s")
        for name, rate in rates.items()
    ]
    best = max(rates["MKL"], rates["oneDNN"])
    for name, rate in (("fp32", best), ("bf16", rates.get("oneDNN bf16"))):
        if rate is not None:
            took, least = 1e3 * spent[f"lstm {name}"], 1e3 * _lstm_work() / rate
            note = f"the products alone {least:.0f} ms: at most {took / least:.2f}x"
            rows.append(Row(f"LSTM, forward and backward, {name}", took, "ms", note=note))
    note = f"{result.numel() * 4 / 1e6:.1f} MB; copying them {1e3 * spent['copy']:.3f} ms"
    rows.append(Row("random crop of a batch", 1e3 * spent["crop"], "ms", note=note))
    return rows


def _repeated(call: Callable[[], object]) -> Contestant:
    def iterate(n: int) -> None:
        for _ in range(n):
            call()

    return timed(iterate)


def _lstm(dtype: torch.dtype) -> Callable[[], None]:
    """Return a forward and backward pass of torch's LSTM, of the sizes of BC-RNN-GMM."""
    net, x = nn.LSTM(INPUT, HIDDEN, LAYERS, batch_first=True), torch.randn(BATCH, STEPS, INPUT)

    def once() -> None:
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            y: Tensor = net(x)[0]
        y.float().square().mean().backward()  # type: ignore[no-untyped-call]

    return once


def _lstm_work() -> float:
    """Return billions of operations of a forward and backward pass; the input's gradient is not needed."""
    of_weights = 4 * HIDDEN * (INPUT + HIDDEN + (LAYERS - 1) * 2 * HIDDEN)
    return 2 * BATCH * STEPS * (3 * of_weights - 4 * HIDDEN * INPUT) / 1e9
