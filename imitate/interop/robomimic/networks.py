"""Weights and normalization of robomimic's networks: names of tensors for each kind of network, and statistics.

In checkpoints up to robomimic 0.4, statistics of observations are called ``mean`` and ``std``; since 0.5 the same
numbers are called ``offset`` and ``scale``, as for actions. Each is null or a nested list of shape (1, ...). With
several datasets, there is a list of such statistics, which must be equal.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from imitate.algo.bcq import GMMSampler, Perturbation, VAESampler
from imitate.algo.cql import Weight
from imitate.errors import CheckpointError
from imitate.interop.names import MEMBER, NameRule, same, under
from imitate.models.actor import Actor, GroupEncoder, RecurrentActor, TransformerActor, VAEActor
from imitate.models.critics import CriticEnsemble
from imitate.models.denoiser import Denoiser
from imitate.models.fitting import Affine
from imitate.models.heads import GaussianHead
from imitate.models.observation import ObservationEncoder
from imitate.models.preprocess import Preprocess
from imitate.models.resnet import ResNet
from imitate.models.subgoals import SubgoalNetwork, SubgoalVAE
from imitate.models.unet import ConditionalUnet1D
from imitate.models.vae import VAE
from imitate.models.visual import ScanCore, VisualCore

# ---- layers ----------------------------------------------------------------------------------------------------------

MLP_ALONE = NameRule(
    r"mlp\.layers\.(\d+)\.(\w+)", lambda layer, part: (f"_model.{2 * int(layer)}.{part}",)
)
HEAD_ALONE = same(r"head\.(.+)", "nets.{}")
MLP = MLP_ALONE.under("", "nets.mlp.")
HEAD = HEAD_ALONE.under("", "nets.decoder.")
MIMO = [MLP, same(r"heads\.(.+)", "nets.decoder.nets.{}")]
"""Rules of an MLP with several heads."""


# ---- encoders --------------------------------------------------------------------------------------------------------

SHALLOW = [same(r"layers\.(.+)", "nets.{}")]
RESNET = [
    same(r"conv1\.(.+)", "nets.0.{}"),
    same(r"bn1\.(.+)", "nets.1.{}"),
    NameRule(r"layer(\d)\.(.+)", lambda stage, rest: (f"nets.{int(stage) + 3}.{rest}",)),
]
RESNET18_FILM = [
    same(r"conv1\.(.+)", "_base_block.0.{}"),
    same(r"bn1\.(.+)", "_base_block.1.{}"),
    NameRule(
        r"layer(\d)\.(\d)\.(.+)",
        lambda stage, block, rest: (f"_conv_blocks.{2 * int(stage) - 2 + int(block)}.{rest}",),
    ),
    same(r"film\.(.+)", "_film_layers.{}"),
]
POOL = [
    same(r"maps\.(.+)", "nets.{}"),
    same(r"(temperature)"),
    same(r"(pos_[xy])", lead=1),
]
SCAN = NameRule(r"(\d+)\.(\w+)", lambda layer, part: (f"nets.conv{int(layer) // 2}.{part}",))
SCAN_WITHOUT_ACTIVATION = same(r"(\d+)\.(\w+)", "nets.conv{}.{}")


def core_rules(core: nn.Module) -> list[NameRule]:
    """Return the rules of an encoder core; robomimic stores each part twice, by its name and by its index."""
    if isinstance(core, VisualCore):
        trunk = core.backbone
        backbone = SHALLOW
        if isinstance(trunk, ResNet):
            backbone = RESNET if trunk.film is None else RESNET18_FILM
        pools = 0 if isinstance(core.pool, nn.Identity) else 1
        before_pool = 1
    elif isinstance(core, ScanCore):
        activation = any(isinstance(layer, nn.ReLU) for layer in core.backbone)
        backbone = [SCAN if activation else SCAN_WITHOUT_ACTIVATION]
        pools = 0 if core.pool is None else 1
        before_pool = 1 + pools  # robomimic has one more layer, which adds an axis
    else:
        raise CheckpointError(f"robomimic has no observation encoder like {type(core).__name__}")
    linear = before_pool + pools + 1
    return [
        *under(backbone, "backbone.", "backbone.", "nets.0."),
        *under(POOL, "pool.", "pool.", f"nets.{before_pool}."),
        same(r"linear\.(.+)", f"nets.{linear}.{{}}"),
    ]


def encoder_rules(encoder: GroupEncoder, *theirs: str) -> list[NameRule]:
    """Return the rules of the encoders of observations and goals; ``theirs`` names robomimic's group encoder."""
    rules: list[NameRule] = []
    for group, part in (("obs", encoder.obs), ("goal", encoder.goal)):
        if isinstance(part, ObservationEncoder):
            for module, net in part.nets.items():
                core: Any = net.core
                if core is not None:
                    prefixes = [f"{one}nets.{group}.obs_nets.{module}." for one in theirs]
                    rules += under(core_rules(core), f"{group}.nets.{module}.core.", *prefixes)
    return rules


