"""The sections ``experiment`` (logging, checkpoints and evaluation of a run), ``cluster`` and ``meta``."""

import warnings
from pathlib import Path
from typing import Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from imitate.config.section import Free, OpenSection, Section
from imitate.errors import UserError
from imitate.system.processes import check_place

DEFAULT_HORIZON = 400
"""Default length of an evaluation episode, in environment steps."""


class LoggingConfig(Section):
    """Outputs of the logger. ``metrics.jsonl`` is always written."""

    terminal_output_to_txt: bool = Field(
        True, description="Copy the terminal's output to a text file in the run folder."
    )
    log_tb: bool = Field(True, description="Write TensorBoard files into the run folder.")
    log_wandb: bool = Field(False, description="Log to Weights & Biases (needs the extra 'wandb').")
    wandb_proj_name: str = Field("debug", description="Project name at Weights & Biases.")
    debug: bool = Field(
        False,
        description="Write to TensorBoard, per epoch: histograms of actions, rewards, values and the policy's standard "
        "deviations, and the gradient noise scale of each network.",
    )

    @model_validator(mode="after")
    def _debug_has_a_place(self) -> Self:
        if self.debug and not self.log_tb:
            raise ValueError(
                "debug writes only to TensorBoard: set log_tb to true, or debug to false"
            )
        return self


class SaveConfig(Section):
    """Checkpoints that are kept in addition to the last one, which is always saved."""

    enabled: bool = Field(True, description="Write checkpoints.")
    every_n_seconds: PositiveFloat | None = Field(
        None, description="Seconds between two checkpoints; null to save none by time."
    )
    every_n_epochs: PositiveInt | None = Field(
        50, description="Epochs between two checkpoints; null to save none by epochs."
    )
    epochs: tuple[PositiveInt, ...] = Field(
        (), description="List of epochs after which a checkpoint is saved."
    )
    on_best_validation: bool = Field(
        False, description="Save when the validation loss is the lowest so far."
    )
    on_best_rollout_return: bool = Field(
        False, description="Save when the mean return of the rollouts is the highest so far."
    )
    on_best_rollout_success_rate: bool = Field(
        True,
        description="Save when the success rate of the rollouts (the mean return, if success is unknown) is "
        "the highest so far.",
    )
    keep_last: PositiveInt | None = Field(
        None,
        description="Number of the newest periodic checkpoints that are kept; null to keep all.",
    )


class RolloutConfig(Section):
    """Evaluation in simulation during training."""

    enabled: bool = Field(True, description="Evaluate the policy during training.")
    n: PositiveInt = Field(50, description="Episodes per evaluation.")
    horizon: PositiveInt | None = Field(
        DEFAULT_HORIZON,
        description=(
            "Number of environment steps after which an episode ends; null for twice the 95 % "
            "quantile of the lengths of the training demos, but at least the length of the longest "
            "one."
        ),
    )
    rate: PositiveInt = Field(50, description="Epochs between two evaluations.")
    warmstart: NonNegativeInt = Field(0, description="Epochs before the first evaluation.")
    terminate_on_success: bool = Field(True, description="End an episode as soon as it succeeds.")
    num_workers: NonNegativeInt | None = Field(
        None,
        description="Number of worker processes for the episodes; 0 to run them in the training process; "
        "null for one per CPU core.",
    )
    step_timeout_s: PositiveFloat = Field(
        60.0,
        description=(
            "Seconds that a step, reset or rendering may take in a worker. If it takes longer, the "
            "worker counts as hung and is replaced, and the episode is repeated. Creating an "
            "environment may take five times as long."
        ),
    )
    background: bool = Field(
        True, description="Evaluate in a separate process while training continues."
    )
    seed: NonNegativeInt = Field(
        100000,
        description="Seed of the first episode; episode i of an evaluation has the seed plus i.",
    )
    give_up_after: PositiveInt | None = Field(
        None,
        description="Stop an evaluation if this number of first episodes have all failed; null to run all episodes.",
    )


class EarlyStoppingConfig(Section):
    """Conditions that end training before ``train.num_epochs``."""

    enabled: bool = Field(
        False, description="End the training early if one of the conditions is met."
    )
    metric: Literal["success_rate", "valid_loss"] = Field(
        "success_rate",
        description="Metric that decides when training ends. If success is unknown, the mean return is used "
        "in place of success_rate, and target is ignored.",
    )
    patience: PositiveInt = Field(
        10, description="Stop after this number of measurements of the metric without improvement."
    )
    target: float | None = Field(
        None,
        description="Stop as soon as the success_rate is at least this value, or the valid_loss at most; "
        "null for no target.",
    )


with warnings.catch_warnings():
    # robomimic's key `validate` is also a deprecated method of pydantic's base class.
    warnings.filterwarnings("ignore", message='Field name "validate"', category=UserWarning)

    class ExperimentConfig(Section):
        """Name, logging, saving and evaluation of a run."""

        name: str = Field(
            "test",
            min_length=1,
            description="Name of the experiment, also of the folder that contains its run folders.",
        )
        validate: bool = Field(
            False,
            description="Measure the loss on the validation demos "
            "(train.hdf5_validation_filter_key).",
        )  # type: ignore[assignment]
        logging: LoggingConfig = Field(LoggingConfig(), description="Outputs of the logger.")
        save: SaveConfig = Field(SaveConfig(), description="Checkpoints that are kept.")
        epoch_every_n_steps: PositiveInt | None = Field(
            100, description="Gradient steps in an epoch; null for one pass over the data."
        )
        validation_epoch_every_n_steps: PositiveInt | None = Field(
            10,
            description="Number of batches per validation; null for one pass over the validation data.",
        )
        env: str | None = Field(
            None,
            description="Name of the environment for evaluation; null for the name stored in the data.",
        )
        additional_envs: tuple[str, ...] | None = Field(
            None, description="Names of further environments in which the policy is evaluated."
        )
        render: bool = Field(False, description="Show the rollouts on the screen.")
        render_video: bool = Field(True, description="Write videos of the rollouts.")
        keep_all_videos: bool = Field(
            False,
            description="Keep the videos of every evaluation; if false, only the videos of saved checkpoints.",
        )
        video_skip: PositiveInt = Field(
            5, description="Environment steps between two video frames."
        )
        rollout: RolloutConfig = Field(RolloutConfig(), description="Evaluation during training.")
        early_stopping: EarlyStoppingConfig = Field(
            EarlyStoppingConfig(), description="Conditions that end training early."
        )
        env_meta_update_dict: OpenSection = Field(
            OpenSection(),
            description="Values that replace values of the env_args stored in the data. Free-form.",
        )
        ckpt_path: str | None = Field(
            None,
            description="Checkpoint (of imitate or robomimic, or a policy folder of LeRobot) from whose weights "
            "and normalization the training starts; null to start from random weights.",
        )
        ckpt_optimizers: bool = Field(
            False, description="Also load the state of the optimizers from ckpt_path."
        )
        ckpt_parts: tuple[str, ...] | None = Field(
            None,
            description="Names of the networks of ckpt_path, or of parts such as policy.encoder, whose weights "
            "are loaded; all other weights and the normalization are new. null loads everything.",
        )

        @field_validator("name")
        @classmethod
        def _stays_below(cls, name: str) -> str:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(
                    "would put the run outside of train.output_dir: give a name without '..' that does not "
                    "begin with '/'"
                )
            return name


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
