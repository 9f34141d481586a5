"""Tree of a configuration without its checks, which need the registry of algorithms."""

from __future__ import annotations

from pydantic import Field

from imitate.config.cluster import ClusterConfig
from imitate.config.experiment import ExperimentConfig
from imitate.config.meta import MetaConfig
from imitate.config.observation import ObservationConfig, Observations
from imitate.config.section import Section
from imitate.config.train import TrainConfig


class BaseConfig(Section):
    """Sections of a whole configuration; `Config` adds the types that depend on the algorithm, and all checks.

    It is the type of ``config`` in the methods of an algorithm's section: `Config` contains such a section, so that
    section cannot import `Config`.
    """

    algo_name: str = Field(min_length=1, description="Name of the algorithm.")
    experiment: ExperimentConfig = Field(
        ExperimentConfig(), description="Name, logging, saving, evaluation."
    )
    train: TrainConfig = Field(TrainConfig(), description="Data, batches, precision, device.")
    algo: Section = Field(Section(), description="Settings of the algorithm.")
    observation: Observations = Field(
        ObservationConfig(), description="Observations and their encoders."
    )
    cluster: ClusterConfig = Field(ClusterConfig(), description="Machines on which workers run.")
    meta: MetaConfig = Field(MetaConfig(), description="Filled in by a hyper-parameter sweep.")

    @property
    def use_goals(self) -> bool:
        """True if the policy is conditioned on a goal."""
        return bool(self.observation.modality_of("goal"))

    @property
    def all_obs_keys(self) -> tuple[str, ...]:
        """All keys of the groups obs, goal and subgoal, sorted and without duplicates."""
        return tuple(sorted(self.observation.modalities_of_all()))
