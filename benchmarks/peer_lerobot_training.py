"""LeRobot's side of `benchmarks.lerobot_training`: runs in an interpreter that has LeRobot 0.6.

    python -m benchmarks.peer_lerobot_training make FOLDER          datasets, and policies with random weights
    python -m benchmarks.peer_lerobot_training versions
    python -m benchmarks.peer_lerobot_training train POLICY DATASET OUTPUT
    python -m benchmarks.peer_lerobot_training act POLICY

The training is LeRobot's own function ``train``, as `lerobot-train` runs it; only the function of one update is
replaced, by one that runs it in turns. A call of a policy is its ``predict_action``, as its robots use it.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch

from benchmarks.turns import Turns, answer, serve_calls

STATE, ENVIRONMENT, ACTION = 14, 16, 14
CAMERAS = ("top", "wrist")
SIDE, FPS = 96, 30


def make(folder: Path, episodes: int = 10, steps: int = 60) -> None:
    """Write the two datasets, and a policy of each kind with random weights."""
    from lerobot.configs.video import RGBEncoderConfig
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    random = np.random.default_rng(0)
    scene = np.kron(random.integers(0, 256, (24, 24, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    vectors = {
        "observation.state": {"dtype": "float32", "shape": (STATE,), "names": None},
        "action": {"dtype": "float32", "shape": (ACTION,), "names": None},
    }
    environment = {"dtype": "float32", "shape": (ENVIRONMENT,), "names": None}
    image = {"dtype": "video", "shape": (SIDE, SIDE, 3), "names": ["height", "width", "channels"]}
    seen: dict[str, dict[str, Any]] = {
        "images": {f"observation.images.{name}": image for name in CAMERAS},
        "vectors": {"observation.environment_state": environment},
    }
    for name, features in seen.items():
        dataset = LeRobotDataset.create(
            f"local/{name}",
            FPS,
            {**vectors, **features},
            root=folder / name,
            rgb_encoder=RGBEncoderConfig(vcodec="h264"),
        )
        for episode in range(episodes):
            for step in range(steps):
                frame: dict[str, Any] = {
                    key: scene[(at := (step + 7 * episode) % SIDE) : at + SIDE, at : at + SIDE]
                    if feature["dtype"] == "video"
                    else random.uniform(-1, 1, feature["shape"]).astype(np.float32)
                    for key, feature in {**vectors, **features}.items()
                }
                dataset.add_frame({**frame, "task": "move"})
            dataset.save_episode()
        dataset.finalize()
    for kind, data in (("act", "images"), ("act", "vectors"), ("diffusion", "images")):
        _save_policy(kind, folder / data, folder / f"{kind}_{data}")
    answer(made=str(folder))


def _save_policy(kind: str, data: Path, target: Path) -> None:
    from lerobot.configs import FeatureType
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    from lerobot.utils.feature_utils import dataset_to_policy_features

    meta = LeRobotDatasetMetadata(f"local/{data.name}", root=data)
    features = dataset_to_policy_features(meta.features)
    actions = {name: f for name, f in features.items() if f.type is FeatureType.ACTION}
    shared: dict[str, Any] = {
        "input_features": {name: f for name, f in features.items() if name not in actions},
        "output_features": actions,
        "pretrained_backbone_weights": None,
        "device": "cpu",
        "push_to_hub": False,
    }
    config: Any
    if kind == "act":  # LeRobot's defaults, except for narrower transformers
        config = ACTConfig(dim_model=256, dim_feedforward=1024, **shared)
    else:
        config = DiffusionConfig(
            horizon=16,
            n_action_steps=8,
            crop_shape=(84, 84),
            use_group_norm=True,
            use_separate_rgb_encoder_per_camera=False,
            down_dims=(128, 256, 512),
            noise_scheduler_type="DDIM",
            num_inference_steps=10,
            drop_n_last_frames=0,
            **shared,
        )
    torch.manual_seed(0)
    policy = get_policy_class(kind)(config)
    policy.save_pretrained(target)
    for processor in make_pre_post_processors(config, dataset_stats=meta.stats):
        processor.save_pretrained(target)


def train(policy: Path, data: Path, output: Path, batch_size: int) -> None:
    """Train in turns."""
    from lerobot.configs import PreTrainedConfig
    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig
    from lerobot.scripts import lerobot_train

    config = PreTrainedConfig.from_pretrained(policy)
    config.pretrained_path = policy
    lerobot_train.update_policy = Turns(
        lerobot_train.update_policy,
        lambda _, policy, *rest, **more: sum(
            p.numel() for p in policy.parameters() if p.requires_grad
        ),
    )
    lerobot_train.train(
        TrainPipelineConfig(
            dataset=DatasetConfig(f"local/{data.name}", root=str(data), use_imagenet_stats=False),
            policy=config,
            output_dir=output,
            batch_size=batch_size,
            num_workers=0,
            env_eval_freq=0,
            save_checkpoint=False,
        )
    )


def act(folder: Path) -> None:
    """Answer requests for calls of a policy."""
    from lerobot.common.control_utils import predict_action
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    config = PreTrainedConfig.from_pretrained(folder)
    policy = get_policy_class(config.type).from_pretrained(folder)
    before, after = make_pre_post_processors(config, pretrained_path=str(folder))
    device = torch.device("cpu")

    def call(observation: dict[str, Any]) -> Any:
        return predict_action(observation, policy, device, before, after, use_amp=False)[0]

    answer(ready=1)
    serve_calls(call, policy.reset)


def main() -> None:
    """Run the task named on the command line."""
    torch.set_num_threads(1)
    mode, *rest = sys.argv[1:]
    if mode == "versions":
        names = ("lerobot", "torch", "numpy", "accelerate", "diffusers", "av")
        answer(python=sys.version.split()[0], **{name: version(name) for name in names})
    elif mode == "make":
        make(Path(rest[0]))
    elif mode == "train":
        train(Path(rest[0]), Path(rest[1]), Path(rest[2]), int(rest[3]))
    else:
        act(Path(rest[0]))


if __name__ == "__main__":
    main()
