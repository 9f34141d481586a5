"""Optimizers, schedules and the gradient step."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from imitate.config import OptimizerConfig
from imitate.models.optim import backward, lr_scales, make_optimizer, make_scheduler


def config(**learning_rate):
    return OptimizerConfig.model_validate({"learning_rate": {"initial": 0.01, **learning_rate}})


def weight(*values):
    return nn.Parameter(torch.tensor(values))


def step(loss, parameters, optimizer, max_norm=None):
    norm = backward(loss, parameters, max_norm)
    optimizer.step()
    return norm


def test_what_the_loss_goes_through_beside_the_weights_gets_no_gradient():
    """An actor's loss goes through the critic that rates its actions."""
    actor, critic, frozen = weight(2.0), weight(3.0), weight(5.0).requires_grad_(False)
    critic.grad = torch.tensor([7.0])
    optimizer = make_optimizer([actor], config(), "cpu")
    norm = step((actor * critic * frozen).sum(), [actor, frozen], optimizer)
    assert (float(norm), float(actor)) == (pytest.approx(15.0), pytest.approx(1.99))
    assert critic.grad.tolist() == [7.0]
    assert frozen.grad is None


@pytest.mark.parametrize(
    ("kind", "reference"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_three_steps_are_torchs(kind, reference):
    keys = {"betas": [0.5, 0.9], "regularization": {"L2": 0.1}, "learning_rate": {"initial": 0.05}}
    section = OptimizerConfig.model_validate({"optimizer_type": kind, **keys})
    p, q = weight(1.0, -2.0, 3.0), weight(1.0, -2.0, 3.0)
    ours = make_optimizer([p], section, "cpu")
    theirs = reference([q], lr=0.05, betas=(0.5, 0.9), weight_decay=0.1, foreach=False)
    for _ in range(3):
        step((p**4).sum(), [p], ours)
        theirs.zero_grad()
        (q**4).sum().backward()
        theirs.step()
    torch.testing.assert_close(p, q)
    assert not torch.allclose(p, torch.tensor([1.0, -2.0, 3.0]))


def test_hooks_around_a_step_are_called_in_torchs_order():
    calls = []

    def note(name):
        return lambda optimizer, args, kwargs: calls.append((name, float(p)))

    p = weight(1.0)
    optimizer = make_optimizer([p], config(), "cpu")
    handles = [
        optimizer.register_step_pre_hook(note("before")),
        optimizer.register_step_post_hook(note("after")),
        register_optimizer_step_pre_hook(note("before any")),
        register_optimizer_step_post_hook(note("after any")),
    ]
    step(p.sum(), [p], optimizer)
    for handle in handles:
        handle.remove()
    step(p.sum(), [p], optimizer)
    names, values = zip(*calls, strict=True)
    assert names == ("before any", "before", "after", "after any")
    assert values == pytest.approx((1.0, 1.0, 0.99, 0.99))
    assert float(p) == pytest.approx(0.98)


def test_torch_wraps_no_step_for_its_profiler():
    optimizer = make_optimizer([weight(1.0)], config(), "cpu")
    assert not hasattr(type(optimizer).step, "__wrapped__")


def test_fused_on_the_cpu_and_frozen_weights_left_out():
    optimizer = make_optimizer([weight(1.0), weight(1.0).requires_grad_(False)], config(), "cpu")
    assert optimizer.defaults["fused"]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("max_norm", "factor"), [(None, 1.0), (10.0, 1.0), (5.0, 1.0), (1.0, 0.2), (0.05, 0.01)]
)
def test_norm_and_clipping_by_hand(max_norm, factor):
    # Gradients (3, 0) and (4): norm 5 over both weights.
    p, q = weight(0.0, 0.0), weight(0.0)
    optimizer = torch.optim.SGD([p, q], lr=1.0)
    loss = (p * torch.tensor([3.0, 0.0])).sum() + 4.0 * q.sum()
    norm = step(loss, [p, q], optimizer, max_norm)
    assert norm.item() == pytest.approx(5.0) and not norm.requires_grad
    torch.testing.assert_close(p.detach(), torch.tensor([-3.0 * factor, 0.0]))
    torch.testing.assert_close(q.detach(), torch.tensor([-4.0 * factor]))


def test_gradients_do_not_add_up_and_weights_without_one_stay():
    p, unused = weight(1.0), weight(7.0)
    optimizer = torch.optim.SGD([p, unused], lr=0.5)
    for _ in range(2):
        assert step(2.0 * p.sum(), [p, unused], optimizer, 100.0).item() == 2.0
    assert p.item() == -1.0
    assert unused.item() == 7.0


def rates(section, steps, steps_per_epoch=2, num_epochs=4):
    optimizer = torch.optim.SGD([weight(1.0)], lr=section.learning_rate.initial)
    scheduler = make_scheduler(optimizer, section, steps_per_epoch, num_epochs)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_learning_rates_by_hand():
    assert rates(config(), 3) == pytest.approx([0.01] * 3)
    multistep = config(scheduler_type="multistep", epoch_schedule=[1, 2], decay_factor=0.1)
    assert rates(multistep, 6) == pytest.approx([1e-2, 1e-2, 1e-3, 1e-3, 1e-4, 1e-4])
    falls = {"scheduler_type": "linear", "epoch_schedule": [2], "decay_factor": 0.2}
    by_batch = [0.01, 0.008, 0.006, 0.004, 0.002, 0.002]
    assert rates(config(**falls), 6) == pytest.approx(by_batch)
    assert rates(config(**falls, step_every_batch=False), 6) == pytest.approx(
        [0.01, 0.01, 0.006, 0.006, 0.002, 0.002]
    )
    # 2 steps of warm-up, then half a cosine over the other 6 of 2 x 4.
    got = rates(config(scheduler_type="cosine", warmup_steps=2), 9)
    assert (got[:3], got[5]) == (pytest.approx([0.0, 0.005, 0.01]), pytest.approx(0.005))
    assert got[8] == pytest.approx(0.0, abs=1e-12)


def test_a_scheduler_resumes_where_it_was():
    section = config(scheduler_type="cosine", warmup_steps=3)

    def steps(count, *saved):
        optimizer = torch.optim.SGD([weight(1.0)], lr=0.01)
        parts = make_scheduler(optimizer, section, 5, 2), optimizer
        for part, state in zip(parts, saved, strict=False):
            part.load_state_dict(state)
        for _ in range(count):
            optimizer.step()
            parts[0].step()
        return [part.state_dict() for part in parts]

    (_, resumed), (_, whole) = steps(1, *steps(6)), steps(7)
    assert resumed["param_groups"][0]["lr"] == whole["param_groups"][0]["lr"]
    assert 0 < whole["param_groups"][0]["lr"] < 0.01


def test_channels_last_weights_step_like_others():
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(4, 3, 5, 5))
    q = nn.Parameter(p.detach().clone().to(memory_format=torch.channels_last))
    target = torch.randn(4, 3, 5, 5)
    for parameter in (p, q):
        optimizer = make_optimizer([parameter], config(), "cpu")
        for _ in range(3):
            step(((parameter - target) ** 2).sum(), [parameter], optimizer)
    torch.testing.assert_close(p, q)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_weights_in_any_layout_are_stepped_without_a_copy(kind):
    torch.manual_seed(0)
    start = torch.randn(4, 3, 5, 6).to(memory_format=torch.channels_last)
    layouts = [start, start.clone().permute(3, 0, 2, 1), torch.randn(7, 3).T, torch.randn(())]
    ours, theirs = ([nn.Parameter(x.clone()) for x in layouts] for _ in range(2))
    section = OptimizerConfig.model_validate({"optimizer_type": kind})
    optimizer = make_optimizer(ours, section, "cpu")
    reference = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](
        theirs, section.learning_rate.initial, weight_decay=section.regularization.L2, fused=True
    )
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad, q.grad = (torch.cos(3 * w.detach()) for w in (p, q))
        reference.step()
        with torch.profiler.profile() as profiled:
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))
    names = {event.name for event in profiled.events()}
    assert "aten::_fused_adam_" in names or "aten::_fused_adamw_" in names
    assert "aten::clone" not in names


