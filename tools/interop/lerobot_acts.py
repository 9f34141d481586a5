"""Test that LeRobot acts with policies written by imitate: the tensors are complete, and actions are the same.

    python lerobot_acts.py FOLDER

It runs in LeRobot's environment, without imitate. It prints a line for each policy and exits with 1 if one differs. See
lerobot_policies.sh.
"""

import json
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

TOLERANCE = 3e-3
"""Tolerance in standard deviations of the actions: frozen BatchNorm with random weights amplifies rounding errors."""
RELEASE = tuple(int(part) for part in metadata.version("lerobot").split(".")[:2])
IS_OLD = RELEASE < (0, 4)


def policy_class(kind):
    if kind == "act":
        from lerobot.policies.act.modeling_act import ACTPolicy

        return ACTPolicy
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    return DiffusionPolicy


def frame(arrays, step):
    """Return an observation in the form of LeRobot's policies: a batch of one, images in [0, 1]."""
    found = {}
    for name, values in arrays.items():
        if name != "action":
            value = torch.as_tensor(values[step])
            is_image = value.dtype == torch.uint8
            found[name] = (value.permute(2, 0, 1).float() / 255 if is_image else value.float())[
                None
            ]
    return found


def largest_error(folder):
    """Load the weights strictly; return the largest difference of an action, in its standard deviations."""
    config = json.loads((folder / "config.json").read_text())
    policy = policy_class(config["type"]).from_pretrained(folder, strict=True)
    policy.eval()
    policy.reset()
    before = behind = lambda value: value
    if not IS_OLD:
        from lerobot.policies.factory import make_pre_post_processors

        before, behind = make_pre_post_processors(policy.config, pretrained_path=str(folder))
    arrays = dict(np.load(folder.parent / f"{folder.name}.npz"))
    spread = arrays["action"].std(axis=0).clip(min=1e-3)
    worst = 0.0
    with torch.inference_mode():
        for step, wanted in enumerate(arrays["action"]):
            torch.manual_seed(1000 + step)
            action = behind(policy.select_action(before(frame(arrays, step))))
            worst = max(worst, float((np.abs(action.squeeze(0).numpy() - wanted) / spread).max()))
    return worst


def main(root):
    torch.set_num_threads(1)
    layout = root / ("lerobot-0.3" if IS_OLD else "lerobot")
    failed = False
    for config in sorted(layout.glob("*/config.json")):
        error = largest_error(config.parent)
        failed |= not error <= TOLERANCE
        sys.stdout.write(
            f"lerobot {metadata.version('lerobot')}: {config.parent.name}: {error:.1e}\n"
        )
        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
