"""Names of tensors here and in another toolkit, as rules, and the conversion of weights by them.

A rule maps a name of ours to theirs. Where the other toolkit keeps a tensor under several names, the first is the one
that counts and the others are copies, which its strict loading needs too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from imitate.errors import CheckpointError

MEMBER = "{member}"
"""Stands for ``0.``, ``1.`` ... in names of theirs: one network of an ensemble."""


@dataclass(frozen=True)
class Name:
    """One tensor of the other toolkit and where its numbers are here.

    Attributes:
        ours: name in our ``state_dict``.
        theirs: name in theirs.
        copies: further names of theirs for it.
        lead: axes of size 1 that theirs has before ours.
        trail: axes of size 1 that theirs has behind ours.
        member: index along the first axis of ours that is this tensor; None: all of it.
        transposed: true if theirs is the transpose.
    """

    ours: str
    theirs: str
    copies: tuple[str, ...] = ()
    lead: int = 0
    member: int | None = None
    transposed: bool = False
    trail: int = 0


@dataclass(frozen=True)
class NameRule:
    """Names that match a pattern.

    Attributes:
        pattern: of a whole name of ours.
        names: from the groups of the match to names of theirs.
        lead, trail: as in :class:`Name`.
        members: networks that one tensor of ours holds; their names have :data:`MEMBER`. 0: it holds one.
        transposed: as in :class:`Name`.
    """

    pattern: str
    names: Callable[..., tuple[str, ...]]
    lead: int = 0
    members: int = 0
    transposed: bool = False
    trail: int = 0

    def under(self, ours: str, *theirs: str) -> NameRule:
        """Return the same rule for names that begin with ``ours``; theirs begin with each of ``theirs``."""

        def names(*groups: str) -> tuple[str, ...]:
            return tuple(prefix + name for prefix in theirs for name in self.names(*groups))

        return replace(self, pattern=re.escape(ours) + self.pattern, names=names)

    def also(self, other: NameRule) -> NameRule:
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
        return Name(ours, theirs[0], theirs[1:], self.lead, member, self.transposed, self.trail)


def same(pattern: str, template: str = "{}", **options: Any) -> NameRule:
    """Return a rule whose names of theirs are a template, filled with the groups of the match."""
    return NameRule(pattern, lambda *groups: (template.format(*groups),), **options)


def under(rules: Iterable[NameRule], ours: str, *theirs: str) -> list[NameRule]:
    """Apply :meth:`NameRule.under` to each rule."""
    return [rule.under(ours, *theirs) for rule in rules]


def names_of(ours: Iterable[str], rules: Sequence[NameRule], toolkit: str) -> list[Name]:
    """Return all names that the rules give.

    Raises:
        CheckpointError: a tensor of ours has no counterpart in the toolkit.
    """
    found: list[Name] = []
    for name in ours:
        named = next((names for rule in rules if (names := rule.of(name))), None)
        if named is None:
            raise CheckpointError(f"{toolkit}'s networks have nothing like '{name}'")
        found += named
    return found


def to_ours(
    theirs: Mapping[str, Tensor],
    names: Sequence[Name],
    shapes: Mapping[str, torch.Size],
    constants: Collection[str] = (),
) -> dict[str, Tensor]:
    """Convert their tensors to ours.

    Args:
        theirs: their tensors.
        names: pairs of names; all tensors that ours are made of.
        shapes: of our tensors.
        constants: names of theirs that nothing is made of.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or is one that we have nothing for.
    """
    known = {one for name in names for one in (name.theirs, *name.copies)} | set(constants)
    unknown = [name for name in theirs if name not in known]
    if unknown:
        raise CheckpointError(
            f"the file has {len(unknown)} tensors that there is no network for, such as '{unknown[0]}'"
        )
    ours: dict[str, Tensor] = {}
    rows: dict[str, list[Tensor]] = {}
    for name in names:
        if name.theirs not in theirs:
            raise CheckpointError(
                f"the file lacks '{name.theirs}', which its configuration requires"
            )
        shape = shapes[name.ours]
        value = _as_ours(theirs[name.theirs], name)
        wanted = shape if name.member is None else shape[1:]
        if value.shape != wanted:
            raise CheckpointError(
                f"'{name.theirs}' has shape {tuple(theirs[name.theirs].shape)}, which does not fit what its "
                f"configuration and observations ask for ({tuple(wanted)} here)"
            )
        if name.member is None:
            ours[name.ours] = value.clone(memory_format=torch.contiguous_format)
        else:
            rows.setdefault(name.ours, []).append(value)
    return ours | {name: torch.stack(values) for name, values in rows.items()}


def to_theirs(ours: Mapping[str, Tensor], names: Sequence[Name]) -> dict[str, Tensor]:
    """Convert our tensors to theirs, with all copies."""
    theirs: dict[str, Tensor] = {}
    for name in names:
        value = ours[name.ours].detach().cpu()
        value = value if name.member is None else value[name.member]
        value = value.t() if name.transposed else value
        value = value[None] if name.lead else value
        value = value.reshape(*value.shape, *[1] * name.trail) if name.trail else value
        value = value.clone(memory_format=torch.contiguous_format)
        for one in (name.theirs, *name.copies):
            theirs[one] = value
    return theirs


def _as_ours(value: Tensor, name: Name) -> Tensor:
    value = value.t() if name.transposed else value
    value = value.squeeze(0) if name.lead else value
    return value.flatten(value.dim() - name.trail - 1) if name.trail else value
