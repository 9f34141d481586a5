"""Image encoders and augmentation on one thread: ours, robomimic's.

The batch is that of robomimic's image experiments: 16 samples, two cameras of 84x84, crops of 76x76, ResNet-18.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.bench import Bench
from benchmarks.measuring import Contestant, compare, timed
from benchmarks.peer_images import BATCH_SIZE, CAMERAS, CROP, SIZE
from benchmarks.row import Row
from imitate.config import load_config
from imitate.models.observation import ObservationEncoder
from imitate.models.randomizers import ColorRandomizer, CropRandomizer, Randomizer

ROUNDS = {"crop": 40, "colour": 10, "encoder": 1}


def run(bench: Bench) -> list[Row]:
    """CPU milliseconds per batch, and how many times robomimic's speed that is."""
    torch.set_num_threads(1)
    shape = (3, SIZE, SIZE)
    cases: dict[str, dict[str, Contestant]] = {
        "crop": {"crop": _randomizer(CropRandomizer(shape, CROP, CROP))},
        "colour": {"colour jitter": _randomizer(ColorRandomizer(shape))},
        "encoder": {
            "encoder, fp32": _encoder(share=False, bf16=False),
            "encoder, fp32, shared": _encoder(share=True, bf16=False),
            "encoder, bf16": _encoder(share=False, bf16=True),
        },
    }
    wanted = {"crop": 1.0, "colour jitter": 10.0}
    return [row for case, ours in cases.items() for row in _rows(case, ours, wanted, bench)]


def _rows(
    case: str, ours: dict[str, Contestant], wanted: dict[str, float], bench: Bench
) -> list[Row]:
    spent = compare({**ours, **bench.peer.contestants(case)}, ROUNDS[case])
    peer, source = bench.peer.per_s(case, spent), bench.peer.source_of(case)
    rows = []
    for name in ours:
        cost = spent[name].cpu_s
        rows.append(Row(name, 1e3 * cost, "CPU ms", None, True, 1e3 / peer, source))
        rows.append(Row(f"{name}: times robomimic's", 1 / cost / peer, "x", wanted.get(name)))
    return rows


def _images() -> Tensor:
    return torch.rand(BATCH_SIZE, SIZE, SIZE, 3).permute(0, 3, 1, 2)


def _randomizer(randomizer: Randomizer) -> Contestant:
    images = _images()
    return timed(_repeated(lambda: randomizer(images)))


def _encoder(*, share: bool, bf16: bool) -> Contestant:
    """Features of two cameras and their gradients."""
    rgb = {
        "share": share,
        "obs_randomizer_class": "CropRandomizer",
        "obs_randomizer_kwargs": {"crop_height": CROP, "crop_width": CROP},
    }
    config = load_config(
        {"algo_name": "bc", "observation": {"modalities": {"obs": {"rgb": list(CAMERAS)}}}}
    )
    config = config.with_overrides({"observation.encoder.rgb": rgb})
    encoder = ObservationEncoder(
        dict.fromkeys(CAMERAS, (3, SIZE, SIZE)),
        dict.fromkeys(CAMERAS, "rgb"),
        config.observation.encoder,
    )
    obs = {key: _images() for key in CAMERAS}

    def step() -> None:
        encoder.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            features = encoder(obs)
        features.float().sum().backward()  # type: ignore[no-untyped-call]

    return timed(_repeated(step))


def _repeated(call: Callable[[], object]) -> Callable[[int], None]:
    def iterate(n: int) -> None:
        for _ in range(n):
            call()

    return iterate
