"""Rules that map names of tensors here to names in another toolkit, and the conversion of weights by these rules.

If the other toolkit stores a tensor under several names, the tensor of the first name is read. The other names are
written too, because the toolkit's strict loading needs them.
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
"""Placeholder in the other toolkit's names for the index of a network in an ensemble: ``0.``, ``1.`` and so on."""


@dataclass(frozen=True)
class Name:
    """Names of one tensor here and in another toolkit, and the difference in its shape.

    Attributes:
        ours: name of the tensor in our ``state_dict``.
        theirs: name in the ``state_dict`` of the other toolkit.
        copies: further names in the other toolkit.
        lead: number of axes of size 1 that the other toolkit's tensor has before the axes of ours.
        trail: number of axes of size 1 that the other toolkit's tensor has after the axes of ours.
        member: index of the other toolkit's tensor along the first axis of ours; None if it is the whole tensor.
        transposed: true if the other toolkit stores the transpose.
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
    """A rule for all names that match a pattern.

    Attributes:
        pattern: regular expression that matches a whole name here.
        names: function from the groups of the match to the names in the other toolkit.
        lead, trail: as in :class:`Name`.
        members: number of networks that our tensor stacks, whose names in the other toolkit contain :data:`MEMBER`; 0
            if our tensor is of a single network.
        transposed: as in :class:`Name`.
    """

    pattern: str
    names: Callable[..., tuple[str, ...]]
    lead: int = 0
    members: int = 0
    transposed: bool = False
    trail: int = 0

    def under(self, ours: str, *theirs: str) -> NameRule:
        """Return the rule with prefixes: ``ours`` for our names, and each of ``theirs`` for the other toolkit's."""

        def names(*groups: str) -> tuple[str, ...]:
            return tuple(prefix + name for prefix in theirs for name in self.names(*groups))

        return replace(self, pattern=re.escape(ours) + self.pattern, names=names)

    def also(self, other: NameRule) -> NameRule:
        """Return the rule with the names of another rule for the same tensors as further names in the other toolkit."""
        return replace(self, names=lambda *groups: (*self.names(*groups), *other.names(*groups)))

    def of(self, name: str) -> list[Name]:
        """Return the other toolkit's names of one name here; empty if the rule does not match."""
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
    """Return a rule whose name in the other toolkit is ``template``, filled with the groups of the match."""
    return NameRule(pattern, lambda *groups: (template.format(*groups),), **options)


def under(rules: Iterable[NameRule], ours: str, *theirs: str) -> list[NameRule]:
    """Add prefixes to the names of each rule, see :meth:`NameRule.under`."""
    return [rule.under(ours, *theirs) for rule in rules]


def names_of(ours: Iterable[str], rules: Sequence[NameRule], toolkit: str) -> list[Name]:
    """Return the names that the rules assign to tensors of ours.

    Raises:
        CheckpointError: a tensor of ours has no counterpart in the other toolkit.
    """
    found: list[Name] = []
    for name in ours:
        named = next((names for rule in rules if (names := rule.of(name))), None)
        if named is None:
            raise CheckpointError(f"{toolkit}'s networks have no counterpart of '{name}'")
        found += named
    return found


def to_ours(
    theirs: Mapping[str, Tensor],
    names: Sequence[Name],
    shapes: Mapping[str, torch.Size],
    constants: Collection[str] = (),
) -> dict[str, Tensor]:
    """Convert tensors of the other toolkit to ours.

    Args:
        theirs: tensors of the other toolkit.
        names: names of all tensors of ours.
        shapes: shapes of our tensors.
        constants: names of tensors in the other toolkit that are ignored, because they have no counterpart here.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or has no counterpart here.
    """
    known = {one for name in names for one in (name.theirs, *name.copies)} | set(constants)
    unknown = [name for name in theirs if name not in known]
    if unknown:
        raise CheckpointError(
            f"the file has {len(unknown)} tensors that no network of imitate has, such as '{unknown[0]}'"
        )
    ours: dict[str, Tensor] = {}
    rows: dict[str, list[Tensor]] = {}
    for name in names:
        if name.theirs not in theirs:
            raise CheckpointError(
                f"the tensor '{name.theirs}', which the file's configuration requires, is missing"
            )
        shape = shapes[name.ours]
        value = _as_ours(theirs[name.theirs], name)
        wanted = shape if name.member is None else shape[1:]
        if value.shape != wanted:
            raise CheckpointError(
                f"'{name.theirs}' has shape {tuple(theirs[name.theirs].shape)}, which does not fit the "
                f"file's configuration and observations; expected {tuple(wanted)}"
            )
        if name.member is None:
            ours[name.ours] = value.clone(memory_format=torch.contiguous_format)
        else:
            rows.setdefault(name.ours, []).append(value)
    return ours | {name: torch.stack(values) for name, values in rows.items()}


def to_theirs(ours: Mapping[str, Tensor], names: Sequence[Name]) -> dict[str, Tensor]:
    """Convert our tensors to tensors of the other toolkit, under all names."""
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
