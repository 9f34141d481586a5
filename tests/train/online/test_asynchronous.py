"""Collecting while learning goes on, in step with it, or in its own process: what is learned is the same."""

import numpy as np
import pytest

from imitate.crew import open_backend
from imitate.train.online.central.collector import CentralCollector
from imitate.train.online.learners import ReplayLearner
from imitate.train.online.workers import ProcessCollector

from .told import SOFT, Told, told_algo, told_collector, told_memory, worst_error
from .worlds import blueprints

BOUND = 10


def collector_of(kind, algo):
    if kind == "local":
        return told_collector(algo, envs=2)
    plans = blueprints(algo, Told, Told, low=-np.ones(1), high=np.ones(1), seed=0, horizon=10)
    if kind == "central":
        return CentralCollector(plans, algo, step_timeout_s=60.0, max_staleness=BOUND)
    return ProcessCollector(
        plans,
        algo,
        step_timeout_s=60.0,
        max_staleness=None if kind == "in_step" else BOUND,
        place=open_backend(kind) if kind.startswith("ray") else None,
    )


@pytest.mark.slow("two processes collect while a third one learns")
@pytest.mark.parametrize(
    "kind",
    [
        "asynchronous",
        pytest.param("central", marks=pytest.mark.nightly),
        pytest.param("local", marks=pytest.mark.nightly),
        pytest.param("in_step", marks=pytest.mark.nightly),
        pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.nightly]),
    ],
)
def test_the_same_is_learned(kind, request):
    algo = told_algo("sac", SOFT)
    on = request.getfixturevalue("ray_nodes").on if kind == "ray" else kind
    collector, memory = collector_of(on, algo), told_memory(algo, envs=2)
    learner = ReplayLearner(algo, memory, memory, batch_size=32, update_ratio=0.5, warmup_steps=100)
    algo.set_train()
    right, looked = 0, 0
    try:
        while right < 2 and learner.updates < 800:
            collector.version = learner.updates
            learner.take(collector.collect(2, random=learner.updates == 0))
            for _ in learner.updates_due(1, collector.updates_allowed()):
                pass
            if learner.updates >= looked + 25:
                right, looked = right + 1 if worst_error(algo) < 0.15 else 0, learner.updates
    finally:
        collector.close()
    if kind in ("asynchronous", "central", "ray"):
        assert collector.staleness <= BOUND
    assert right == 2
