"""Import of models of TD-MPC2's authors (github.com/nicklashansen/tdmpc2), in both layouts of their files.

The files have only weights, from which the layer sizes follow. The planner, the limits of the value atoms and the size
of simplices are the authors' defaults, and the discount is the one for episodes of 500 steps, as in DMControl. The
observation is named ``state``; a model of several tasks also has ``task``, a one-hot vector.

    _encoder.state.<i>       model.encoder.mlp.<i>.linear, .norm
    _dynamics, _reward, _termination, _pi     model.dynamics, model.reward, model.ends, policy
    _Qs.params.<i>           model.critics.layers.<i>, .norms.<i>; matrices are transposed
    _target_Qs_params.<i>    critic_target
    _task_emb.weight         model.task.weight, transposed

In the older layout, the parameters of the critics are numbered: weight, bias, scale and shift of each layer in turn.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import AllocationLimit, count_numbers
from imitate.algo.base.factory import algo_factory
from imitate.algo.tdmpc2 import discount_of
from imitate.config import load_config
from imitate.errors import CheckpointError

Weights = Mapping[str, Tensor]

EPISODE_STEPS = 500
"""Number of steps of an episode of DMControl, with an action repeat of 2."""
MANY_ACTIONS = 20
"""Number of action dimensions from which the authors' planner makes two more iterations."""
PARTS = {"_dynamics": "model.dynamics", "_reward": "model.reward", "_termination": "model.ends"}
PARTS |= {"_encoder.state": "model.encoder.mlp", "_pi": "policy"}
CRITICS = {"model.critics": ("_Qs.params", "_Qs.params")}
CRITICS |= {"critic_target": ("_target_Qs_params", "_target_Qs.params")}
"""Names of the parameters of the critics' layers in the newer and in the older layout."""
OF_A_LAYER = ("weight", "bias", "ln.weight", "ln.bias")


@dataclass(frozen=True)
class TDMPC2Import:
    """A model of the authors as an algorithm of ours.

    Attributes:
        algo: the algorithm with the authors' weights.
        parts: parts of a checkpoint, as the arguments of :func:`imitate.policy.checkpoint.checkpoint_dict`.
    """

    algo: Algo
    parts: dict[str, Any]


def from_tdmpc2(ckpt: Mapping[str, Any]) -> TDMPC2Import:
    """Convert the authors' weights.

    Raises:
        CheckpointError: a part has no counterpart here; the message names it.
    """
    theirs: Weights = ckpt.get("model", ckpt)
    if any(name.startswith("_encoder.rgb") for name in theirs):
        raise CheckpointError("its encoder of images (_encoder.rgb) has no counterpart here")
    masks = theirs.get("_action_masks")
    if masks is not None and not bool((masks == 1).all()):
        raise CheckpointError(
            "its tasks have different numbers of action dimensions (_action_masks), which tdmpc2 does not support"
        )
    named = _named(theirs)
    shapes = _shapes(theirs)
    ac_dim = named[f"policy.{_depth(theirs, '_pi') - 1}.weight"].shape[0] // 2
    config = load_config(_tree(theirs, named, shapes, ac_dim))
    # the random initial weights are replaced below, so the caller's random number generator is left unchanged
    with torch.random.fork_rng(devices=[]), AllocationLimit(count_numbers(theirs)):
        algo = algo_factory("tdmpc2", config, shapes, ac_dim, "cpu", load_pretrained=False)
    own = algo.nets.state_dict()
    kept = {name: own[name] for name in own.keys() - named.keys() if name.startswith("model.")}
    algo.nets.load_state_dict({**kept, **named})
    metadata = {
        "raw_shapes": {key: list(shape) for key, shape in shapes.items()},
        "action_dims": {"actions": ac_dim},
        "action_low": [-1.0] * ac_dim,
        "action_high": [1.0] * ac_dim,
    }
    parts = {
        "env_metadata": {},
        "shape_metadata": metadata,
        "provenance": {"imported_from": "tdmpc2"},
    }
    return TDMPC2Import(algo, parts)


def _depth(theirs: Weights, part: str) -> int:
    """Return the number of layers of the network whose weights have this prefix."""
    pattern = re.compile(re.escape(part) + r"\.(\d+)\.weight")
    return max(int(found[1]) for name in theirs if (found := pattern.fullmatch(name))) + 1


def _shapes(theirs: Weights) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the observations, derived from the weights."""
    size, tasks = theirs["_encoder.state.0.weight"].shape[1], theirs.get("_task_emb.weight")
    if tasks is None:
        return {"state": (size,)}
    return {"state": (size - tasks.shape[1],), "task": (tasks.shape[0],)}


def _tree(theirs: Weights, ours: Weights, shapes: Mapping[str, Any], ac_dim: int) -> dict[str, Any]:
    """Return the configuration, with sizes derived from the weights."""

    def widths(part: str) -> list[int]:
        return [len(theirs[f"{part}.{i}.weight"]) for i in range(_depth(theirs, part))]

    *encoder, latent = widths("_encoder.state")
    members, _, num_atoms = ours[
        f"model.critics.layers.{_depth(theirs, '_reward') - 1}.weight"
    ].shape
    algo: dict[str, Any] = {
        "latent_dim": latent,
        "encoder_layer_dims": encoder,
        "layer_dims": widths("_dynamics")[:-1],
        "critic": {"n": members, "num_atoms": num_atoms},
        "ends": "_termination.0.weight" in theirs,
        "discount": discount_of(EPISODE_STEPS),
    }
    if ac_dim >= MANY_ACTIONS:
        algo["planner"] = {
            "type": "mppi",
            "horizon": 3,
            "population": 512,
            "elites": 64,
            "iterations": 8,
        }
    if "task" in shapes:
        algo |= {"task": "task", "task_dim": theirs["_task_emb.weight"].shape[1]}
    return {
        "algo_name": "tdmpc2",
        "experiment": {"name": "tdmpc2", "epoch_every_n_steps": 1000},
        "train": {"online": {"enabled": True}},
        "algo": algo,
        "observation": {"modalities": {"obs": {"low_dim": list(shapes)}}},
    }


def _named(theirs: Weights) -> dict[str, Tensor]:
    """Return the weights under our names."""
    found: dict[str, Tensor] = {}
    for part, own in PARTS.items():
        if f"{part}.0.weight" not in theirs:
            continue
        for layer in range(_depth(theirs, part)):
            normed = f"{part}.{layer}.ln.weight" in theirs
            for kind in ("weight", "bias"):
                value = theirs[f"{part}.{layer}.{kind}"]
                found[f"{own}.{layer}.{'linear.' if normed else ''}{kind}"] = value
                if normed:
                    found[f"{own}.{layer}.norm.{kind}"] = theirs[f"{part}.{layer}.ln.{kind}"]
    depth = _depth(theirs, "_reward")
    for own, names in CRITICS.items():
        newer, older = names
        for number in range(4 * depth - 2):
            layer, kind = number // 4, OF_A_LAYER[number % 4]
            name = f"{newer}.{layer}.{kind}"
            value = theirs[name if name in theirs else f"{older}.{number}"]
            group = "norms" if kind.startswith("ln.") else "layers"
            matrix = kind == "weight"
            found[f"{own}.{group}.{layer}.{kind.removeprefix('ln.')}"] = (
                value.transpose(1, 2).contiguous() if matrix else value
            )
    if "_task_emb.weight" in theirs:
        found["model.task.weight"] = theirs["_task_emb.weight"].T.contiguous()
    return found
