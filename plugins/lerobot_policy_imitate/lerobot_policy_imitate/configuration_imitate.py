"""Configuration of a policy of imitate, as LeRobot's ``config.json`` has it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lerobot.configs.policies import PreTrainedConfig


@PreTrainedConfig.register_subclass("imitate")
@dataclass
class ImitateConfig(PreTrainedConfig):
    """A folder with a checkpoint.

    Attributes:
        checkpoint: file of imitate in the folder.
        observations: names of imitate's observations, by LeRobot's feature; several are its numbers side by side.
    """

    checkpoint: str = "policy.pth"
    observations: dict[str, list[str]] = field(default_factory=dict)

    @property
    def observation_delta_indices(self) -> None:
        """None: the policy keeps the frames that it needs."""
        return

    @property
    def action_delta_indices(self) -> None:
        """None: it is not trained here."""
        return

    @property
    def reward_delta_indices(self) -> None:
        """None: it is not trained here."""
        return

    def get_optimizer_preset(self) -> None:
        """Refuse to be trained."""
        raise NotImplementedError("policies of imitate are trained with `imitate train`")

    def get_scheduler_preset(self) -> None:
        """Return none."""
        return

    def validate_features(self) -> None:
        """Check that each feature is one of the policy's.

        Raises:
            ValueError: a feature has no name there.
        """
        missing = [name for name in self.input_features or {} if name not in self.observations]
        if missing:
            raise ValueError(f"config.json: 'observations' lacks {missing[0]}")
