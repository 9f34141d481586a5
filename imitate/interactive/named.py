"""Supervisors by the words of the command line, which can be sent to other processes: each makes its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imitate.envs.trust import typed_object
from imitate.errors import ConfigError
from imitate.interactive.supervision import (
    Expert,
    Labels,
    PolicyExpert,
    ScriptedExpert,
    Supervisor,
    TakesOver,
    Vigilant,
)
from imitate.policy.loading import policy_from_checkpoint

SCRIPTED = "scripted"


@dataclass(frozen=True)
class LabelsOf:
    """Supervision of DAgger.

    Attributes:
        expert: ``scripted``, a checkpoint, or ``module:function``.
        env_name: of the environment.
        beta: in round k the expert acts with probability ``beta**k`` where it labels.
        every: it labels one of so many steps.
    """

    expert: str
    env_name: str
    beta: float
    every: int = 1

    def __call__(self, number: int) -> Supervisor:
        """Return the supervisor of a round."""
        return Labels(named_expert(self.expert, self.env_name), self.beta**number, self.every)


@dataclass(frozen=True)
class CorrectionsOf:
    """Supervision of HG-DAgger by an expert that acts while the policy errs.

    Attributes:
        expert: see :class:`LabelsOf`.
        env_name: of the environment.
    """

    expert: str
    env_name: str

    def __call__(self, number: int) -> Supervisor:
        """Return the supervisor of a round."""
        return TakesOver(Vigilant(named_expert(self.expert, self.env_name)))


def named_expert(name: str, env_name: str) -> Expert:
    """Return a new expert of that name.

    Raises:
        ConfigError: if there is none.
    """
    if name == SCRIPTED:
        return ScriptedExpert(env_name)
    path = Path(name).expanduser()
    if path.exists():
        policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=path)
        return PolicyExpert(policy)
    expert: Expert = imported(name, "--expert")
    return expert


def imported(name: str, option: str) -> Any:
    """Import ``module:attribute``; of a class, an object is made.

    Raises:
        ConfigError: if there is none; the message names the option.
    """
    try:
        found = typed_object(name)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise ConfigError(
            f"{option}: '{name}' is neither a file nor module:function that can be imported ({error})"
        ) from None
    return found() if isinstance(found, type) else found
