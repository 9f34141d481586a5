"""Export of our checkpoints for a release of robomimic, in which the policy acts the same.

If a policy uses a setting that the release does not have, the export is refused and the error names the setting.
robomimic refuses unknown keys in its configuration, so ``released_keys.json`` has the keys that it knows, recorded from
the classes of robomimic 0.5; 0.3 has the same keys except :data:`SINCE_0_5`.

In that file, a section without nested sections is a string with the names of its keys. A section with nested sections
is an object with an entry for each of them, and the entry ``""`` with the names of its other keys. A string ``"@name"``
is a reference to the entry ``name`` of ``parts``.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from imitate.algo.base.algo import Algo
from imitate.algo.base.hierarchy import Hierarchy
from imitate.errors import CheckpointError, nearest
from imitate.interop.names import names_of, to_theirs
from imitate.interop.robomimic.networks import action_stats, constants_of, obs_stats, rules_of
from imitate.models.key_encoder import KeyEncoder
from imitate.models.pools import AttentionPool, QueryPool
from imitate.models.resnet import ResNet, ResNet18Conv, ResNet50Conv
from imitate.models.visual import ShallowConv
from imitate.models.vit import ViT
from imitate.system.plain_files import read_json
from imitate.system.trust import in_networks

Keys = str | dict[str, Any]

_FILE = read_json(Path(__file__).with_name("released_keys.json"))


def _filled(keys: Keys) -> Any:
    """Replace references ``"@name"`` in the keys by the parts that they name."""
    if isinstance(keys, str):
        return _filled(_FILE["parts"][keys[1:]]) if keys.startswith("@") else keys
    return {name: _filled(entry) for name, entry in keys.items()}


SINCE_0_5 = tuple(_FILE["since_0_5"])
"""Keys, or prefixes of keys, that robomimic 0.3 does not have."""
SHARED, OBSERVATION, ALGO = (_filled(_FILE[name]) for name in ("shared", "observation", "algo"))
"""robomimic's keys: shared by all algorithms, and by algorithm the keys of ``observation`` and of ``algo``."""


SHALLOW_CHANNELS = 32
UNET = {
    "diffusion_step_embed_dim": 256,
    "down_dims": (256, 512, 1024),
    "kernel_size": 5,
    "n_groups": 8,
}
"""The only U-Net that robomimic builds, because it ignores its key ``algo.unet``."""


def check_exportable(algo: Algo, release: str) -> None:
    """Refuse settings that a release of robomimic treats differently, or does not have.

    Raises:
        CheckpointError: the policy has such settings; the message names all of them.
    """
    problems = [*_of_algorithm(algo, release), *_of_observations(algo), *_of_actions(algo, release)]
    if algo.preprocess.obs_clip is not None:
        problems.append("train.obs_clip: robomimic does not clip observations")
    if algo.preprocess.chosen_steps:
        names = ", ".join(step.name for step in algo.preprocess.chosen_steps)
        problems.append(f"train.preprocess: robomimic has no steps {names}")
    if problems:
        raise CheckpointError(
            f"robomimic {release} cannot act like this policy: {'; '.join(problems)}"
        )


def _of_algorithm(algo: Algo, release: str) -> Iterator[str]:
    name = algo.global_config.algo_name
    if name not in ALGO or (name == "diffusion_policy" and release == "0.3"):
        known = [one for one in ALGO if release != "0.3" or one != "diffusion_policy"]
        yield f"robomimic has no algorithm '{name}' (it has {', '.join(known)})"
        return
    section = algo.algo_config
    if in_networks(section.to_dict()):
        yield "algo.networks: it cannot build networks of your own"
    if algo.encoding.shapes("critic"):
        yield "observation.modalities.critic: its critics see what the actor sees"
    if section.get("actor_sees_subgoal", False):
        yield "algo.actor_sees_subgoal: its actors of hbc and iris see no subgoal"
    chunk = section.get("chunk", None)
    if chunk is not None and chunk.enabled:
        yield "algo.chunk.enabled: it predicts one action at a time"
    rnn = section.get("rnn", None)
    if name != "bc" and rnn is not None and rnn.enabled:
        yield f"algo.rnn.enabled: its {name} has no memory"
    transformer = section.get("transformer", None)
    stacks = name == "diffusion_policy"
    if name == "bc" and transformer.enabled:
        stacks = True
        yield from _of_transformer(algo, transformer, release)
    if algo.frame_stack > 1 and not stacks:
        yield f"train.frame_stack {algo.frame_stack}: its networks without memory see one observation"
    if name == "diffusion_policy":
        yield from _of_diffusion(algo, section)


def _of_transformer(algo: Algo, transformer: Any, release: str) -> Iterator[str]:
    if transformer.rotary_embedding:
        yield "algo.transformer.rotary_embedding"
    if transformer.pred_future_acs and release == "0.3":
        yield "algo.transformer.pred_future_acs"
    if transformer.causal is False or (transformer.pred_future_acs and not transformer.causal):
        yield "algo.transformer.causal: its attention is always causal, with pred_future_acs too"
    if algo.frame_stack != transformer.context_length:
        yield (
            f"train.frame_stack {algo.frame_stack}: it must be algo.transformer.context_length "
            f"{transformer.context_length}"
        )


