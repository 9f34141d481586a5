"""Scripted demonstrators, one file per task."""

from __future__ import annotations

from imitate.envs.experts.demonstrators import LEVELS, Demonstrator
from imitate.envs.experts.expert import QUALITIES, Expert, Style
from imitate.envs.experts.human import Habits, HumanLike
from imitate.envs.experts.lift import LiftExpert
from imitate.envs.experts.pick_place_can import PickPlaceCanExpert
from imitate.envs.experts.stack import StackExpert
from imitate.errors import EnvError, nearest

__all__ = [
    "EXPERTS",
    "LEVELS",
    "QUALITIES",
    "Demonstrator",
    "Expert",
    "Habits",
    "HumanLike",
    "Style",
    "find_expert",
]

EXPERTS: dict[str, type[Expert]] = {
    expert.env_name: expert for expert in (LiftExpert, StackExpert, PickPlaceCanExpert)
}


def find_expert(env_name: str) -> type[Expert]:
    """The expert of a robosuite task.

    Raises:
        EnvError: there is none.
    """
    if env_name not in EXPERTS:
        raise EnvError(
            f"there is no scripted expert for '{env_name}'; {nearest(env_name, EXPERTS)}"
        )
    return EXPERTS[env_name]
