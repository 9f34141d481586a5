"""Soft actor-critic with a memory: sequences are replayed from stored states.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019 (R2D2), whose stored
states and burn-in these are; the losses are those of ``sac``, of choices and mixed actions too.

One recurrent network, behind an encoder, says what is known at each step. It belongs to the critics, which teach it:
the value of an action tells best what is worth being remembered. The actor reads what it says and teaches it nothing,
since two losses that pull at one memory hinder each other (Ni et al., ICML 2022, arXiv:2110.05038, who keep two
memories instead). The target critics have a memory of their own, which follows; it looks at the same observations from
the same stored state. Both are first brought up to date over ``algo.rnn.burn_in`` steps, without gradient.

Prepared batches, of B sequences of up to L steps that learn, within one episode each:

    before      {key: (B, U, ...)} observations up to the sequence, of which the first ``burn_in`` (B,) count
    memory      {name: (B, layers, H)} state before the first of them
    obs         {key: (B, L + n, ...)} observations of the sequence and what followed it
    actions, rewards, discounts      (B, L, ...) as in :mod:`imitate.algo.actor_critic`
    ahead       (B, L) after so many steps lies what a step's value is bootstrapped from
    mask        (B, L) false: beyond the end of the episode
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from imitate.algo.actor_critic import ActorCritic, Update
from imitate.algo.algo import Batch, Info, PolicyStep
from imitate.algo.policy_state import PolicyState
from imitate.algo.recurrence import from_stored, to_stored
from imitate.algo.rl_sections import ActorConfig
from imitate.algo.sac import SAC
from imitate.algo.sac_discrete import DiscreteSAC
from imitate.algo.sac_mixed import MixedSAC
from imitate.config.observation import EncodersConfig
from imitate.errors import DatasetError
from imitate.models.actor import Actor, GroupEncoder, Obs
from imitate.models.critics import CriticEnsemble
from imitate.models.observation import ObservationEncoder
from imitate.models.rnn import RNN, RNNState

_OF_CRITICS, _OF_ACTOR = "known_to_critics", "known_to_actor"


class Memory(nn.Module):
    """Encoder and recurrent network."""

    def __init__(self, encoder: GroupEncoder, rnn: RNN) -> None:
        super().__init__()
        self.encoder, self.rnn = encoder, rnn

    def forward(
        self, obs: Obs, state: RNNState, goal: Obs | None = None
    ) -> tuple[Tensor, RNNState]:
        """Windows (B, T, ...) to what is known at their steps (B, T, H), and the last state."""
        known: tuple[Tensor, RNNState] = self.rnn(self.encoder(obs, goal), state)
        return known

    @torch.no_grad()
    def burned_in(
        self, obs: Obs, steps: Tensor, state: RNNState, goal: Obs | None = None
    ) -> RNNState:
        """The state after the first ``steps`` (B,) of the windows (B, U, ...)."""
        if not int(steps.max()):
            return state
        return self.rnn.state_after(self.encoder(obs, goal), steps, state)


class Remembering(ActorCritic):
    """Base of the recurrent forms, before that of the algorithm: ``class RecurrentSAC(Remembering, SAC)``."""

    acting_nets = ("critic",)

    # ---- networks ------------------------------------------------------------------------------------------------

    def _create_actor(self, config: ActorConfig) -> Actor:
        actor = super()._create_actor(config)
        actor.encoder = self._reader(_OF_ACTOR)
        return actor

    def _create_critic(self, *args: Any, **kwargs: Any) -> CriticEnsemble:
        """With the memory, which so has the critics' optimizer, and a target beside theirs."""
        critic = super()._create_critic(*args, **kwargs)
        encoder = super()._create_encoder()
        critic.add_module("memory", Memory(encoder, self.algo_config.rnn.make(encoder.output_dim)))
        return critic

    def _create_encoder(self, frames: int | None = None) -> GroupEncoder:
        """Of what is known, instead of observations."""
        return self._reader(_OF_CRITICS)

    def _reader(self, key: str) -> GroupEncoder:
        shapes = {key: (self.algo_config.rnn.hidden_dim,)}
        return GroupEncoder(ObservationEncoder(shapes, {key: "low_dim"}, EncodersConfig()))

    def _memory(self, name: str) -> Memory:
        """Of these critics."""
        return cast(Memory, self.active_nets[name].get_submodule("memory"))

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes (layers, H) of the parts of the state of one policy."""
        state = self._memory("critic").rnn.initial_state(1)
        return {name: tuple(value.shape[1:]) for name, value in state.items()}

    # ---- training ------------------------------------------------------------------------------------------------

    def _select_batch(self, batch: Batch) -> Batch:
        """Sequences of a memory of practice; windows of a dataset as such, which begin with an empty memory."""
        if "ahead" not in batch:
            batch = self._sequences_of(batch)
        burn_in = next(iter(batch["obs"].values())).shape[1]
        burn_in -= batch["actions"].shape[1] + self.algo_config.n_step
        names = ("burn_in", "actions", "discounts", "ahead", "mask")
        return {
            "before": {key: value[:, :burn_in] for key, value in batch["obs"].items()},
            "obs": {key: value[:, burn_in:] for key, value in batch["obs"].items()},
            "memory": from_stored(batch),
            "goal_obs": batch.get("goal_obs"),
            "rewards": batch["n_step_rewards"],
            **{name: batch[name] for name in names},
        }

    def _sequences_of(self, batch: Batch) -> Batch:
        """Windows of T observations as sequences of T - 1 steps."""
        ends = batch.get("terminals", batch.get("dones"))
        if ends is None or "rewards" not in batch or self.algo_config.n_step > 1:
            raise DatasetError(
                f"{self.global_config.algo_name} with algo.rnn learns from windows with rewards and ends, and from "
                "algo.n_step 1: make the dataset with these, or let it practise"
            )
        rewards, ends = batch["rewards"][:, :-1], ends[:, :-1]
        known = batch.get("pad_mask")
        state = self._memory("critic").rnn.initial_state(len(rewards))
        return {
            "obs": batch["obs"],
            "goal_obs": batch.get("goal_obs"),
            "actions": batch["actions"][:, :-1],
            "n_step_rewards": rewards,
            "discounts": self.algo_config.discount * (1.0 - ends),
            "ahead": torch.ones_like(rewards, dtype=torch.long),
            "mask": (torch.ones_like(ends) if known is None else known[:, 1:]) > 0,
            "burn_in": torch.zeros(len(rewards), dtype=torch.long, device=self.device),
            **to_stored(state),
        }

    def _transitions(self, batch: Batch) -> Batch:
        """The steps that are learned from, as the losses of algorithms without memory see them: what is known then."""
        known, target = self._known("critic", batch), self._known_to_target(batch)
        sequence, step = batch["mask"].nonzero(as_tuple=True)
        after = step + batch["ahead"][sequence, step]
        now = known[sequence, step]
        known = known.detach()
        return {
            "obs": {_OF_CRITICS: now, _OF_ACTOR: now.detach()},
            "next_obs": {
                _OF_CRITICS: target[sequence, after],
                _OF_ACTOR: known[sequence, after],
            },
            "goal_obs": None,
            "weight": None,
            **{name: batch[name][sequence, step] for name in ("actions", "rewards", "discounts")},
        }

    def _known(self, name: str, batch: Batch) -> Tensor:
        """(B, L + n, H) what a memory knows at all steps of the sequences."""
        memory, goal = self._memory(name), batch["goal_obs"]
        state = memory.burned_in(batch["before"], batch["burn_in"], batch["memory"], goal)
        known, _ = memory(batch["obs"], state, goal)
        return cast(Tensor, known)

    @torch.no_grad()
    def _known_to_target(self, batch: Batch) -> Tensor:
        return self._known("critic_target", batch)

    def _update(self, batch: Batch, update: Update) -> None:
        super()._update(self._transitions(batch), update)  # type: ignore[safe-super]

    def _validation_info(self, batch: Batch) -> Info:
        return super()._validation_info(self._transitions(batch))

    # ---- test time -----------------------------------------------------------------------------------------------

    def _initial_policy_state(self, batch_size: int) -> PolicyState:
        return {"rnn": self._memory("critic").rnn.initial_state(batch_size)}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        window = {key: value.unsqueeze(1) for key, value in obs.items()}
        known, after = self._memory("critic")(window, state["rnn"], goal)
        step = super()._act(
            {_OF_ACTOR: known[:, 0]}, state, goal, explore=explore, generator=generator
        )
        stored = to_stored(state["rnn"]) if explore else {}
        return PolicyStep(step.action, {**step.state, "rnn": after}, {**step.extras, **stored})


class RecurrentSAC(Remembering, SAC):
    """Continuous actions."""


class RecurrentDiscreteSAC(Remembering, DiscreteSAC):
    """One of A choices."""


class RecurrentMixedSAC(Remembering, MixedSAC):
    """A choice with numbers beside it."""
