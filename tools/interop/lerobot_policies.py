"""Export of policies in LeRobot's layouts, with observations and the actions of imitate.

    python lerobot_policies.py FOLDER

The program makes FOLDER/<layout>/<name>/ and FOLDER/<layout>/<name>.npz for each recorded policy, and for policies with
random weights. See lerobot_policies.sh.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "interop"))

from lerobot import test_exporting as ours  # of our tests, without LeRobot
from lerobot.conftest import FIXTURES, Recorded

from imitate.interop.lerobot.exporting import LAYOUTS, export
from imitate.interop.lerobot.importing import from_lerobot
from imitate.policy.checkpoint import checkpoint_dict
from imitate.policy.export import to_lerobot
from imitate.policy.rollout_policy import RolloutPolicy


def acted(algo, observations):
    """Return the actions of a policy in one episode, each with its own seed."""
    algo.set_eval()
    policy = RolloutPolicy(algo)
    policy.start_episode()
    actions = []
    for step, obs in enumerate(observations):
        torch.manual_seed(1000 + step)
        actions.append(policy(obs))
    return np.stack(actions)


def write(folder, name, algo, observations, features):
    """Write a policy in each layout."""
    actions = acted(algo, observations)
    for layout in LAYOUTS:
        (folder / layout).mkdir(parents=True, exist_ok=True)
        export(algo, folder / layout / name, layout)
        seen = {
            feature: np.stack([join(obs, keys) for obs in observations])
            for feature, keys in features.items()
        }
        np.savez(folder / layout / f"{name}.npz", action=actions, **seen)


def join(obs, keys):
    """Return an observation of LeRobot made from ours."""
    return obs[keys[0]] if len(keys) == 1 else np.concatenate([obs[key] for key in keys])


def made():
    """Return policies with this toolkit's observation names and images."""
    act = {**ours.SMALL_ACT, **ours.MAPS, "algo.tokens.camera_positions": False}
    diffusion = {**ours.SMALL_DIFFUSION, **ours.KEYPOINTS}
    return {
        "ours_act": ours.policy_of("act", act, ours.SHAPES),
        "ours_diffusion": ours.policy_of("diffusion_policy", diffusion, ours.SHAPES),
    }


def write_for_rollouts(folder):
    """Write policies for lerobot-rollout with an arm of four joints, and the first action of each."""
    shapes = {"act": {"joints": (4,), "hand_image": (64, 72, 3)}, "bc": {"joints": (4,)}}
    settings = {**ours.SMALL_ACT, **ours.MAPS, "algo.tokens.camera_positions": False}
    act = ours.policy_of("act", settings, shapes["act"])
    bc = ours.policy_of("bc", {}, shapes["bc"])
    folder.mkdir(parents=True)
    export(act, folder / "act", "lerobot")
    to_lerobot(
        checkpoint_dict(bc, env_metadata={}, shape_metadata={}), folder / "bc", "lerobot-plugin"
    )
    still = {"joints": np.zeros(4, np.float32), "hand_image": np.zeros((64, 72, 3), np.uint8)}
    first = {
        name: acted(algo, [{key: still[key] for key in shapes[name]}])[0].tolist()
        for name, algo in {"act": act, "bc": bc}.items()
    }
    (folder / "first.json").write_text(json.dumps(first))


def main(folder):
    torch.set_num_threads(1)
    write_for_rollouts(folder / "rollouts")
    names = [path.name for path in FIXTURES.iterdir() if path.is_dir() and "vqbet" not in path.name]
    for name in sorted(names):
        recorded = Recorded(name, folder / "recorded")
        features = {
            key.removeprefix("obs/"): [ours_name(key)]
            for key in recorded.vectors
            if key.startswith("obs/")
        }
        steps = range(len(recorded.vectors["action"]))
        write(
            folder,
            name,
            from_lerobot(recorded.folder).algo,
            [recorded.observation(step) for step in steps],
            features,
        )
        shutil.rmtree(folder / "recorded")
    features = {
        "observation.state": ["object", "robot0_eef_pos"],
        "observation.images.hand": ["hand_image"],
    }
    observations = [ours.observation(ours.SHAPES, seed) for seed in range(12)]
    for name, algo in made().items():
        write(folder, name, algo, observations, features)


def ours_name(key):
    """Return our key of a recorded feature."""
    from imitate.data.formats.lerobot_layout import obs_name

    return obs_name(key.removeprefix("obs/"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
