"""Test that a policy in LeRobot's layout acts in PushT or ALOHA with the environment's names. See gym_worlds.sh.

    python gym_worlds.py pusht|aloha FOLDER

The policy has random weights, so its success does not matter; its actions must equal those with its own names.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from typer.testing import CliRunner

from imitate import policy_from_checkpoint
from imitate.algo.base.factory import algo_factory
from imitate.cli.main import app
from imitate.config import load_config
from imitate.envs import make_env
from imitate.interop.lerobot.exporting import export
from imitate.models.preprocess import Preprocess
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from imitate.system.trust import trust_env

SMALL_ACT = {
    "algo.chunk.size": 8,
    "algo.chunk.execute": 8,
    "algo.transformer.embed_dim": 16,
    "algo.transformer.num_heads": 2,
    "algo.transformer.feedforward_dim": 24,
    "algo.transformer.encoder_layers": 1,
    "algo.transformer.decoder_layers": 1,
    "algo.vae.enabled": False,
    "algo.tokens.separate_vectors": True,
    "algo.tokens.shared_maps": True,
    "algo.tokens.camera_positions": False,
    "train.seq_length": 8,
    "observation.encoder.rgb.core_class": "VisualCore",
    "observation.encoder.rgb.core_kwargs.pool_class": None,
    "observation.encoder.rgb.core_kwargs.flatten": False,
    "observation.encoder.rgb.core_kwargs.feature_dimension": None,
}
WORLDS = {
    "pusht": (
        "gym_pusht:gym_pusht/PushT-v0",
        {"obs_type": "environment_state_agent_pos"},
        {"state": (2,), "environment_state": (16,)},
        {"agent_pos": "state"},
        (256.0, 100.0),
    ),
    "aloha": (
        "gym_aloha:gym_aloha/AlohaTransferCube-v0",
        {"obs_type": "pixels"},
        {"top_image": (480, 640, 3)},
        {"top": "top_image"},
        (0.0, 0.3),
    ),
}


def write_policy(folder, shapes, action_dim, scale):
    """Write an ``act`` policy with random weights as LeRobot's folder, which needs a vector, or as our file."""
    images = [key for key, shape in shapes.items() if len(shape) == 3]
    modalities = {key: "rgb" if key in images else "low_dim" for key in shapes}
    settings = {
        "observation.modalities.obs.rgb": images,
        "observation.modalities.obs.low_dim": [key for key in shapes if key not in images],
    }
    config = load_config({"algo_name": "act"}).with_overrides({**SMALL_ACT, **settings})
    torch.manual_seed(0)
    seen = {k: (s[2], *s[:2]) if k in images else s for k, s in shapes.items()}
    algo = algo_factory("act", config, seen, action_dim, "cpu")
    offset, spread = (torch.full((action_dim,), value) for value in scale)
    algo.preprocess = Preprocess(
        shapes, modalities, {"actions": action_dim}, {}, {"actions": (offset, spread)}
    )
    algo.set_eval()
    if len(images) < len(shapes):
        export(algo, folder, "lerobot")
    else:
        ckpt = checkpoint_dict(algo, env_metadata={}, shape_metadata={"raw_shapes": shapes})
        save_checkpoint(ckpt, folder)


def first_actions(policy, meta, names, steps=3):
    """Return the policy's actions in the environment's first episode, with observations renamed by ``names``."""
    env = make_env(meta)
    obs, _ = env.reset(seed=0)
    policy.start_episode()
    actions = []
    for _ in range(steps):
        actions.append(policy({names.get(key, key): value for key, value in obs.items()}))
        obs = env.step(actions[-1])[0]
    env.close()
    return np.stack(actions)


def command(*words):
    """Run a command of imitate; return its output."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, f"{words}: {done.output}"
    return done.output


def main(world, folder):
    """Test an environment; raise AssertionError if a result is not as expected."""
    name, kwargs, shapes, rename, scale = WORLDS[world]
    meta = {"env_name": name, "type": 2, "env_kwargs": kwargs}
    folder.mkdir(parents=True)
    env_file, policy, copy = folder / "env.json", folder / "policy", folder / "copy.pth"
    env_file.write_text(json.dumps(meta))
    trust_env(name)
    env = make_env(meta)
    write_policy(policy, shapes, env.action_dim, scale)
    env.close()

    plain, _ = policy_from_checkpoint(device="cpu", ckpt_path=policy)
    renamed, _ = policy_from_checkpoint(device="cpu", ckpt_path=policy, rename=rename)
    expected = first_actions(plain, meta, rename)
    assert np.array_equal(first_actions(renamed, meta, {}), expected)
    assert np.ptp(expected) > 0

    options = [word for given, own in rename.items() for word in ("--rename", f"{given}={own}")]
    play = (
        "--env",
        env_file,
        "--trust",
        name.partition(":")[0],
        "--episodes",
        2,
        "--workers",
        1,
        "--horizon",
        10,
    )
    output = command("eval", "--agent", policy, *play, *options)
    assert "0/2 = 0.0 %  0.0 - 65.8 %" in output, output  # Wilson: z^2 / (2 + z^2) with z = 1.96
    command("convert-checkpoint", policy, copy, "--to", "imitate", *options)
    output = command("eval", "--agent", copy, *play)
    assert "as saved in it" in output, output
    sys.stdout.write(f"{output.strip()}\n{world}: plays under the names of the environment\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
