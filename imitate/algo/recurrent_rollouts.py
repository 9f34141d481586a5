"""Learning from whole rollouts with a policy that remembers.

One recurrent network stands between the encoder and the hidden layers of both policy and value. They share it: what a
value needs to know of the past the policy needs too, the value's loss says much more clearly what is worth being
remembered, and there is one state to keep.

The state before each step is stored when it is taken. Sequences of at most ``train.seq_length`` steps, none beyond
the end of an episode, begin with the stored state; minibatches consist of whole sequences. Beside what
:mod:`imitate.algo.on_policy` says, batches have for each of their B steps, those of a sequence one after another:

    place           (B,) number of the step in its sequence
    sequence        (B,) number of the sequence, in a rollout
    memory          {name: (B, L, H)} state of the recurrent network before the step

Only the recurrent network sees padding, after the ends of shorter sequences, and what it makes of it is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from imitate.algo.algo import Batch, PolicyStep
from imitate.algo.on_policy import (
    CHUNK,
    OnPolicy,
    OnPolicyNetConfig,
    PolicyAndValue,
    StochasticPolicy,
    select_rows,
)
from imitate.algo.policy_state import PolicyState
from imitate.algo.recurrence import from_stored, to_stored
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.rnn import RNN, RNNState


class PolicyAndValueWithMemory(PolicyAndValue):
    """Encoder -> recurrent network -> policy and value."""

    def __init__(
        self,
        encoder: GroupEncoder,
        memory: RNN,
        ac_dim: int,
        config: OnPolicyNetConfig,
        num_choices: int,
    ) -> None:
        super().__init__(encoder, ac_dim, config, num_choices, input_dim=memory.output_dim)
        self.memory = memory
        if config.orthogonal_init:
            for weight in memory.parameters():
                if weight.dim() > 1:
                    nn.init.orthogonal_(weight)
                else:
                    nn.init.zeros_(weight)

    def remember(
        self, obs: Obs, state: RNNState, goal: Obs | None = None
    ) -> tuple[Tensor, RNNState]:
        """One step of each of B policies: what it knows now (B, H), and its next state."""
        known, state = self.memory(self.encoder(obs, goal).unsqueeze(1), state)
        return known[:, 0], state

    def unroll(self, obs: Obs, place: Tensor, state: RNNState) -> Tensor:
        """What policies know at all steps of several sequences.

        Args:
            obs: (B, ...) the steps of each sequence, one sequence after another.
            place: (B,) numbers of the steps in their sequences.
            state: (B, L, H) by name, the stored states, of which those where sequences begin count.

        Returns:
            (B, H).
        """
        features = self.encoder(obs)
        begins = place == 0
        sequence = begins.cumsum(0) - 1
        shape = (int(sequence[-1]) + 1, int(place.max()) + 1, features.shape[-1])
        windows = features.new_zeros(shape).index_put((sequence, place), features)
        known, _ = self.memory(windows, {name: value[begins] for name, value in state.items()})
        at_steps: Tensor = known[sequence, place]
        return at_steps


class RecurrentOnPolicy(OnPolicy):
    """Base of the recurrent forms, behind that of the algorithm: ``class RecurrentPPO(PPO, RecurrentOnPolicy)``."""

    def _create_networks(self) -> None:
        config, encoder = self.algo_config, self._create_encoder()
        memory = config.rnn.make(encoder.output_dim)
        net = PolicyAndValueWithMemory(
            encoder, memory, self.ac_dim, config.net, config.num_choices or 0
        )
        self.nets = nn.ModuleDict({"policy": net})

    @property
    def net(self) -> PolicyAndValueWithMemory:
        """Policy and value."""
        return cast(PolicyAndValueWithMemory, self.active_nets["policy"])

    # ---- rollouts ------------------------------------------------------------------------------------------------

    def prepare_rollout(self, rollout: Batch) -> Batch:
        """See the base class; with the sequences."""
        batch = super().prepare_rollout(rollout)
        mask = rollout["mask"]
        ends = rollout["terminals"] | rollout["timeouts"]
        sequence, place = sequences(ends, mask, self.global_config.train.seq_length)
        of_steps = {"sequence": sequence, "place": place}
        return {
            **batch,
            **{k: torch.from_numpy(x[mask]).to(self.device) for k, x in of_steps.items()},
            "memory": {k: v[mask.reshape(-1)] for k, v in self._stored(rollout).items()},
        }

    def _stored(self, rollout: Batch) -> RNNState:
        """{name: (T N, L, H)} states before all steps of a rollout."""
        return {
            name: torch.from_numpy(np.asarray(x).reshape(-1, *x.shape[2:])).to(self.device)
            for name, x in from_stored(rollout).items()
        }

    def _rollout_values(self, rollout: Batch, obs: Obs, end_obs: Obs) -> tuple[Tensor, Tensor]:
        """See the base class: one step from each of the stored states, and one more at the ends."""
        stored = self._stored(rollout)
        rows = torch.from_numpy(rollout["end_rows"]).to(self.device)
        at_ends = {name: value[rows] for name, value in stored.items()}
        _, after = self.net.remember(select_rows(obs, rows), at_ends)
        return self._values_from(obs, stored), self._values_from(end_obs, after)

    def _values_from(self, obs: Obs, state: RNNState) -> Tensor:
        """(B,) values of observations (B, ...) seen in these states (B, L, H)."""
        parts = [slice(i, i + CHUNK) for i in range(0, len(next(iter(obs.values()))), CHUNK)]
        known = [
            self.net.remember(select_rows(obs, part), select_rows(state, part))[0] for part in parts
        ]
        return torch.cat([self.net.values_of(part) for part in known])

    def minibatches(self, batch: Batch, batch_size: int) -> Iterator[Batch]:
        """See the base class: whole sequences, together about ``batch_size`` steps."""
        sequence = batch["sequence"].cpu()
        lengths = sequence.bincount()
        shuffled = torch.randperm(len(lengths))
        order = torch.argsort(shuffled.argsort()[sequence], stable=True).to(self.device)
        ends, size = lengths[shuffled].cumsum(0), len(sequence)
        parts = max(1, round(size / batch_size))
        nearest = (int((ends - size * part / parts).abs().argmin()) for part in range(1, parts))
        edges = sorted({0, size, *(int(ends[place]) for place in nearest)})
        for start, stop in zip(edges[:-1], edges[1:], strict=True):
            yield select_rows(batch, order[start:stop])

    def _select_batch(self, batch: Batch) -> Batch:
        """Windows of a dataset as sequences that begin with an empty memory; padded steps are left out."""
        count, steps = batch["log_prob"].shape
        pad_mask = batch.get("pad_mask")
        real = torch.ones(count * steps, dtype=torch.bool, device=self.device)
        flat = {name: batch[name].flatten(0, 1) for name in self._OF_STEPS}
        flat["obs"] = {key: value.flatten(0, 1) for key, value in batch["obs"].items()}
        flat["place"] = torch.arange(steps, device=self.device).repeat(count)
        flat["memory"] = self.net.memory.initial_state(count * steps)
        return select_rows(flat, real if pad_mask is None else pad_mask.flatten())

    def _decide(self, batch: Batch) -> tuple[StochasticPolicy, Tensor]:
        known = self.net.unroll(batch["obs"], batch["place"], batch["memory"])
        return self.net.decide(known)

    # ---- test time -----------------------------------------------------------------------------------------------

    def _initial_policy_state(self, batch_size: int) -> PolicyState:
        return {"rnn": self.net.memory.initial_state(batch_size)}

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        known, after = self.net.remember(obs, state["rnn"], goal)
        action, extras = self._chosen(self.net.policy_of(known), explore, generator)
        if explore:
            extras |= to_stored(state["rnn"])
        return PolicyStep(action, {**state, "rnn": after}, extras)


def sequences(
    ends: NDArray[np.bool_], mask: NDArray[np.bool_], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut the rollouts of several environments into sequences.

    Args:
        ends: (T, N) whether an episode ended with a step.
        mask: (T, N) false: no experience; whole episodes, or what there is of them.
        length: most steps of a sequence.

    Returns:
        numbers of the sequences, and of the steps in them, (T, N) each; without meaning where ``mask`` is false.
    """
    steps = np.arange(len(ends))[:, None]
    begins = np.concatenate([np.ones_like(ends[:1]), ends[:-1]])
    since: NDArray[Any] = steps - np.maximum.accumulate(np.where(begins, steps, 0), axis=0)
    place = since % length
    first = (place == 0) & mask
    number = first.T.reshape(-1).cumsum().reshape(first.T.shape).T - 1
    return number, place
