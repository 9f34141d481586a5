"""Recording of tests/algo/fixtures/flow_q.npz: losses and gradients of FQL's, IFQL's and QC's authors, in float64.

With github.com/seohongpark/fql (719d044) and github.com/ColinQiyangLi/qc (48283b4, both MIT), Python 3.11 and
``pip install jax==0.10.2 flax==0.12.8 distrax==0.1.9 optax ml_collections``, once in each repository, where the second
run adds to the first:

    PYTHONPATH=fql JAX_PLATFORMS=cpu python tools/record/flow_q.py fql fql_normalized ifql
    PYTHONPATH=qc JAX_PLATFORMS=cpu python tools/record/flow_q.py qc_fql qc

Weights, noise and one batch are random numbers that float32 holds exactly. The fixture has the shapes by name, as JSON,
and the numbers of all names, one after the other. Names are CASE/params/..., CASE/gradients/..., CASE/losses/NAME,
CASE/draws/NUMBER, the random numbers in the order in which they are drawn, and batch/NAME.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)
FIXTURE = Path(__file__).parents[2] / "tests" / "algo" / "fixtures" / "flow_q.npz"
SMALL = {
    **{"actor_hidden_dims": (5, 4), "value_hidden_dims": (5, 4), "discount": 0.9},
    **{"flow_steps": 3, "horizon_length": 2, "actor_num_samples": 3},
}
CASES = {
    "fql": ("agents.fql", "FQLAgent", {"alpha": 3.0}),
    "fql_normalized": ("agents.fql", "FQLAgent", {"normalize_q_loss": True}),
    "ifql": ("agents.ifql", "IFQLAgent", {}),
    "qc_fql": ("agents.acfql", "ACFQLAgent", {"alpha": 3.0}),
    "qc": ("agents.acfql", "ACFQLAgent", {"actor_type": "best-of-n"}),
}
SIZE, STATE, ACTION, CHUNK = 6, 3, 2, 2


def exact(values):
    """Round to float32, in float64."""
    return np.asarray(values, np.float32).astype(np.float64)


def make_batch(random):
    """Return a batch of chunks; two end, and two are cut short by the end of an episode."""
    return {
        "observations": exact(random.normal(size=(SIZE, STATE))),
        "next_observations": exact(random.normal(size=(SIZE, STATE))),
        "actions": exact(random.uniform(-1, 1, (SIZE, CHUNK, ACTION))),
        "rewards": exact(random.normal(size=SIZE)),
        "masks": np.array([1.0, 0, 1, 1, 0, 1]),
        "valid": np.array([[1.0, 1], [1, 1], [1, 0], [1, 1], [1, 1], [1, 0]]),
    }


def theirs(batch, case):
    """Return the batch in the form that an agent takes: of single actions, or of sequences."""
    if not case.startswith("qc"):
        return {**batch, "actions": batch["actions"][:, 0]}
    steps = {"next_observations": batch["next_observations"][:, None]}
    return {**batch, **steps, **{name: batch[name][:, None] for name in ("rewards", "masks")}}


def flat(prefix, tree):
    """Return the leaves of a tree by their paths."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        "/".join([prefix, *(key.key for key in path)]): np.asarray(leaf) for path, leaf in leaves
    }


def recorded(case, batch, random):
    """Return weights, random numbers, losses and gradients of an agent."""
    module, kind, changes = CASES[case]
    module, batch = import_module(module), theirs(batch, case)
    config = module.get_config()
    config.update({key: value for key, value in {**SMALL, **changes}.items() if key in config})
    example = batch["actions"][:, 0] if case.startswith("qc") else batch["actions"]
    agent = getattr(module, kind).create(0, batch["observations"], example, config)
    if case.startswith("qc"):
        agent = agent.replace(config=agent.config.copy({"ob_dims": (STATE,)}))
    # large enough that some actions are clipped, and that targets differ from their networks
    params = jax.tree_util.tree_map(
        lambda leaf: exact(0.6 * random.normal(size=leaf.shape)), agent.network.params
    )
    agent = agent.replace(network=agent.network.replace(params=params))
    draws = []

    def drawn(of):
        def draw(key, shape, *args, **kwargs):
            draws.append(exact(of(size=shape)))
            return jax.numpy.asarray(draws[-1])

        return draw

    jax.random.normal, jax.random.uniform = drawn(random.normal), drawn(random.uniform)
    with jax.disable_jit():
        gradients, info = jax.grad(
            lambda new: agent.total_loss(batch, new, jax.random.PRNGKey(0)), has_aux=True
        )(params)
    return {
        **flat(f"{case}/params", params),
        **{f"{case}/draws/{number}": draw for number, draw in enumerate(draws)},
        **{f"{case}/losses/{name}": np.asarray(x) for name, x in info.items() if "loss" in name},
        **{
            name: leaf
            for name, leaf in flat(f"{case}/gradients", gradients).items()
            if "/modules_target" not in name
        },
    }


def kept():
    """Return the numbers that the fixture has."""
    if not FIXTURE.is_file():
        return {}
    with np.load(FIXTURE) as file:
        shapes, values = json.loads(file["shapes"].item()), file["values"].astype(np.float64)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(values, ends[:-1])
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def main():
    """Add the cases that are named to the fixture."""
    batch = make_batch(np.random.default_rng(0))
    found = {**kept(), **{f"batch/{name}": value for name, value in batch.items()}}
    for case in sys.argv[1:]:
        number = list(CASES).index(case) + 1
        found |= recorded(case, batch, np.random.default_rng(number))
    shapes = json.dumps({name: value.shape for name, value in found.items()})
    values = np.concatenate([value.reshape(-1) for value in found.values()]).astype(np.float32)
    np.savez_compressed(FIXTURE, shapes=shapes, values=values)


if __name__ == "__main__":
    main()
