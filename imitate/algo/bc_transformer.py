"""Behavior cloning with a transformer: a GPT over the last observations.

As in robomimic (Mandlekar et al., CoRL 2021, arXiv:2108.03298; networks of Radford et al. 2019), with the losses of
:mod:`imitate.algo.bc` at each supervised step. Departures: future actions (``pred_future_acs``) are predicted from the
newest observation, not from the oldest, and can be executed as a chunk; the context may be shorter than the window.
"""

from __future__ import annotations

from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from imitate.algo.algo import Batch, Info, PolicyStep
from imitate.algo.bc import BC, gmm_head
from imitate.algo.execution import ChunkExecution, Inputs
from imitate.algo.policy_state import PolicyState
from imitate.algo.sections import ChunkConfig, TransformerConfig
from imitate.models.actor import TransformerActor
from imitate.models.heads import ActionHead
from imitate.models.transformer import CausalTransformer, Positions


class BC_Transformer(BC):  # noqa: N801
    """Transformer over the last ``algo.transformer.context_length`` observations.

    It acts on what the newest step predicts. With ``pred_future_acs`` step i of the window predicts the i-th action
    from now on, and attention is not causal by default, so that each of them knows the newest observation. With
    ``rotary_embedding`` the policy carries a cache of what it has seen and looks at one observation at a time.
    """

    @property
    def transformer_policy(self) -> TransformerActor:
        """The network that learns and acts."""
        return cast(TransformerActor, self.active_nets["policy"])

    @cached_property
    def _transformer(self) -> TransformerConfig:
        return cast(TransformerConfig, self.algo_config.transformer)

    @cached_property
    def execution(self) -> ChunkExecution | None:
        """With ``pred_future_acs`` the window's actions are a chunk; of which one is executed unless said otherwise."""
        chunk: ChunkConfig = self.algo_config.chunk
        if chunk.enabled or not self._transformer.pred_future_acs:
            return chunk.execution if chunk.enabled else None
        return ChunkExecution(self._transformer.context_length)

    @property
    def _chunk(self) -> int | None:
        return None if self._transformer.pred_future_acs else super()._chunk

    def _create_networks(self) -> None:
        encoder = self._create_encoder(frames=1)
        transformer = make_transformer(encoder.output_dim, self._transformer)
        head = self._create_head(transformer.output_dim)
        self.nets = nn.ModuleDict({"policy": TransformerActor(encoder, transformer, head)})

    def _select_batch(self, batch: Batch) -> Batch:
        """The window up to the newest frame, and the actions of its steps, of the last of them, or from it on."""
        config, now = self._transformer, self.frame_stack
        window = slice(now - config.context_length, now)
        learned: Batch = {key: batch.get(key) for key in ("actions", "pad_mask", "weight")}
        if self._chunk is not None:
            learned = self._chunks(batch, slice(None))
        if config.rotary_embedding:
            window = slice(0, learned["actions"].shape[1])
        targets = window
        if config.pred_future_acs:
            targets = slice(now - 1, now - 1 + config.context_length)
        elif not config.supervise_all_steps:
            targets = slice(now - 1, now)
        return {
            "obs": {key: value[:, window] for key, value in batch["obs"].items()},
            "goal_obs": batch.get("goal_obs"),
            **{key: None if x is None else x[:, targets] for key, x in learned.items()},
        }

    def _features(self, batch: Batch) -> Tensor:
        features = super()._features(batch)
        return features if self._transformer.supervise_all_steps else features[:, -1:]

    def _initial_policy_state(self, batch_size: int) -> PolicyState:
        state = super()._initial_policy_state(batch_size)
        if self._transformer.rotary_embedding:
            state["cache"] = self.transformer_policy.transformer.initial_cache(batch_size)
        return state

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        policy, config = self.transformer_policy, self._transformer
        if config.rotary_embedding:
            newest, cache = policy.transformer.step(policy.encoder(obs, goal), state["cache"])

            def decide(inputs: Inputs) -> Tensor:
                return self._steps(policy.head.act(inputs["features"], explore, generator))

            return self._decide(decide, {"features": newest}, {**state, "cache": cache})

        def decide_from_window(inputs: Inputs) -> Tensor:
            window = {
                key: value[:, -config.context_length :] for key, value in inputs["obs"].items()
            }
            features, _ = policy(window, inputs["goal"])
            # A mixture draws for all steps, as robomimic's does, so that the same seed gives the same actions.
            actions = self._steps(policy.head.act(features, explore, generator))
            return actions if config.pred_future_acs else actions[:, -1]

        obs = obs if self.frame_stack > 1 else {key: value[:, None] for key, value in obs.items()}
        return self._decide(decide_from_window, {"obs": obs, "goal": goal}, state)


class BC_Transformer_GMM(BC_Transformer):  # noqa: N801
    """Transformer with a mixture at every step."""

    def _create_head(self, input_dim: int) -> ActionHead:
        return gmm_head(self.algo_config.gmm, input_dim, self._head_dim)

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        return self._nll_loss(batch)


def make_transformer(input_dim: int, config: TransformerConfig) -> CausalTransformer:
    """The transformer that ``algo.transformer`` describes."""
    positions: Positions = "embedding"
    if config.rotary_embedding:
        positions = "rotary"
    elif config.sinusoidal_embedding:
        positions = "sinusoidal"
    elif config.nn_parameter_for_timesteps:
        positions = "parameter"
    return CausalTransformer(
        input_dim,
        embed_dim=config.embed_dim,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        context_length=config.context_length,
        positions=positions,
        emb_dropout=config.emb_dropout,
        attn_dropout=config.attn_dropout,
        block_output_dropout=config.block_output_dropout,
        activation=config.activation,
        causal=not config.pred_future_acs if config.causal is None else config.causal,
    )