def _of_diffusion(algo: Algo, section: Any) -> Iterator[str]:
    different = [key for key, value in UNET.items() if section.unet[key] != value]
    if section.unet.enabled and different:
        yield f"algo.unet.{different[0]} is {section.unet[different[0]]}: it always builds {UNET[different[0]]}"
    if section.horizon.temporal_ensemble is not None or section.horizon.latency:
        yield "algo.horizon.temporal_ensemble and latency: it has neither"
    if section.prefix.max_delay:
        yield "algo.prefix.max_delay: its chunks are not given planned actions"
    if algo.goal_shapes:
        yield "observation.modalities.goal: its diffusion_policy sees no goal"
    if section.ddim.enabled and section.ddim.prediction_type == "sample":
        yield "algo.ddim.prediction_type 'sample': it samples differently"


def _of_observations(algo: Algo) -> Iterator[str]:
    name, encoder = algo.global_config.algo_name, algo.obs_config.get("encoder", {})
    activation = None if algo.algo_config.get("transformer", {}).get("enabled", False) else "relu"
    for net in (part for part in algo.nets.modules() if isinstance(part, KeyEncoder)):
        if net.core is None:
            continue
        if net.activation != activation:
            yield f"observation.encoder: feature_activation is {net.activation}, there it is {activation}"
        yield from _of_core(net.core, name)
    for key, entry in encoder.items():
        if key not in ("low_dim", "rgb", "depth", "scan"):
            yield f"observation.encoder.{key}: it has one encoder per modality, not per observation"
        elif entry.get("share", False):
            yield f"observation.encoder.{key}.share"


def _of_core(core: nn.Module, algo_name: str) -> Iterator[str]:
    backbone, pool = getattr(core, "backbone", None), getattr(core, "pool", None)
    for part in (pool, backbone):
        if isinstance(part, AttentionPool | QueryPool | ViT):
            yield f"observation.encoder: {type(part).__name__}"
    if isinstance(backbone, ShallowConv) and backbone.output_channel != SHALLOW_CHANNELS:
        yield f"observation.encoder: ShallowConv with {backbone.output_channel} channels, there {SHALLOW_CHANNELS}"
    if isinstance(backbone, ResNet):
        yield from _of_trunk(backbone, algo_name)


def _of_trunk(trunk: ResNet, algo_name: str) -> Iterator[str]:
    if not isinstance(trunk, ResNet18Conv | ResNet50Conv):
        yield f"observation.encoder: {type(trunk).__name__}"
    norm = nn.GroupNorm if algo_name == "diffusion_policy" else nn.BatchNorm2d
    if not isinstance(trunk.bn1, norm):
        yield f"observation.encoder: backbone_kwargs.norm, which in its {algo_name} is {norm.__name__}"
    if trunk.normalizes:
        yield "observation.encoder: backbone_kwargs.imagenet_normalization: it shows trunks colours in [0, 1]"
    if trunk.images.size is not None:
        yield "observation.encoder: backbone_kwargs.image_size: its trunks see images as they are"


def _of_actions(algo: Algo, release: str) -> Iterator[str]:
    if release != "0.3":
        return
    if algo.preprocess.normalizes_actions:
        yield "train.action_config: 0.3 does not normalize actions (0.5 does)"
    if algo.global_config.train.action_keys != ("actions",):
        yield "train.action_keys: 0.3 knows 'actions' only"


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
"""Arguments that robomimic's encoders do not have; :func:`check_exportable` refuses values that have an effect."""


def exported(
    algo: Algo, target: str, *, env_metadata: Mapping[str, Any], epoch: int = 0
) -> dict[str, Any]:
    """Return the content of a checkpoint for a release of robomimic, to be written with `torch.save`.

    Args:
        algo: the policy, which is set to evaluation mode.
        target: name of the release in :data:`RELEASES`.
        env_metadata: env_args of the policy's data.
        epoch: number of the last epoch of the policy's training.

    Raises:
        CheckpointError: the release lacks a part of the policy; the message names the part.
    """
    if target not in RELEASES:
        raise CheckpointError(
            f"--to {target}: unknown release of robomimic; {nearest(target, RELEASES)}"
        )
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
    """Return ``model`` of a checkpoint, since 0.5 a nested dict; averaged weights if robomimic cannot store both."""
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
    """Group the tensors of a hierarchical policy by its parts, the first component of their names."""
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
    """Return our configuration without the keys that the release does not know."""
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
            # robomimic's training script adds these keys, and its learning-rate schedules require them.
            net["num_train_batches"] = ours["experiment"]["epoch_every_n_steps"] or 100
            net["num_epochs"] = train["num_epochs"]
            _check_schedule(net["learning_rate"])
    return tree


def _check_schedule(rate: dict[str, Any]) -> None:
    """Replace, in place, a learning-rate schedule that robomimic cannot build: it builds schedules even to act.

    A cosine schedule needs ``step_every_batch``, a key that only some of robomimic's algorithms have. For the other
    algorithms the rate becomes constant.
    """
    if rate.get("scheduler_type") != "cosine":
        return
    if "step_every_batch" in rate:
        rate["step_every_batch"] = True
    else:
        rate |= {"scheduler_type": "multistep", "epoch_schedule": []}


def _known(ours: Mapping[str, Any], known: Keys) -> dict[str, Any]:
    """Return the part of a tree whose keys the release knows."""
    if isinstance(known, str):
        return {key: ours[key] for key in known.split() if key in ours}
    found = _known(ours, known.get("", ""))
    for key, keys in known.items():
        if key and key in ours:
            found[key] = _known(ours[key], keys)
    return found


def _data(entries: Any, release: str) -> Any:
    """Return the paths of the training data for information; robomimic does not read the files when it acts."""
    paths = [entry["path"] for entry in entries or ()]
    if release == "0.3" or len(paths) < 2:
        return paths[0] if paths else None
    return [{"path": path} for path in paths]


def _strip(node: Any) -> None:
    """Remove arguments of encoders that robomimic does not have, in place."""
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
