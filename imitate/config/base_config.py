"""The tree of a configuration without its checks, and the sections ``meta`` and ``cluster``."""

from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator

from imitate.config.experiment import ExperimentConfig
from imitate.config.observation import ObservationConfig, Observations
from imitate.config.section import Free, Section
from imitate.config.train import TrainConfig
from imitate.errors import UserError
from imitate.system.processes import check_place


class MetaConfig(Section):
    """Filled in by a hyper-parameter sweep."""

    hp_base_config_file: str | None = Field(
        None, description="Path of the configuration from which the sweep started."
    )
    hp_keys: tuple[str, ...] = Field((), description="Names of the swept keys.")
    hp_values: tuple[Free, ...] = Field(
        (), description="Values of the swept keys in this run. Free-form."
    )


class ClusterConfig(Section):
    """Placement of workers: on this machine, or on the nodes of a Ray cluster."""

    on: str = Field(
        "local",
        description=(
            "'local' runs workers as processes on this machine; 'ray' uses the Ray cluster at "
            "RAY_ADDRESS or the one running on this machine, or else starts a private one; "
            "'ray:HOST:PORT' uses the cluster at this address. The option --on sets this key."
        ),
    )
    cpus_per_worker: NonNegativeFloat = Field(
        1.0, description="CPU cores reserved for each worker, on Ray."
    )
    gpus_per_worker: NonNegativeFloat = Field(
        0.0, description="GPUs reserved for each worker, on Ray; may be a fraction."
    )
    start_timeout_s: PositiveFloat = Field(
        300.0,
        description="Seconds to wait until a worker starts, on Ray; then the run ends with an error.",
    )
    spread: bool = Field(
        True, description="Spread workers over the nodes, on Ray; false packs them on few nodes."
    )

    @field_validator("on")
    @classmethod
    def _is_a_place(cls, on: str) -> str:
        try:
            check_place(on)
        except UserError as error:
            raise ValueError(str(error).replace("--on", "on", 1)) from None
        return on


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
