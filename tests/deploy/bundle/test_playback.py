"""Chunks in numpy become the same actions as in torch."""

import numpy as np
import pytest
import torch

from imitate.algo.base.execution import ChunkExecution
from imitate.deploy.bundle.spec import Execution

SETTINGS = [
    {"size": 4, "execute": 1},
    {"size": 4, "execute": 3},
    {"size": 5, "execute": 2, "latency": 3},
    {"size": 4, "execute": 4},
    {"size": 3, "execute": 1, "temporal_ensemble": 0.5},
    {"size": 4, "execute": 1, "temporal_ensemble": 0.0},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_as_in_torch(setting):
    ours, theirs = Execution(**setting), ChunkExecution(**setting)
    plan, state = ours.start(2), theirs.initial_state(1, 2, torch.device("cpu"))
    chunks = torch.randn(40, ours.size, 2, generator=torch.Generator().manual_seed(0))
    asked = [0, 0]

    def chunk(who):
        asked[who] += 1
        return chunks[asked[who]]

    for step in range(20):
        ahead, plan = ours.step(plan, lambda: chunk(0).numpy().astype(np.float64))
        action, state, extras = theirs.step(state, {}, lambda _: chunk(1)[None])
        np.testing.assert_allclose(ahead, extras["chunk"][0].numpy(), atol=1e-6)
        np.testing.assert_allclose(ahead[0], action[0].numpy(), atol=1e-6)
        assert asked[0] == asked[1]
        if step == 9:
            plan, state = ours.start(2), theirs.cut(state)


def test_a_plan_is_not_changed_in_place():
    ours = Execution(size=3, execute=2)
    first, plan = ours.step(ours.start(1), lambda: np.arange(3.0)[:, None])
    kept = plan.actions.copy()
    second, _ = ours.step(plan, lambda: np.zeros((3, 1)))
    np.testing.assert_array_equal(plan.actions, kept)
    np.testing.assert_array_equal(second[:, 0], [1.0, 2.0, 2.0])
    np.testing.assert_array_equal(first[:, 0], [0.0, 1.0, 2.0])
