"""The registry of algorithms, filled on first use, and the base class of the algorithms' sections ``algo``."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, ClassVar

from pydantic import Field

from imitate.config.auxiliary import AuxiliariesConfig
from imitate.config.base_config import BaseConfig
from imitate.config.data_needs import DataNeeds, FollowingSteps, TrainingSet
from imitate.config.observation import ObservationConfig, Observations
from imitate.config.optimizer import OptimizerConfigs
from imitate.config.section import OpenSection, Section
from imitate.errors import ConfigError, nearest
from imitate.system.extras import installed_points

FUNCTION = r"^[^:\s]+:[A-Za-z_][\w.]*$"
"""Pattern of ``module:function``, the name of an object in a module."""

SCRIPTED, RANDOM = "scripted", "random"
"""Names of a policy that is a program: the task's scripted expert, and random actions."""

OwnNetwork = Annotated[str | None, Field(pattern=FUNCTION)]


class NetworksConfig(Section):
    """Networks of your own: ``module:function``, called with the shapes of observations and the size of an action."""

    encoder: OwnNetwork = Field(
        None,
        description="Function that builds the encoder, which maps observations {key: (N, ...)} to features "
        "(N, D).",
    )
    actor: OwnNetwork = Field(
        None,
        description="Function that builds the encoder and hidden layers of the actor in an actor-critic "
        "algorithm.",
    )
    critic: OwnNetwork = Field(
        None,
        description="Function that builds a critic, which maps observations {key: (N, ...)} and actions (N, "
        "A) to values (N,).",
    )


