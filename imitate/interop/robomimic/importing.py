"""Import of robomimic's checkpoints: configuration, weights and the optimizers' moments.

The imported configuration describes what robomimic's code does, which differs from robomimic's own configuration,
because robomimic ignores some of its keys:

* the U-Net of diffusion_policy has the sizes of its weights (256, 512 and 1024 channels), whatever ``algo.unet`` is;
* the trunk of ShallowConv ends in 32 channels, whatever ``output_channel`` is;
* a VAE's decoder takes the observation, whatever ``decoder.is_conditioned`` is;
* pretrained trunks get colours in [0, 1], without normalization; diffusion_policy has GroupNorm in all trunks;
* features of images go through a ReLU, except into a transformer;
* actors of hbc and iris do not take a subgoal;
* each critic has its own encoders; transformers are causal, also those that predict future actions, and so act on
  the oldest observation of their window.

robomimic has one optimizer for each network of an ensemble. Here all networks of an ensemble have one optimizer, whose
moments are stacked like the weights. robomimic stores a moment under the index of its weight, in the order of the
network's ``state_dict``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import AllocationLimit, count_numbers
from imitate.algo.base.factory import algo_factory
from imitate.algo.base.hierarchy import Hierarchy
from imitate.config import Config, load_config
from imitate.errors import CheckpointError, UserError
from imitate.interop.names import Name, names_of, to_ours
from imitate.interop.robomimic.networks import affine_of, constants_of, rules_of
from imitate.models.layout import ActionLayout, raw_shape_of
from imitate.models.optim import lr_scales
from imitate.models.preprocess import Preprocess
from imitate.system.plain_files import json_value

Tree = dict[str, Any]

UNET = "policy.noise_pred_net."
GROUPS_OF_UNET = 8
"""Number of groups of each GroupNorm of robomimic's U-Net, which cannot be derived from the weights."""


def ours_from_theirs(
    algo_name: str, tree: Tree, normalizes_obs: bool, tensors: Mapping[str, Tensor]
) -> Tree:
    """Return our configuration for a policy that acts like robomimic's.

    Args:
        algo_name: name of the algorithm.
        tree: robomimic's configuration, of any release; it may be changed in place.
        normalizes_obs: true if the checkpoint has statistics of observations.
        tensors: the checkpoint's weights.

    Raises:
        CheckpointError: a part of the configuration works differently here.
    """
    tree["algo_name"] = algo_name
    train = tree.setdefault("train", {})
    train.pop("hdf5_normalize_obs", None)
    train["obs_normalization"] = "mean_std" if normalizes_obs else None
    algo = tree.setdefault("algo", {})
    for encoder in _encoders(tree.get("observation")):
        _spell_out_encoder(encoder, algo_name, algo)
    if algo_name == "diffusion_policy":
        algo["unet"] = {**algo.get("unet", {}), **_unet_sizes(tensors)}
    for section in _sections(algo):
        _spell_out_section(section)
    if algo_name in ("hbc", "iris"):
        algo["actor_sees_subgoal"] = False
    rnn, ddim = algo.get("rnn", {}), algo.get("ddim", {})
    if rnn.get("enabled") and train.get("seq_length", 1) == 1:
        train["seq_length"] = rnn.get("horizon", 10)  # a recurrent policy needs longer windows here
    if ddim.get("enabled") and ddim.get("prediction_type") == "sample":
        raise CheckpointError(
            "algo.ddim.prediction_type is 'sample', with which robomimic adds noise to the predicted "
            "chunk when it acts; imitate cannot act in this way"
        )
    return tree


def _unet_sizes(tensors: Mapping[str, Tensor]) -> Tree:
    """Return the section ``algo.unet`` that fits the weights."""
    levels = [
        convolution
        for level in range(len(tensors))
        if (convolution := tensors.get(f"{UNET}down_modules.{level}.0.blocks.0.block.0.weight"))
        is not None
    ]
    step = tensors.get(f"{UNET}diffusion_step_encoder.1.weight")
    if not levels or step is None:
        raise CheckpointError(
            "the weights of the U-Net, which robomimic's diffusion_policy needs, are missing in the "
            "file"
        )
    return {
        "diffusion_step_embed_dim": step.shape[1],
        "down_dims": [level.shape[0] for level in levels],
        "kernel_size": levels[0].shape[2],
        "n_groups": GROUPS_OF_UNET,
    }


