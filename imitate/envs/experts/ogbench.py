"""Experts of OGBench's datasets: the package's oracles, which play with the objects of a scene or walk in a maze."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from imitate.envs.env import Array, Obs
from imitate.envs.experts.expert import Style
from imitate.errors import EnvError, nearest

PREFIX = "ogbench:"


class OGBenchOracle:
    """OGBench's oracle for one episode, which knows the scene's state and chooses its own targets."""

    def __init__(self) -> None:
        self._env: Any = None

    def attach(self, env: Any) -> None:
        """Make the environment record its dataset from the next reset on."""
        self._env = env.unwrapped
        self._env.play()

    def act(self, obs: Obs) -> Array:
        """Return the oracle's action with noise; the observation is ignored."""
        action: Array = self._env.oracle_action()
        return action


@dataclass(frozen=True)
class OGBenchDataset:
    """Oracle of one dataset; see :class:`imitate.envs.experts.expert.ExpertKind`."""

    env_name: str
    horizon: int = 1000
    motion_axes: ClassVar[int] = 0
    instruction: ClassVar[str | None] = None
    env_kwargs: ClassVar[Mapping[str, Any]] = {}
    dense_kwargs: ClassVar[Mapping[str, Any] | None] = None
    acts_as_person: ClassVar[bool] = False
    plays: ClassVar[bool] = True

    def __call__(self, style: Style) -> OGBenchOracle:
        """Return the oracle for an episode; ``style`` is ignored."""
        return OGBenchOracle()


def expert_of(env_name: str) -> OGBenchDataset:
    """Return the expert of ``ogbench:DATASET``.

    Raises:
        EnvError: there is no such dataset, or the package is not installed.
    """
    from imitate.envs.worlds.ogbench import DATASETS

    dataset = env_name.removeprefix(PREFIX)
    if dataset not in DATASETS:
        raise EnvError(f"ogbench has no dataset '{dataset}'; {nearest(dataset, DATASETS)}")
    return OGBenchDataset(env_name, DATASETS[dataset].steps)
