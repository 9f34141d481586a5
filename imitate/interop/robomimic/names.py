"""Names of tensors: ours, and robomimic's for the same numbers, as rules for each part of a network.

A rule maps a name of ours to theirs. Where robomimic keeps a tensor under several names, the first is the one
that counts and the others are copies, which its strict loading needs too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from imitate.errors import CheckpointError
from imitate.models.actor import GroupEncoder
from imitate.models.observation import ObservationEncoder
from imitate.models.resnet import ResNet
from imitate.models.scan import ScanCore
from imitate.models.visual import VisualCore

MEMBER = "{member}"
"""Stands for ``0.``, ``1.`` ... in names of theirs: one network of an ensemble."""


@dataclass(frozen=True)
class Name:
    """One tensor of robomimic and where its numbers are here.

    Attributes:
        ours: name in our ``state_dict``.
        theirs: name in theirs.
        copies: further names of theirs for it.
        lead: axes of size 1 that theirs has before ours.
        member: index along the first axis of ours that is this tensor; None: all of it.
        transposed: true if theirs is the transpose.
    """

    ours: str
    theirs: str
    copies: tuple[str, ...] = ()
    lead: int = 0
    member: int | None = None
    transposed: bool = False


@dataclass(frozen=True)
class Rule:
    """Names that match a pattern.

    Attributes:
        pattern: of a whole name of ours.
        names: from the groups of the match to names of theirs.
        lead: as in :class:`Name`.
        members: networks that one tensor of ours holds; their names have :data:`MEMBER`. 0: it holds one.
        transposed: as in :class:`Name`.
    """

    pattern: str
    names: Callable[..., tuple[str, ...]]
    lead: int = 0
    members: int = 0
    transposed: bool = False

    def under(self, ours: str, *theirs: str) -> Rule:
        """Return the same rule for names that begin with ``ours``; theirs begin with each of ``theirs``."""

        def names(*groups: str) -> tuple[str, ...]:
            return tuple(prefix + name for prefix in theirs for name in self.names(*groups))

        return replace(self, pattern=re.escape(ours) + self.pattern, names=names)

    def also(self, other: Rule) -> Rule:
        """Return a rule for the same names of ours, with the names of theirs of both rules."""
        return replace(self, names=lambda *groups: (*self.names(*groups), *other.names(*groups)))

    def of(self, name: str) -> list[Name]:
        """Return the names for one name of ours; none where the rule does not match."""
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return []
        theirs = self.names(*match.groups())
        if not self.members:
            return [self._name(name, theirs, None)]
        return [
            self._name(name, tuple(one.replace(MEMBER, f"{member}.") for one in theirs), member)
            for member in range(self.members)
        ]

    def _name(self, ours: str, theirs: tuple[str, ...], member: int | None) -> Name:
        return Name(ours, theirs[0], theirs[1:], self.lead, member, self.transposed)


def same(pattern: str, template: str = "{}", **options: Any) -> Rule:
    """Return a rule whose names of theirs are a template, filled with the groups of the match."""
    return Rule(pattern, lambda *groups: (template.format(*groups),), **options)


def under(rules: Iterable[Rule], ours: str, *theirs: str) -> list[Rule]:
    """Apply :meth:`Rule.under` to each rule."""
    return [rule.under(ours, *theirs) for rule in rules]


def names_of(ours: Iterable[str], rules: Sequence[Rule]) -> list[Name]:
    """Return all names that the rules give.

    Raises:
        CheckpointError: a tensor of ours has no counterpart in robomimic.
    """
    found: list[Name] = []
    for name in ours:
        named = next((names for rule in rules if (names := rule.of(name))), None)
        if named is None:
            raise CheckpointError(f"robomimic's networks have nothing like '{name}'")
        found += named
    return found


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
