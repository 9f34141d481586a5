"""The section ``train``: training data, batches, precision and device."""

from typing import Any, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from imitate.config.online import OnlineConfig
from imitate.config.section import OpenSection, Section

ALL_DEMOS = "all"
"""Filter key that selects every demo of a file, unless a mask of the file has this name."""


class DatasetConfig(Section):
    """One demonstration file."""

    path: str = Field(
        min_length=1,
        description="HDF5 file, folder of shards, or a URL. A path is relative to the working directory or "
        "to the folder of the JSON file.",
    )
    eval: bool = Field(True, description="Evaluate the policy in this file's environment.")
    lang: str | None = Field(
        None,
        description="Language instruction, or name of the task, for all demos of the file; null for the "
        "attribute language of each demo, or else task_id.",
    )
    key: str | None = Field(
        None,
        description="Short name of the file's environment in logs and videos; null for the environment's name.",
    )
    filter_key: str | None = Field(
        None,
        description="Train on the demos of this mask of the file; 'all' for every demo; null for "
        "train.hdf5_filter_key.",
    )
    demo_limit: PositiveInt | None = Field(
        None, description="Train only on the first demos, this many at most; null for all."
    )
    weight: NonNegativeFloat = Field(
        1.0,
        description="Sampling probability of each sample of this file, relative to the other "
        "files (see normalize_weights_by_ds_size). With 0 the data are not used, but the policy "
        "is evaluated in the file's environment.",
    )


class ActionConfig(Section):
    """Normalization and rotation format of one action key."""

    normalization: Literal["min_max", "gaussian", "quantile", "quantile10", "auto"] | None = Field(
        None,
        description="Normalization of each dimension. min_max: to [-1, 1]; gaussian: to mean 0 and standard "
        "deviation 1; quantile: the quantiles 0.01 and 0.99 to -1 and 1, so that rare extremes "
        "are outside this range; quantile10: the quantiles 0.1 and 0.9 to -1 and 1; null: none; "
        "auto: min_max if some actions of the training demos are outside of [-1, 1] or the "
        "absolute values of all actions are below 0.5, else none.",
    )
    format: Literal["rot_6d"] | None = Field(
        None,
        description="Rotation format of the values stored under this key; null if they are not a rotation.",
    )
    convert_at_runtime: Literal["rot_axis_angle", "rot_euler"] | None = Field(
        None, description="Rotation format of the actions sent to the robot; needs format."
    )

    @model_validator(mode="after")
    def _conversion_has_a_source(self) -> Self:
        if self.convert_at_runtime and not self.format:
            raise ValueError("convert_at_runtime needs format: set format to 'rot_6d'")
        return self


class ActionConfigs(Section):
    """Normalization and rotation format, with one entry per action key."""

    model_config = ConfigDict(extra="allow")
    entry_type: ClassVar[type[Section] | None] = ActionConfig

    __pydantic_extra__: dict[str, ActionConfig] = Field(init=False)


class PreprocessStepConfig(OpenSection):
    """One step of the preprocessing pipeline; its options are keys of the same object."""

    step: str = Field(
        min_length=1,
        description="Name of the step: clip, pad, relative_actions, resize, tokenize, a step of another "
        "package, or normalize, which marks where obs_normalization and action_config are "
        "applied.",
    )


class RewardConfig(Section):
    """Scaling of the rewards given to an algorithm: scale * reward / divisor + shift, then clipped."""

    scale: float = Field(1.0, description="Factor of the rewards.")
    shift: float = Field(0.0, description="Value added to the scaled rewards.")
    normalization: Literal["return_range", "std", "running"] | None = Field(
        None,
        description="Divisor of the rewards: return_range, the best minus the worst return of a training "
        "demo (used in D4RL's locomotion tasks with scale 1000); std, the standard deviation of "
        "the rewards; running, the standard deviation of the discounted returns so far, for "
        "algorithms that learn from whole rollouts; null for 1.",
    )
    clip: tuple[float, float] | None = Field(
        None,
        description="Lowest and highest value to which the scaled rewards are clipped; null to leave them unclipped.",
    )

    @model_validator(mode="after")
    def _limits_have_an_order(self) -> Self:
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(
                f"clip {list(self.clip)}: give the lower limit first, then a higher one"
            )
        return self


