"""LeRobot's policy interface for a policy of imitate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from imitate import policy_from_checkpoint
from lerobot_policy_imitate.configuration_imitate import ImitateConfig


class ImitatePolicy(PreTrainedPolicy):
    """A policy loaded from a checkpoint of imitate; it controls one robot, step by step.

    Args:
        config: configuration, with the path of its folder.
    """

    config_class = ImitateConfig
    name = "imitate"

    def __init__(self, config: ImitateConfig, *_: Any, **__: Any) -> None:
        super().__init__(config)
        config.validate_features()
        if config.pretrained_path is None:
            raise ValueError("a policy of imitate is loaded from its folder: --policy.path=FOLDER")
        if Path(config.checkpoint).name != config.checkpoint:
            raise ValueError(
                f"config.json: checkpoint is {config.checkpoint!r}; expected a file beside it"
            )
        file = Path(config.pretrained_path) / config.checkpoint
        self._policy, _ = policy_from_checkpoint(ckpt_path=file, device=config.device)
        self._task: str | None = None
        self.nets = self._policy.algo.nets

    @classmethod
    def from_pretrained(
        cls,
        pretrained_name_or_path: str | Path,
        *,
        config: ImitateConfig | None = None,
        **kwargs: Any,
    ) -> ImitatePolicy:
        """Load a folder on this machine; download policies of the Hub with `hf download` first."""
        if not Path(pretrained_name_or_path).is_dir():
            raise FileNotFoundError(
                f"{pretrained_name_or_path}: no such folder; download a policy of the Hub first: hf download "
                f"{pretrained_name_or_path} --local-dir FOLDER"
            )
        kwargs.pop("strict", None)
        if config is None:
            config = ImitateConfig.from_pretrained(pretrained_name_or_path, **kwargs)
        config.pretrained_path = Path(pretrained_name_or_path)
        policy = cls(config)
        policy.eval()
        return policy

    def reset(self) -> None:
        """Begin an episode."""
        self._task = None
        self._policy.start_episode()

    @torch.no_grad()
    def select_action(self, batch: dict[str, Any], **_: Any) -> Tensor:
        """Return the action (1, A) for one robot's observations, which are raw except for images in [0, 1]."""
        task = batch.get("task")
        task = task[0] if isinstance(task, (list, tuple)) and task else task
        if isinstance(task, str) and task != self._task and self._policy.instructions is not None:
            self._policy.start_episode(lang=task)
            self._task = task
        action = self._policy(self._observation(batch))
        return torch.as_tensor(np.asarray(action), dtype=torch.float32)[None]

    def _observation(self, batch: dict[str, Any]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for feature, keys in self.config.observations.items():
            value = batch[feature]
            if len(value) != 1:
                raise ValueError(
                    f"{feature}: {len(value)} robots; policies of imitate control one robot in LeRobot"
                )
            array = value[0].cpu().numpy()
            if array.ndim == 3:
                (key,) = keys
                found[key] = np.rint(array.transpose(1, 2, 0) * 255).astype(np.uint8)
                continue
            start = 0
            for key in keys:
                (size,) = self._policy.algo.preprocess.raw_shapes[key]
                found[key] = array[start : start + size].astype(np.float32)
                start += size
        return found

    def predict_action_chunk(self, batch: dict[str, Any], **_: Any) -> Tensor:
        """Refuse, because the policy executes its chunks itself, step by step."""
        raise NotImplementedError(
            "policies of imitate return one action per step; use select_action"
        )

    def forward(self, batch: dict[str, Any]) -> Any:
        """Refuse to be trained."""
        raise NotImplementedError("policies of imitate are trained with `imitate train`")

    def get_optim_params(self) -> dict[str, Any]:
        """Refuse to be trained."""
        raise NotImplementedError("policies of imitate are trained with `imitate train`")
