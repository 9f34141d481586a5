"""Base of algorithms whose critics value chunks of actions: K actions that are executed one after another.

A chunk's value needs no correction for another policy, because the K rewards in the data are those of its own K
actions (Li, Zhou, Levine, "Reinforcement Learning with Action Chunking", NeurIPS 2025, arXiv:2507.07969):

    target(s_t, a_t ... a_t+K-1) = r_t + g r_t+1 + ... + g^(K-1) r_t+K-1 + g^K V(s_t+K)

Chunks begin at any step of an episode. One that a timeout, or the newest step of an environment, cuts short has the
weight 0. One that a terminal cuts short is learned from; in place of the actions after it, its last one is repeated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import Field
from torch import Tensor
from typing_extensions import TypeVar

from imitate.algo.base.actor_critic import ActorCritic
from imitate.algo.base.algo import Batch
from imitate.algo.base.execution import ChunkExecution
from imitate.algo.base.policy_state import InnerState, no_plan
from imitate.algo.base.rl_sections import ActorCriticConfig, CriticConfig
from imitate.config import BaseConfig, DataNeeds
from imitate.models.critics import CriticEnsemble


class ChunkCriticsConfig(ActorCriticConfig):
    """Base class of the sections of algorithms whose critics value chunks."""

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


ChunkConfigT = TypeVar("ChunkConfigT", bound=ChunkCriticsConfig, default=Any)
"""Type of the section of an algorithm whose critics value chunks."""


class ChunkCritics(ActorCritic[ChunkConfigT]):
    """Algorithm that learns values of chunks and executes whole chunks.

    Prepared batches also have ``chunk`` (B, K A), ``chunk_mask`` (B, K), true where an action was taken, and
    ``valid`` (B,), the weights of the critics' errors.
    """

    @property
    def chunk_steps(self) -> int:
        """K, number of actions of a chunk."""
        return self.config.n_step

    @property
    def execution(self) -> ChunkExecution:
        """Execution of a whole chunk before the next one."""
        return ChunkExecution(self.chunk_steps, self.chunk_steps)

    def _create_chunk_critic(self, config: CriticConfig) -> CriticEnsemble:
        """Create critics of flat chunks (B, K A)."""
        return self._create_critic(config, num_actions=self.chunk_steps)

    def _select_batch(self, batch: Batch) -> Batch:
        selected = super()._select_batch(batch)
        mask, weight = selected["chunk_mask"], selected["weight"]
        valid = (mask.all(-1) | (selected["discounts"] == 0)).to(selected["discounts"])
        return {
            **selected,
            "chunk": selected["chunk"].flatten(1),
            "valid": valid if weight is None else valid * weight,
        }

    def _chunks(self, flat: Tensor) -> Tensor:
        """Return chunks (B, K, A) from flat ones (B, K A)."""
        return flat.reshape(*flat.shape[:-1], self.chunk_steps, self.ac_dim)

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        plan = no_plan(self.execution, batch_size, self.ac_dim, self.device)
        return {**super()._initial_policy_state(batch_size), **plan}
