"""A ring of eight states in which most moves of the demos are clockwise; some goals are nearer the other way."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from imitate.config.readiness import check_trainable
from imitate.data.batches.build import build_datasets
from imitate.errors import ConfigError
from tests.demo_files import episode, write_demos
from tests.refusals import refused
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


@pytest.mark.slow("an algorithm learns until it goes the short way in every state")
@pytest.mark.parametrize("algo_name", ["gcivl", "gciql", "hiql", "crl"])
def test_it_goes_the_short_way(algo_name, ring):
    assert trained(algo_name, ring(CLOCKWISE.get(algo_name, 0.8)), 500, goes_the_short_way)


def test_cloning_goes_to_near_goals_but_goes_on_with_the_data_where_that_is_the_long_way(ring):
    def learned(algo):
        return bool((directions(algo, 1) > 0.05).all() and (directions(algo, -1) < -0.05).all())

    assert trained("gcbc", ring(0.5), 500, learned)
    assert trained("gcbc", ring(0.8), 100, lambda algo: directions(algo, -1).mean() > 0.1)


def linear(mlps, *slopes):
    """Let member e be its slope times the state."""
    mlps.head.weight.data.zero_()
    mlps.head.weight.data[:, 0, 0] = torch.tensor(slopes)


@pytest.mark.parametrize("algo_name", ["gcivl", "hiql"])
def test_the_targets_advantage_decides_the_weight_of_an_error(algo_name):
    section = {"expectile": 0.9, **({"rep_dim": 2} if algo_name == "hiql" else {})}
    algo = tiny_algo(algo_name, obs={"s": 1}, goal=("s",), hidden=(), algo=section)
    linear(algo.nets["value"].mlps, 0.0, 1.0)
    linear(algo.nets["value_target"].mlps, -1.0, -2.0)
    batch = {
        "obs": {"s": torch.tensor([[1.0], [2.0]])},
        "next_obs": {"s": torch.tensor([[4.0], [100.0]])},
        "actions": torch.zeros(2, 1),
        "rewards": torch.tensor([-1.0, 0.0]),
        "discounts": torch.tensor([0.5, 0.0]),
        "weight": None,
    }
    goals = ("goal_obs", "value_goals", "low_goals", "high_targets")
    batch |= {name: {"s": torch.ones(2, 1)} for name in goals}
    # advantages: -1 + 0.5 min(-4, -8) + 1.5 < 0, and 0 + 3 > 0; targets -3 and -5, then 0 and 0; values 0 and s
    errors = 0.1 * (3**2 + 6**2) + 0.9 * (0**2 + 2**2)
    loss = algo.train_on_batch(batch, 1, validate=True)["Value_Loss"]
    assert loss.item() == pytest.approx(errors / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("algo_name", "change", "words"),
    [
        ("gcbc", "train.goal_mode=last", "draws its goals from the data"),
        ("crl", "train.precision=bf16", "too coarse"),
        ("gcivl", "algo.value_goals.random=0.9", "0.2 and 0.9: their sum"),
        ("gciql", "train.gradient_accumulation=2", "set it to 1"),
        ("hiql", "train.frame_stack=2", "single observations"),
        ("hiql", 'observation.modalities.obs.low_dim=["s", "t"]', "goal and obs differ"),
        ("gcbc", "train.online.enabled=true", "demonstrations alone"),
    ],
)
def test_settings_without_meaning_are_refused(algo_name, change, words):
    with refused(words, error=ConfigError):
        tiny_config(algo_name, change, goal=("s",))


def test_shares_of_goals_may_sum_to_one():
    shares = ["algo.value_goals.random=0.7", "algo.value_goals.current=0.3"]
    assert tiny_config("gcivl", *shares, goal=("s",)).algo.value_goals.random == 0.7


def test_an_empty_goal_is_refused_before_a_training():
    with refused("observation.modalities.goal: is empty, but gcivl", error=ConfigError):
        check_trainable(tiny_config("gcivl"))
