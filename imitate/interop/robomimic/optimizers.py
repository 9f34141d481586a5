"""Moments of Adam in a checkpoint of robomimic, as our optimizers have them.

robomimic has one optimizer for each network of an ensemble, ours one for all, whose moments are stacked as the weights
are. A moment is found by the place of its weight among the network's weights, which is the order of the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.interop.names import Name
from imitate.interop.weights import to_ours
from imitate.models.optim import lr_scales

THEIR_OPTIMIZERS = {"entropy_weight": "entropy", "cql_weight": "cql"}
"""Names of optimizers that differ from the name of their network."""

MOMENTS = ("exp_avg", "exp_avg_sq")


def moments(algo: Algo, model: Mapping[str, Any], names: Sequence[Name]) -> dict[str, Any]:
    """Return the state of each optimizer, ``{name: {"state": {number: {...}}}}``; those that do not map are left out.

    Args:
        algo: built for the checkpoint.
        model: ``model`` of the checkpoint.
        names: of all its tensors.
    """
    saved = model.get("optimizers") if "nets" in model else None
    found: dict[str, Any] = {}
    for net in algo._optim_params() if saved else ():
        theirs = (saved or {}).get(THEIR_OPTIMIZERS.get(net, net))
        of_net = [name for name in names if name.ours.startswith(f"{net}.")]
        states = _states_by_name(theirs, of_net, model["nets"], algo, net)
        if states:
            found[net] = {"state": _as_ours(algo, net, of_net, states)}
    return found


def _states_by_name(
    optimizer: Any, names: Sequence[Name], theirs: Mapping[str, Tensor], algo: Algo, net: str
) -> dict[str, Any]:
    """Return the optimizer's state of each weight, by name; empty where the numbers of weights differ."""
    parameters = {f"{net}.{name}" for name, _ in algo.nets[net].named_parameters()}
    first = {alias: name for name in names for alias in (name.theirs, *name.copies)}
    learned: list[Name] = []
    for alias in theirs:
        name = first.get(alias)
        if name is not None and name.ours in parameters and name not in learned:
            learned.append(name)
    optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
    if optimizer is None or not all(optimizers):
        return {}
    states: dict[str, Any] = {}
    start = 0
    for one in optimizers:
        numbers = [number for group in one["param_groups"] for number in group["params"]]
        those = learned[start : start + len(numbers)]
        start += len(numbers)
        states |= {
            name.theirs: one["state"][number]
            for name, number in zip(those, numbers, strict=False)
            if number in one["state"]
        }
    return states if start == len(learned) and len(states) == len(learned) else {}


def _as_ours(
    algo: Algo, net: str, names: Sequence[Name], states: Mapping[str, Any]
) -> dict[int, dict[str, Tensor]]:
    module = algo.nets[net]
    name_of = {parameter: f"{net}.{name}" for name, parameter in module.named_parameters()}
    order = [p for group in lr_scales(module).values() for p in group if p.requires_grad]
    learned = [name for name in names if name.theirs in states]
    shapes = {name_of[parameter]: parameter.shape for parameter in order}
    ours = {
        moment: to_ours({name: state[moment] for name, state in states.items()}, learned, shapes)
        for moment in MOMENTS
    }
    steps = {name.ours: torch.as_tensor(states[name.theirs]["step"]) for name in learned}
    return {
        number: {
            "step": steps[name].to(torch.float32).clone(),
            **{moment: values[name] for moment, values in ours.items()},
        }
        for number, name in enumerate(name_of[parameter] for parameter in order)
    }
