"""Section and batches of critics that value chunks of actions: K actions that are executed one after another.

A chunk's value needs no correction for another policy, because the K rewards in the data are those of its own K
actions (Li, Zhou, Levine, "Reinforcement Learning with Action Chunking", NeurIPS 2025, arXiv:2507.07969):

    target(s_t, a_t ... a_t+K-1) = r_t + g r_t+1 + ... + g^(K-1) r_t+K-1 + g^K V(s_t+K)

Chunks begin at any step of an episode. One that a timeout, or the newest step of an environment, cuts short has the
weight 0. One that a terminal cuts short is learned from; in place of the actions after it, its last one is repeated.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from imitate.algo.base.algo import Batch
from imitate.algo.base.rl_sections import ActorCriticConfig
from imitate.config import BaseConfig, DataNeeds


class ChunkCriticsConfig(ActorCriticConfig):
    """Base class of the sections of algorithms whose critics value chunks."""

    values_chunks = True
    n_step: int = Field(
        5,
        ge=1,
        description="K: number of actions of a chunk, all of which are executed, and of the rewards of a TD target",
    )

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Transitions of K steps with their actions."""
        needs = super().data_needs(config)
        assert needs.transitions is not None
        return replace(needs, transitions=replace(needs.transitions, chunks=True))


def with_chunk(selected: Batch) -> Batch:
    """Add to a batch its flat chunks (B, K A) in place of ``chunk`` (B, K, A), and the weights ``valid`` (B,)."""
    weight = selected["weight"]
    valid = selected["chunk_mask"].all(-1) | (selected["discounts"] == 0)
    valid = valid.to(selected["discounts"])
    return {
        **selected,
        "chunk": selected["chunk"].flatten(1),
        "valid": valid if weight is None else valid * weight,
    }
