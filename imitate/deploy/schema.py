"""Schema of a deployed policy: its inputs and outputs, which are known before the first observation."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from numpy.typing import NDArray

from imitate.errors import WireError
from imitate.system.images import given_array

PROTOCOL = 1
"""Version of the protocol between server and client."""
HEADER = "imitate"
"""Key of the header in a message, and of this project's entry in the server's metadata."""
_MOST = 2**26
"""Largest number of values in an observation; a larger array would not fit into a message."""
_LONGEST = 2**16
"""Largest number of actions in a chunk, and of observations in a history."""


@dataclass(frozen=True)
class ObservedKey:
    """Description of one observation key.

    Attributes:
        shape: shape of one recorded step: (D,), images (H, W, C).
        kind: ``low_dim``, ``rgb``, ``depth`` or ``scan``.
        image_type: type of the recorded values of an image, 'uint8', 'integer' or 'float'; '' if unknown.
    """

    shape: tuple[int, ...]
    kind: str = "low_dim"
    image_type: str = ""


@dataclass(frozen=True)
class Schema:
    """Observations, goals and actions of a policy.

    Attributes:
        observations: description of each key that an observation must have.
        goals: description of each key that a goal must have; empty if the policy has no goals.
        action_dim: size A of an action.
        action_low, action_high: (A,) limits in the units of the demonstrations.
        rate_hz: control rate of the demonstrations; None if their file does not contain it.
        chunk: number K of actions planned at once; 1 if the policy decides at every step.
        languages: instructions that the policy knows; empty if it uses none.
        algorithm: name of the algorithm.
        history: number of observations from which a chunk is predicted; 0 if the policy, or a server of an earlier
            version, predicts no chunks.
        execute: number of actions of a chunk that are executed before the next prediction.
        max_prefix: largest number of planned actions on which a prediction can be conditioned; 0 if the policy is not
            trained for that.
        names: names of the dimensions of observations and of ``actions``, by key, if the demonstrations have names.
        ranges: ``mean``, ``std``, ``min`` and ``max`` of the observations in training, by key; for images per
            channel, in [0, 1]; ``first_min`` and ``first_max`` of vectors in the first steps of demonstrations. Empty
            if unknown.
    """

    observations: Mapping[str, ObservedKey]
    action_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    rate_hz: float | None = None
    chunk: int = 1
    goals: Mapping[str, ObservedKey] = field(default_factory=dict)
    languages: tuple[str, ...] = ()
    algorithm: str = ""
    history: int = 0
    execute: int = 1
    max_prefix: int = 0
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ranges: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Schema:
        """Invert :meth:`to_dict`.

        Raises:
            WireError: a value is missing or has another type.
        """
        try:
            known = {name: saved[name] for name in cls.__dataclass_fields__ if name in saved}
            for group in ("observations", "goals"):
                known[group] = {
                    str(key): ObservedKey(
                        tuple(int(n) for n in value["shape"]),
                        str(value["kind"]),
                        str(value.get("image_type", "")),
                    )
                    for key, value in saved.get(group, {}).items()
                }
            for name in ("action_low", "action_high"):
                known[name] = tuple(float(value) for value in saved[name])
            known["languages"] = tuple(str(lang) for lang in saved.get("languages", ()))
            known["names"] = {
                str(key): tuple(map(str, names)) for key, names in saved.get("names", {}).items()
            }
            known["ranges"] = {
                str(key): {str(name): tuple(map(float, row)) for name, row in entry.items()}
                for key, entry in saved.get("ranges", {}).items()
            }
            for name in ("action_dim", "chunk", "history", "execute", "max_prefix"):
                if name in known:
                    known[name] = int(known[name])
            return cls(**known)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise WireError(f"the server's schema cannot be read: {error}") from error

    def check(self) -> None:
        """Check the values of a schema that a server or a bundle gave.

        Raises:
            WireError: a value is impossible.
        """
        for key, spec in {**self.goals, **self.observations}.items():
            if min(spec.shape, default=1) < 1 or math.prod(spec.shape) > _MOST:
                raise WireError(f"the shape of '{key}' is {spec.shape}, which is not possible")
        for limits in (self.action_low, self.action_high):
            if len(limits) != self.action_dim or not limits:
                raise WireError(
                    f"there are {len(limits)} limits, but actions have {self.action_dim} numbers"
                )
        for low, high in zip(self.action_low, self.action_high, strict=True):
            if not low <= high:  # true for NaN, too
                raise WireError(f"actions have the limits {low} to {high}: expected low <= high")
        rate_hz = self.rate_hz
        if rate_hz is not None and not (type(rate_hz) in (int, float) and 0 < rate_hz < math.inf):
            raise WireError(f"rate_hz is {rate_hz!r}: expected a number above 0, or null")
        for name, least in (("chunk", 1), ("execute", 1), ("history", 0), ("max_prefix", 0)):
            if not least <= (number := getattr(self, name)) <= _LONGEST:
                raise WireError(f"{name} is {number}: expected {least} to {_LONGEST}")

    @property
    def hash(self) -> str:
        """First 16 digits of the schema's SHA-256; servers with equal hashes accept the same observations."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def select(self, given: Mapping[str, Any], goal: bool = False) -> dict[str, NDArray[Any]]:
        """Return the arrays of an observation (or a goal) that the policy needs, without other keys.

        Raises:
            WireError: a key is missing, has another shape, or is not numeric.
        """
        wanted = self.goals if goal else self.observations
        word = "goal" if goal else "observation"
        missing = [key for key in wanted if key not in given]
        if missing:
            got = ", ".join(map(str, given)) or "nothing"
            raise WireError(
                f"{word} '{missing[0]}' is missing; wanted {', '.join(wanted)}, got {got}"
            )
        chosen = {}
        for key, spec in wanted.items():
            try:
                value = given_array(given[key])
            except ValueError as error:
                raise WireError(f"{word} '{key}' is not an array of numbers: {error}") from error
            if value.dtype.kind not in "fiub":
                raise WireError(f"{word} '{key}' is not an array of numbers but {value.dtype}")
            if value.shape != spec.shape:
                raise WireError(f"{word} '{key}' has shape {value.shape}; wanted {spec.shape}")
            chosen[key] = value
        return chosen
