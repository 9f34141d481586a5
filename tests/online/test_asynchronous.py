"""Collecting while learning goes on, in step with it, or in its own process: what is learned is the same."""

import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config
from imitate.crew import open_backend
from imitate.online.central.collector import CentralCollector
from imitate.online.collector import LocalCollector
from imitate.online.env_group import EnvGroup
from imitate.online.learners import ReplayLearner
from imitate.online.replay import ReplayBuffer
from imitate.online.workers import Blueprint, ProcessCollector

from .test_learning import SMALL, Told

UPDATES = 400


def algorithm():
    optimizers = {net: {"learning_rate": {"initial": 3e-3}} for net in ("actor", "critic")}
    section = {**SMALL, "temperature": {"initial": 0.02}, "optim_params": optimizers}
    config = load_config(
        {
            "algo_name": "sac",
            "experiment": {"epoch_every_n_steps": UPDATES},
            "train": {"num_epochs": 1, "batch_size": 32},
            "algo": {**section, "discount": 0.5},
            "observation": {"modalities": {"obs": {"low_dim": ["told"]}}},
        }
    )
    torch.manual_seed(0)
    return algo_factory("sac", config, {"told": (1,)}, 1)


def collector_of(kind, algo):
    low, high = -np.ones(1), np.ones(1)
    if kind == "local":
        group = EnvGroup(Told, np.arange(2), seed=0, horizon=10)
        return LocalCollector(group, algo, low, high)
    config = algo.global_config
    rebuilt = ("sac", config.to_json(), algo.obs_key_shapes, algo.ac_dim)
    blueprints = [
        Blueprint(
            Told,
            np.array([number]),
            {"seed": 0, "horizon": 10},
            rebuilt,
            low,
            high,
            False,
            number,
        )
        for number in range(2)
    ]
    if kind == "central":
        return CentralCollector(blueprints, algo, step_timeout_s=60.0, max_staleness=10)
    staleness = None if kind == "in_step" else 10
    place = open_backend(kind) if kind.startswith("ray") else None
    return ProcessCollector(
        blueprints, algo, step_timeout_s=60.0, max_staleness=staleness, place=place
    )


@pytest.mark.parametrize(
    "kind",
    ["local", "in_step", "asynchronous", "central", pytest.param("ray", marks=pytest.mark.ray)],
)
def test_the_same_is_learned(kind, request):
    algo = algorithm()
    on = request.getfixturevalue("ray_nodes").on if kind == "ray" else kind
    collector = collector_of(on, algo)
    memory = ReplayBuffer(
        {"told": (1,)},
        1,
        5000,
        num_envs=2,
        transitions=algo.global_config.algo.data_needs(algo.global_config).transitions,
    )
    learner = ReplayLearner(algo, memory, memory, batch_size=32, update_ratio=0.5, warmup_steps=100)
    algo.set_train()
    try:
        while learner.updates < UPDATES:
            collector.version = learner.updates
            learner.take(collector.collect(2, random=learner.updates == 0))
            for _ in learner.updates_due(1, collector.updates_allowed()):
                pass
    finally:
        collector.close()
    if kind in ("asynchronous", "central", "ray"):
        assert collector.staleness <= 10
    algo.set_eval()
    with torch.no_grad():
        told = {"told": torch.tensor([[-1.0], [1.0]])}
        action = algo.act(told, algo.initial_state(2)).action
    # The right actions are -0.5 and 0.5.
    assert (action[:, 0] - torch.tensor([-0.5, 0.5])).abs().max() < 0.15
