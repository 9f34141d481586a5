"""The section ``train``: data, batches, precision, device."""

from __future__ import annotations

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
        description="HDF5 file or folder of shards, relative to the working directory or to the "
        "folder of the JSON file; or a URL.",
    )
    eval: bool = Field(True, description="Evaluate the policy in this file's environment.")
    lang: str | None = Field(
        None,
        description="Language instruction, or name of the task, for all demos of the file; null: "
        "the attribute language of each demo, or else task_id.",
    )
    key: str | None = Field(
        None,
        description="Short name of the file's environment in logs and videos; null: the "
        "environment's name.",
    )
    filter_key: str | None = Field(
        None,
        description="Train on the demos of this mask; 'all': every demo; null: train.hdf5_filter_key.",
    )
    demo_limit: PositiveInt | None = Field(
        None, description="Train on only this number of demos, the first ones; null: all."
    )
    weight: NonNegativeFloat = Field(
        1.0,
        description="Sampling probability of each sample of this file, relative to the other "
        "files (see normalize_weights_by_ds_size); 0: the data are not used, but the policy is "
        "evaluated in the file's environment.",
    )


class ActionConfig(Section):
    """Normalization and rotation format of one action key."""

    normalization: Literal["min_max", "gaussian", "quantile", "quantile10", "auto"] | None = Field(
        None,
        description="min_max: to [-1, 1]; gaussian: mean 0 and standard deviation 1; quantile: the "
        "quantiles 0.01 and 0.99 of each number to -1 and 1, so that rare extremes are outside this range; "
        "quantile10: the quantiles 0.1 and 0.9; null: as "
        "stored; auto: min_max if actions of the training demos leave [-1, 1] or are all "
        "smaller than 0.5, else as stored.",
    )
    format: Literal["rot_6d"] | None = Field(
        None, description="Rotation format stored under this key; null: no rotation."
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
    """One entry per action key."""

    model_config = ConfigDict(extra="allow")
    entry_type: ClassVar[type[Section] | None] = ActionConfig

    __pydantic_extra__: dict[str, ActionConfig] = Field(init=False)


class PreprocessStepConfig(OpenSection):
    """One step of the preprocessing pipeline; its options are keys of the same object."""

    step: str = Field(
        min_length=1,
        description="Name of the step: clip, pad, relative_actions, resize, tokenize, a step of "
        "another package, or normalize, which marks the position of obs_normalization and "
        "action_config.",
    )


class RewardConfig(Section):
    """Scaling of the rewards given to an algorithm: scale * reward / divisor + shift, then clipped."""

    scale: float = Field(1.0, description="Factor of the rewards.")
    shift: float = Field(0.0, description="Value added to the scaled rewards.")
    normalization: Literal["return_range", "std", "running"] | None = Field(
        None,
        description="The divisor: return_range, the best minus the worst return of a training "
        "demo (used in D4RL's locomotion tasks with scale 1000); std, the standard deviation of "
        "the rewards; running, the standard deviation of the discounted returns so far, for "
        "algorithms that learn from whole rollouts; null: 1.",
    )
    clip: tuple[float, float] | None = Field(
        None, description="Lower and upper limit of the result; null: no limits."
    )

    @model_validator(mode="after")
    def _limits_have_an_order(self) -> Self:
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip {list(self.clip)} wants the lower limit first")
        return self


class SampleWeightConfig(Section):
    """Weights of the steps in the losses."""

    kind: Literal["return", "return_to_go", "key", "interventions"] | None = Field(
        None,
        description="return: exp(R / temperature) with R the demo's return, 0 the worst and 1 "
        "the best; return_to_go: the same with the discounted rewards from the step on; key: "
        "values of an array of the file; interventions: depends on whether a person acted, "
        "according to the array of that name; null: equal weights.",
    )
    temperature: PositiveFloat = Field(
        0.2,
        description="return, return_to_go: the smaller the temperature, the more the best demos dominate.",
    )
    discount: float = Field(
        0.99, ge=0, le=1, description="return_to_go: discount factor of later rewards."
    )
    key: str | None = Field(
        None, description="key: name of an array (T,) in each demo with weights >= 0."
    )
    policy_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="interventions: fraction of the total weight for the steps in which the "
        "policy acted; 0 ignores them, 0.5 gives them the same total weight as the person's.",
    )

    @model_validator(mode="after")
    def _a_key_is_named(self) -> Self:
        if (self.kind == "key") != (self.key is not None):
            raise ValueError("kind 'key' and key belong together: set both or none")
        return self


def _or_a_path(schema: dict[str, Any]) -> None:
    schema["anyOf"].insert(0, {"type": "string"})