def test_loaded_moments_take_the_layout_of_their_weights():
    """A file may hold them in another order than the weights lie in memory; the steps must not mix them up."""
    torch.manual_seed(0)
    start, target = torch.randn(4, 3, 5), torch.randn(4, 3, 5)

    def channels_last(x):
        return nn.Parameter(x.transpose(1, 2).contiguous().transpose(1, 2))

    def steps(parameter, optimizer):
        for _ in range(3):
            step(((parameter - target) ** 2).sum(), [parameter], optimizer)

    p = channels_last(start)
    optimizer = make_optimizer([p], config(), "cpu")
    steps(p, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    for name in ("exp_avg", "exp_avg_sq"):
        saved["state"][0][name] = saved["state"][0][name].contiguous()
    q = nn.Parameter(p.detach().clone())
    resumed = make_optimizer([q], config(), "cpu")
    resumed.load_state_dict(saved)
    steps(p, optimizer)
    steps(q, resumed)
    assert torch.equal(p, q)


class Slow(nn.Module):
    """Two weights, of which one learns more slowly still."""

    def __init__(self):
        super().__init__()
        self.lr_scale = 0.1
        self.w = weight(1.0)
        self.slower = nn.Module()
        self.slower.w = weight(1.0)
        self.slower.lr_scale = 0.5


def slow_and_normal():
    net = nn.Module()
    net.slow = Slow()
    net.w = weight(1.0)
    return net


def test_multiples_of_the_learning_rate():
    net = slow_and_normal()
    groups = lr_scales(net)
    assert list(groups)[0] == 1.0
    assert {k: [id(p) for p in v] for k, v in groups.items()} == {
        1.0: [id(net.w)],
        0.1: [id(net.slow.w)],
        0.05: [id(net.slow.slower.w)],
    }


def test_first_steps_at_their_own_rates_under_a_schedule():
    # Adam's step is the learning rate: 0.01, and 0.001 after the drop, each times the part's multiple.
    net = slow_and_normal()
    section = config(scheduler_type="multistep", epoch_schedule=[1], decay_factor=0.1)
    optimizer = make_optimizer(net, section, "cpu")
    scheduler = make_scheduler(optimizer, section, steps_per_epoch=1, num_epochs=2)
    assert optimizer.param_groups[0]["lr"] == 0.01
    for total in (0.01, 0.011):
        loss = 3.0 * (net.w + net.slow.w + net.slow.slower.w).sum()
        step(loss, net.parameters(), optimizer)
        scheduler.step()
        moved = [1 - p.item() for p in (net.w, net.slow.w, net.slow.slower.w)]
        assert moved == pytest.approx([total, 0.1 * total, 0.05 * total], abs=2e-7)


def test_a_loaded_state_does_not_bring_the_kernel_of_its_machine():
    weight = nn.Parameter(torch.zeros(2))
    saved = make_optimizer([weight], config(), "cpu").state_dict()
    saved["param_groups"][0]["fused"] = False
    resumed = make_optimizer([weight], config(), "cpu")
    resumed.load_state_dict(saved)
    assert resumed.param_groups[0]["fused"] is True
