"""Random number generators: seeding, and their state as plain data.

A state contains only tensors, numbers and lists, so that a checkpoint with it is loaded without unpickling.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed the global random number generators of Python, numpy and torch (on all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """Return the states of all global generators, as data that `torch.load(weights_only=True)` can read."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore every global generator to a state from `rng_state`."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    if not 0 <= position <= len(keys):  # numpy would read beyond the end of the array
        raise ValueError(
            f"the saved state of numpy's generator is invalid: its position {position} is beyond its "
            f"{len(keys)} numbers"
        )
    np.random.set_state((name, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Run the body, then restore the global generators, so that draws and seeds in it have no effect outside."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Run the body with `count` torch threads (None for the current number), then restore the number."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the body with seeded generators and one torch thread, then restore the generators and the threads."""
    with preserved_rng(), torch_threads(1):
        seed_everything(seed)
        yield
