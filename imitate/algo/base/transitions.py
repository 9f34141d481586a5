"""Transitions of a prepared batch: from its windows, and of chunks of K actions that are executed one after another.

A chunk's value needs no correction for another policy, because the K rewards in the data are those of its own K
actions (Li, Zhou, Levine, "Reinforcement Learning with Action Chunking", NeurIPS 2025, arXiv:2507.07969):

    target(s_t, a_t ... a_t+K-1) = r_t + g r_t+1 + ... + g^(K-1) r_t+K-1 + g^K V(s_t+K)

Chunks begin at any step of an episode. One that a timeout, or the newest step of an environment, cuts short has the
weight 0. One that a terminal cuts short is learned from; in place of the actions after it, its last one is repeated.
"""

from __future__ import annotations

from imitate.algo.base.algo import Algo, Batch
from imitate.errors import DatasetError


def with_transitions(batch: Batch, algo: Algo, now: int) -> Batch:
    """Return a prepared batch with transitions.

    Missing transitions of one step are made from its rewards and terminals.

    Args:
        batch: windows (B, T, ...).
        algo: algorithm whose section defines the transitions that it needs.
        now: index of the sample's step in the window.

    Raises:
        DatasetError: the batch has no rewards or terminals, or transitions of several steps are needed.
    """
    if "discounts" in batch:
        return batch
    wanted = algo.config.data_needs(algo.global_config).transitions
    ends = batch.get("terminals", batch.get("dones"))
    lacks = "next_obs" not in batch or "rewards" not in batch
    if (
        wanted is None
        or ends is None
        or lacks
        or wanted.n_step > 1
        or wanted.next_actions
        or wanted.signals
        or wanted.infinite_horizon
    ):
        raise DatasetError(
            f"{algo.global_config.algo_name} learns from transitions, which the batches lack: make the dataset "
            "by build_datasets(config), or with "
            "SequenceDataset(..., transitions=config.algo.data_needs(config).transitions)"
        )
    return {
        **batch,
        "next_obs": {key: value[:, : now + 1] for key, value in batch["next_obs"].items()},
        "n_step_rewards": batch["rewards"][:, now],
        "discounts": wanted.discount * (1.0 - ends[:, now]),
    }


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