class AlgoSection(Section):
    """Section ``algo`` of an algorithm: its keys, and what it requires of the data and of other sections.

    Attributes:
        tree_defaults: the algorithm's defaults for the shared sections, as a partial tree.
        observations: type of the section ``observation``; None if all networks share one list of observations.
        acts: true if the algorithm learns a policy, which can be evaluated.
        learns_rewards: true if the algorithm learns from rewards, to which auxiliaries can add intrinsic rewards.
    """

    tree_defaults: ClassVar[Mapping[str, Any]] = {}
    observations: ClassVar[type[Observations] | None] = None
    acts: ClassVar[bool] = True
    learns_rewards: ClassVar[bool] = False

    auxiliary: AuxiliariesConfig = Field(
        AuxiliariesConfig(), description="Auxiliary losses and intrinsic rewards by name."
    )
    networks: NetworksConfig = Field(NetworksConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """List combinations of values that cannot work together.

        Args:
            config: the whole `Config`.

        Returns:
            One line per problem: the full dotted key, the problem, the remedy.
        """
        return []

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Return the data that the algorithm needs in addition to windows of observations and actions.

        Args:
            config: the whole `Config`.
        """
        return DataNeeds()

    def following(self, config: BaseConfig) -> FollowingSteps | None:
        """Return the steps from which auxiliary losses are computed; None without auxiliaries.

        Args:
            config: the whole `Config`.
        """
        return self.auxiliary.following

    def auxiliary_conflicts(self, config: BaseConfig) -> list[str]:
        """List settings that cannot be combined with ``auxiliary``, in the form of :meth:`conflicts`."""
        return [
            f"algo.auxiliary.{name}.reward is {entry.reward:g}, but {config.algo_name} does not learn from "
            "rewards: set it to 0"
            for name, entry in self.auxiliary.items()
            if entry.reward > 0 and not self.learns_rewards
        ]

    def values_from_data(self, dataset: TrainingSet) -> dict[str, Any]:
        """Compute values for keys of this section that are null. They are written into the run's configuration.

        Args:
            dataset: the training set.

        Returns:
            Value by key; keys without an entry stay null.
        """
        return {}

    def values_from_horizon(self, steps: int) -> dict[str, Any]:
        """Compute values for keys of this section that are null from the length of the longest episode.

        Args:
            steps: largest number of steps of an episode, in the demos or of the environment.

        Returns:
            Value by key; keys without an entry stay null.
        """
        return {}


PACKAGE = "imitate.algo"
ENTRY_POINTS = "imitate.algos"


class OpenAlgorithm(AlgoSection, OpenSection):
    """Section ``algo`` of an algorithm that is registered without a section: any key, and the usual optimizers."""

    optim_params: OptimizerConfigs = Field(
        OptimizerConfigs(), description="Optimizers, by the name of the network."
    )

    def _words_for_missing(self, key: str) -> str:
        return (
            f"algo.{key}: is read by the algorithm but not set, and there is no default because the "
            f"algorithm is registered without a section: set algo.{key} in the configuration, read it with "
            f".get('{key}', a default), or register the algorithm with section=... (docs/own_algorithm.md)"
        )


@dataclass(frozen=True)
class AlgorithmEntry:
    """Entry of the registry: the section and the class of an algorithm."""

    section: type[AlgoSection]
    """Type of the section ``algo``."""
    to_class: Callable[[Any], tuple[type, dict[str, Any]]]
    """Function that maps the section ``algo`` to the class and its extra arguments."""


_FILES = {"cal_ql": "cql", "scripted": "slots.scripted"}
"""Modules of algorithms that are defined in a file with another name, by the algorithm's name."""

_entries: dict[str, AlgorithmEntry] = {}


def register(
    algo_name: str,
    section: type[AlgoSection] | None,
    to_class: Callable[[Any], tuple[type, dict[str, Any]]],
) -> None:
    """Register an algorithm; a name can be registered only once.

    Args:
        algo_name: the value of the key ``algo_name``.
        section: type of the section ``algo``, or None for :class:`OpenAlgorithm`.
        to_class: chooses the class from the values of the section ``algo``.

    Raises:
        ConfigError: the name is taken, or the section does not derive from :class:`AlgoSection`.
    """
    if section is not None and not issubclass(section, AlgoSection):
        raise ConfigError(
            f"algorithm '{algo_name}': its section {section.__name__} does not derive from imitate.config.AlgoSection"
        )
    if algo_name in _entries:
        raise ConfigError(
            f"algorithm '{algo_name}' is already registered by "
            f"{_entries[algo_name].to_class.__module__}: "
            "choose another name"
        )
    _entries[algo_name] = AlgorithmEntry(section or OpenAlgorithm, to_class)


def unregister(algo_name: str) -> None:
    """Remove an algorithm from the registry, for example before a notebook defines it again.

    Raises:
        ConfigError: no algorithm of this name is registered.
    """
    if algo_name not in _entries:
        raise ConfigError(
            f"algorithm '{algo_name}' is not registered; {nearest(algo_name, _entries)}"
        )
    del _entries[algo_name]


def find(algo_name: str) -> AlgorithmEntry:
    """Return the entry of the algorithm of this name.

    On first use, the module ``imitate.algo.<algo_name>`` or the entry point of that name is imported.
    """
    module = None if algo_name in _entries else _import(algo_name)
    if algo_name in _entries:
        return _entries[algo_name]
    if module is not None:
        raise ConfigError(
            f"algo_name: the entry point '{algo_name}' of the group {ENTRY_POINTS} names {module}, which registers no "
            f'algorithm of that name: decorate a function there with @register_algo_factory_func("{algo_name}")'
        )
    raise ConfigError(
        f"algo_name: no algorithm '{algo_name}', {nearest(algo_name, available())}; an algorithm "
        "of another package must be installed"
    )


def subtree_type(algo_name: str, key: str) -> type[Section] | None:
    """Return the type of the section ``algo`` or ``observation`` for an algorithm; None for any other section."""
    section = find(algo_name).section
    return {"algo": section, "observation": section.observations or ObservationConfig}.get(key)


def available() -> list[str]:
    """Return the names of all algorithms; imports every module that may register an algorithm."""
    names = {point.name for point in installed_points(ENTRY_POINTS)}
    package = find_spec(PACKAGE)
    for module in iter_modules(package.submodule_search_locations if package else []):
        with suppress(ImportError):  # a broken module must not hide the other names
            _import(module.name)
    return sorted(names | _entries.keys())


def _import(algo_name: str) -> str | None:
    """Import the module that may register the algorithm: a module of this package, or an entry point with this name."""
    module = f"{PACKAGE}.{_FILES.get(algo_name, algo_name)}"
    if re.fullmatch(r"[A-Za-z]\w*", algo_name) and find_spec(module) is not None:
        import_module(module)
        return None
    loaded = None
    for point in installed_points(ENTRY_POINTS, algo_name):
        loaded = point.value
        try:
            point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"algo_name: the entry point '{algo_name}' of the group {ENTRY_POINTS}, {point.value}, cannot be "
                f"loaded: {error}: repair its module, or the entry point in its pyproject.toml"
            ) from error
    return loaded


def is_scripted(name: str) -> bool:
    """Return true for ``scripted``, ``random`` and ``module:function``, unless a file with that name exists."""
    named = name in (SCRIPTED, RANDOM) or re.match(FUNCTION, name) is not None
    return named and not Path(name).exists()
