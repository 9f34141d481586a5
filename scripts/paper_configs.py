"""Write configs/paper: one configuration for each published result on robomimic's human demonstrations.

    python scripts/paper_configs.py

what_matters/<task>_<data>/<algorithm>.json       Mandlekar et al., CoRL 2021 (arXiv:2108.03298), table 1 (and the image
                                                  policy bc_rnn); settings of robomimic's generate_paper_configs
diffusion_policy/<task>_<data>/<input>_<net>.json Chi et al., RSS 2023 (arXiv:2303.04137), on absolute actions
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Tree = dict[str, Any]

FOLDER = Path(__file__).parents[1] / "configs" / "paper"
HORIZONS = {
    "ph": {"lift": 400, "can": 400, "square": 400, "transport": 700, "tool_hang": 700},
    "mh": {"lift": 500, "can": 500, "square": 500, "transport": 1100},
}
ARM = ["eef_pos", "eef_quat", "gripper_qpos"]
CAMERAS = {
    "transport": [
        "shouldercamera0_image",
        "robot0_eye_in_hand_image",
        "shouldercamera1_image",
        "robot1_eye_in_hand_image",
    ],
    "tool_hang": ["sideview_image", "robot0_eye_in_hand_image"],
}
CROPS = {"tool_hang": 216}
WIDE = [1024, 1024]
MIXTURE = {"learn": True, "is_conditioned": True, "use_gmm": True, "gmm_learn_weights": True}
RNN = {"actor_layer_dims": [], "gmm": {"enabled": True}, "rnn": {"enabled": True}}


def rate(initial: float) -> Tree:
    """Return an optimizer section with this learning rate."""
    return {"learning_rate": {"initial": initial}}


GOAL_VAE = {
    "kl_weight": 5e-4,
    "prior": MIXTURE,
    "encoder_layer_dims": WIDE,
    "decoder_layer_dims": WIDE,
    "prior_layer_dims": WIDE,
}
BCQ = {
    "ph": {"action_sampler": {"vae": {"kl_weight": 0.05}}},
    "mh": {
        "critic": {"layer_dims": WIDE},
        "action_sampler": {
            "vae": {
                "kl_weight": 0.5,
                "prior": MIXTURE,
                "encoder_layer_dims": WIDE,
                "decoder_layer_dims": WIDE,
                "prior_layer_dims": WIDE,
            }
        },
    },
}
IRIS_VALUE = {
    "ph": {
        "optim_params": {"action_sampler": rate(1e-4)},
        "action_sampler": {
            "actor_layer_dims": [300, 400],
            "vae": {"latent_dim": 16, "kl_weight": 0.5},
        },
    },
    "mh": {
        "optim_params": {"critic": rate(1e-4), "action_sampler": rate(1e-4)},
        "action_sampler": {
            "actor_layer_dims": [300, 400],
            "vae": {"latent_dim": 16, "kl_weight": 0.05},
        },
    },
}
ACTOR = {"optim_params": {"policy": rate(1e-3)}, "actor_layer_dims": []}
PLANNER = {"optim_params": {"goal_network": rate(1e-3)}, "vae": GOAL_VAE}


def algorithms(data: str) -> dict[str, tuple[str, Tree]]:
    """Return ``algo_name`` and the section ``algo`` of each policy in Mandlekar et al."""
    slow = {
        "optim_params": {"critic": rate(1e-4), "action_sampler": rate(1e-4)},
        "target_tau": 5e-4,
    }
    iris_vae = {**GOAL_VAE, "latent_dim": 14}
    return {
        "bc": ("bc", {"gmm": {"enabled": True}}),
        "bc_rnn": ("bc", RNN),
        "bcq": ("bcq", {**slow, **BCQ[data]}),
        "cql": ("cql", {}),
        "hbc": ("hbc", {"planner": PLANNER, "actor": ACTOR}),
        "iris": (
            "iris",
            {
                "value_planner": {
                    "planner": {**PLANNER, "vae": iris_vae},
                    "value": {"target_tau": 5e-4, **IRIS_VALUE[data]},
                },
                "actor": ACTOR,
            },
        ),
        "bc_rnn_image": ("bc", {**RNN, "rnn": {"enabled": True, "hidden_dim": 1000}}),
    }


def observation(task: str, image: bool) -> Tree:
    """Return the observations of one network."""
    robots = 2 if task == "transport" else 1
    proprioception = [f"robot{robot}_{name}" for robot in range(robots) for name in ARM]
    if not image:
        return {"modalities": {"obs": {"low_dim": [*proprioception, "object"]}}}
    crop = CROPS.get(task, 76)
    cameras = CAMERAS.get(task, ["agentview_image", "robot0_eye_in_hand_image"])
    core = {
        "backbone_class": "ResNet18Conv",
        "pool_class": "SpatialSoftmax",
        "pool_kwargs": {"num_kp": 32},
        "feature_dimension": 64,
    }
    return {
        "modalities": {"obs": {"low_dim": proprioception, "rgb": cameras}},
        "encoder": {
            "rgb": {
                "core_class": "VisualCore",
                "core_kwargs": core,
                "obs_randomizer_class": "CropRandomizer",
                "obs_randomizer_kwargs": {"crop_height": crop, "crop_width": crop},
            }
        },
    }


def of_parts(algo_name: str, one: Tree) -> Tree:
    """Return the section ``observation`` in which all networks have the same inputs, and planners predict them."""
    planned = {"modalities": {**one["modalities"], "subgoal": one["modalities"]["obs"]}}
    if algo_name == "hbc":
        return {"planner": planned, "actor": one}
    if algo_name == "iris":
        return {"value_planner": {"planner": planned, "value": one}, "actor": one}
    return one


def run(name: str, task: str, data: str, epoch: Tree, file: str) -> tuple[Tree, Tree]:
    """Return the sections ``experiment`` and ``train``."""
    rollout = {"n": 50, "horizon": HORIZONS[data][task], "rate": epoch.pop("rate")}
    experiment = {
        "name": f"paper_{name}".replace("/", "_"),
        "validate": True,
        "render_video": False,
        "epoch_every_n_steps": epoch.pop("steps"),
        "save": {"every_n_epochs": rollout["rate"]},
        "rollout": rollout,
    }
    train = {
        "data": f"datasets/{task}/{data}/{file}",
        "output_dir": "runs",
        "hdf5_filter_key": "train",
        "hdf5_validation_filter_key": "valid",
        **epoch,
    }
    return experiment, train


def what_matters() -> Iterator[tuple[str, Tree]]:
    """Return the configurations of table 1, and of the recurrent policy on images."""
    for data, horizons in HORIZONS.items():
        for task in horizons:
            for name, (algo_name, algo) in algorithms(data).items():
                image = name.endswith("image")
                epoch: Tree = {"rate": 50, "steps": 100, "batch_size": 100, "num_epochs": 2000}
                if image:
                    epoch = {"rate": 20, "steps": 500, "batch_size": 16, "num_epochs": 600}
                if "rnn" in name or name in ("hbc", "iris"):
                    epoch["seq_length"] = 10
                if name == "cql":
                    epoch["batch_size"] = 1024
                file = f"{'image' if image else 'low_dim'}_v15.hdf5"
                where = f"what_matters/{task}_{data}/{name}"
                experiment, train = run(where, task, data, epoch, file)
                yield (
                    where,
                    tree(
                        algo_name,
                        experiment,
                        train,
                        algo,
                        of_parts(algo_name, observation(task, image)),
                    ),
                )


ABSOLUTE = {
    "action_keys": ["action_dict/abs_pos", "action_dict/abs_rot_6d", "action_dict/gripper"],
    "action_config": {
        "action_dict/abs_pos": {"normalization": "min_max"},
        "action_dict/abs_rot_6d": {"format": "rot_6d", "convert_at_runtime": "rot_axis_angle"},
        "action_dict/gripper": {"normalization": "min_max"},
    },
}
NETWORKS = {
    "unet": {"optim_params": {"policy": {**rate(1e-4), "regularization": {"L2": 1e-6}}}},
    "transformer": {
        "unet": {"enabled": False},
        "transformer": {"enabled": True, "embed_dim": 256, "num_layers": 8, "num_heads": 4},
        "horizon": {"prediction_horizon": 10},
        "optim_params": {
            "policy": {
                "learning_rate": {"initial": 1e-4, "warmup_steps": 1000},
                "regularization": {"L2": 1e-3},
            }
        },
    },
}


def diffusion_policy() -> Iterator[tuple[str, Tree]]:
    """Return the configurations of one-armed tasks; ``train.action_config`` has no format for rotations of two arms."""
    for data, horizons in HORIZONS.items():
        for task in (task for task in horizons if task != "transport"):
            for image in (False, True):
                for network, algo in NETWORKS.items():
                    name = f"{'image' if image else 'state'}_{network}"
                    epoch: Tree = {
                        "rate": 50,
                        "steps": None,
                        "batch_size": 64 if image else 256,
                        "num_epochs": 3000 if image else 4500,
                        "seq_length": 16 if network == "unet" else 10,
                        "frame_stack": 2,
                        "obs_normalization": "min_max",
                        **ABSOLUTE,
                    }
                    file = f"{'image' if image else 'low_dim'}_abs.hdf5"
                    where = f"diffusion_policy/{task}_{data}/{name}"
                    experiment, train = run(where, task, data, epoch, file)
                    yield (
                        where,
                        tree("diffusion_policy", experiment, train, algo, observation(task, image)),
                    )


def tree(algo_name: str, experiment: Tree, train: Tree, algo: Tree, seen: Tree) -> Tree:
    """Return the JSON text of a configuration file."""
    return {
        "$schema": f"../../../schema/{algo_name}.json",
        "algo_name": algo_name,
        "experiment": experiment,
        "train": train,
        "algo": algo,
        "observation": seen,
    }


def files() -> Mapping[str, Tree]:
    """Return every configuration by its name below configs/paper."""
    return {**dict(what_matters()), **dict(diffusion_policy())}


def main() -> None:
    """Write all configurations below configs/paper."""
    for name, content in files().items():
        path = FOLDER / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
