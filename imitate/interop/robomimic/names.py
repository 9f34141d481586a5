"""Names of robomimic's tensors for each part of a network, as rules of :mod:`imitate.interop.names`."""

from __future__ import annotations

from typing import Any

from torch import nn

from imitate.errors import CheckpointError
from imitate.interop.names import Rule, same, under
from imitate.models.actor import GroupEncoder
from imitate.models.observation import ObservationEncoder
from imitate.models.resnet import ResNet
from imitate.models.scan import ScanCore
from imitate.models.visual import VisualCore

# ---- layers ----------------------------------------------------------------------------------------------------------

MLP_ALONE = Rule(
    r"mlp\.layers\.(\d+)\.(\w+)", lambda layer, part: (f"_model.{2 * int(layer)}.{part}",)
)
HEAD_ALONE = same(r"head\.(.+)", "nets.{}")
MLP = MLP_ALONE.under("", "nets.mlp.")
HEAD = HEAD_ALONE.under("", "nets.decoder.")
MIMO = [MLP, same(r"heads\.(.+)", "nets.decoder.nets.{}")]
"""An MLP with several heads."""


# ---- encoders --------------------------------------------------------------------------------------------------------

SHALLOW = [same(r"layers\.(.+)", "nets.{}")]
RESNET = [
    same(r"conv1\.(.+)", "nets.0.{}"),
    same(r"bn1\.(.+)", "nets.1.{}"),
    Rule(r"layer(\d)\.(.+)", lambda stage, rest: (f"nets.{int(stage) + 3}.{rest}",)),
]
RESNET18_FILM = [
    same(r"conv1\.(.+)", "_base_block.0.{}"),
    same(r"bn1\.(.+)", "_base_block.1.{}"),
    Rule(
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
SCAN = Rule(r"(\d+)\.(\w+)", lambda layer, part: (f"nets.conv{int(layer) // 2}.{part}",))
SCAN_WITHOUT_ACTIVATION = same(r"(\d+)\.(\w+)", "nets.conv{}.{}")


def core_rules(core: nn.Module) -> list[Rule]:
    """Return the rules of a core; robomimic keeps its parts under their names and again in running order."""
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
        before_pool = 1 + pools  # robomimic adds an axis before it pools
    else:
        raise CheckpointError(f"robomimic has no core of observations like {type(core).__name__}")
    linear = before_pool + pools + 1
    return [
        *under(backbone, "backbone.", "backbone.", "nets.0."),
        *under(POOL, "pool.", "pool.", f"nets.{before_pool}."),
        same(r"linear\.(.+)", f"nets.{linear}.{{}}"),
    ]


def encoder_rules(encoder: GroupEncoder, *theirs: str) -> list[Rule]:
    """Return the rules of the encoders of observations and goals; ``theirs`` names robomimic's group encoder."""
    rules: list[Rule] = []
    for group, part in (("obs", encoder.obs), ("goal", encoder.goal)):
        if isinstance(part, ObservationEncoder):
            for module, net in part.nets.items():
                core: Any = net.core
                if core is not None:
                    prefixes = [f"{one}nets.{group}.obs_nets.{module}." for one in theirs]
                    rules += under(core_rules(core), f"{group}.nets.{module}.core.", *prefixes)
    return rules
