"""LeRobot's side of `benchmarks.lerobot_data`: runs in an interpreter that has LeRobot 0.6.

Reads {"case", "n"} as JSON lines and answers with CPU seconds: batches of its DataLoader, updates of its ACT.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from lerobot.configs import FeatureType
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors
from lerobot.utils.feature_utils import dataset_to_policy_features

BATCH, TRAIN_BATCH, CHUNK = 8, 2, 100


def main(root: str) -> None:
    """Answer requests until the input ends."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    began = time.process_time()
    cases = _cases(root)
    started = time.process_time() - began
    for line in sys.stdin:
        asked = json.loads(line)
        answer = {"cpu_s": started} if asked["case"] in ("start", "end") else {}
        answer["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        if asked["case"] in cases:
            answer |= cases[asked["case"]](asked["n"])
        print(json.dumps(answer), flush=True)


def _cases(root: str) -> dict[str, Callable[[int], dict[str, float]]]:
    plain = LeRobotDataset("local/set", root=root)
    features = dataset_to_policy_features(plain.meta.features)
    actions = {k: f for k, f in features.items() if f.type is FeatureType.ACTION}
    seen = ("observation.state", "observation.images.top", "observation.images.wrist")
    config = ACTConfig(
        input_features={name: features[name] for name in seen},
        output_features=actions,
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    policy = ACTPolicy(config)
    policy.train()
    prepare, _ = make_pre_post_processors(config, dataset_stats=plain.meta.stats)
    times = {"action": [step / plain.fps for step in range(CHUNK)]}
    dataset = LeRobotDataset("local/set", root=root, delta_timestamps=times)
    optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=1e-5, weight_decay=1e-4)

    def batches(size: int) -> Any:
        loader = torch.utils.data.DataLoader(dataset, batch_size=size, shuffle=True, num_workers=0)
        while True:
            yield from loader

    loads, trains = batches(BATCH), batches(TRAIN_BATCH)

    def load(n: int) -> dict[str, float]:
        began = time.process_time()
        for _ in range(n):
            next(loads)
        return {"cpu_s": (time.process_time() - began) / n}

    def train(n: int) -> dict[str, float]:
        began, data_s = time.process_time(), 0.0
        for _ in range(n):
            asked = time.process_time()
            batch = next(trains)
            data_s += time.process_time() - asked
            loss, _ = policy.forward(prepare(batch))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
            optimizer.step()
            optimizer.zero_grad()
        return {"cpu_s": (time.process_time() - began) / n, "data_s": data_s / n}

    return {"load": load, "train": train}


if __name__ == "__main__":
    main(sys.argv[1])