THEIR_NAMES = {"entropy_weight": "log_entropy_weight", "cql_weight": "log_cql_weight"}
"""robomimic's names of networks that have another name here."""


def _actor(net: Actor) -> list[NameRule]:
    return [*under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", ""), MLP, HEAD]


def _recurrent_actor(net: RecurrentActor) -> list[NameRule]:
    rules = under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", "")
    rules.append(same(r"rnn\.nets\.(.+)", "nets.rnn.nets.{}"))
    # robomimic stores the network that follows the RNN at each step twice.
    step = "nets.rnn.per_step_net."
    if not net.mlp.layers:
        return [*rules, HEAD.also(HEAD_ALONE.under("", step))]
    mlp = MLP.also(MLP_ALONE.under("", f"{step}0."))
    return [*rules, mlp, HEAD.also(HEAD_ALONE.under("", f"{step}1."))]


def _transformer_actor(net: TransformerActor) -> list[NameRule]:
    return [
        *under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", ""),
        same(r"transformer\.(.+)"),
        HEAD,
    ]


def _vae(net: VAEActor | VAESampler) -> list[NameRule]:
    return _vae_rules(net.vae, any(True for _ in net.encoder.parameters()), "_vae.")


def _vae_rules(vae: VAE, sees_images: bool, theirs: str) -> list[NameRule]:
    if sees_images:
        raise CheckpointError(
            "the VAE has an encoder for images or scans, which robomimic trains separately for "
            "encoder, decoder and prior, but which all three share here"
        )
    return [
        *under(MIMO, "vae.encoder.", f"{theirs}nets.encoder."),
        *under(MIMO, "vae.decoder.", f"{theirs}nets.decoder."),
        *under(MIMO, "vae.latent.prior.net.", f"{theirs}nets.prior.prior_module."),
        same(r"vae\.latent\.prior\.constants\.(.+)", f"{theirs}nets.prior.prior_params.{{}}"),
    ]


def _gmm_sampler(net: GMMSampler) -> list[NameRule]:
    return [*under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", ""), MLP, HEAD]


def _perturbation(net: Perturbation) -> list[NameRule]:
    return [*under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", ""), MLP, HEAD]


def _critics(net: CriticEnsemble) -> list[NameRule]:
    """Return the rules of critics; ``{member}`` is the index of a critic; a state-value network has no index."""
    each: dict[str, Any] = {"members": net.size}
    member = MEMBER if net.ac_dim else ""
    head = _plain(member) + f"nets.decoder.nets.{'log_probs' if net.num_atoms else 'value'}.{{}}"
    rules = [
        NameRule(r"layers\.(\d+)\.(weight)", _critic_layer(member), transposed=True, **each),
        NameRule(r"layers\.(\d+)\.(bias)", _critic_layer(member), **each),
        same(r"head\.(weight)", head, transposed=True, **each),
        same(r"head\.(bias)", head, **each),
    ]
    shared = len(net.encoders) < net.size
    for number, encoder in enumerate(net.encoders):
        users = range(net.size) if shared else [number]
        theirs = [f"{user}." if member else "" for user in users]
        prefixes = [f"{one}nets.encoder." for one in theirs]
        rules += under(encoder_rules(encoder, *prefixes), f"encoders.{number}.", "")  # type: ignore[arg-type]
    return rules


def _critic_layer(member: str) -> Callable[[str, str], tuple[str, ...]]:
    return lambda layer, part: (f"{member}nets.mlp._model.{2 * int(layer)}.{part}",)


def _plain(text: str) -> str:
    """Escape braces in a text for use in a template of :func:`same`."""
    return text.replace("{", "{{").replace("}", "}}")


def _denoiser(net: Denoiser) -> list[NameRule]:
    if not isinstance(net.network, ConditionalUnet1D):
        raise CheckpointError(
            f"robomimic's diffusion policy must be a U-Net, but this is a {type(net.network).__name__}"
        )
    return [
        *under(encoder_rules(net.encoder, "obs_encoder."), "encoder.", ""),
        same(r"network\.(.+)", "noise_pred_net.{}"),
    ]


def _subgoals(net: SubgoalNetwork) -> list[NameRule]:
    return [
        *under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", ""),
        *under(MIMO, "net.", ""),
    ]


def _subgoal_vae(net: SubgoalVAE) -> list[NameRule]:
    networks = [*net.encoder.parameters(), *net.subgoal.parameters()]
    return _vae_rules(net.vae, bool(networks), "")


def _weight(net: Weight) -> list[NameRule]:
    return [same(r"log", "param", lead=1)]


_RULES: dict[type[nn.Module], Callable[[Any], list[NameRule]]] = {
    Actor: _actor,
    RecurrentActor: _recurrent_actor,
    TransformerActor: _transformer_actor,
    VAEActor: _vae,
    VAESampler: _vae,
    GMMSampler: _gmm_sampler,
    Perturbation: _perturbation,
    CriticEnsemble: _critics,
    Denoiser: _denoiser,
    SubgoalNetwork: _subgoals,
    SubgoalVAE: _subgoal_vae,
    Weight: _weight,
}


def rules_of(nets: nn.ModuleDict) -> list[NameRule]:
    """Return the rules for all networks of an algorithm.

    Raises:
        CheckpointError: robomimic has no network of that kind.
    """
    rules: list[NameRule] = []
    for name, net in nets.items():
        if isinstance(net, nn.ModuleDict):
            rules += under(rules_of(net), f"{name}.", part_name(name, nets))
            continue
        kind = _RULES.get(type(net))
        if kind is None:
            raise CheckpointError(f"robomimic has no network like '{name}' ({type(net).__name__})")
        rules += under(kind(net), f"{name}.", f"{THEIR_NAMES.get(name, name)}.")
    return rules


def part_name(name: str, parts: nn.ModuleDict) -> str:
    """Return robomimic's prefix of a part of a hierarchical policy; in iris, planner and value are one part."""
    if "value" not in parts or name == "actor":
        return f"{name}."
    return {"planner": "planner.planner.", "value": "planner.value_net."}[name]


def constants_of(nets: nn.ModuleDict) -> dict[str, Tensor]:
    """Return the tensors that robomimic stores but our networks do not need, by name.

    These are the attention masks, and the layer for standard deviations if these are fixed.
    """
    found: dict[str, Tensor] = {}
    for name, net in nets.items():
        if isinstance(net, nn.ModuleDict):
            prefix = part_name(name, nets)
            found |= {prefix + key: value for key, value in constants_of(net).items()}
        if isinstance(net, TransformerActor):
            backbone = net.transformer.backbone
            length = backbone.context_length
            for layer in range(len(backbone.blocks)):
                block = f"{name}.nets.transformer.nets.transformer.{layer}"
                mask = torch.tril(torch.ones(length, length)).view(1, 1, length, length)
                found[f"{block}.nets.attention.mask"] = mask
        head = getattr(net, "head", None)
        if isinstance(head, GaussianHead) and head.scale is None and head.log_std is None:
            for part, value in head.mean.named_parameters():
                found[f"{name}.nets.decoder.nets.scale.{part}"] = torch.zeros_like(value)
    return found


# ---- normalization -------------------------------------------------------------------------------

NAMES = (("offset", "scale"), ("mean", "std"))


def affine_of(stats: Any, what: str) -> dict[str, Affine]:
    """Return offset and scale of each key; keys without normalization are left out.

    Args:
        stats: ``{key: {...}}``, a list with one such dict per dataset, or None.
        what: name of the statistics, for messages.

    Raises:
        CheckpointError: the statistics of the datasets differ, or a key has neither ``offset`` and ``scale`` nor
            ``mean`` and ``std``.
    """
    each = stats if isinstance(stats, Sequence) else [stats]
    read = [
        {key: _pair(pair, f"{what} of '{key}'") for key, pair in (one or {}).items()}
        for one in each
    ]
    first = read[0] if read else {}
    if any(not _equal(first, other) for other in read[1:]):
        raise CheckpointError(
            f"{what} differ between the datasets on which the policy was trained; robomimic cannot "
            "load such a file either"
        )
    return {key: pair for key, pair in first.items() if pair is not None}


def stats_of(offset: Tensor, scale: Tensor, names: tuple[str, str]) -> dict[str, Any]:
    """Return offset and scale of one key in robomimic's form, nested lists of shape (1, ...)."""
    return {
        name: [value.flatten().tolist()] for name, value in zip(names, (offset, scale), strict=True)
    }


def obs_stats(preprocess: Preprocess, names: tuple[str, str]) -> dict[str, Any] | None:
    """Return the statistics of normalized observations in robomimic's form.

    Raises:
        CheckpointError: images or scans are normalized, which robomimic cannot do when it acts.
    """
    if not preprocess.normalizes_obs:
        return None
    entries = preprocess.to_dict()["obs"]
    for key, entry in entries.items():
        plain = bool((entry["offset"] == 0).all() and (entry["scale"] == 1).all())
        if entry["modality"] != "low_dim" and not plain:
            raise CheckpointError(
                f"observation '{key}' ({entry['modality']}) is normalized, but robomimic cannot act with normalized "
                "images or scans"
            )
    return {
        key: _image_stats(preprocess, key, names)
        if entry["modality"] != "low_dim"
        else stats_of(entry["offset"], entry["scale"], names)
        for key, entry in entries.items()
    }


def action_stats(preprocess: Preprocess) -> dict[str, Any]:
    """Return the statistics of actions in robomimic's form, by key; offset 0 and scale 1 without normalization."""
    return {
        key: stats_of(entry["offset"], entry["scale"], ("offset", "scale"))
        for key, entry in preprocess.to_dict()["actions"].items()
    }


def _image_stats(preprocess: Preprocess, key: str, names: tuple[str, str]) -> dict[str, Any]:
    """Return offset 0 and scale 1 in the shape of the raw image, because robomimic needs an entry for every key."""
    shape = (1, *preprocess.raw_shapes[key])
    values = (torch.zeros(shape), torch.ones(shape))
    return {name: value.tolist() for name, value in zip(names, values, strict=True)}


def _pair(entry: Mapping[str, Any] | None, what: str) -> Affine | None:
    if entry is None:
        return None
    for offset, scale in NAMES:
        if offset in entry and scale in entry:
            if entry[offset] is None or entry[scale] is None:
                return None
            return _numbers(entry[offset]), _numbers(entry[scale])
    raise CheckpointError(
        f"{what}: has {', '.join(entry) or 'nothing'}; expected offset and scale, or mean and std"
    )


def _numbers(value: Any) -> Tensor:
    # As in robomimic, these numbers stay in double precision until the policy acts.
    return torch.as_tensor(value, dtype=torch.float64)


def _equal(first: Mapping[str, Affine | None], other: Mapping[str, Affine | None]) -> bool:
    if first.keys() != other.keys():
        return False
    for key, pair in first.items():
        theirs = other[key]
        if (pair is None) != (theirs is None):
            return False
        if (
            pair is not None
            and theirs is not None
            and not all(torch.equal(mine, yours) for mine, yours in zip(pair, theirs, strict=True))
        ):
            return False
    return True
