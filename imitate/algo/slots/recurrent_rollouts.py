"""Memory of an algorithm that learns from whole rollouts.

One recurrent network stands between the encoder and the hidden layers of both policy and value
(:class:`~imitate.models.policy_and_value.PolicyAndValue`). The state before each step is stored when it is taken.
Sequences of at most ``train.seq_length`` steps, none beyond the end of an episode, begin with the stored state;
minibatches consist of whole sequences. Beside the keys of :mod:`imitate.algo.base.on_policy`, batches have for each of
their B steps, those of a sequence one after another:

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
    """Sequences of rollouts, and their features.

    Args:
        config: section ``algo.rnn``.
        seq_length: most steps of a sequence.
    """

    def __init__(self, config: MemoryConfig, seq_length: int) -> None:
        super().__init__(config)
        self._seq_length = seq_length

    def stored(self, rollout: Batch, device: torch.device) -> RNNState:
        """{name: (T N, L, H)} states before all steps of a raw rollout."""
        return {
            name: torch.from_numpy(np.asarray(x).reshape(-1, *x.shape[2:])).to(device)
            for name, x in from_stored(rollout).items()
        }

    def of_rollout(self, rollout: Batch, device: torch.device) -> Batch:
        """``sequence``, ``place`` and ``memory`` of all T N steps of a raw rollout."""
        ends = rollout["terminals"] | rollout["timeouts"]
        sequence, place = sequences(ends, rollout["mask"], self._seq_length)
        numbers = {"sequence": sequence, "place": place}
        return {
            **{k: torch.from_numpy(x.reshape(-1)).to(device) for k, x in numbers.items()},
            "memory": self.stored(rollout, device),
        }

    def of_windows(self, count: int, steps: int, rnn: RNN) -> Batch:
        """``place`` and ``memory`` of a dataset's windows, ``count`` of ``steps`` steps, with an empty memory each."""
        memory = rnn.initial_state(count * steps)
        device = memory["h"].device
        return {"place": torch.arange(steps, device=device).repeat(count), "memory": memory}

    def features(self, encoder: GroupEncoder, rnn: RNN, batch: Batch) -> Tensor:
        """Features (B, H) at all steps of several sequences.

        Args:
            encoder: of observations.
            rnn: behind it.
            batch: ``obs``, ``place``, and ``memory``, of which the states where sequences begin count.
        """
        place, inputs = batch["place"], encoder(batch["obs"])
        sequence = (place == 0).cumsum(0) - 1
        last, longest = torch.stack((sequence[-1], place.max())).tolist()  # read once
        windows = inputs.new_zeros(last + 1, longest + 1, inputs.shape[-1])
        windows = windows.index_put((sequence, place), inputs)
        row = torch.arange(len(place), device=place.device)
        begins = row.new_full((last + 1,), len(place)).scatter_reduce(0, sequence, row, "amin")
        outputs, _ = rnn(windows, {name: x[begins] for name, x in batch["memory"].items()})
        at_steps: Tensor = outputs[sequence, place]
        return at_steps

    def minibatches(self, batch: Batch, batch_size: int) -> Iterator[Tensor]:
        """Numbers of rows of whole sequences in random order, together about ``batch_size`` steps."""
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
