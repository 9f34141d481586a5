"""Names of the measured updates of offline reinforcement learning, for both toolkits."""

from __future__ import annotations

OFFLINE_STEPS = {"iql": (100, 256), "td3_bc": (256,), "cql": (256,)}
"""Algorithms and batch sizes."""


def offline_name(algo_name: str, batch_size: int) -> str:
    """Return the name of a case."""
    return f"step_{algo_name}_{batch_size}"
