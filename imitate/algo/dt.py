"""Decision Transformer: predicts actions from a sequence of returns-to-go, observations and actions.

Chen, Lu et al., "Decision Transformer: Reinforcement Learning via Sequence Modeling", NeurIPS 2021 (arXiv:2106.01345).
With R_t = the sum of the rewards from step t to the end of the episode, K = ``algo.context_length``:

    tokens of a step: R_t, s_t, a_t, each a linear map plus an embedding of the step's number -> DecisionTransformer
    loss = | f(R_t-K+1, s_t-K+1, a_t-K+1, ..., R_t, s_t) - a_t |^2 at every real step         -> DT._loss
    acting: R_0 = ``algo.target_return``, and R_t+1 = R_t - r_t                               -> DT.observe_reward

Returns are undiscounted sums of the rewards in the file, divided by ``algo.return_scale``. The rewards of a rollout are
passed to :meth:`imitate.policy.rollout_policy.RolloutPolicy.observe`, which ``imitate eval`` calls after each step. If
it is not called, as on a robot without rewards, the return-to-go remains constant.

Departures from the published code: return scale and target are computed from the data if they are not given, and
actions before the episode's start are masked instead of set to -10.
"""

from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState, PolicyState
from imitate.config import AlgoSection, BaseConfig, DataNeeds, Returns, Section, TrainingSet
from imitate.config.optimizer import Networks, adamw, networks
from imitate.functional.losses import masked_mean, step_weight
from imitate.models.actor import GroupEncoder
from imitate.models.heads import DeterministicHead
from imitate.models.transformer import GPTBackbone

CONTEXT_LENGTH = 20


class DTTransformerConfig(Section):
    """Size and dropout of the transformer."""

    embed_dim: int = Field(
        128, ge=1, description="number of features of a token, a multiple of num_heads"
    )
    num_layers: int = Field(3, ge=1, description="number of blocks")
    num_heads: int = Field(1, ge=1, description="number of attention heads")
    dropout: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="dropout of embedded inputs, of attention weights and after each sublayer",
    )


