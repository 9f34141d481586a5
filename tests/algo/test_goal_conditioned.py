"""A ring of eight states in which most moves of the demos are clockwise; some goals are nearer the other way."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from imitate.data.batches.build import build_datasets
from tests.demo_files import episode, write_demos
from tests.tiny import tiny_algo, tiny_config

STATES, DEMOS, STEPS = 8, 40, 40
CHANGES = {
    "gcbc": {},
    "gcivl": {"alpha": 20.0},
    "gciql": {"actor_loss": "awr", "alpha": 10.0},
    "hiql": {"subgoal_steps": 1, "low_alpha": 20.0, "high_alpha": 20.0, "rep_dim": 4},
    "crl": {"actor_loss": "awr", "alpha": 5.0},
}
CLOCKWISE = {"gciql": 0.7, "hiql": 0.7, "crl": 0.5}
"""Share of clockwise moves, where it is not 0.8. CRL values the data's policy, for which the long way may be better."""


def seen(state):
    angle = 2 * math.pi * np.asarray(state) / STATES
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    """The file of demos in which this share of the moves is clockwise."""

    @cache
    def of_share(share):
        random, demos = np.random.default_rng(0), []
        for _ in range(DEMOS):
            moves = np.where(random.random(STEPS) < share, 1, -1)
            states = seen(random.integers(STATES) + np.concatenate([[0], moves.cumsum()]))
            actions = 0.5 * moves[:, None]
            demos.append(episode(STEPS, {"s": states[:-1]}, actions, next_obs={"s": states[1:]}))
        return write_demos(tmp_path_factory.mktemp("ring") / "ring.hdf5", demos)

    return of_share


def words_of(algo_name, section=None):
    rates = {
        name: {"learning_rate": {"initial": 1e-2}}
        for name in ("actor", "critic", "vf", "value", "high_actor")
    }
    known = tiny_config(algo_name, goal=("s",)).algo.optim_params
    section = {"discount": 0.8, "optim_params": {k: v for k, v in rates.items() if k in known}}
    section |= CHANGES[algo_name]
    if algo_name != "gcbc":
        section["target_tau"] = 0.05
    if algo_name == "crl":
        section = {k: v for k, v in section.items() if k != "target_tau"}
        section["critic"] = {"latent_dim": 16}
    return {"obs": {"s": 2}, "goal": ("s",), "hidden": (32, 32), "algo": section}


def directions(algo, ahead):
    """The policy's mean actions in each state, for goals so many steps ahead."""
    algo.set_eval()
    states = np.arange(STATES)
    obs, goal = ({"s": torch.from_numpy(seen(at)).float()} for at in (states, states + ahead))
    return algo.act(obs, algo.initial_state(STATES), goal).action[:, 0].detach()


def trained(algo_name, path, most, learned):
    words = words_of(algo_name)
    data, _ = build_datasets(tiny_config(algo_name, data=path, **words))
    algo = tiny_algo(algo_name, **words)
    random = np.random.default_rng(0)
    algo.set_train()
    for number in range(most):
        batch = data[random.integers(len(data), size=128)]
        algo.train_on_batch(algo.process_batch_for_training(batch), 1)
        if number % 50 == 49:
            if learned(algo):
                return algo
            algo.set_train()
    return None


def goes_the_short_way(algo):
    return bool((directions(algo, 1) > 0.1).all() and (directions(algo, -1) < -0.1).all())


@pytest.mark.parametrize("algo_name", ["gcivl", "gciql", "hiql", "crl"])
def test_it_goes_the_short_way(algo_name, ring):
    assert trained(algo_name, ring(CLOCKWISE.get(algo_name, 0.8)), 500, goes_the_short_way)


def test_cloning_goes_to_near_goals_but_goes_on_with_the_data_where_that_is_the_long_way(ring):
    def learned(algo):
        return bool((directions(algo, 1) > 0.05).all() and (directions(algo, -1) < -0.05).all())

    assert trained("gcbc", ring(0.5), 500, learned)
    assert trained("gcbc", ring(0.8), 100, lambda algo: directions(algo, -1).mean() > 0.1)
