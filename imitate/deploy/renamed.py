"""Rename a robot's observations for a served policy that does not report its names, such as openpi's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imitate.errors import UserError


class RenamedPolicy:
    """A policy that gets observations under other names than the robot's.

    Args:
        policy: policy with the interface of :class:`imitate.RolloutPolicy`; its other attributes are forwarded.
        rename: from a name of the robot to the policy's, such as ``{"joints": "observation/state"}``; other names stay
            unchanged.
    """

    def __init__(self, policy: Any, rename: Mapping[str, str]) -> None:
        self._policy, self._names = policy, dict(rename)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def _renamed(self, ob: Mapping[str, Any]) -> dict[str, Any]:
        missing = [name for name in self._names if name not in ob]
        if missing:
            raise UserError(
                f"--rename: the robot gives no '{missing[0]}'; it gives {', '.join(ob)}"
            )
        return {self._names.get(name, name): value for name, value in ob.items()}

    def __call__(self, ob: Mapping[str, Any], *rest: Any, **named: Any) -> Any:
        """Return the action for an observation."""
        return self._policy(self._renamed(ob), *rest, **named)

    def predict_chunk(self, history: Sequence[Mapping[str, Any]], **rest: Any) -> Any:
        """Predict the chunk for a history, see :meth:`imitate.RolloutPolicy.predict_chunk`."""
        return self._policy.predict_chunk([self._renamed(ob) for ob in history], **rest)
