"""Supervisors named on the command line; they can be sent to other processes, which build their own."""

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
        env_name: name of the environment.
        beta: in round k the expert acts with probability ``beta**k`` at labelled steps.
        every: it labels every n-th step.
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
        env_name: name of the environment.
    """

    expert: str
    env_name: str

    def __call__(self, number: int) -> Supervisor:
        """Return the supervisor of a round."""
        return TakesOver(Vigilant(named_expert(self.expert, self.env_name)))


def named_expert(name: str, env_name: str) -> Expert:
    """Return a new expert of that name.

    Raises:
        ConfigError: the expert does not exist.
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
    """Import ``module:attribute``; if it is a class, make an object.

    Raises:
        ConfigError: it does not exist; the message names the option.
    """
    try:
        found = typed_object(name)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise ConfigError(
            f"{option}: '{name}' is neither a file nor module:function that can be imported ({error})"
        ) from None
    return found() if isinstance(found, type) else found
