"""Scripted demonstrators, one file per task or package of tasks."""

from __future__ import annotations

from imitate.envs.experts.demonstrators import LEVELS, Demonstrator
from imitate.envs.experts.expert import QUALITIES, Expert, Style
from imitate.envs.experts.human import Habits, HumanLike
from imitate.envs.experts.lift import LiftExpert
from imitate.envs.experts.pick_place_can import PickPlaceCanExpert
from imitate.envs.experts.slot import ExpertKind, expert_of_package
from imitate.envs.experts.stack import StackExpert

__all__ = [
    "EXPERTS",
    "LEVELS",
    "QUALITIES",
    "Demonstrator",
    "Expert",
    "ExpertKind",
    "Habits",
    "HumanLike",
    "Style",
    "find_expert",
]

EXPERTS: dict[str, type[Expert]] = {
    expert.env_name: expert for expert in (LiftExpert, StackExpert, PickPlaceCanExpert)
}


def find_expert(env_name: str) -> ExpertKind:
    """Return the expert of a robosuite task, or of an environment ``module:Name`` of a package that has some.

    Raises:
        EnvError: there is none.
    """
    return EXPERTS[env_name] if env_name in EXPERTS else expert_of_package(env_name, EXPERTS)
