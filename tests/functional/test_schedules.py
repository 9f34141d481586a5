"""Schedules against literal factors and against torch's schedulers stepped per epoch."""

import math

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


def test_constant_with_warmup():
    factors = [lr_factor(s, scheduler_type="constant", warmup_steps=4) for s in range(6)]
    assert factors == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("schedule", [(2, 4), (4, 2), (), (3, 3)])
def test_multistep_is_torchs(schedule):
    got = [
        lr_factor(
            s,
            scheduler_type="multistep",
            epoch_schedule=schedule,
            decay_factor=0.1,
            steps_per_epoch=3,
        )
        for s in range(18)
    ]
    expected = reference(
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, list(schedule), gamma=0.1), 3, 6
    )
    assert got == pytest.approx(expected)


def test_linear_between_epochs_is_torchs():
    got = [
        lr_factor(
            s,
            scheduler_type="linear",
            epoch_schedule=(4,),
            decay_factor=0.2,
            steps_per_epoch=3,
            every_batch=False,
        )
        for s in range(18)
    ]
    expected = reference(
        lambda o: torch.optim.lr_scheduler.LinearLR(
            o, start_factor=1.0, end_factor=0.2, total_iters=4
        ),
        3,
        6,
    )
    assert got == pytest.approx(expected)


def test_linear_every_batch_is_a_straight_line():
    kwargs = dict(scheduler_type="linear", epoch_schedule=(2,), decay_factor=0.5, steps_per_epoch=2)
    factors = [lr_factor(s, **kwargs) for s in range(6)]
    assert factors == pytest.approx([1.0, 0.875, 0.75, 0.625, 0.5, 0.5])


def test_linear_without_an_end_is_constant():
    assert lr_factor(1000, scheduler_type="linear", decay_factor=0.5) == 1.0


def test_cosine_with_warmup():
    # 2 steps of warm-up, then half a wave over 4: cos(0), cos(pi/4), cos(pi/2), cos(3 pi/4), cos(pi).
    half = math.sqrt(0.5) / 2.0
    factors = [
        lr_factor(s, scheduler_type="cosine", warmup_steps=2, total_steps=6) for s in range(7)
    ]
    assert factors == pytest.approx([0.0, 0.5, 1.0, 0.5 + half, 0.5, 0.5 - half, 0.0], abs=1e-12)


def test_cosine_with_a_whole_wave_comes_back():
    factors = [
        lr_factor(s, scheduler_type="cosine", total_steps=4, num_cycles=1.0) for s in range(5)
    ]
    assert factors == pytest.approx([1.0, 0.5, 0.0, 0.5, 1.0], abs=1e-12)


def test_cosine_between_epochs_is_a_staircase():
    factors = [
        lr_factor(s, scheduler_type="cosine", total_steps=4, steps_per_epoch=2, every_batch=False)
        for s in range(4)
    ]
    assert factors == pytest.approx([1.0, 1.0, 0.5, 0.5], abs=1e-12)


def test_warmup_multiplies_multistep():
    factors = [
        lr_factor(
            s,
            scheduler_type="multistep",
            warmup_steps=4,
            epoch_schedule=(1,),
            decay_factor=0.1,
            steps_per_epoch=2,
        )
        for s in range(5)
    ]
    assert factors == pytest.approx([0.0, 0.25, 0.05, 0.075, 0.1])


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
