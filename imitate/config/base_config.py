"""The tree of a configuration without its checks."""

from pydantic import Field

from imitate.config.experiment import ClusterConfig, ExperimentConfig, MetaConfig
from imitate.config.observation import ObservationConfig, Observations
from imitate.config.section import Section
from imitate.config.train import TrainConfig


class BaseConfig(Section):
    """Sections of a whole configuration; `Config` adds the types that depend on the algorithm, and all checks.

    The methods of an algorithm's section have an argument ``config`` of this type, because they cannot import `Config`,
    which itself contains the algorithm's section.
    """

    algo_name: str = Field(min_length=1, description="Name of the algorithm.")
    experiment: ExperimentConfig = Field(
        ExperimentConfig(), description="Name, logging, checkpoints and evaluation of the run."
    )
    train: TrainConfig = Field(
        TrainConfig(), description="Training data, batches, precision and device."
    )
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
        """All observation keys of the groups obs, goal, subgoal and critic, sorted and without duplicates."""
        return tuple(sorted(self.observation.modalities_of_all()))
