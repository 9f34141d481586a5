"""Networks and batches of an algorithm's slots (optional parts), and the updates of its auxiliaries."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from imitate.algo.slots.advantage import advantage_of, with_outcome
from imitate.algo.slots.auxiliary import built, with_experience


def slot_networks(algo: Any) -> dict[str, nn.Module]:
    """Return the networks of the slots that an algorithm's section enables, by name."""
    found: dict[str, nn.Module] = {**built(algo.config, algo.encoding, algo.ac_dim, algo.nets)}
    return found | advantage_of(algo.config, algo.encoding)


def with_slots(chosen: dict[str, Any], batch: dict[str, Any], frames: int) -> dict[str, Any]:
    """Add the parts of the prepared ``batch`` that slots need to the batch that the algorithm selected from it."""
    return with_outcome(with_experience(chosen, batch, frames), batch, frames)


def learn_auxiliaries(algo: Any, batch: Mapping[str, Any], learn: bool = True) -> dict[str, Tensor]:
    """Make the gradient steps of auxiliaries, before the algorithm's own losses of the same batch are minimized.

    The loss of an auxiliary that shares an encoder waits for the step of the encoder's network, and is dropped if that
    network makes no step before the next update.

    Args:
        algo: an :class:`~imitate.algo.base.algo.Algo`.
        batch: the batch from which the algorithm learns (``Algo.selected``).
        learn: false: only compute the losses.

    Returns:
        detached scalars to log.
    """
    auxiliaries = algo.auxiliaries
    info: dict[str, Tensor] = {}
    if not auxiliaries:
        return info
    seen = seen_by_auxiliaries(batch)
    optimization = algo.optimization
    if learn:
        optimization.drop_added()
    for name, auxiliary in auxiliaries.items():
        with torch.set_grad_enabled(learn):
            loss, scalars = auxiliary.loss(seen)
            weighted = auxiliary.config.loss * loss
        info |= {f"{name}/{key}": value.detach() for key, value in scalars.items()}
        if not learn:
            continue
        if auxiliary.owner is None:
            optimization.step(name, weighted)
        else:
            optimization.add(auxiliary.owner, name, weighted)
    return info


def follow_auxiliaries(algo: Any, batch: Mapping[str, Any]) -> None:
    """Update the running statistics and target networks of auxiliaries, after the algorithm's gradient steps."""
    auxiliaries = algo.auxiliaries
    if not auxiliaries:
        return
    seen, share = seen_by_auxiliaries(batch), algo.optimization.share_weights
    for auxiliary in auxiliaries.values():
        auxiliary.follow(seen)
        if share is not None:
            for part in auxiliary.followed:
                share(part)


def seen_by_auxiliaries(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an algorithm's batch to the layout that auxiliaries expect (:mod:`imitate.algo.slots.auxiliary`)."""
    seen = {**batch, **batch.get("experience", {})}
    # in a rollout, "actions" are not clipped to the limits of actions, but "executed" are
    if "executed" in batch:
        seen |= {"actions": batch["executed"], "part": torch.zeros_like(batch["terminals"])}
    return seen
