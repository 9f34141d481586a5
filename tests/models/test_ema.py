"""EMA: the decays worked out by hand, what is averaged and what is copied, exact resume."""

import copy

import pytest
import torch
from torch import nn

from imitate.errors import CheckpointError
from imitate.models.ema import EMA


def scalar(value):
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, value)
    return module


def follow(ema, source, values):
    seen = []
    for value in values:
        nn.init.constant_(source.weight, value)
        ema.update(source)
        seen.append(ema.module.weight.item())
    return seen


def test_decay_of_the_warm_up_by_hand():
    ema = EMA(scalar(0.0), power=0.75)
    # k = 0, 1 copy; k = 2: 1 - 2^-0.75; k = 3: 1 - 3^-0.75.
    expected = [0.0, 0.0, 0.40539644, 0.56130866]
    assert [ema.decay_at(k) for k in range(4)] == pytest.approx(expected, abs=1e-7)
    assert ema.decay_at(16) == pytest.approx(1 - 1 / 8.0, abs=1e-12)  # 16^0.75 = 8
    assert ema.decay_at(10**8) == 0.9999


def test_inv_gamma_stretches_and_update_after_step_delays():
    ema = EMA(scalar(0.0), power=0.5, inv_gamma=4.0, update_after_step=10)
    assert ema.decay_at(11) == 0.0
    assert ema.decay_at(23) == pytest.approx(0.5)  # n = 12: 1 - (1 + 3)^-0.5


def test_averages_by_hand():
    source = scalar(5.0)
    seen = follow(EMA(source, power=1.0), source, [1.0, 2.0, 4.0, 10.0])
    # power 1: decays 0, 0, 1/2, 2/3 -> 1, 2, (2 + 4) / 2 = 3, 3 * 2/3 + 10 / 3.
    assert seen == pytest.approx([1.0, 2.0, 3.0, 2.0 + 10.0 / 3.0], abs=1e-6)


def test_constant_decay_by_hand():
    source = scalar(1.0)
    assert follow(EMA(source, decay=0.9), source, [2.0, 0.0]) == pytest.approx([1.1, 0.99])
    source = scalar(1.0)
    delayed = EMA(source, decay=0.9, update_after_step=1)
    assert follow(delayed, source, [2.0, 0.0]) == pytest.approx([2.0, 1.8])


def test_buffers_and_frozen_parameters_are_copied():
    source = nn.ModuleDict({"bn": nn.BatchNorm1d(2), "frozen": nn.Linear(2, 1)})
    source["frozen"].requires_grad_(False)
    ema = EMA(source, decay=0.5)
    source["bn"].train()(torch.tensor([[1.0, 2.0], [3.0, 8.0]]))
    with torch.no_grad():
        source["bn"].weight.fill_(3.0)
        source["frozen"].weight.fill_(7.0)
    ema.update(source)
    shadow = ema.module
    # Momentum 0.1 of the means 2 and 5.
    torch.testing.assert_close(shadow["bn"].running_mean, torch.tensor([0.2, 0.5]))
    assert shadow["bn"].num_batches_tracked.item() == 1
    assert shadow["frozen"].weight.unique().tolist() == [7.0]
    assert shadow["bn"].weight.tolist() == [2.0, 2.0]


def test_shadow_is_apart_and_takes_no_gradient():
    source = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    ema = EMA(source)
    assert not any(p.requires_grad for p in ema.module.parameters())
    assert not ema.module.training
    assert source.training
    assert all(p.requires_grad for p in source.parameters())
    with torch.no_grad():
        source[0].weight.add_(1.0)
    assert not torch.equal(ema.module[0].weight, source[0].weight)


def test_resume_is_exact():
    torch.manual_seed(0)
    source = nn.Linear(3, 3)
    steps = [torch.randn(3, 3) for _ in range(6)]
    whole = EMA(source)
    for k, value in enumerate(steps):
        if k == 3:
            saved = copy.deepcopy(whole.state_dict())
        source.weight.data.copy_(value)
        whole.update(source)
    resumed = EMA(nn.Linear(3, 3))
    resumed.load_state_dict(saved)
    for value in steps[3:]:
        source.weight.data.copy_(value)
        resumed.update(source)
    assert resumed.num_updates == whole.num_updates == 6
    assert torch.equal(resumed.module.weight, whole.module.weight)


def test_foreign_state_is_refused():
    with pytest.raises(CheckpointError, match="lacks \\['num_updates'\\]"):
        EMA(scalar(0.0)).load_state_dict({"module": {}})
