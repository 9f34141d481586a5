"""Interface of scripted experts for data collection, and their lookup by an environment's name.

Experts of a package's environments are found by the name in front of the colon: for ``metaworld:push-v3`` it is the
entry point ``metaworld`` of the group ``imitate.experts``, a function that takes an environment's full name and
returns the expert, or raises EnvError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from typing import Any, Protocol

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import Style
from imitate.errors import EnvError, nearest
from imitate.system.extras import installed_points

GROUP = "imitate.experts"
_BUILT_IN = {
    "gym_aloha": "imitate.envs.experts.aloha:expert_of",
    "gymnasium_robotics": "imitate.envs.experts.fetch:expert_of",
    "metaworld": "imitate.envs.experts.metaworld:expert_of",
    "ogbench": "imitate.envs.experts.ogbench:expert_of",
}


class EpisodeExpert(Protocol):
    """An expert in one episode."""

    def act(self, obs: Obs) -> Array:
        """Return the action (A,) for an observation."""


class ExpertKind(Protocol):
    """The expert of a task: a class, or any function that makes one for each episode, with these attributes.

    Attributes:
        env_name: the environment's full name.
        horizon: control steps after which an attempt counts as failed.
        motion_axes: number of leading values of an action that are motions in [-1, 1], to which noise is added; 0 if
            none.
        instruction: the task in words, recorded as the demonstrations' language, or None.
        env_kwargs: arguments of the environment that the expert needs for its observations.
        dense_kwargs: arguments of the environment for shaped rewards, or None if it has none.
        acts_as_person: true if ``--quality mixed`` and ``--human-like`` support it.

    An expert may also have ``plays``, true if it has aims of its own: success then does not end an episode, and
    episodes without success are kept. Its :class:`EpisodeExpert` has ``attach(env)``, which is called before the reset.
    """

    @property
    def env_name(self) -> str: ...  # noqa: D102 - see the class
    @property
    def horizon(self) -> int: ...  # noqa: D102
    @property
    def motion_axes(self) -> int: ...  # noqa: D102
    @property
    def instruction(self) -> str | None: ...  # noqa: D102
    @property
    def env_kwargs(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def dense_kwargs(self) -> Mapping[str, Any] | None: ...  # noqa: D102
    @property
    def acts_as_person(self) -> bool: ...  # noqa: D102

    def __call__(self, style: Style) -> EpisodeExpert:
        """Make the expert of an episode."""


def expert_of_package(env_name: str, others: Mapping[str, Any]) -> ExpertKind:
    """Return the expert of an environment ``module:Name``.

    Args:
        env_name: full name of the environment.
        others: names of tasks with experts, for the message.

    Raises:
        EnvError: there is no expert, or it cannot be loaded.
    """
    module = env_name.rpartition(":")[0]
    points = {name: EntryPoint(name, place, GROUP) for name, place in _BUILT_IN.items()}
    points |= {point.name: point for point in installed_points(GROUP)}
    if module not in points:
        known = [*others, *(f"{name}:" for name in points)]
        raise EnvError(
            f"there is no scripted expert for '{env_name}'; {nearest(env_name, known)} "
            f"(add your own by an entry point '{module or 'your_package'}' in the group {GROUP}, see "
            "docs/environments.md)"
        )
    point = points[module]
    try:
        find: Callable[[str], ExpertKind] = point.load()
    except (ImportError, AttributeError) as error:
        raise EnvError(
            f"{env_name}: its expert is {point.value}, which cannot be loaded ({error}); repair or "
            "reinstall that package"
        ) from error
    return find(env_name)
