"""Names under which a policy is given its observations, where an environment or a robot has others than its data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from imitate.errors import UserError, nearest

Rename = Mapping[str, str]
"""From a name of the environment or robot to the policy's, such as ``{"agent_pos": "state"}``."""


def parse_rename(entries: Sequence[str]) -> dict[str, str]:
    """Read the entries ``NEW=OLD`` of ``--rename``.

    Args:
        entries: the name that the environment or the robot gives, and that of the policy.

    Raises:
        UserError: an entry has another form, or two of them contradict each other.
    """
    rename: dict[str, str] = {}
    for entry in entries:
        given, sign, own = entry.partition("=")
        if not (given and sign and own):
            raise UserError(
                f"--rename {entry}: expected NEW=OLD, the name that the environment or the robot gives and the "
                "policy's, such as agent_pos=state"
            )
        if rename.setdefault(given, own) != own:
            raise UserError(
                f"--rename: '{given}' cannot be both '{rename[given]}' and '{own}'; name it once"
            )
    return rename


def joined(saved: Rename | None, chosen: Rename | None) -> dict[str, str]:
    """Return saved names with those that were chosen later, which win."""
    chosen = dict(chosen or {})
    kept = {
        given: own
        for given, own in (saved or {}).items()
        if own not in chosen.values() and given not in chosen
    }
    return {**kept, **chosen}


def given_names(rename: Rename | None, own: Iterable[str]) -> dict[str, str]:
    """Return the name under which each observation is given.

    Args:
        rename: see :data:`Rename`.
        own: the policy's names.

    Raises:
        UserError: the policy has no observation of a name, or one name stands for two observations.
    """
    names = {key: key for key in own}
    for given, key in (rename or {}).items():
        if key not in names:
            raise UserError(
                f"rename {given}={key}: the policy has no observation '{key}'; {nearest(key, names)}"
            )
        if names[key] != key:
            raise UserError(
                f"rename: '{key}' would be both '{names[key]}' and '{given}'; expected one of them"
            )
        names[key] = given
    keys: dict[str, str] = {}
    for key, given in names.items():
        if keys.setdefault(given, key) != key:
            raise UserError(
                f"rename: '{given}' would be both '{keys[given]}' and '{key}' of the policy; expected a name of its "
                "own for each"
            )
    return names


def rename_words(rename: Rename) -> str:
    """Return the renamed observations, in words for a person."""
    return ", ".join(f"'{given}' as '{own}'" for given, own in rename.items())
