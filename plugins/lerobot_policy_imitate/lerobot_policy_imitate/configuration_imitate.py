"""Configuration of a policy of imitate in LeRobot's ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass, field

from lerobot.configs.policies import PreTrainedConfig


@PreTrainedConfig.register_subclass("imitate")
@dataclass
class ImitateConfig(PreTrainedConfig):
    """Configuration of a folder with a checkpoint.

    Attributes:
        checkpoint: name of imitate's checkpoint file in the folder.
        observations: names of imitate's observations, by LeRobot's feature; a feature with several names is their
            concatenation.
    """

    checkpoint: str = "policy.pth"
    observations: dict[str, list[str]] = field(default_factory=dict)

    @property
    def observation_delta_indices(self) -> None:
        """Return None: the policy itself keeps the earlier observations that it needs."""
        return

    @property
    def action_delta_indices(self) -> None:
        """Return None: LeRobot does not train the policy."""
        return

    @property
    def reward_delta_indices(self) -> None:
        """Return None: LeRobot does not train the policy."""
        return

    def get_optimizer_preset(self) -> None:
        """Refuse training."""
        raise NotImplementedError("policies of imitate are trained with `imitate train`")

    def get_scheduler_preset(self) -> None:
        """Return None: LeRobot does not train the policy."""
        return

    def validate_features(self) -> None:
        """Check that each feature is one of the policy's.

        Raises:
            ValueError: a feature is missing in ``observations``.
        """
        missing = [name for name in self.input_features or {} if name not in self.observations]
        if missing:
            raise ValueError(f"config.json: 'observations' lacks {missing[0]}")