def _encoders(observation: Any) -> Iterator[Tree]:
    """Yield every entry of every section ``encoder`` in a tree, at any depth."""
    if not isinstance(observation, Mapping):
        return
    for name, value in observation.items():
        if name == "encoder" and isinstance(value, Mapping):
            yield from (entry for entry in value.values() if isinstance(entry, dict))
        elif name != "modalities":
            yield from _encoders(value)


def _spell_out_encoder(encoder: Tree, algo_name: str, algo: Tree) -> None:
    if not encoder.get("core_class"):
        return
    if algo.get("transformer", {}).get("enabled") and algo_name == "bc":
        encoder["feature_activation"] = None
    if not str(encoder["core_class"]).startswith("VisualCore"):
        return
    core = encoder["core_kwargs"] = {**(encoder.get("core_kwargs") or {})}
    backbone = core["backbone_kwargs"] = {**(core.get("backbone_kwargs") or {})}
    name = core.get("backbone_class") or "ResNet18Conv"
    if name == "ShallowConv":
        backbone.pop("output_channel", None)
    elif name.startswith("ResNet"):
        backbone["norm"] = "group" if algo_name == "diffusion_policy" else "batch"
        backbone["imagenet_normalization"] = False


def _sections(algo: Tree) -> Iterator[Tree]:
    """Yield a section ``algo`` and all nested sections, such as the parts of a hierarchical algorithm."""
    yield algo
    for value in algo.values():
        if isinstance(value, dict):
            yield from _sections(value)


def _spell_out_section(section: Tree) -> None:
    optimizers = section.get("optim_params")
    for net in optimizers.values() if isinstance(optimizers, dict) else ():
        for key in ("num_train_batches", "num_epochs"):  # key that robomimic's training script adds
            net.pop(key, None)
    ensemble = section.get("ensemble")
    if isinstance(ensemble, dict):
        ensemble["shared_encoder"] = False
    transformer = section.get("transformer")
    if isinstance(transformer, dict):
        transformer["causal"] = True
    vae = section.get("vae")
    if isinstance(vae, dict) and isinstance(vae.get("decoder"), dict):
        vae["decoder"]["is_conditioned"] = True


THEIR_OPTIMIZERS = {"entropy_weight": "entropy", "cql_weight": "cql"}
"""Our names of robomimic's networks whose optimizer has another name."""

MOMENTS = ("exp_avg", "exp_avg_sq")


def moments(algo: Algo, model: Mapping[str, Any], names: Sequence[Name]) -> dict[str, Any]:
    """Return the states of the optimizers that robomimic has too, ``{network: {"state": {index: {...}}}}``.

    Args:
        algo: the algorithm built for the checkpoint.
        model: entry ``model`` of the checkpoint.
        names: names of all tensors of the algorithm.
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
    """Return the optimizer's state of each weight by robomimic's name; empty if the number of weights differs."""
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


@dataclass(frozen=True)
class RobomimicImport:
    """A policy of robomimic as an algorithm of ours.

    Attributes:
        algo: the algorithm, with configuration, weights and normalization.
        parts: parts of a checkpoint, as the arguments of :func:`imitate.policy.checkpoint.checkpoint_dict`.
    """

    algo: Algo
    parts: dict[str, Any]


def from_robomimic(ckpt: Mapping[str, Any]) -> RobomimicImport:
    """Convert a checkpoint: networks, averages, normalization and, if they can be mapped, Adam's moments.

    As in robomimic, actions are not clipped.

    Raises:
        CheckpointError: a part of the checkpoint has no counterpart here; the message names it.
    """
    algo, names = _algo_and_names(ckpt)
    saved: dict[str, Any] = {
        "nets": algo.nets.state_dict(),
        "optimizers": moments(algo, ckpt["model"], names),
    }
    variables = ckpt.get("variable_state") or {}
    epoch = int(variables.get("epoch") or 0)
    step = epoch * (algo.global_config.experiment.epoch_every_n_steps or 0)
    if isinstance(algo, Hierarchy):
        saved["emas"] = {}
    if algo.ema is not None:
        # robomimic does not save the number of updates of its averaged weights; with 0 updates they would be
        # overwritten.
        algo.ema.num_updates = step
        saved["ema"] = algo.ema.state_dict()
    metas = ckpt.get("env_metadata") or {}
    metas = metas if isinstance(metas, list) else [metas]
    parts = {
        "env_metadata": metas[0],
        "environments": metas,
        "shape_metadata": {
            "raw_shapes": {k: list(v) for k, v in algo.preprocess.raw_shapes.items()},
            "action_dims": {k: key.stored for k, key in algo.preprocess.actions.keys.items()},
        },
        "train_state": {"epoch": epoch, "step": step} if variables else {},
        "provenance": {"imported_from": "robomimic", "robomimic_config": ckpt["config"]},
        "model": saved,
    }
    return RobomimicImport(algo, parts)


def _algo_and_names(ckpt: Mapping[str, Any]) -> tuple[Algo, list[Name]]:
    obs_affine = affine_of(ckpt.get("obs_normalization_stats"), "obs_normalization_stats")
    config = _config(ckpt, bool(obs_affine))
    shapes = {key: tuple(shape) for key, shape in _shape_metadata(ckpt)["all_shapes"].items()}
    ac_dim = int(_shape_metadata(ckpt)["ac_dim"])
    # The random initial weights are replaced below, so the caller's random number generator is left unchanged.
    with torch.random.fork_rng(devices=[]), AllocationLimit(count_numbers(ckpt["model"])):
        algo = algo_factory(config.algo_name, config, shapes, ac_dim, "cpu", load_pretrained=False)
    algo.preprocess = _preprocess(ckpt, algo, obs_affine)
    return algo, _load_weights(algo, ckpt)


def _config(ckpt: Mapping[str, Any], normalizes_obs: bool) -> Config:
    tree = ckpt["config"]
    tree = json_value(tree) if isinstance(tree, str) else json.loads(json.dumps(tree))
    try:
        return load_config(
            ours_from_theirs(str(ckpt["algo_name"]), tree, normalizes_obs, _tensors(ckpt))
        )
    except UserError as error:
        raise CheckpointError(f"its configuration cannot be used by imitate: {error}") from error


def _tensors(ckpt: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """Return the tensors of the networks."""
    return flattened(ckpt["model"])


def flattened(model: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of ``model``; up to 0.4 it is a dict of tensors, later it has an entry for each part."""
    if "nets" in model:
        return flattened(model["nets"], prefix)
    tensors: dict[str, Tensor] = {}
    for name, value in model.items():
        if isinstance(value, Tensor):
            tensors[prefix + name] = value
        elif isinstance(value, Mapping):
            tensors |= flattened(value, f"{prefix}{name}.")
    return tensors