class DTConfig(AlgoSection):
    """Options of algorithm ``dt``, under ``algo``."""

    tree_defaults = {"train": {"frame_stack": CONTEXT_LENGTH, "seq_length": 1}}

    optim_params: Networks = networks(policy=adamw(1e-4, weight_decay=1e-4, warmup_steps=1000))
    context_length: int = Field(
        CONTEXT_LENGTH,
        ge=1,
        description="number of steps that the policy sees; must equal train.frame_stack",
    )
    max_episode_steps: int = Field(
        1000,
        ge=1,
        description="number of embeddings of step numbers; all later steps of an episode share the last embedding",
    )
    target_return: float | None = Field(
        None,
        description="return that the policy tries to reach in a rollout; null: the best return of the training demos",
    )
    return_scale: float | None = Field(
        None,
        gt=0,
        description="divisor of returns before they enter the network; null: the largest magnitude of a return in the "
        "training demos",
    )
    transformer: DTTransformerConfig = Field(DTTransformerConfig())

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request returns without discount and reward scaling, because a rollout sums the environment's rewards."""
        return DataNeeds(returns=Returns(discount=1.0, scaled=False))

    def values_from_data(self, dataset: TrainingSet) -> dict[str, Any]:
        """Compute target and scale of returns from the data, if they are null."""
        values: dict[str, Any] = {}
        if self.target_return is None:
            values["target_return"] = dataset.return_statistics.best
        if self.return_scale is None:
            values["return_scale"] = dataset.return_statistics.largest or 1.0
        return values

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings with which the policy cannot be trained or cannot act."""
        train, problems = config.train, []
        if train.frame_stack != self.context_length:
            problems.append(
                f"train.frame_stack is {train.frame_stack}, but algo.context_length is {self.context_length}: set both "
                "to the same number"
            )
        if train.seq_length != 1:
            problems.append(
                f"train.seq_length is {train.seq_length}, but algorithm dt learns the actions of the stacked frames: "
                "set it to 1"
            )
        size, heads = self.transformer.embed_dim, self.transformer.num_heads
        if size % heads:
            problems.append(
                f"algo.transformer.embed_dim is {size}, which algo.transformer.num_heads {heads} does not divide: "
                "make it a multiple"
            )
        return problems


class DecisionTransformer(nn.Module):
    """Network that maps sequences of returns, observations and actions to features from which actions are predicted.

    Args:
        encoder: encoder of observation and goal.
        ac_dim: action dimensions A.
        config: section ``algo``.
    """

    def __init__(self, encoder: GroupEncoder, ac_dim: int, config: DTConfig) -> None:
        super().__init__()
        size, dropout = config.transformer.embed_dim, config.transformer.dropout
        self.encoder = encoder
        self.embed_return = nn.Linear(1, size)
        self.embed_obs = nn.Linear(encoder.output_dim, size)
        self.embed_action = nn.Linear(ac_dim, size)
        self.embed_step = nn.Embedding(config.max_episode_steps, size)
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)
        self.backbone = GPTBackbone(
            size,
            config.transformer.num_layers,
            config.transformer.num_heads,
            3 * config.context_length,
            attn_dropout=dropout,
            block_output_dropout=dropout,
        )
        self.head = DeterministicHead(size, ac_dim)

    def forward(
        self,
        obs: Batch,
        goal: Batch | None,
        returns: Tensor,
        actions: Tensor,
        step: Tensor,
        real: Tensor,
    ) -> Tensor:
        """Return the features of each step of a window; they depend on earlier steps but not on the step's own action.

        Args:
            obs: (B, K, ...).
            goal: (B, ...), if the policy has goals.
            returns: (B, K) scaled returns-to-go.
            actions: (B, K, A).
            step: (B, K) int64, number of the step in its episode.
            real: (B, K) bool, false for steps before the episode.

        Returns:
            (B, K, E) features.
        """
        when = self.embed_step(step.clamp(max=self.embed_step.num_embeddings - 1))
        tokens = torch.stack(
            [
                self.embed_return(returns.unsqueeze(-1)) + when,
                self.embed_obs(self.encoder(obs, goal)) + when,
                self.embed_action(actions) + when,
            ],
            dim=2,
        )
        sequence = self.dropout(self.norm(tokens.flatten(1, 2)))
        features = self.backbone(sequence, real.repeat_interleave(3, dim=1))
        return cast(Tensor, features[:, 1::3])


@register("dt", DTConfig)
class DT(Algo[DTConfig]):
    """Decision Transformer.

    Attributes:
        target_return: return that rollouts are conditioned on; a new value takes effect at the next episode.
    """

    recordable = True

    @property
    def policy(self) -> DecisionTransformer:
        """The network that learns and acts."""
        return cast(DecisionTransformer, self.active_nets["policy"])

    def _create_networks(self) -> None:
        config: DTConfig = self.config
        # return_scale is null outside of `imitate train`, which computes it from the data
        self._scale = 1.0 if config.return_scale is None else config.return_scale
        self.target_return = self._scale if config.target_return is None else config.target_return
        policy = DecisionTransformer(self._create_encoder(frames=1), self.ac_dim, config)
        self.nets = nn.ModuleDict({"policy": policy})

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the whole window."""
        actions = batch["actions"]
        mask = batch.get("pad_mask")
        return {
            "obs": batch["obs"],
            "goal_obs": batch.get("goal_obs"),
            "actions": actions,
            "returns": batch["returns"] / self._scale,
            "step": batch["step"],
            "pad_mask": torch.ones_like(actions[..., 0], dtype=torch.bool)
            if mask is None
            else mask,
            "weight": batch.get("weight"),
        }

    def _features(self, batch: Batch) -> Tensor:
        """Return the transformer's features (B, K, E), one per step: the inputs of the action head."""
        features: Tensor = self.policy(
            batch["obs"],
            batch["goal_obs"],
            batch["returns"],
            batch["actions"],
            batch["step"],
            batch["pad_mask"],
        )
        return features

    def _error(self, batch: Batch) -> Tensor:
        """Return predicted minus recorded actions (B, K, A)."""
        with self.autocast():
            features = self._features(batch)
        predicted = self.policy.head.act(features.float())
        return predicted - cast(Tensor, batch["actions"])

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        loss = masked_mean(self._error(batch).square().mean(-1), step_weight(batch))
        return loss, {"Loss": loss}

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute error of the actions predicted with the demonstrations' own returns, in normalized units."""
        error = self._error(batch).abs().mean(-1)
        return {"Action_Error": masked_mean(error, batch["pad_mask"])}

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        length = self.config.context_length
        return {
            "wanted": torch.full((batch_size,), self.target_return, device=self.device),
            "returns": torch.zeros(batch_size, length, device=self.device),
            "actions": torch.zeros(batch_size, length, self.ac_dim, device=self.device),
            "step": torch.zeros(batch_size, dtype=torch.long, device=self.device),
        }

    def observe_reward(self, state: PolicyState, reward: Tensor) -> PolicyState:
        """Subtract the rewards (B,) of the latest actions from the returns-to-go in the state."""
        policy = state["policy"]
        return {**state, "policy": {**policy, "wanted": policy["wanted"] - reward}}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        length, now = self.config.context_length, state["step"]
        if self.frame_stack == 1:
            obs = {key: value.unsqueeze(1) for key, value in obs.items()}
        returns = torch.cat([state["returns"][:, 1:], state["wanted"].unsqueeze(1)], dim=1)
        step = now.unsqueeze(1) + torch.arange(1 - length, 1, device=self.device)
        inputs = {
            "obs": obs,
            "goal_obs": goal,
            "returns": returns / self._scale,
            "actions": state["actions"],
            "step": step.clamp(min=0),
            "pad_mask": step >= 0,
        }
        action = self.policy.head.act(self._features(inputs)[:, -1])
        # Store the current action, and append an empty entry, which is masked until it is filled.
        actions = torch.cat(
            [state["actions"][:, 1:-1], action.unsqueeze(1), torch.zeros_like(action).unsqueeze(1)],
            dim=1,
        )[:, -length:]
        next_state = {
            "wanted": state["wanted"],
            "returns": returns,
            "actions": actions,
            "step": now + 1,
        }
        return PolicyStep(action, next_state, {"return_to_go": returns[:, -1]})
