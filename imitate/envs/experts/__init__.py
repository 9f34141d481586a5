"""Scripted experts of simulated tasks."""

from imitate.envs.experts.demonstrators import LEVELS, Demonstrator, Habits, HumanLike
from imitate.envs.experts.door import DoorExpert
from imitate.envs.experts.expert import QUALITIES, Expert, ExpertKind, Style, expert_of_package
from imitate.envs.experts.nut_assembly import (
    NutAssemblyExpert,
    NutAssemblyRoundExpert,
    NutAssemblySquareExpert,
)
from imitate.envs.experts.pick_and_place import LiftExpert, PickPlaceCanExpert, StackExpert
from imitate.envs.experts.tool_hang import ToolHangExpert
from imitate.envs.experts.two_arms import (
    TwoArmHandoverExpert,
    TwoArmLiftExpert,
    TwoArmPegInHoleExpert,
)

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
    "arms_of",
    "find_expert",
]

EXPERTS: dict[str, type[Expert]] = {
    expert.env_name: expert
    for expert in (
        LiftExpert,
        StackExpert,
        PickPlaceCanExpert,
        NutAssemblySquareExpert,
        NutAssemblyRoundExpert,
        NutAssemblyExpert,
        DoorExpert,
        ToolHangExpert,
        TwoArmLiftExpert,
        TwoArmPegInHoleExpert,
        TwoArmHandoverExpert,
    )
}


def find_expert(env_name: str) -> ExpertKind:
    """Return the expert of a robosuite task, or of an environment ``module:Name`` of a package with experts.

    Raises:
        EnvError: there is no such expert.
    """
    return EXPERTS[env_name] if env_name in EXPERTS else expert_of_package(env_name, EXPERTS)


def arms_of(env_name: str) -> int:
    """Return the number of arms that an expert's actions move; 1 for environments of other packages than robosuite."""
    return EXPERTS[env_name].layout.arms if env_name in EXPERTS else 1
