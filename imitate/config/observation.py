"""The section ``observation``: the observations of a policy and their encoders."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from imitate.config.section import OpenSection, Section
from imitate.errors import nearest
from imitate.system.text import MASK

AUTO = "auto"
"""Value used instead of a list of keys: all keys of the modality in the training data."""


def _auto_is_a_list(value: object) -> object:
    return (AUTO,) if value == AUTO else value


ObsKeys = Annotated[
    tuple[str, ...],
    BeforeValidator(_auto_is_a_list, json_schema_input_type=tuple[str, ...] | Literal["auto"]),
]


class ModalityGroup(Section):
    """Observation keys by modality. Modalities other than these four, such as ``mask``, may be added.

    ``"auto"`` stands for all keys of the modality in the training data, or without data in the environment.
    """

    model_config = ConfigDict(extra="allow")

    low_dim: ObsKeys = Field(
        (), description="Keys of vectors (D,); 'auto' for all vectors in the data."
    )
    rgb: ObsKeys = Field(
        (), description="Keys of colour images (H, W, 3), uint8; 'auto' for all in the data."
    )
    depth: ObsKeys = Field(
        (), description="Keys of depth images (H, W, 1); 'auto' for all in the data."
    )
    scan: ObsKeys = Field(
        (),
        description="Keys of laser scans (L, C): L distances and C channels; 'auto' for all in the data.",
    )

    __pydantic_extra__: dict[str, tuple[str, ...]] = Field(init=False)

    @model_validator(mode="after")
    def _each_key_once(self) -> Self:
        home: dict[str, str] = {}
        for modality, keys in self.items():
            for key in keys:
                if key in home and key != AUTO:
                    raise ValueError(
                        f"observation '{key}' is listed under '{home[key]}' and under '{modality}': remove it "
                        "from one of them"
                    )
                home[key] = modality
        masks = (self.__pydantic_extra__ or {}).get(MASK, ())
        if len(masks) > 1:
            raise ValueError(
                f"mask lists {', '.join(masks)}, but an action has one mask: keep one of these keys"
            )
        return self


GROUPS = ("obs", "goal", "subgoal", "critic")
ROBOT_STATE = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object")


class ModalitiesConfig(Section):
    """Observation keys of each group, by modality."""

    obs: ModalityGroup = Field(
        ModalityGroup(low_dim=ROBOT_STATE), description="Observations of the policy."
    )
    goal: ModalityGroup = Field(ModalityGroup(), description="Observations of the goal.")
    subgoal: ModalityGroup = Field(
        ModalityGroup(),
        description="Observations that the planner of a hierarchical policy predicts.",
    )
    critic: ModalityGroup = Field(
        ModalityGroup(),
        description="Observations that critics get in training in addition to obs; the policy does not need "
        "them to act.",
    )

    @model_validator(mode="after")
    def _critics_see_more(self) -> Self:
        seen = {key for keys in self.obs.values() for key in keys}
        twice = [key for keys in self.critic.values() for key in keys if key in seen]
        if twice:
            raise ValueError(
                f"observation '{twice[0]}' is listed in 'obs' and in 'critic', but critics also get all "
                "of 'obs': remove it from 'critic'"
            )
        return self

    @model_validator(mode="after")
    def _groups_agree(self) -> Self:
        home: dict[str, tuple[str, str]] = {}
        for group, modalities in self.items():
            for modality, keys in modalities.items():
                for key in keys:
                    other, wanted = home.setdefault(key, (group, modality))
                    if wanted != modality and key != AUTO:
                        raise ValueError(
                            f"observation '{key}' is '{wanted}' in '{other}' but '{modality}' in '{group}': list it "
                            "under one modality"
                        )
        return self


def _auto_is_an_object(value: object) -> object:
    every = {name: (AUTO,) for name in ModalityGroup.model_fields}
    return {"obs": every} if value == AUTO else value


class EncoderConfig(Section):
    """Encoder network of one modality or one observation."""

    core_class: str | None = Field(
        None,
        description="Class name of the encoder network; null to use the values without a network.",
    )
    core_kwargs: OpenSection = Field(
        OpenSection(), description="Arguments of the network. Free-form."
    )
    share: bool = Field(
        False, description="Share one network among all observations of equal shape."
    )
    feature_activation: Literal["relu"] | None = Field(
        "relu",
        description="Activation after the network; null for no activation, as in robomimic's transformers.",
    )
    obs_randomizer_class: str | tuple[str, ...] | None = Field(
        None, description="Class name of the image augmentation, or a list of names."
    )
    obs_randomizer_kwargs: OpenSection | tuple[OpenSection, ...] = Field(
        OpenSection(),
        description="Arguments of the augmentation; with a list, one object per augmentation. Free-form.",
    )

    def wants_unit_range(self) -> bool:
        """Return true if the network or an augmentation needs images in [0, 1]."""
        names = self.obs_randomizer_class or ()
        trunk = self.core_kwargs.get("backbone_kwargs")
        trunk = trunk if isinstance(trunk, Section) else OpenSection()
        return (
            "ColorRandomizer" in ((names,) if isinstance(names, str) else names)
            or bool(trunk.get("pretrained"))
            or bool(trunk.get("imagenet_normalization"))
        )

    @model_validator(mode="after")
    def _one_kwargs_per_randomizer(self) -> Self:
        names, kwargs = self.obs_randomizer_class, self.obs_randomizer_kwargs
        if isinstance(kwargs, tuple) and (
            not isinstance(names, tuple) or len(names) != len(kwargs)
        ):
            raise ValueError(
                "obs_randomizer_kwargs is a list: give one object per name in the list "
                "obs_randomizer_class"
            )
        return self


class EncodersConfig(Section):
    """Encoder of each modality. Modalities other than these four may be added.

    An entry under the key of an observation replaces the encoder of its modality.
    """

    model_config = ConfigDict(extra="allow")
    entry_type: ClassVar[type[Section] | None] = EncoderConfig

    low_dim: EncoderConfig = Field(EncoderConfig(), description="Encoder of vectors.")
    rgb: EncoderConfig = Field(
        EncoderConfig(core_class="VisualCore"), description="Encoder of colour images."
    )
    depth: EncoderConfig = Field(
        EncoderConfig(core_class="VisualCore"), description="Encoder of depth images."
    )
    scan: EncoderConfig = Field(
        EncoderConfig(core_class="ScanCore"), description="Encoder of laser scans."
    )

    __pydantic_extra__: dict[str, EncoderConfig] = Field(init=False)


class Observations(Section):
    """Observations of an algorithm: one group (:class:`ObservationConfig`) or several (:class:`PartedObservations`)."""

    def modality_of(self, group: str = "obs") -> dict[str, str]:
        """Return the modality of each key of a group ('obs', 'goal', 'subgoal' or 'critic')."""
        return {
            key: modality
            for part in self._parts
            for key, modality in part.modality_of(group).items()
        }

    def modalities_of_all(self) -> dict[str, str]:
        """Return the modality of each key of all groups."""
        return {key: kind for group in GROUPS for key, kind in self.modality_of(group).items()}

    def mask_key(self) -> str | None:
        """Name of the observation of modality ``mask``, or None."""
        return next((k for k, kind in self.modality_of("obs").items() if kind == MASK), None)

    def unit_range_keys(self) -> set[str]:
        """Return the keys of the images that the networks need in [0, 1].

        Colour jitter and networks pretrained on ImageNet need this range.
        """
        return {key for part in self._parts for key in part.unit_range_keys()}

    @property
    def _parts(self) -> tuple[Observations, ...]:
        return tuple(part for part in self.values() if isinstance(part, Observations))


class PartedObservations(Observations):
    """Observations of a hierarchical algorithm: one entry for each of the algorithms of which it consists."""

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        home: dict[str, str] = {}
        for part in self._parts:
            for key, modality in part.modalities_of_all().items():
                if home.setdefault(key, modality) != modality:
                    raise ValueError(
                        f"observation '{key}' is '{home[key]}' for one part of the policy but '{modality}' for "
                        "another: list it under one modality"
                    )
        return self


class ObservationConfig(Observations):
    """Observations of a policy, and their encoders."""

    modalities: Annotated[
        ModalitiesConfig,
        BeforeValidator(
            _auto_is_an_object, json_schema_input_type=ModalitiesConfig | Literal["auto"]
        ),
    ] = Field(ModalitiesConfig(), description="Observation keys by group and modality.")
    encoder: EncodersConfig = Field(EncodersConfig(), description="Encoder networks by modality.")

    def unit_range_keys(self) -> set[str]:
        """Return the keys of the images that the networks need in [0, 1]."""
        sections = {
            key: self.encoder.get(key) or self.encoder.get(modality)
            for group in self.modalities
            for key, modality in self.modality_of(group).items()
        }
        return {key for key, section in sections.items() if section and section.wants_unit_range()}

    @model_validator(mode="after")
    def _encoders_of_something(self) -> Self:
        named = {name for group in self.modalities.values() for name in group}
        named |= {
            key for group in self.modalities.values() for keys in group.values() for key in keys
        }
        for name in self.encoder:
            if name not in named:
                raise ValueError(
                    f"encoder.{name} is neither a modality nor an observation under modalities; {nearest(name, named)}"
                )
        return self

    def modality_of(self, group: str = "obs") -> dict[str, str]:
        """Return the modality of each key of a group ('obs', 'goal', 'subgoal' or 'critic')."""
        return {key: modality for modality, keys in self.modalities[group].items() for key in keys}
