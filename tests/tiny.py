"""One way to make a small configuration, algorithm, batch, demonstration file, checkpoint and run for tests.

    tiny_algo("cql", "algo.critic.num_action_samples=4", obs={"s": 3}, action=2)
    tiny_run(tmp_path, "bc", train={"num_epochs": 1})

Each takes the same words: see `tiny_tree`. Values that are given go before the small ones.
"""

from collections.abc import Mapping
from copy import deepcopy

import torch

from imitate import algo_factory, load_config
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from imitate.train.trainer import train as train_run
from tests.demo_files import make_demo_file

SIZES = {
    **{"encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "num_samples": 3, "n_groups": 4},
    **{
        "num_train_timesteps": 5,
        "num_inference_timesteps": 5,
        "num_action_samples_rollout": 4,
        "num_candidates": 4,
    },
    **{"hidden_dim": 8, "hidden_dims": [16], "embed_dim": 16, "feedforward_dim": 16},
    **{"diffusion_step_embed_dim": 8, "down_dims": [8, 16], "pretrain_epochs": 1},
}
"""Small values of keys of any algorithm's section; `layer_dims` and `*_layer_dims` are the hidden layers."""

WINDOWS = {
    "act": {"seq_length": 4},
    "causal_bc": {"seq_length": 2},
    "diffusion_policy": {"seq_length": 16, "frame_stack": 2},
    "dt": {"frame_stack": 4},
    "flow_policy": {"seq_length": 16, "frame_stack": 2},
    "hbc": {"seq_length": 10},
    "iris": {"seq_length": 10},
    "vq_bet": {"seq_length": 8},
}
LENGTHS = {"act": {"chunk": {"size": 4, "execute": 2}}, "dt": {"context_length": 4}}
"""Steps of a batch that an algorithm asks for, and keys of its section that agree with them."""


def merged(tree, more):
    """A tree with another laid over it, key by key at each depth."""
    both = {**tree}
    for key, value in more.items():
        nested = isinstance(both.get(key), Mapping) and isinstance(value, Mapping)
        both[key] = merged(both[key], value) if nested else deepcopy(value)
    return both


def shapes_of(obs):
    """{key: size or shape} as {key: shape}."""
    return {key: (size,) if isinstance(size, int) else tuple(size) for key, size in obs.items()}


def small(section, hidden=(16,)):
    """The keys of a section that have a small value, with it."""
    found = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            found[key] = small(value, hidden)
        elif key.endswith("layer_dims"):
            found[key] = list(hidden)
        elif key in SIZES:
            found[key] = SIZES[key]
    return {key: value for key, value in found.items() if value != {}}


def tiny_tree(algo_name="bc", *, obs=None, goal=(), critic=(), data=None, hidden=(16,), **sections):
    """A configuration's tree: small networks, short epochs, nothing drawn, logged or rolled out.

    Args:
        algo_name: the algorithm.
        obs: {key: size, or shape as networks see it}; {"s": 3} by default. A shape of three numbers is an image.
        goal: keys that are goals too, or subgoals of an algorithm that plans them; {key: size} where not observed.
        critic: {key: size} of the observations that critics alone see.
        data: demonstration file, or None.
        hidden: sizes of all hidden layers; with () networks are linear maps.
        **sections: `algo`, `train`, `experiment`, `observation`: trees laid over the small ones.
    """
    shapes = shapes_of(obs or {"s": 3})
    images = [key for key, shape in shapes.items() if len(shape) == 3]
    flat = [key for key in shapes if key not in images]

    def group(**more):
        seen = {"low_dim": list(flat), **({"rgb": list(images)} if images else {})}
        return {"modalities": {"obs": seen, **{key: {"low_dim": more[key]} for key in more}}}

    aims = list(goal or flat)
    observation = group(goal=aims) if goal else group()
    if critic:
        observation["modalities"]["critic"] = {"low_dim": list(critic)}
    if algo_name == "gl":
        observation = group(subgoal=aims)
    elif algo_name == "hbc":
        observation = {"planner": group(subgoal=aims), "actor": group()}
    elif algo_name == "iris":
        parts = {"planner": group(subgoal=aims), "value": group()}
        observation = {"value_planner": parts, "actor": group()}
    tree = {
        "algo_name": algo_name,
        "experiment": {
            "name": "tiny",
            "epoch_every_n_steps": 10,
            "logging": {"log_tb": False},
            "rollout": {"enabled": False, "n": 2, "horizon": 10, "num_workers": 0},
            "render_video": False,
            "save": {"every_n_epochs": None},
        },
        "train": {
            "data": None if data is None else str(data),
            "cuda": False,
            "batch_size": 16,
            "num_epochs": 3,
            "num_threads": 1,
            "seed": 3,
            **WINDOWS.get(algo_name, {}),
        },
        "algo": small(load_config({"algo_name": algo_name}).to_dict()["algo"], hidden),
        "observation": observation,
    }
    return merged(merged(tree, {"algo": LENGTHS.get(algo_name, {})}), sections)


def tiny_config(algo_name="bc", *overrides, **words):
    """The checked configuration of `tiny_tree(algo_name, **words)`, with overrides ``"a.b=value"`` laid over it."""
    return load_config(tiny_tree(algo_name, **words), overrides)


def tiny_algo(algo_name="bc", *overrides, obs=None, action=1, seed=0, device="cpu", **words):
    """A new algorithm of `tiny_config`, whose weights come from the seed; `action` is the size of its action."""
    config = tiny_config(algo_name, *overrides, obs=obs, **words)
    more = [words[name] for name in ("goal", "critic") if isinstance(words.get(name), Mapping)]
    shapes = shapes_of({**(obs or {"s": 3}), **{k: x for group in more for k, x in group.items()}})
    torch.manual_seed(seed)
    return algo_factory(algo_name, config, shapes, action, device)


def tiny_batch(algo, size=6, seed=0, **changes):
    """A random batch as the data gives it, with all that any algorithm asks for; `changes` replace its keys."""
    generator = torch.Generator().manual_seed(seed)
    config = algo.global_config
    steps = config.train.frame_stack - 1 + config.train.seq_length

    def obs():
        return {
            key: torch.randint(256, (size, steps, *shape), generator=generator, dtype=torch.uint8)
            if algo.preprocess.modalities[key] == "rgb"
            else torch.randn(size, steps, *shape, generator=generator)
            for key, shape in algo.preprocess.raw_shapes.items()
        }

    subgoals = {key: obs()[key][:, 0] for key in algo.subgoal_shapes}
    needs = algo.algo_config.data_needs(config)
    wanted, transitions = needs.subgoals, needs.transitions
    if wanted is not None and wanted.every:
        subgoals = {key: torch.stack([v] * wanted.horizon, dim=1) for key, v in subgoals.items()}

    def goal():
        return {key: value[:, 0] for key, value in obs().items() if key in algo.goal_shapes}

    def uniform(*shape):
        return torch.rand(size, *shape, generator=generator)

    steps_on = algo.algo_config.following(config)
    following = {}
    if steps_on is not None:
        each = obs()
        following["following"] = {
            "obs": {k: torch.stack([v[:, 0]] * steps_on.number, 1) for k, v in each.items()},
            "actions": uniform(steps_on.number, algo.ac_dim) * 2 - 1,
            "mask": torch.ones(size, steps_on.number, dtype=torch.bool),
            "rewards": uniform(steps_on.number),
            "ends": torch.zeros(size, steps_on.number),
        }
    if transitions is not None and transitions.chunks:
        chunk = uniform(transitions.n_step, algo.ac_dim) * 2 - 1
        changes = {"chunk": chunk, "chunk_mask": torch.ones(chunk.shape[:2]).bool(), **changes}

    return {
        "obs": obs(),
        "next_obs": obs(),
        **following,
        "subgoals": subgoals,
        **{name: goal() for name in ("goal_obs", "value_goals", "low_goals", "high_targets")},
        "at_goal": torch.arange(size) % 3 == 0,
        "actions": uniform(steps, algo.ac_dim) * 2 - 1,
        "next_actions": uniform(algo.ac_dim) * 2 - 1,
        **{key: uniform(steps) for key in ("rewards", "returns", "advantages", "values")},
        "n_step_rewards": uniform(),
        "discounts": torch.full((size,), 0.99),
        "step": torch.arange(steps).expand(size, -1),
        "log_prob": -uniform(steps),
        "dones": torch.zeros(size, steps),
        "pad_mask": torch.ones(size, steps, dtype=torch.bool),
        "index": torch.arange(size),
        **changes,
    }


def tiny_demos(path, obs=None, action=1, **words):
    """Write a demonstration file of `make_demo_file`, by default 4 demos of 12 steps; return its path."""
    return make_demo_file(path, obs_dims=obs or {"s": 3}, action_dim=action, **words)


def tiny_checkpoint(path, algo_name="bc", *overrides, env=None, shapes=None, **words):
    """Write the checkpoint of an untrained `tiny_algo`, of actions in [-1, 1], with metadata; return its path."""
    algo = tiny_algo(algo_name, *overrides, **words)
    bounds = {"action_low": [-1.0] * algo.ac_dim, "action_high": [1.0] * algo.ac_dim}
    metadata = {"env_metadata": env or {}, "shape_metadata": {**bounds, **(shapes or {})}}
    save_checkpoint(checkpoint_dict(algo, **metadata), path)
    return path


def tiny_run(folder, algo_name="bc", *overrides, obs=None, action=1, data=None, **words):
    """Train for some seconds at the most in a folder, on new demonstrations if no file is given; the run folder."""
    data = data or tiny_demos(folder / "demos.hdf5", obs, action)
    tree = tiny_tree(algo_name, obs=obs, data=data, **words)
    return train_run(tree, output_dir=folder, overrides=overrides, quiet=True).run_dir
