"""Export of our policies of every class that robomimic has to its releases, with their actions.

python robomimic_exports.py FOLDER [--diffusion]

The program writes FOLDER/<release>/NAME.pth and NAME.npz: observations (12, ...) and our actions for them in turn after
`torch.manual_seed(0)`.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from imitate import algo_factory, load_config, policy_from_checkpoint
from imitate.errors import CheckpointError
from imitate.interop.robomimic.exporting import RELEASES
from imitate.models.preprocess import Preprocess
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from imitate.policy.export import to_robomimic

STEPS, ACTION_DIM = 12, 7
SHAPES = {"object": (10,), "robot0_eef_pos": (3,)}
MODALITIES = {"obs": {"low_dim": list(SHAPES)}}
RNN = {"enabled": True, "hidden_dim": 12, "horizon": 5}
TRANSFORMER = {
    "enabled": True,
    "context_length": 4,
    "embed_dim": 16,
    "num_layers": 2,
    "num_heads": 2,
}
RL = {"actor": {"layer_dims": [24, 20]}, "critic": {"layer_dims": [24, 20]}}
BC = {"actor_layer_dims": [24, 20]}
PRIOR = {"learn": True, "is_conditioned": True, "use_gmm": True, "gmm_learn_weights": True}

COSINE = {"policy": {"learning_rate": {"scheduler_type": "cosine", "warmup_steps": 5}}}

CASES = {
    "bc": ("bc", BC, {}),
    "bc_cosine": ("bc", {**BC, "optim_params": COSINE}, {}),
    "bc_gaussian": ("bc", {**BC, "gaussian": {"enabled": True}}, {}),
    "bc_gmm": ("bc", {**BC, "gmm": {"enabled": True}}, {}),
    "bc_normalized": ("bc", BC, {"obs_normalization": "mean_std"}),
    "bc_normalized_actions": (
        "bc",
        BC,
        {"action_config": {"actions": {"normalization": "min_max"}}},
    ),
    "bc_vae": ("bc", {"vae": {"enabled": True}}, {}),
    "bc_vae_gmm_prior": ("bc", {"vae": {"enabled": True, "prior": PRIOR}}, {}),
    "bc_rnn": ("bc", {**BC, "rnn": RNN}, {"seq_length": 5}),
    "bc_rnn_gmm": (
        "bc",
        {"actor_layer_dims": [], "rnn": RNN, "gmm": {"enabled": True}},
        {"seq_length": 5},
    ),
    "bc_transformer": ("bc", {"transformer": TRANSFORMER}, {"frame_stack": 4}),
    "bc_transformer_gmm": (
        "bc",
        {"transformer": {**TRANSFORMER, "supervise_all_steps": True}, "gmm": {"enabled": True}},
        {"frame_stack": 4},
    ),
    "iql": ("iql", RL, {}),
    "td3_bc": ("td3_bc", RL, {}),
    "cql": ("cql", RL, {}),
    "bcq": ("bcq", {**RL, "actor": {"enabled": True, "layer_dims": [24, 20]}}, {}),
    "bcq_gmm": (
        "bcq",
        {**RL, "action_sampler": {"gmm": {"enabled": True}, "vae": {"enabled": False}}},
        {},
    ),
}
DIFFUSION = {
    "diffusion_policy": (
        "diffusion_policy",
        {"ddpm": {"enabled": False}, "ddim": {"enabled": True, "num_inference_timesteps": 4}},
        {},
    )
}


def make_checkpoint(name, algo_name, algo_section, train):
    """Make a policy whose weights differ clearly from initial weights."""
    torch.manual_seed(len(name))
    rng = np.random.default_rng(len(name))
    config = load_config(
        {
            "algo_name": algo_name,
            "algo": algo_section,
            "train": train,
            "observation": {"modalities": MODALITIES},
        }
    )
    algo = algo_factory(algo_name, config, SHAPES, ACTION_DIM, "cpu")
    nets = [algo.nets] + ([] if algo.ema is None else [algo.ema.module])
    with torch.no_grad():
        for parameter in (p for net in nets for p in net.parameters()):
            scale = parameter.std() if parameter.numel() > 1 else 0.0
            parameter.add_(0.3 * scale * torch.randn_like(parameter))
    shapes = {key: torch.as_tensor(rng.normal(size=shape)) for key, shape in SHAPES.items()}
    spread = {key: torch.as_tensor(rng.uniform(0.5, 2.0, size=SHAPES[key])) for key in SHAPES}
    actions = {"actions": (torch.full((ACTION_DIM,), 0.1), torch.full((ACTION_DIM,), 1.7))}
    algo.preprocess = Preprocess(
        SHAPES,
        dict.fromkeys(SHAPES, "low_dim"),
        {"actions": ACTION_DIM},
        {key: (shapes[key], spread[key]) for key in SHAPES}
        if config.train.obs_normalization
        else {},
        actions if "action_config" in train else {},
    )
    env = {"env_name": "Lift", "type": 1, "env_kwargs": {}}
    return checkpoint_dict(algo, env_metadata=env, shape_metadata={})


def act(ckpt):
    """Return observations and our actions for them."""
    rng = np.random.default_rng(1)
    obs = {
        key: rng.normal(size=(STEPS, *shape)).astype(np.float32) for key, shape in SHAPES.items()
    }
    policy, _ = policy_from_checkpoint("cpu", ckpt_dict=ckpt)
    torch.manual_seed(0)
    policy.start_episode()
    actions = [policy({key: value[step] for key, value in obs.items()}) for step in range(STEPS)]
    return {**{f"obs/{key}": value for key, value in obs.items()}, "actions": np.stack(actions)}


def main():
    """Write all policies that each release supports."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    cases = {**CASES, **(DIFFUSION if "--diffusion" in sys.argv else {})}
    for name, case in cases.items():
        ckpt = make_checkpoint(name, *case)
        arrays = act(ckpt)
        for target in RELEASES:
            try:
                theirs = to_robomimic(ckpt, target)
            except CheckpointError as error:
                sys.stdout.write(f"{name}: not for {target}: {error}\n")
                continue
            save_checkpoint(theirs, folder / target / f"{name}.pth")
            np.savez(folder / target / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
