"""Schedules against literal factors and against torch's schedulers stepped per epoch."""

import math
from functools import partial

import pytest
import torch

from imitate.models.optim import lr_factor


def reference(make, steps_per_epoch, epochs):
    """Factor at every update of a torch scheduler that is stepped once an epoch."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    factors = []
    for _ in range(epochs):
        factors += [optimizer.param_groups[0]["lr"]] * steps_per_epoch
        optimizer.step()
        scheduler.step()
    return factors


def factors(steps, scheduler_type, **keys):
    return [lr_factor(step, scheduler_type=scheduler_type, **keys) for step in range(steps)]


HALF = math.sqrt(0.5) / 2.0
TWO = {"steps_per_epoch": 2}
LINE = {"epoch_schedule": (2,), "decay_factor": 0.5, **TWO}
FALL = {"warmup_steps": 4, "epoch_schedule": (1,), "decay_factor": 0.1, **TWO}


@pytest.mark.parametrize(
    ("kind", "keys", "wanted"),
    [
        ("constant", {"warmup_steps": 4}, [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]),
        ("linear", LINE, [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]),  # a straight line
        ("linear", {"decay_factor": 0.5}, [1.0] * 1001),  # without an end it is constant
        # 2 steps of warm-up, then half a wave over 4: cos(0), cos(pi/4), cos(pi/2), cos(3 pi/4), cos(pi).
        (
            "cosine",
            {"warmup_steps": 2, "total_steps": 6},
            [0, 0.5, 1, 0.5 + HALF, 0.5, 0.5 - HALF, 0],
        ),
        ("cosine", {"total_steps": 4, "num_cycles": 1.0}, [1.0, 0.5, 0.0, 0.5, 1.0]),
        ("cosine", {"total_steps": 4, "every_batch": False, **TWO}, [1.0, 1.0, 0.5, 0.5]),
        ("multistep", FALL, [0.0, 0.25, 0.05, 0.075, 0.1]),
    ],
)
def test_factors_by_hand(kind, keys, wanted):
    assert factors(len(wanted), kind, **keys) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("schedule", [(2, 4), (4, 2), (), (3, 3)])
def test_multistep_is_torchs(schedule):
    torchs = partial(torch.optim.lr_scheduler.MultiStepLR, milestones=list(schedule), gamma=0.1)
    keys = {"epoch_schedule": schedule, "decay_factor": 0.1, "steps_per_epoch": 3}
    assert factors(18, "multistep", **keys) == pytest.approx(reference(torchs, 3, 6))


def test_linear_between_epochs_is_torchs():
    ends = {"start_factor": 1.0, "end_factor": 0.2, "total_iters": 4}
    torchs = partial(torch.optim.lr_scheduler.LinearLR, **ends)
    keys = {"epoch_schedule": (4,), "decay_factor": 0.2, "steps_per_epoch": 3}
    found = factors(18, "linear", every_batch=False, **keys)
    assert found == pytest.approx(reference(torchs, 3, 6))


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="'cosin'"):
        lr_factor(0, scheduler_type="cosin")


def test_what_is_not_said_is_a_constant_rate_from_the_first_update_on():
    assert lr_factor(0, scheduler_type="constant") == 1.0
    assert lr_factor(0, scheduler_type="cosine", total_steps=4) == 1.0
    # A tenth at each epoch of the schedule, an epoch of one update.
    assert lr_factor(3, scheduler_type="multistep", epoch_schedule=[3]) == 0.1
    assert lr_factor(2, scheduler_type="multistep", epoch_schedule=[3]) == 1.0


def test_the_shortest_epochs_and_trainings():
    """An epoch, a cosine and a linear fall of one update."""
    linear = {"scheduler_type": "linear", "epoch_schedule": [1], "steps_per_epoch": 1}
    assert lr_factor(1, **linear) == pytest.approx(0.1)
    assert lr_factor(1, scheduler_type="cosine", total_steps=1) == pytest.approx(0.0)
    assert lr_factor(1, scheduler_type="linear", epoch_schedule=[0]) == pytest.approx(0.1)
    assert lr_factor(2, **linear | {"steps_per_epoch": 0}) == pytest.approx(0.1)
