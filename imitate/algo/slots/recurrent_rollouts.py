"""Memory of an algorithm that learns from whole rollouts.

One recurrent network is between the encoder and the hidden layers of both policy and value
(:class:`~imitate.models.policy_and_value.PolicyAndValue`). The recurrent state before each step is stored when the step
is taken. Sequences have at most ``train.seq_length`` steps of one episode and begin with the stored state; minibatches
consist of whole sequences. Beside the keys of :mod:`imitate.algo.base.on_policy`, batches have the following keys for
each of their B steps, which are ordered by sequence:

    place           (B,) number of the step in its sequence
    sequence        (B,) number of the sequence, in a rollout
    memory          {name: (B, L, H)} state of the recurrent network before the step

Only the recurrent network sees padding, after the ends of shorter sequences; its outputs there are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.base.algo import Batch
from imitate.algo.base.recurrence import Memory, MemoryConfig, from_stored
from imitate.models.actor import GroupEncoder
from imitate.models.rnn import RNN, RNNState


class RolloutMemory(Memory):
    """Memory of an algorithm with rollouts: cuts them into sequences and computes their features.

    Args:
        config: section ``algo.rnn``.
        seq_length: largest number of steps of a sequence.
    """

    def __init__(self, config: MemoryConfig, seq_length: int) -> None:
        super().__init__(config)
        self._seq_length = seq_length

    def stored(self, rollout: Batch, device: torch.device) -> RNNState:
        """Return the states {name: (T N, L, H)} before all steps of a raw rollout."""
        return {
            name: torch.from_numpy(np.asarray(x).reshape(-1, *x.shape[2:])).to(device)
            for name, x in from_stored(rollout).items()
        }

    def of_rollout(self, rollout: Batch, device: torch.device) -> Batch:
        """Return ``sequence``, ``place`` and ``memory`` of all T N steps of a raw rollout."""
        ends = rollout["terminals"] | rollout["timeouts"]
        sequence, place = sequences(ends, rollout["mask"], self._seq_length)
        numbers = {"sequence": sequence, "place": place}
        return {
            **{k: torch.from_numpy(x.reshape(-1)).to(device) for k, x in numbers.items()},
            "memory": self.stored(rollout, device),
        }

    def of_windows(self, count: int, steps: int, rnn: RNN) -> Batch:
        """Return ``place`` and ``memory`` of ``count`` windows of ``steps`` steps, each with an empty memory."""
        memory = rnn.initial_state(count * steps)
        device = memory["h"].device
        return {"place": torch.arange(steps, device=device).repeat(count), "memory": memory}

    def features(self, encoder: GroupEncoder, rnn: RNN, batch: Batch) -> Tensor:
        """Return features (B, H) of all steps of several sequences.

        Args:
            encoder: encoder of observations.
            rnn: recurrent network after the encoder.
            batch: ``obs``, ``place``, and ``memory``, of which only the states at the start of sequences are used.
        """
        place, inputs = batch["place"], encoder(batch["obs"])
        sequence = (place == 0).cumsum(0) - 1
        # read from the device only once
        last, longest = torch.stack((sequence[-1], place.max())).tolist()
        windows = inputs.new_zeros(last + 1, longest + 1, inputs.shape[-1])
        windows = windows.index_put((sequence, place), inputs)
        row = torch.arange(len(place), device=place.device)
        begins = row.new_full((last + 1,), len(place)).scatter_reduce(0, sequence, row, "amin")
        outputs, _ = rnn(windows, {name: x[begins] for name, x in batch["memory"].items()})
        at_steps: Tensor = outputs[sequence, place]
        return at_steps

    def minibatches(self, batch: Batch, batch_size: int) -> Iterator[Tensor]:
        """Yield the row numbers of whole sequences in random order, about ``batch_size`` steps each."""
        sequence = batch["sequence"].cpu()
        lengths = sequence.bincount()
        shuffled = torch.randperm(len(lengths))
        order = torch.argsort(shuffled.argsort()[sequence], stable=True).to(
            batch["sequence"].device
        )
        ends, size = lengths[shuffled].cumsum(0), len(sequence)
        parts = max(1, round(size / batch_size))
        nearest = (int((ends - size * part / parts).abs().argmin()) for part in range(1, parts))
        edges = sorted({0, size, *(int(ends[place]) for place in nearest)})
        for start, stop in zip(edges[:-1], edges[1:], strict=True):
            yield order[start:stop]


def sequences(
    ends: NDArray[np.bool_], mask: NDArray[np.bool_], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut the rollouts of several environments into sequences.

    Args:
        ends: (T, N) true where an episode ended with a step.
        mask: (T, N) false where there is no experience; the rest consists of whole episodes, or their collected parts.
        length: largest number of steps of a sequence.

    Returns:
        numbers of the sequences, and numbers of the steps in them, (T, N) each; undefined where ``mask`` is false.
    """
    steps = np.arange(len(ends))[:, None]
    begins = np.concatenate([np.ones_like(ends[:1]), ends[:-1]])
    since: NDArray[Any] = steps - np.maximum.accumulate(np.where(begins, steps, 0), axis=0)
    place = since % length
    first = (place == 0) & mask
    number = first.T.reshape(-1).cumsum().reshape(first.T.shape).T - 1
    return number, place
