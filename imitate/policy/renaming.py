"""Renaming of observations, for an environment or a robot that names them differently from the policy's data.

It also works for a policy server that does not report the observation names of its policy, such as openpi's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from imitate.errors import UserError, nearest

Rename = Mapping[str, str]
"""Mapping from observation names of the environment or robot to the policy's names: ``{"agent_pos": "state"}``."""


def parse_rename(entries: Sequence[str]) -> dict[str, str]:
    """Parse the entries ``NEW=OLD`` of ``--rename``.

    Args:
        entries: texts with the name in the environment or robot, '=', and the policy's name.

    Raises:
        UserError: an entry is malformed, or two of them contradict each other.
    """
    rename: dict[str, str] = {}
    for entry in entries:
        given, sign, own = entry.partition("=")
        if not (given and sign and own):
            raise UserError(
                f"--rename {entry}: expected NEW=OLD, the name in the environment or robot and the policy's name, such "
                "as agent_pos=state"
            )
        if rename.setdefault(given, own) != own:
            raise UserError(
                f"--rename: '{given}' cannot be both '{rename[given]}' and '{own}'; give one of these two names"
            )
    return rename


def joined(saved: Rename | None, chosen: Rename | None) -> dict[str, str]:
    """Merge saved names with names that were chosen later, which take precedence."""
    chosen = dict(chosen or {})
    kept = {
        given: own
        for given, own in (saved or {}).items()
        if own not in chosen.values() and given not in chosen
    }
    return {**kept, **chosen}


def given_names(rename: Rename | None, own: Iterable[str]) -> dict[str, str]:
    """Return, for each observation of the policy, the name under which the caller gives it.

    Args:
        rename: mapping to the policy's names, see :data:`Rename`.
        own: the policy's observation names.

    Raises:
        UserError: the policy has no observation of a given name, or one name is used for two observations.
    """
    names = {key: key for key in own}
    for given, key in (rename or {}).items():
        if key not in names:
            raise UserError(
                f"rename {given}={key}: the policy has no observation '{key}'; {nearest(key, names)}"
            )
        if names[key] != key:
            raise UserError(
                f"rename: the policy's '{key}' would be both '{names[key]}' and '{given}'; give one of "
                "these two names"
            )
        names[key] = given
    keys: dict[str, str] = {}
    for key, given in names.items():
        if keys.setdefault(given, key) != key:
            raise UserError(
                f"rename: '{given}' would be both '{keys[given]}' and '{key}' of the policy; give a "
                "different name for each"
            )
    return names


def rename_words(rename: Rename) -> str:
    """Describe the renamed observations for a message."""
    return ", ".join(f"'{given}' as '{own}'" for given, own in rename.items())


class RenamedPolicy:
    """A policy that renames a robot's observations before it acts.

    Args:
        policy: policy with the interface of :class:`imitate.RolloutPolicy`; its other attributes are forwarded.
        rename: mapping from a name of the robot to the policy's, such as ``{"joints": "observation/state"}``; other
            names stay unchanged.
    """

    def __init__(self, policy: Any, rename: Mapping[str, str]) -> None:
        self._policy, self._names = policy, dict(rename)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def _renamed(self, ob: Mapping[str, Any]) -> dict[str, Any]:
        missing = [name for name in self._names if name not in ob]
        if missing:
            raise UserError(
                f"--rename: the robot gives no observation '{missing[0]}'; it gives {', '.join(ob)}"
            )
        return {self._names.get(name, name): value for name, value in ob.items()}

    def __call__(self, ob: Mapping[str, Any], *rest: Any, **named: Any) -> Any:
        """Return the action for an observation."""
        return self._policy(self._renamed(ob), *rest, **named)

    def predict_chunk(self, history: Sequence[Mapping[str, Any]], **rest: Any) -> Any:
        """Predict a chunk from a history of observations, see :meth:`imitate.RolloutPolicy.predict_chunk`."""
        return self._policy.predict_chunk([self._renamed(ob) for ob in history], **rest)
