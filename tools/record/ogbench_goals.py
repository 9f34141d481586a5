"""Recording of tests/algo/fixtures/ogbench_goals.npz: losses and gradients of OGBench's agents (MIT), in float64.

With the folder ``impls`` of github.com/seohongpark/ogbench (1d41409), Python 3.11 and
``pip install jax==0.10.2 flax==0.12.8 distrax==0.1.9 optax ml_collections``:

    PYTHONPATH=ogbench/impls JAX_PLATFORMS=cpu python tools/record/ogbench_goals.py

Weights and one batch are random numbers that float32 holds exactly. The fixture has the shapes by name, as JSON, and
the numbers of all names, one after the other. Names are CASE/params/..., CASE/gradients/..., CASE/losses/NAME and
batch/NAME; a case is an agent with its actor's loss, such as ``gciql_awr``.
"""

import json
from importlib import import_module
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)
FIXTURE = Path(__file__).parents[2] / "tests" / "algo" / "fixtures" / "ogbench_goals.npz"
SMALL = {
    **{"actor_hidden_dims": (5, 4), "value_hidden_dims": (5, 4)},
    **{"latent_dim": 3, "rep_dim": 3, "discount": 0.9},
}
CASES = {
    "gcbc": {},
    "gcivl": {"alpha": 2.0},
    "gciql_ddpgbc": {"actor_loss": "ddpgbc"},
    "gciql_awr": {"actor_loss": "awr", "alpha": 3.0},
    "hiql": {},
    "crl_ddpgbc": {"actor_loss": "ddpgbc"},
    "crl_awr": {"actor_loss": "awr", "alpha": 3.0},
}
SIZE, STATE, ACTION = 6, 3, 2


def exact(values):
    """Round to float32, in float64."""
    return np.asarray(values, np.float32).astype(np.float64)


def make_batch(random):
    """Return a batch with all that the agents ask for; two samples are in their goal."""
    at_goal = np.array([1.0, 0, 0, 1, 0, 0])
    states = {
        name: exact(random.normal(size=(SIZE, STATE)))
        for name in (
            *("observations", "next_observations", "value_goals", "actor_goals"),
            *("low_actor_goals", "high_actor_goals", "high_actor_targets"),
        )
    }
    actions = exact(random.uniform(-1, 1, (SIZE, ACTION)))
    return {**states, "actions": actions, "rewards": at_goal - 1.0, "masks": 1.0 - at_goal}


def flat(prefix, tree):
    """Return the leaves of a tree by their paths."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        "/".join([prefix, *(key.key for key in path)]): np.asarray(leaf) for path, leaf in leaves
    }


def recorded(case, changes, batch, random):
    """Return weights, losses and gradients of an agent."""
    module = import_module(f"agents.{case.split('_')[0]}")
    config = module.get_config()
    config.update({key: value for key, value in {**SMALL, **changes}.items() if key in config})
    (kind,) = [
        value
        for name, value in vars(module).items()
        if name == f"{case.split('_')[0].upper()}Agent"
    ]
    agent = kind.create(0, batch["observations"], batch["actions"], config)
    # large enough that some actions are clipped, and that targets differ from their networks
    params = jax.tree_util.tree_map(
        lambda leaf: exact(0.6 * random.normal(size=leaf.shape)), agent.network.params
    )
    agent = agent.replace(network=agent.network.replace(params=params))
    gradients, info = jax.grad(lambda new: agent.total_loss(batch, new), has_aux=True)(params)
    losses = {f"{case}/losses/{name}": np.asarray(x) for name, x in info.items() if "loss" in name}
    gradients = {
        name: leaf
        for name, leaf in flat(f"{case}/gradients", gradients).items()
        if "/modules_target" not in name
    }
    return {**flat(f"{case}/params", params), **gradients, **losses}


def main():
    """Write the fixture."""
    random = np.random.default_rng(0)
    batch = make_batch(random)
    found = {f"batch/{name}": value for name, value in batch.items()}
    for case, changes in CASES.items():
        found |= recorded(case, changes, batch, random)
    FIXTURE.parent.mkdir(exist_ok=True)
    shapes = json.dumps({name: value.shape for name, value in found.items()})
    values = np.concatenate([value.reshape(-1) for value in found.values()]).astype(np.float32)
    np.savez_compressed(FIXTURE, shapes=shapes, values=values)


if __name__ == "__main__":
    main()
