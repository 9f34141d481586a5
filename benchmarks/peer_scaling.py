"""One measurement of :mod:`benchmarks.scaling` with robomimic's loader, run by an interpreter that has robomimic.

    python benchmarks/peer_scaling.py DEMOS.hdf5 vectors|images

Prints what ``load`` of scaling_cells.py prints, for the same windows and batches: vectors in robomimic's mode ``all``,
images in its mode ``low_dim``.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from statistics import median

DATA, KIND = sys.argv[1], sys.argv[2]
sys.argv[1:] = [DATA]  # the next import takes a second argument for a device
sys.path.insert(0, str(Path(__file__).parent))
import peer_robomimic as peer  # noqa: E402 - this file runs by itself, outside of the package

SEQ_LENGTH, ROUNDS = 10, 3


def main() -> None:
    """Open the dataset, draw batches."""
    import torch
    from robomimic.config import config_factory
    from robomimic.utils import obs_utils

    torch.set_num_threads(1)
    start_mb = peak_mb()
    began = time.process_time()
    if KIND == "vectors":
        dataset, batch_size, n = peer.make_dataset(DATA, SEQ_LENGTH), 100, 60
    else:
        config = config_factory("bc")
        with config.values_unlocked():
            config.observation.modalities.obs.low_dim = list(peer.OBS_KEYS)
            config.observation.modalities.obs.rgb = list(peer.CAMERAS)
        obs_utils.initialize_obs_utils_with_config(config)
        keys = (*peer.LOW_DIM, *peer.CAMERAS)
        dataset = peer.make_dataset(DATA, SEQ_LENGTH, keys, hdf5_cache_mode="low_dim")
        batch_size, n = peer.IMAGE_BATCH_SIZE, 20
    opened = time.process_time() - began
    batches = peer.Batches(dataset, batch_size)
    spent = []
    for _ in range(ROUNDS + 1):
        began = time.process_time()
        for _ in range(n):
            next(batches)
        spent.append((time.process_time() - began) / n)
    figures = {
        "windows": len(dataset),
        "opening_cpu_s": opened,
        "batches_per_cpu_s": 1 / median(spent[1:]),
        "start_mb": start_mb,
        "peak_mb": peak_mb(),
    }
    print(json.dumps(figures), file=ANSWERS, flush=True)


def peak_mb() -> float:
    """Return the peak of this process's resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    ANSWERS = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # robomimic prints
        main()
