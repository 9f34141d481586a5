"""Names of tensors: ours, and another toolkit's for the same numbers, as rules.

A rule maps a name of ours to theirs. Where the other toolkit keeps a tensor under several names, the first is the one
that counts and the others are copies, which its strict loading needs too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
class Rule:
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
        return Name(ours, theirs[0], theirs[1:], self.lead, member, self.transposed, self.trail)


def same(pattern: str, template: str = "{}", **options: Any) -> Rule:
    """Return a rule whose names of theirs are a template, filled with the groups of the match."""
    return Rule(pattern, lambda *groups: (template.format(*groups),), **options)


def under(rules: Iterable[Rule], ours: str, *theirs: str) -> list[Rule]:
    """Apply :meth:`Rule.under` to each rule."""
    return [rule.under(ours, *theirs) for rule in rules]


def names_of(ours: Iterable[str], rules: Sequence[Rule], toolkit: str) -> list[Name]:
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
