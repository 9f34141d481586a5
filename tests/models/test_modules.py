"""Modes, running moments, names and arguments of modules."""

import copy

import pytest
import torch
from torch import nn

from imitate.errors import CheckpointError, ConfigError
from imitate.models.moments import RowMoments
from imitate.models.optim import EMA
from imitate.models.options import arguments, chosen, relevant
from imitate.models.precision import set_mode


class AlwaysEvaluates(nn.Sequential):
    """A frozen part, whose own parts stay in evaluation mode."""

    def train(self, mode=True):
        return super().train(False)


def modes(net):
    return {name: module.training for name, module in net.named_modules()}


def make_net():
    shared = nn.Dropout()
    net = nn.ModuleDict(
        {
            "policy": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), shared),
            "frozen": AlwaysEvaluates(nn.Linear(2, 2), nn.Dropout()),
            "again": nn.ModuleList([shared, nn.Linear(2, 2)]),
        }
    )
    net["policy"].register_module("absent", None)
    return net


def test_every_part_gets_the_mode_that_torch_gives_it():
    ours, theirs = make_net(), make_net()
    for training in (False, True, True, False):
        set_mode(ours, training)
        theirs.train(training)
        assert modes(ours) == modes(theirs)
    set_mode(ours, training=True)
    assert modes(ours)["policy.1"] and not modes(ours)["frozen.1"]


def test_moments_are_those_of_all_rows():
    rows = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)) * 2 + 5
    moments = RowMoments(3)
    for part in rows.split([1, 60, 39]):
        moments.add(part)
    torch.testing.assert_close(moments.mean, rows.mean(0))
    torch.testing.assert_close(moments.std, rows.std(0, correction=0))
    assert RowMoments(2).std.tolist() == [1.0, 1.0]


class Small:
    def __init__(self, input_shape, size=1, width=2):
        pass


class Large:
    def __init__(self, input_channel, depth=3):
        pass


TABLE = {"Small": Small, "Large": Large}


def test_a_class_is_looked_up():
    assert chosen(TABLE, "Large", "core_class") is Large
    with pytest.raises(ConfigError, match="core_class: unknown 'Larg'; did you mean 'Large'"):
        chosen(TABLE, "Larg", "core_class")


def test_what_the_builder_gives_is_no_option():
    assert (arguments(Small), arguments(Large)) == (["size", "width"], ["depth"])


def test_options_of_other_classes_are_left_out_and_unknown_ones_refused():
    assert relevant(TABLE, Small, {"size": 4, "depth": 5}, "kwargs") == {"size": 4}
    assert relevant(TABLE, Small, None, "kwargs") == {}
    with pytest.raises(ConfigError, match="kwargs: unknown key 'dept'; did you mean 'depth'"):
        relevant(TABLE, Small, {"dept": 4}, "kwargs")


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
