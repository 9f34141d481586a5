"""Conversion of our checkpoints to ones that a release of robomimic loads, with the same actions."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.algo.base.hierarchy import Hierarchy
from imitate.errors import CheckpointError, nearest
from imitate.interop.names import names_of
from imitate.interop.robomimic.limits import check_exportable
from imitate.interop.robomimic.networks import constants_of, rules_of
from imitate.interop.robomimic.released_keys import ALGO, OBSERVATION, SHARED, SINCE_0_5, Keys
from imitate.interop.robomimic.statistics import action_stats, obs_stats
from imitate.interop.weights import to_theirs

RELEASES = {"robomimic-0.5": "0.5", "robomimic-0.3": "0.3"}

_PARTS: dict[str, dict[str, Any]] = {
    "hbc": {"planner": {}, "actor": {}},
    "iris": {"planner": {"planner": {}, "value_net": {}}, "actor": {}},
}
_NO_OPTIMIZERS: dict[str, Any] = {"optimizers": {}, "lr_schedulers": {}}

_OWN_ARGUMENTS = (
    *("norm", "imagenet_normalization", "image_size", "pretrained_sha256"),
    *("freeze", "lr_scale", "shared_over_time"),
)
"""Arguments of encoders that robomimic's do not have, and that :func:`check_exportable` has looked at."""


def exported(
    algo: Algo, target: str, *, env_metadata: Mapping[str, Any], epoch: int = 0
) -> dict[str, Any]:
    """Return a checkpoint for a release of robomimic, to be written by `torch.save`.

    Args:
        algo: the policy; set to evaluation mode.
        target: name in :data:`RELEASES`.
        env_metadata: env_args of its data.
        epoch: the last one that it was trained for.

    Raises:
        CheckpointError: that release has nothing that acts like it; the message names what.
    """
    if target not in RELEASES:
        raise CheckpointError(f"--to {target}: unknown; {nearest(target, RELEASES)}")
    release = RELEASES[target]
    algo.set_eval()
    check_exportable(algo, release)
    old = release == "0.3"
    stats = obs_stats(algo.preprocess, ("mean", "std") if old else ("offset", "scale"))
    shapes = algo.preprocess.obs_shapes
    modalities = set(algo.preprocess.modalities.values())
    ckpt: dict[str, Any] = {
        "model": _model(algo, old),
        "config": json.dumps(_tree(algo, release, stats is not None), indent=4),
        "algo_name": algo.global_config.algo_name,
        "env_metadata": dict(env_metadata),
        "shape_metadata": {
            "ac_dim": algo.ac_dim,
            "all_shapes": OrderedDict((key, list(shapes[key])) for key in sorted(shapes)),
            "all_obs_keys": sorted(shapes),
            "use_images": "rgb" in modalities,
        },
    }
    if stats is not None:
        ckpt["obs_normalization_stats"] = stats
    if not old:
        ckpt["shape_metadata"]["use_depths"] = "depth" in modalities
        ckpt["variable_state"] = {
            "epoch": epoch,
            "best_valid_loss": None,
            "best_return": None,
            "best_success_rate": None,
        }
        ckpt["action_normalization_stats"] = action_stats(algo.preprocess)
    return ckpt


def _model(algo: Algo, old: bool) -> dict[str, Any]:
    """Return the tensors, since 0.5 in a dict; an average without a place of its own replaces them."""
    averages = algo.global_config.algo_name == "diffusion_policy"
    nets = algo.nets if averages or algo.ema is None else algo.active_nets
    tensors = _tensors(algo, nets.state_dict())
    if isinstance(algo, Hierarchy):
        return _nested(tensors, _PARTS[algo.global_config.algo_name], old)
    if old:
        return tensors
    model: dict[str, Any] = {"nets": tensors, **_NO_OPTIMIZERS}
    if averages:
        model["ema"] = None if algo.ema is None else _tensors(algo, algo.ema.module.state_dict())
    return model


