"""Choice of one skill of a policy that learned several, for a robot, which gives no observation ``skill``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from imitate.deploy.schema import Schema
from imitate.errors import UserError
from imitate.system.text import SKILL


class SkilledPolicy:
    """A policy whose observation ``skill`` is one skill, one-hot; its other attributes are forwarded.

    Args:
        policy: policy with the interface of :class:`imitate.RolloutPolicy`.
        schema: its observations.
        skill: number of the skill, from 0.

    Attributes:
        schema: the observations that remain to be given.

    Raises:
        UserError: the policy has no such skill.
    """

    def __init__(self, policy: Any, schema: Schema | None, skill: int) -> None:
        known = {} if schema is None else schema.observations
        if schema is None or SKILL not in known:
            raise UserError(
                f"--skill {skill}: the policy has no observation '{SKILL}': leave it out"
            )
        size = known[SKILL].shape[0]
        if not 0 <= skill < size:
            raise UserError(f"--skill {skill}: the policy has skills 0 to {size - 1}")
        rest = {key: seen for key, seen in known.items() if key != SKILL}
        self._policy, self._skill = policy, np.eye(size, dtype=np.float32)[skill]
        self.schema = replace(schema, observations=rest)
        self.obs_keys = tuple(rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def _with_skill(self, ob: Mapping[str, Any]) -> dict[str, Any]:
        return {**ob, SKILL: self._skill}

    def __call__(self, ob: Mapping[str, Any], *rest: Any, **named: Any) -> Any:
        """Return the action for an observation."""
        return self._policy(self._with_skill(ob), *rest, **named)

    def predict_chunk(self, history: Sequence[Mapping[str, Any]], **rest: Any) -> Any:
        """Predict the chunk for a history, see :meth:`imitate.RolloutPolicy.predict_chunk`."""
        return self._policy.predict_chunk([self._with_skill(ob) for ob in history], **rest)
