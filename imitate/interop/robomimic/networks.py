"""Names of tensors for each kind of network that our algorithms have, see :mod:`imitate.interop.robomimic.names`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from imitate.algo.bcq import GMMSampler, Perturbation, VAESampler
from imitate.algo.cql import Weight
from imitate.errors import CheckpointError
from imitate.interop.names import MEMBER, Rule, same, under
from imitate.interop.robomimic.names import (
    HEAD,
    HEAD_ALONE,
    MIMO,
    MLP,
    MLP_ALONE,
    encoder_rules,
)
from imitate.models.actor import Actor, RecurrentActor, TransformerActor, VAEActor
from imitate.models.critics import CriticEnsemble
from imitate.models.denoiser import Denoiser
from imitate.models.heads import GaussianHead
from imitate.models.subgoals import SubgoalNetwork, SubgoalVAE
from imitate.models.unet import ConditionalUnet1D
from imitate.models.vae import VAE

THEIR_NAMES = {"entropy_weight": "log_entropy_weight", "cql_weight": "log_cql_weight"}
"""Names of networks that robomimic names differently."""


def _actor(net: Actor) -> list[Rule]:
    return [*under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", ""), MLP, HEAD]


def _recurrent_actor(net: RecurrentActor) -> list[Rule]:
    rules = under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", "")
    rules.append(same(r"rnn\.nets\.(.+)", "nets.rnn.nets.{}"))
    # A recurrent network keeps what runs at each of its steps a second time.
    step = "nets.rnn.per_step_net."
    if not net.mlp.layers:
        return [*rules, HEAD.also(HEAD_ALONE.under("", step))]
    mlp = MLP.also(MLP_ALONE.under("", f"{step}0."))
    return [*rules, mlp, HEAD.also(HEAD_ALONE.under("", f"{step}1."))]


def _transformer_actor(net: TransformerActor) -> list[Rule]:
    return [
        *under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", ""),
        same(r"transformer\.(.+)"),
        HEAD,
    ]


def _vae(net: VAEActor | VAESampler) -> list[Rule]:
    return _vae_rules(net.vae, any(True for _ in net.encoder.parameters()), "_vae.")


def _vae_rules(vae: VAE, sees_images: bool, theirs: str) -> list[Rule]:
    if sees_images:
        raise CheckpointError(
            "a VAE with a network for images or scans: robomimic has one such network for each of encoder, decoder "
            "and prior, and here they share one"
        )
    return [
        *under(MIMO, "vae.encoder.", f"{theirs}nets.encoder."),
        *under(MIMO, "vae.decoder.", f"{theirs}nets.decoder."),
        *under(MIMO, "vae.latent.prior.net.", f"{theirs}nets.prior.prior_module."),
        same(r"vae\.latent\.prior\.constants\.(.+)", f"{theirs}nets.prior.prior_params.{{}}"),
    ]


def _gmm_sampler(net: GMMSampler) -> list[Rule]:
    return [*under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", ""), MLP, HEAD]


def _perturbation(net: Perturbation) -> list[Rule]:
    return [*under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", ""), MLP, HEAD]


def _critics(net: CriticEnsemble) -> list[Rule]:
    """Return the rules of critics; ``{member}`` is the number of each network; a value of states has none."""
    each: dict[str, Any] = {"members": net.size}
    member = MEMBER if net.ac_dim else ""
    head = _plain(member) + f"nets.decoder.nets.{'log_probs' if net.num_atoms else 'value'}.{{}}"
    rules = [
        Rule(r"layers\.(\d+)\.(weight)", _critic_layer(member), transposed=True, **each),
        Rule(r"layers\.(\d+)\.(bias)", _critic_layer(member), **each),
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
    """Escape a text as a part of a template."""
    return text.replace("{", "{{").replace("}", "}}")


def _denoiser(net: Denoiser) -> list[Rule]:
    if not isinstance(net.network, ConditionalUnet1D):
        raise CheckpointError(
            f"robomimic's diffusion policy has a U-Net only, and this is a {type(net.network).__name__}"
        )
    return [
        *under(encoder_rules(net.encoder, "obs_encoder."), "encoder.", ""),
        same(r"network\.(.+)", "noise_pred_net.{}"),
    ]


def _subgoals(net: SubgoalNetwork) -> list[Rule]:
    return [
        *under(encoder_rules(net.encoder, "nets.encoder."), "encoder.", ""),
        *under(MIMO, "net.", ""),
    ]


def _subgoal_vae(net: SubgoalVAE) -> list[Rule]:
    networks = [*net.encoder.parameters(), *net.subgoal.parameters()]
    return _vae_rules(net.vae, bool(networks), "")


def _weight(net: Weight) -> list[Rule]:
    return [same(r"log", "param", lead=1)]


_RULES: dict[type[nn.Module], Callable[[Any], list[Rule]]] = {
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


def rules_of(nets: nn.ModuleDict) -> list[Rule]:
    """Return the rules for all networks of an algorithm.

    Raises:
        CheckpointError: robomimic has no network of that kind.
    """
    rules: list[Rule] = []
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
    """Return robomimic's name of a part of a hierarchical policy; that of iris has planner and value in one."""
    if "value" not in parts or name == "actor":
        return f"{name}."
    return {"planner": "planner.planner.", "value": "planner.value_net."}[name]


def constants_of(nets: nn.ModuleDict) -> dict[str, Tensor]:
    """Return the tensors that robomimic stores and ours do not need, by their name there.

    These are the masks of attention, and the layer for standard deviations that are fixed.
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
