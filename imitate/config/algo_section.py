"""Base class of the section ``algo`` of each algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from imitate.config.base_config import BaseConfig
from imitate.config.data_needs import DataNeeds, TrainingSet
from imitate.config.observation import Observations
from imitate.config.section import Section


class AlgoSection(Section):
    """Section ``algo`` of an algorithm: its keys, and its conditions on data and on the rest of the configuration.

    Attributes:
        tree_defaults: the algorithm's defaults for the shared sections, as a partial tree.
        observations: type of the section ``observation``; None: one list of observations that all networks share.
        acts: true if the algorithm learns a policy, which can be evaluated.
    """

    tree_defaults: ClassVar[Mapping[str, Any]] = {}
    observations: ClassVar[type[Observations] | None] = None
    acts: ClassVar[bool] = True

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

    def values_from_data(self, dataset: TrainingSet) -> dict[str, Any]:
        """Compute values for keys of this section that are null. They are written into the run's configuration.

        Args:
            dataset: the training set.

        Returns:
            Value by key; keys without an entry stay null.
        """
        return {}