def _shape_metadata(ckpt: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the shape metadata; for several datasets, the metadata of the first one."""
    shapes = ckpt["shape_metadata"]
    return shapes[0] if isinstance(shapes, list) else shapes  # type: ignore[no-any-return]


def _preprocess(ckpt: Mapping[str, Any], algo: Algo, obs_affine: Mapping[str, Any]) -> Preprocess:
    modalities = algo.preprocess.modalities
    affine = {}
    for key, (offset, scale) in obs_affine.items():
        if key not in modalities:
            continue
        if modalities[key] == "low_dim":
            affine[key] = (offset, scale)
        elif not (bool((offset == 0).all()) and bool((scale == 1).all())):
            raise CheckpointError(
                f"obs_normalization_stats normalize '{key}' ({modalities[key]}), but robomimic itself "
                "cannot act with normalized images or scans"
            )
    actions = affine_of(ckpt.get("action_normalization_stats"), "action_normalization_stats")
    train = algo.global_config.train
    sizes = {key: offset.numel() for key, (offset, _) in actions.items()}
    if len(train.action_keys) == 1:
        sizes = {train.action_keys[0]: algo.ac_dim}
    unknown = [key for key in train.action_keys if key not in sizes]
    if unknown:
        raise CheckpointError(
            f"action_normalization_stats have no entry for {', '.join(unknown)}, so the number of "
            "dimensions of these action keys is unknown"
        )
    layout = ActionLayout.from_config(
        {key: sizes[key] for key in train.action_keys}, dict(train.action_config.items())
    )
    raw = {
        key: raw_shape_of(shape, modalities[key], key)
        for key, shape in algo.preprocess.obs_shapes.items()
    }
    normalized = {key: pair for key, pair in actions.items() if key in sizes}
    return Preprocess(raw, modalities, layout, affine, normalized)


def _load_weights(algo: Algo, ckpt: Mapping[str, Any]) -> list[Name]:
    """Load the converted weights into the networks; return the names of all tensors."""
    theirs = _tensors(ckpt)
    ours = algo.nets.state_dict()
    names = names_of(ours, rules_of(algo.nets), "robomimic")
    shapes = {name: value.shape for name, value in ours.items()}
    constants = constants_of(algo.nets)
    algo.nets.load_state_dict(to_ours(theirs, names, shapes, constants))
    averaged = ckpt["model"].get("ema")
    if algo.ema is not None and averaged is not None:
        algo.ema.module.load_state_dict(to_ours(averaged, names, shapes, constants))
    return names