class SampleWeightConfig(Section):
    """Weights of the steps in the losses."""

    kind: Literal["return", "return_to_go", "key", "interventions"] | None = Field(
        None,
        description="Source of the weights. return: exp(R / temperature), with R the demo's return scaled to "
        "0 for the worst and 1 for the best demo; return_to_go: the same formula with the "
        "discounted sum of the rewards from the step on; key: an array of the file; "
        "interventions: one weight for steps in which a person acted (the array interventions), "
        "another weight for all other steps; null for equal weights.",
    )
    temperature: PositiveFloat = Field(
        0.2,
        description="For return and return_to_go: the smaller the temperature, the larger the weights of the "
        "best demos.",
    )
    discount: float = Field(
        0.99, ge=0, le=1, description="For return_to_go: discount factor of later rewards."
    )
    key: str | None = Field(
        None, description="For key: name of an array (T,) in each demo with weights >= 0."
    )
    policy_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="For interventions: fraction of the total weight for the steps in which the policy "
        "acted; 0 ignores these steps, 0.5 gives them the same total weight as the steps of the "
        "person.",
    )

    @model_validator(mode="after")
    def _a_key_is_named(self) -> Self:
        if (self.kind == "key") != (self.key is not None):
            raise ValueError("kind 'key' and the option key are used together: set both or neither")
        return self


def _or_a_path(schema: dict[str, Any]) -> None:
    schema["anyOf"].insert(0, {"type": "string"})


