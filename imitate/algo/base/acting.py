"""Networks that act, and checkpoints whose model contains no other networks.

The model of such a checkpoint contains the weights of the acting networks as ``nets``, and the number of weights of the
other networks as ``omitted``. It acts like the whole model, but a training cannot be resumed from it.
"""

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import count_numbers
from imitate.errors import CheckpointError
from imitate.models.actor import PolicyAndValue

OMITTED = "omitted"
"""Key in a checkpoint's model: the number of weights that were left out because acting does not need them."""

REMEDY = "contains only the networks that act: take the checkpoint from which it was made"


def acting_names(algo: Algo) -> tuple[str, ...]:
    """Return the names of the networks that acting needs."""
    return (algo.main_net, *algo.acting_nets)


def acting_model(algo: Algo) -> dict[str, Any]:
    """Return the model of an algorithm with only the networks that acting needs, with EMA weights if there are any.

    The algorithm is changed: its EMA weights replace its weights, and parts that acting does not need are removed.
    """
    nets = _of(algo)
    for learner in algo.learners:
        if learner.ema is not None:
            learner.nets.load_state_dict(learner.ema.module.state_dict())
            learner.ema = None
    whole = algo.nets.state_dict()
    drop_unused(algo.nets)
    kept = {name: x for name, x in algo.nets.state_dict().items() if _is_in(name, nets)}
    omitted = count_numbers(whole) - count_numbers(kept)
    return {"nets": kept, OMITTED: omitted, **algo.schedules.state_dict()}


def load_model(algo: Algo, model: Mapping[str, Any], load_optimizers: bool = False) -> None:
    """Load the model of a checkpoint. If it contains only acting networks, remove the algorithm's other networks.

    Raises:
        CheckpointError: ``load_optimizers`` is true, but a model of acting networks has no optimizers.
        RuntimeError: names or shapes of weights differ.
    """
    if OMITTED not in model:
        algo.deserialize(model, load_optimizers=load_optimizers)
        return
    if load_optimizers:
        raise CheckpointError(f"a checkpoint that {REMEDY}")
    for learner in algo.learners:
        learner.ema = None
    keep_only(algo, model["nets"])
    drop_unused(algo.nets)
    algo.nets.load_state_dict(model["nets"])
    algo.schedules.load_state_dict(model)
    algo.set_progress(algo.schedules.progress)


def drop_unused(nets: nn.Module) -> None:
    """Remove the parts of networks that see observations which are missing when the policy acts."""
    for net in nets.modules():
        if isinstance(net, PolicyAndValue):
            for part in net.unused_to_act:
                setattr(net, part, None)


def acting_state(net: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a network without the parts that :func:`drop_unused` removes."""
    unused = net.unused_to_act if isinstance(net, PolicyAndValue) else ()
    state: dict[str, Tensor] = net.state_dict()
    return {name: x for name, x in state.items() if name.partition(".")[0] not in unused}


def keep_only(algo: Algo, stored: Collection[str]) -> None:
    """Remove networks that acting does not need and that have no weights among ``stored``, the names of weights."""
    acting = {name.partition(".")[0] for name in _of(algo)}
    present = {name.partition(".")[0] for name in stored}
    for name in [name for name in algo.nets if name not in acting | present]:
        del algo.nets[name]


def _of(algo: Algo) -> tuple[str, ...]:
    return tuple(name for name in acting_names(algo) if name.partition(".")[0] in algo.nets)


def _is_in(name: str, nets: Collection[str]) -> bool:
    return any(name.startswith(f"{net}.") for net in nets)
