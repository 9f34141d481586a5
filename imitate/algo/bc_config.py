"""The section ``algo`` of behavior cloning."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from imitate.algo.sections import (
    ChunkConfig,
    EMAConfig,
    GaussianConfig,
    GMMConfig,
    LayerDims,
    OptimParams,
    RNNConfig,
    TransformerConfig,
    VAEConfig,
)
from imitate.config import AlgoSection, BaseConfig, DataNeeds, Section


class LossConfig(Section):
    """Weights of the regression losses."""

    l2_weight: float = Field(1.0, ge=0, description="weight of the squared error")
    l1_weight: float = Field(0.0, ge=0, description="weight of the smooth L1 error")
    cos_weight: float = Field(0.0, ge=0, description="weight of 1 - cosine of the first 3 dims")


class BCConfig(AlgoSection):
    """Section ``algo`` of algorithm ``bc``; at most one of gaussian, gmm and vae is enabled."""

    optim_params: OptimParams = Field(OptimParams())
    loss: LossConfig = Field(LossConfig())
    actor_layer_dims: LayerDims = Field(
        (1024, 1024), description="hidden layers, ReLU after each; a transformer has none"
    )
    gaussian: GaussianConfig = Field(GaussianConfig())
    gmm: GMMConfig = Field(GMMConfig())
    vae: VAEConfig = Field(VAEConfig())
    rnn: RNNConfig = Field(RNNConfig())
    transformer: TransformerConfig = Field(TransformerConfig())
    chunk: ChunkConfig = Field(ChunkConfig())
    ema: EMAConfig = Field(EMAConfig())

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Images of the frames before the action or the chunk; of the whole window for policies with memory."""
        memory = self.rnn.enabled or self.transformer.enabled
        return DataNeeds(observed_steps=None if memory else config.train.frame_stack)

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Combinations that cannot be trained or cannot act."""
        train = config.train
        problems: list[str] = []
        if not (self.loss.l2_weight or self.loss.l1_weight or self.loss.cos_weight):
            problems.append(
                "algo.loss: all weights are 0, so nothing would be learned: set l2_weight to 1"
            )
        if self.rnn.enabled and train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {train.frame_stack}, but a recurrent policy remembers by itself: set it to 1"
            )
        if self.rnn.enabled and train.seq_length == 1 < self.rnn.horizon:
            problems.append(
                f"train.seq_length is 1, so a recurrent policy would learn from single steps and then act for "
                f"algo.rnn.horizon {self.rnn.horizon} steps: set train.seq_length to {self.rnn.horizon}"
            )
        if self.rnn.enabled and self.rnn.kwargs.get("bidirectional"):
            problems.append(
                "algo.rnn.kwargs.bidirectional is true, but a policy that acts cannot see the future: set it to false"
            )
        if self.chunk.enabled:
            problems += self._chunk_problems(train.seq_length)
        if self.transformer.enabled:
            problems += self._transformer_problems(train)
        return problems

    def _chunk_problems(self, seq_length: int) -> list[str]:
        steps = self.chunk.size
        if self.rnn.enabled:
            steps += self.rnn.horizon - 1
        problems = self.chunk.problems("algo.chunk")
        if seq_length < steps:
            problems.append(
                f"train.seq_length is {seq_length}, but chunks of algo.chunk.size {self.chunk.size} actions "
                f"need windows of {steps} steps: set it to {steps}"
            )
        return problems

    def _transformer_problems(self, train: Any) -> list[str]:
        config, length = self.transformer, self.transformer.context_length
        problems = []
        if config.embed_dim % config.num_heads:
            problems.append(
                f"algo.transformer.embed_dim is {config.embed_dim}, which algo.transformer.num_heads "
                f"{config.num_heads} does not divide: make it a multiple"
            )
        if config.rotary_embedding:
            if train.frame_stack > 1 or not config.supervise_all_steps or config.pred_future_acs:
                problems.append(
                    "algo.transformer.rotary_embedding: the policy remembers by itself and learns at every step: set "
                    "train.frame_stack to 1, supervise_all_steps to true and pred_future_acs to false"
                )
            if train.seq_length < length:
                problems.append(
                    f"train.seq_length is {train.seq_length}, shorter than algo.transformer.context_length {length}: "
                    f"set it to {2 * length}"
                )
            return problems
        if train.frame_stack < length:
            problems.append(
                f"train.frame_stack is {train.frame_stack}, but the policy sees algo.transformer.context_length "
                f"{length} observations: set it to {length}"
            )
        if config.pred_future_acs:
            if train.seq_length < length:
                problems.append(
                    f"train.seq_length is {train.seq_length}, but algo.transformer.pred_future_acs learns the next "
                    f"{length} actions: set it to {length}"
                )
            if self.chunk.enabled and self.chunk.size != length:
                problems.append(
                    f"algo.chunk.size is {self.chunk.size}, but with pred_future_acs a chunk is "
                    f"algo.transformer.context_length {length} actions: set it to {length}"
                )
        return problems