class TrainConfig(Section):
    """Training data, batches, precision and device."""

    data: tuple[DatasetConfig, ...] | None = Field(
        None,
        json_schema_extra=_or_a_path,
        description="Demonstrations: a path or URL, or a list of objects with at least a path; null if the "
        "command line names them.",
    )
    output_dir: str = Field(
        "runs",
        min_length=1,
        description="Folder of all runs, relative to the working directory; a run is written to "
        "output_dir/experiment.name/timestamp.",
    )
    normalize_weights_by_ds_size: bool = Field(
        False,
        description="Divide the weight of each file by its number of samples, so that the weight "
        "is the file's fraction of a batch.",
    )
    shard_window: PositiveInt | None = Field(
        None,
        description="Number of shards of a folder that are in memory at a time, while the next ones are "
        "loaded; null for all, or for a URL as many as fit into 4 GB.",
    )
    language_embeddings: str | None = Field(
        None,
        description="File .npz with instructions (N,) and embeddings (N, D) for the observation lang_emb; "
        "null to use one-hot vectors, one per instruction in the data.",
    )
    language_bytes: PositiveInt | None = Field(
        None,
        description="If given, lang_emb is the instruction itself as UTF-8 bytes, padded with zeros to this "
        "number, for a step of preprocess that tokenizes it; the policy then also accepts "
        "instructions that are not in the data. null if lang_emb is an embedding.",
    )
    num_data_workers: NonNegativeInt = Field(
        0,
        description="Number of worker processes that read data; 0 reads in the training process, which is "
        "best for data in RAM.",
    )
    hdf5_cache_mode: Literal["auto", "all", "low_dim"] | None = Field(
        "auto",
        description="Data held in RAM: auto (as much as fits into free memory), all, or low_dim (images are "
        "read from the file); null to read everything from the file.",
    )
    cache_features: bool = Field(
        True,
        description="Compute the features of frozen image encoders once per dataset, and store them in the "
        "cache folder.",
    )
    hdf5_use_swmr: bool = Field(
        True,
        description="Open the HDF5 file in SWMR mode, so that another process can append to it.",
    )
    hdf5_load_next_obs: bool | None = Field(
        None, description="Add next_obs to batches; null to add it only if the algorithm needs it."
    )
    hdf5_normalize_obs: bool = Field(
        False,
        description="Key of robomimic; true has the same effect as obs_normalization mean_std.",
    )
    hdf5_filter_key: str | None = Field(
        None,
        description="Train on the demos of this mask. null selects the mask 'train' if a file has it, else "
        "every demo; 'all' selects every demo, or the mask 'train' if validate is on.",
    )
    hdf5_validation_filter_key: str | None = Field(
        None, description="Name of the mask of the validation demos."
    )
    seq_length: PositiveInt = Field(
        1, description="Number of steps of the window that each sample contains."
    )
    pad_seq_length: bool = Field(
        True, description="Let windows extend beyond the demo's end, by repeating its last step."
    )
    frame_stack: PositiveInt = Field(
        1,
        description="Number of successive observations, up to the current one, that the policy sees.",
    )
    pad_frame_stack: bool = Field(
        True, description="Let windows begin before the demo's start, by repeating its first step."
    )
    dataset_keys: tuple[str, ...] = Field(
        ("actions", "rewards", "dones"),
        description="Step arrays of the file that are added to batches in addition to observations.",
    )
    reward: RewardConfig = Field(RewardConfig(), description="Scaling and clipping of the rewards.")
    sample_weight: SampleWeightConfig = Field(
        SampleWeightConfig(), description="Weights of the steps in the losses."
    )
    filter_best: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Train only on this fraction of the demos, with the highest returns (the shorter ones if "
        "returns are equal); null for all demos.",
    )
    action_keys: tuple[str, ...] = Field(
        ("actions",),
        min_length=1,
        description="Step arrays of the file that are concatenated to form the action.",
    )
    action_config: ActionConfigs = Field(
        ActionConfigs(), description="Normalization and rotation format of each action key."
    )
    preprocess: tuple[PreprocessStepConfig, ...] = Field(
        (),
        description="Further preprocessing steps between the data and the networks, in order; "
        "the same in training, evaluation and deployment.",
    )
    goal_mode: Literal["last"] | None = Field(
        None,
        description="'last' gives the demo's last observation as goal; null for a policy without a goal.",
    )
    cuda: bool = Field(True, description="Use a GPU if there is one.")
    batch_size: PositiveInt = Field(100, description="Samples in a batch.")
    num_epochs: PositiveInt | None = Field(
        2000,
        description="Number of epochs; null for as many as are needed to see each sample 20 times and to "
        "make at least 1000 updates.",
    )
    seed: int = Field(1, ge=0, lt=2**32, description="Seed of all random numbers of the training.")
    max_grad_norm: PositiveFloat | None = Field(
        None,
        description="Gradients with a larger norm are scaled down to this norm; null to leave them as they are.",
    )
    gradient_accumulation: PositiveInt = Field(
        1, description="Number of batches whose gradients are averaged for one update."
    )
    obs_normalization: Literal["mean_std", "min_max", "quantile", "quantile10"] | None = Field(
        None,
        description="Normalization of each dimension of the observations. mean_std: to mean 0 and standard "
        "deviation 1; min_max: to [-1, 1]; quantile (only vectors): the quantiles 0.01 and 0.99 "
        "to -1 and 1; quantile10: the quantiles 0.1 and 0.9 to -1 and 1; null for none.",
    )
    obs_clip: PositiveFloat | None = Field(
        None,
        description="Absolute value to which normalized low-dimensional observations are clipped, because "
        "values far from the training data could cause wrong actions; null for no clipping.",
    )
    precision: Literal["fp32", "bf16", "auto"] = Field(
        "fp32",
        description="Number format of the networks' arithmetic; auto chooses bf16 if the device supports it "
        "and it is precise enough for the algorithm, else fp32.",
    )
    compile: bool = Field(False, description="Compile the training step with torch.compile.")
    cuda_graph: bool = Field(
        True,
        description="On an NVIDIA GPU, record an update as a CUDA graph and replay it, if the algorithm "
        "allows it. This is several times as fast for small networks, but takes more GPU memory.",
    )
    device: str | None = Field(
        None,
        pattern=r"^(cpu|cuda(:\d+)?|mps)$",
        description="Device of the networks: cpu, cuda, cuda:1 or mps; null for the GPU if cuda is true and "
        "there is one, else the CPU.",
    )
    num_threads: PositiveInt | None = Field(
        None, description="Number of torch threads on the CPU; null for torch's default."
    )
    on_bad_loss: Literal["stop", "rollback"] = Field(
        "stop",
        description="Reaction to a loss that explodes or is not finite: stop the training, or restore the "
        "last good weights.",
    )
    data_on_device: bool = Field(
        False, description="Keep the training data in the device's memory."
    )
    online: OnlineConfig = Field(
        OnlineConfig(),
        description="Settings of online RL, that is learning from steps in an environment.",
    )

    @field_validator("data", mode="before")
    @classmethod
    def _paths_are_objects(cls, value: object) -> object:
        if isinstance(value, str):
            return ({"path": value},)
        if isinstance(value, list | tuple):
            return tuple({"path": one} if isinstance(one, str) else one for one in value)
        return value

    @model_validator(mode="before")
    @classmethod
    def _hdf5_normalize_obs_means_mean_std(cls, data: object) -> object:
        if not isinstance(data, dict) or data.get("hdf5_normalize_obs") is not True:
            return data
        other = data.get("obs_normalization", "mean_std")
        if other != "mean_std":
            found = "null" if other is None else repr(other)
            raise ValueError(
                "hdf5_normalize_obs true means obs_normalization 'mean_std', but obs_normalization is "
                f"{found}: remove one of the two keys"
            )
        return {**data, "obs_normalization": "mean_std"}

    @model_validator(mode="after")
    def _one_form_of_language(self) -> Self:
        if self.language_bytes is not None and self.language_embeddings is not None:
            raise ValueError(
                "language_bytes makes lang_emb a text, but language_embeddings makes it a vector: set "
                "one of them to null"
            )
        return self

    @model_validator(mode="after")
    def _each_action_key_has_an_entry(self) -> Self:
        missing = [key for key in self.action_keys if key not in self.action_config]
        if missing:
            entries = {
                **dict(self.action_config.items()),
                **{key: ActionConfig() for key in missing},
            }
            self.__dict__["action_config"] = ActionConfigs(**entries)
        return self