class TrainConfig(Section):
    """Data, batches, precision, device."""

    data: tuple[DatasetConfig, ...] | None = Field(
        None,
        json_schema_extra=_or_a_path,
        description="Demonstrations: a path or URL, or a list of objects with at least a path. "
        "null: they are given on the command line.",
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
        description="Number of shards of a folder that are in memory at a time; the next ones "
        "are loaded meanwhile. null: all, or for a URL as many as fit into 4 GB.",
    )
    language_embeddings: str | None = Field(
        None,
        description="File .npz with instructions (N,) and embeddings (N, D) for the observation "
        "lang_emb; null: one-hot vectors, one per instruction in the data.",
    )
    language_bytes: PositiveInt | None = Field(
        None,
        description="Makes lang_emb the text itself, as this number of UTF-8 bytes padded with "
        "zeros, for a step of preprocess that tokenizes it; the policy can then be given "
        "instructions that are not in the data. null: lang_emb is an embedding.",
    )
    num_data_workers: NonNegativeInt = Field(
        0, description="Number of processes that read data; 0 is best for data in RAM."
    )
    hdf5_cache_mode: Literal["auto", "all", "low_dim"] | None = Field(
        "auto",
        description="Data held in RAM: auto (as much as fits into free memory), all, low_dim "
        "(images stay in the file); null: nothing.",
    )
    cache_features: bool = Field(
        True,
        description="Compute the features of frozen image encoders once per dataset, into the cache.",
    )
    hdf5_use_swmr: bool = Field(
        True,
        description="Open the HDF5 file in SWMR mode, so that another process can append to it.",
    )
    hdf5_load_next_obs: bool | None = Field(
        None, description="Add next_obs to batches; null: only if the algorithm needs it."
    )
    hdf5_normalize_obs: bool = Field(
        False, description="robomimic's key; true means obs_normalization mean_std."
    )
    hdf5_filter_key: str | None = Field(
        None,
        description="Train on the demos of this mask; null: the mask 'train' if a file has it, "
        "else all; 'all': every demo, but only those of the mask 'train' if validate is on.",
    )
    hdf5_validation_filter_key: str | None = Field(
        None, description="Mask of the validation demos."
    )
    seq_length: PositiveInt = Field(1, description="Steps in a sample.")
    pad_seq_length: bool = Field(
        True, description="Let samples reach beyond the demo's end (last step repeated)."
    )
    frame_stack: PositiveInt = Field(
        1,
        description="Number of successive observations, up to the current one, that the policy sees.",
    )
    pad_frame_stack: bool = Field(
        True, description="Let samples reach before the demo's start (first step repeated)."
    )
    dataset_keys: tuple[str, ...] = Field(
        ("actions", "rewards", "dones"),
        description="Arrays of each step that are added to a batch, beside observations.",
    )
    reward: RewardConfig = Field(RewardConfig(), description="Scale of the rewards.")
    sample_weight: SampleWeightConfig = Field(
        SampleWeightConfig(), description="Weights of the steps in the losses."
    )
    filter_best: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Train on this fraction of the demos, those with the highest returns (the "
        "shorter ones if returns are equal); null: on all.",
    )
    action_keys: tuple[str, ...] = Field(
        ("actions",),
        min_length=1,
        description="Arrays of each step that are concatenated to form the action.",
    )
    action_config: ActionConfigs = Field(
        ActionConfigs(), description="Per action key: normalization and rotation format."
    )
    preprocess: tuple[PreprocessStepConfig, ...] = Field(
        (),
        description="Further preprocessing steps between the data and the networks, in order; "
        "the same in training, evaluation and deployment.",
    )
    goal_mode: Literal["last"] | None = Field(
        None, description="last: the goal is the demo's last observation; null: no goal."
    )
    cuda: bool = Field(True, description="Use a GPU if there is one.")
    batch_size: PositiveInt = Field(100, description="Samples in a batch.")
    num_epochs: PositiveInt | None = Field(
        2000,
        description="Epochs of training; null: as many as needed to see each sample 20 times, "
        "and for at least 1000 updates.",
    )
    seed: int = Field(1, ge=0, lt=2**32, description="Seed of all random numbers of the training.")
    max_grad_norm: PositiveFloat | None = Field(
        None,
        description="Largest norm of the gradients, which are scaled down to it; null: no limit.",
    )
    gradient_accumulation: PositiveInt = Field(
        1, description="Batches whose gradients are averaged for one update."
    )
    obs_normalization: Literal["mean_std", "min_max", "quantile", "quantile10"] | None = Field(
        None,
        description="Normalization of observations. mean_std: to mean 0 and standard deviation "
        "1; min_max: to [-1, 1]; quantile, for vectors: the quantiles 0.01 and 0.99 of each "
        "number to -1 and 1; quantile10: the quantiles 0.1 and 0.9; null: as stored.",
    )
    obs_clip: PositiveFloat | None = Field(
        None,
        description="Magnitude to which normalized low-dimensional observations are clipped, as "
        "protection against values far from the training data; null: no clipping.",
    )
    precision: Literal["fp32", "bf16", "auto"] = Field(
        "fp32",
        description="Number format of the networks' arithmetic; auto: bf16 if the device "
        "supports it and it is precise enough for the algorithm, else fp32.",
    )
    compile: bool = Field(False, description="Compile the training step with torch.compile.")
    cuda_graph: bool = Field(
        True,
        description="On an NVIDIA GPU: record an update once and repeat it as a whole, where the "
        "algorithm allows it. Several times as fast for small networks; takes more GPU memory.",
    )
    device: str | None = Field(
        None,
        pattern=r"^(cpu|cuda(:\d+)?|mps)$",
        description="cpu, cuda, cuda:1, mps; null: the GPU if cuda is true and there is one, "
        "else the CPU.",
    )
    num_threads: PositiveInt | None = Field(
        None, description="Threads of torch on the CPU; null: torch's default."
    )
    on_bad_loss: Literal["stop", "rollback"] = Field(
        "stop",
        description="Reaction to a loss that is not finite or explodes: stop, or go back to the last good "
        "weights.",
    )
    data_on_device: bool = Field(
        False, description="Keep the training data in the device's memory."
    )
    online: OnlineConfig = Field(
        OnlineConfig(), description="Online RL: learning from steps in an environment."
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
                "hdf5_normalize_obs true means obs_normalization 'mean_std', "
                f"but obs_normalization is {found}: remove one"
            )
        return {**data, "obs_normalization": "mean_std"}

    @model_validator(mode="after")
    def _one_form_of_language(self) -> Self:
        if self.language_bytes is not None and self.language_embeddings is not None:
            raise ValueError(
                "language_bytes makes lang_emb a text and language_embeddings a vector: set one of them to null"
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
