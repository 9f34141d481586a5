"""Recurrent encoder of an actor and critics, trained on replayed sequences with stored states.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019 (R2D2), who
introduced stored states and burn-in. The algorithm's losses do not change; they see recurrent features instead of
observations.

One recurrent network after an encoder computes the features of each step. It is part of the critics and trained by
their losses, because the value of an action depends most on the past. The actor uses the features without gradient,
since two losses on one memory interfere with each other (Ni et al., ICML 2022, arXiv:2110.05038, use two memories
instead). The target critics have their own recurrent network, which follows the online one and starts from the same
stored state. Both states are first updated over ``algo.rnn.burn_in`` steps, without gradient.

Prepared batches, of B sequences of up to L steps that are learned from, within one episode each:

    before      {key: (B, U, ...)} observations before the sequence, of which the first ``burn_in`` (B,) count
    memory      {name: (B, layers, H)} recurrent state before the first of them
    obs         {key: (B, L + n, ...)} observations of the sequence and after it
    actions, rewards, discounts      (B, L, ...) as in :mod:`imitate.algo.base.actor_critic`
    ahead       (B, L) number of steps to the observation from which a step's value is bootstrapped
    mask        (B, L) false beyond the end of the episode
    weight      (B, L) weights of the steps in the losses, or None

In offline training, the sequences are windows of ``train.seq_length`` steps of demonstrations, whose memory begins
empty.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from imitate.algo.base.algo import Batch
from imitate.algo.base.recurrence import Memory, ReplayedMemoryConfig, from_stored, to_stored
from imitate.config.observation import EncodersConfig
from imitate.errors import DatasetError
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.observation import ObservationEncoder
from imitate.models.rnn import RNN, RNNState

CRITICS, ACTOR = "known_to_critics", "known_to_actor"
"""Names of the recurrent features among the observations: with gradient for the critics, without gradient for the
actor.
"""


class RecurrentEncoder(nn.Module):
    """Encoder and recurrent network."""

    def __init__(self, encoder: GroupEncoder, rnn: RNN) -> None:
        super().__init__()
        self.encoder, self.rnn = encoder, rnn

    def forward(
        self, obs: Obs, state: RNNState, goal: Obs | None = None
    ) -> tuple[Tensor, RNNState]:
        """Return features (B, T, H) of the steps of windows (B, T, ...), and the last state."""
        features: tuple[Tensor, RNNState] = self.rnn(self.encoder(obs, goal), state)
        return features

    @torch.no_grad()
    def burned_in(
        self, obs: Obs, steps: Tensor, state: RNNState, goal: Obs | None = None
    ) -> RNNState:
        """Return the state after the first ``steps`` (B,), on the CPU, of the windows (B, U, ...)."""
        if not int(steps.max()):
            return state
        return self.rnn.state_after(self.encoder(obs, goal), steps, state)

    def over(self, batch: Batch) -> Tensor:
        """Return features (B, L + n, H) of all steps of a batch of sequences, after the burn-in."""
        goal = batch["goal_obs"]
        state = self.burned_in(batch["before"], batch["burn_in"], batch["memory"], goal)
        return cast(Tensor, self(batch["obs"], state, goal)[0])


class ReplayedMemory(Memory):
    """Memory of an algorithm with critics: selects sequences and converts them to transitions for the losses.

    Args:
        config: section ``algo.rnn``.
        n_step: n, number of steps of n-step returns.
        discount: discount factor per step.
    """

    def __init__(self, config: ReplayedMemoryConfig, n_step: int, discount: float) -> None:
        super().__init__(config)
        self._burn_in = config.burn_in
        self._n_step, self._discount = n_step, discount

    def encoder(self, encoder: GroupEncoder) -> RecurrentEncoder:
        """Create a recurrent network after an encoder of observations."""
        return RecurrentEncoder(encoder, self.config.make(encoder.output_dim))

    def reader(self, features: str) -> GroupEncoder:
        """Create the encoder of a network that sees :data:`CRITICS` or :data:`ACTOR` instead of observations."""
        shapes = {features: (self.config.hidden_dim,)}
        return GroupEncoder(ObservationEncoder(shapes, {features: "low_dim"}, EncodersConfig()))

    def select(self, batch: Batch, encoder: RecurrentEncoder) -> Batch:
        """Select prepared sequences, from a replay buffer's batch or from windows of a dataset."""
        if "ahead" not in batch:
            batch = self._sequences_of(batch, encoder)
        burn_in = next(iter(batch["obs"].values())).shape[1]
        burn_in -= batch["actions"].shape[1] + self._n_step
        names = ("actions", "discounts", "ahead", "mask")
        return {
            "burn_in": batch["burn_in"].cpu(),  # torch wants the lengths of sequences on the CPU
            "before": {key: value[:, :burn_in] for key, value in batch["obs"].items()},
            "obs": {key: value[:, burn_in:] for key, value in batch["obs"].items()},
            "memory": from_stored(batch),
            "goal_obs": batch.get("goal_obs"),
            "rewards": batch["n_step_rewards"],
            "weight": batch.get("weight"),
            **{name: batch[name] for name in names},
        }

    def _sequences_of(self, batch: Batch, encoder: RecurrentEncoder) -> Batch:
        """Convert windows of T observations to sequences of T - 1 steps, which begin with an empty memory.

        A step is learned from if its successor is in the window or it is a terminal, unless the window begins within a
        demonstration and the step is one of the first ``burn_in``. If the batch has no ``step``, all windows count as
        beginnings.
        """
        ends = batch.get("terminals", batch.get("dones"))
        if ends is None or "rewards" not in batch or self._n_step > 1:
            raise DatasetError(
                "an algorithm with algo.rnn learns from windows with rewards and ends, and from algo.n_step 1: make "
                "the dataset with these, or set train.online.enabled to true"
            )
        rewards, ends = batch["rewards"][:, :-1], ends[:, :-1]
        real = batch.get("pad_mask", torch.ones_like(batch["rewards"])) > 0
        mask = real[:, :-1] & (real[:, 1:] | (ends > 0))
        if "step" in batch:
            place = torch.arange(rewards.shape[1], device=rewards.device)
            mask &= (batch["step"][:, :1] == 0) | (place >= self._burn_in)
        weight = batch.get("weight")
        state = encoder.rnn.initial_state(len(rewards))
        return {
            "obs": batch["obs"],
            "goal_obs": batch.get("goal_obs"),
            "actions": batch["actions"][:, :-1],
            "n_step_rewards": rewards,
            "discounts": self._discount * (1.0 - ends),
            "ahead": torch.ones_like(rewards, dtype=torch.long),
            "mask": mask,
            "weight": None if weight is None else weight[:, :-1],
            "burn_in": torch.zeros(len(rewards), dtype=torch.long),
            **to_stored(state),
        }

    def transitions(
        self,
        batch: Batch,
        online: RecurrentEncoder,
        target: RecurrentEncoder,
        kept: tuple[str, ...] = (),
    ) -> Batch:
        """Convert the steps of sequences to transitions with recurrent features instead of observations.

        Args:
            batch: from :meth:`select`.
            online: the critics' encoder, which receives gradients through :data:`CRITICS` of ``obs``.
            target: the target critics' encoder.
            kept: observations that are kept beside the features, such as a mask of actions.

        Returns:
            a batch as in :mod:`imitate.algo.base.actor_critic`, with ``target_obs``: the target critics' features at
            the steps.
        """
        features = online.over(batch)
        with torch.no_grad():
            of_targets = target.over(batch)
        sequence, step = batch["mask"].nonzero(as_tuple=True)
        after = step + batch["ahead"][sequence, step]
        now = features[sequence, step]
        return {
            "obs": {
                CRITICS: now,
                ACTOR: now.detach(),
                **{key: batch["obs"][key][sequence, step] for key in kept},
            },
            "next_obs": {
                CRITICS: of_targets[sequence, after],
                ACTOR: features.detach()[sequence, after],
                **{key: batch["obs"][key][sequence, after] for key in kept},
            },
            "target_obs": {CRITICS: of_targets[sequence, step]},
            "goal_obs": None,
            "weight": None if batch["weight"] is None else batch["weight"][sequence, step],
            **{name: batch[name][sequence, step] for name in ("actions", "rewards", "discounts")},
        }


def state_shapes(encoder: RecurrentEncoder) -> dict[str, tuple[int, ...]]:
    """Return the shapes (layers, H) of the parts of one policy's recurrent state."""
    state: dict[str, Any] = encoder.rnn.initial_state(1)
    return {name: tuple(value.shape[1:]) for name, value in state.items()}