def _nested(tensors: Mapping[str, Tensor], parts: Mapping[str, Any], old: bool) -> dict[str, Any]:
    """Return a dict for each part of a hierarchical policy, whose names begin with its name."""
    nested: dict[str, Any] = {}
    for part, inner in parts.items():
        prefix = f"{part}."
        own = OrderedDict((n[len(prefix) :], t) for n, t in tensors.items() if n.startswith(prefix))
        if inner:
            nested[part] = _nested(own, inner, old)
        else:
            nested[part] = own if old else {"nets": own, **_NO_OPTIMIZERS}
    return nested


def _tensors(algo: Algo, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = names_of(state, rules_of(algo.nets), "robomimic")
    return OrderedDict({**to_theirs(state, names), **constants_of(algo.nets)})


# ---- configuration ---------------------------------------------------------------------------------------------------


def _tree(algo: Algo, release: str, normalizes_obs: bool) -> dict[str, Any]:
    """Return our tree without the keys that the release does not know."""
    name, ours = algo.global_config.algo_name, algo.global_config.to_dict()
    known: dict[str, Keys] = {
        **SHARED,
        "observation": OBSERVATION[name],
        "algo": ALGO[name],
    }
    tree: dict[str, Any] = {"algo_name": name, **_known(ours, known)}
    train = tree["train"]
    train["hdf5_normalize_obs"] = normalizes_obs
    train["hdf5_load_next_obs"] = bool(train["hdf5_load_next_obs"])
    if train["hdf5_cache_mode"] == "auto":
        train["hdf5_cache_mode"] = "low_dim"
    train["data"] = _data(train["data"], release)
    train["action_config"] = {
        key: {
            name: value
            for name, value in entry.items()
            if value is not None or name == "normalization"
        }
        for key, entry in ours["train"]["action_config"].items()
    }
    _strip(tree["observation"])
    if release == "0.3":
        for path in SINCE_0_5:
            _drop(tree, path.split("."))
        return tree
    for section in _dicts(tree["algo"]):
        for net in section.get("optim_params", {}).values():
            # Its training writes these, and its schedules ask for them.
            net["num_train_batches"] = ours["experiment"]["epoch_every_n_steps"] or 100
            net["num_epochs"] = train["num_epochs"]
            _check_schedule(net["learning_rate"])
    return tree


def _check_schedule(rate: dict[str, Any]) -> None:
    """Set a schedule that the release can build, in place: it makes one even for a policy that only acts.

    A cosine needs ``step_every_batch``, which only some of its algorithms have a key for. The others keep the rate.
    """
    if rate.get("scheduler_type") != "cosine":
        return
    if "step_every_batch" in rate:
        rate["step_every_batch"] = True
    else:
        rate |= {"scheduler_type": "multistep", "epoch_schedule": []}


def _known(ours: Mapping[str, Any], known: Keys) -> dict[str, Any]:
    """Return the part of a tree that there are keys for."""
    if isinstance(known, str):
        return {key: ours[key] for key in known.split() if key in ours}
    found = _known(ours, known.get("", ""))
    for key, keys in known.items():
        if key and key in ours:
            found[key] = _known(ours[key], keys)
    return found


def _data(entries: Any, release: str) -> Any:
    """Return the paths of the data, for people: robomimic does not read them to act."""
    paths = [entry["path"] for entry in entries or ()]
    if release == "0.3" or len(paths) < 2:
        return paths[0] if paths else None
    return [{"path": path} for path in paths]


def _strip(node: Any) -> None:
    """Leave out arguments of encoders that are ours alone, in place."""
    for one in _dicts(node):
        for key in _OWN_ARGUMENTS:
            one.pop(key, None)


def _dicts(node: Any) -> Iterator[dict[str, Any]]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict):
        yield node
    for child in children:
        yield from _dicts(child)


def _drop(node: Any, path: list[str]) -> None:
    for key in path[:-1]:
        node = node.get(key, {})
    node.pop(path[-1], None)
