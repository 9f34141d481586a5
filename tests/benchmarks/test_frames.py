"""The way from ``train()`` to an optimizer's step gets no longer."""

import pytest

from benchmarks.frames import frames_to_the_optimizer


@pytest.mark.parametrize(("name", "most"), [("bc", 4), ("iql", 6), ("sac", 6)])
def test_frames_from_train_to_the_optimizers_step(tmp_path, name, most):
    way = frames_to_the_optimizer(name, tmp_path)
    assert way[0] == "train/trainer.py:train"
    assert way[1] == "train/run.py:loop"
    assert way[-1] == "algo/optimization.py:step"
    assert len(way) <= most, way
