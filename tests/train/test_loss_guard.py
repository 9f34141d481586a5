import math

import pytest
import torch

from imitate.train import loss_guard as module
from imitate.train.loss_guard import (
    BLOCK,
    FIRST,
    PATIENCE,
    LossGuard,
    bad_input,
    describe_batch,
    weights_are_finite,
)


def feed(guard, losses, name="Loss"):
    """Step of the finding, None without one."""
    for step, loss in enumerate(losses):
        found = guard.add(step, {name: torch.tensor(float(loss))}, torch.tensor([step]))
        if found is not None:
            return found
    return guard.check()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_found_at_once(value):
    found = feed(LossGuard(torch.device("cpu")), [1.0, 0.5, value, 0.4])
    assert (found.step, found.reason, found.index.tolist()) == (2, "not finite", [2])


def test_any_loss_or_gradient_norm_counts_and_other_numbers_do_not():
    guard = LossGuard(torch.device("cpu"))
    good = {"critic_loss": torch.tensor(1.0), "actor_loss": torch.tensor(-2.0)}
    assert guard.add(0, {**good, "log_ratio": torch.tensor(-math.inf)}, None) is None
    assert guard.add(1, {**good, "Policy_Grad_Norms": torch.tensor(math.inf)}, None).step == 1
    assert guard.add(2, {**good, "actor_loss": torch.tensor(math.nan)}, None).step == 2
    assert guard.add(3, {"accuracy": torch.tensor(math.nan)}, None) is None


def test_an_accelerator_is_read_a_block_at_a_time():
    guard = LossGuard(torch.device("meta"))
    losses = [1.0] * (BLOCK + 5)
    losses[3] = math.nan
    answers = [guard.add(i, {"Loss": torch.tensor(x)}, None) for i, x in enumerate(losses)]
    assert [a is not None for a in answers].index(True) == BLOCK - 1
    assert answers[BLOCK - 1].step == 3
    guard.reset()
    guard.add(7, {"Loss": torch.tensor(math.nan)}, None)
    assert guard.check().step == 7 and guard.check() is None


def test_an_explosion_is_found_after_some_patience():
    found = feed(LossGuard(torch.device("cpu")), [1.0] * 100 + [2000.0] * 50)
    assert found.step == 100 + PATIENCE - 1
    assert "for 10 steps in a row" in found.reason


def test_single_spikes_are_no_explosion():
    assert feed(LossGuard(torch.device("cpu")), ([0.1] * 60 + [1e6] * (PATIENCE - 1)) * 5) is None


@pytest.mark.parametrize(
    "losses",
    [
        # A regression that fits perfectly and then rises ten-thousandfold, to a tenth of where it began.
        [0.3] * FIRST + [3e-6] * 300 + [0.03] * 200,
        # A likelihood that turns negative, and goes back.
        [20.0 - step / 10 for step in range(500)] + [15.0] * 100,
        # A value loss that grows a millionfold within 20,000 steps.
        [1e-3 * 1e6 ** (step / 20_000) for step in range(20_000)],
        # Zero, exactly.
        [0.0] * 200,
    ],
)
def test_healthy_runs_raise_no_alarm(losses):
    assert feed(LossGuard(torch.device("cpu")), losses) is None


def test_a_negative_likelihood_that_explodes_is_found():
    found = feed(LossGuard(torch.device("cpu")), [-20.0] * 200 + [1e5] * 20)
    assert found.step == 200 + PATIENCE - 1


def test_weights():
    net = torch.nn.Linear(2, 2)
    assert weights_are_finite(net)
    net.bias.data[1] = math.inf
    assert not weights_are_finite(net) and weights_are_finite(torch.nn.ReLU())


class Samples:
    """Sample i is step i % 10 of demo i // 10."""

    def demo_of(self, index):
        return f"demo_{index // 10}", index % 10

    def __getitem__(self, index):
        pos = torch.zeros(1, 3)
        pos[0, 1] = math.nan if index == 12 else 0.0
        return {"obs": {"pos": pos}, "actions": torch.zeros(1, 2), "lang": "lift"}


def test_a_batch_is_described_by_its_demos():
    words = "demo_0 steps 3; demo_1 steps 1, 2"
    assert describe_batch(Samples(), torch.tensor([12, 3, 11])) == words
    many = describe_batch(Samples(), torch.arange(0, 200, 10))
    assert many.count(";") == 7 and many.endswith("and 12 more demos")


def test_values_that_are_not_finite_are_traced_to_demo_and_key():
    words = "demo_1, window at step 2: 'obs/pos' holds NaN or inf"
    assert bad_input(Samples(), torch.tensor([3, 12])) == words
    assert bad_input(Samples(), torch.tensor([3])) is None


def test_limits_of_the_guard():
    assert (module.FACTOR, module.WINDOW, FIRST, PATIENCE, BLOCK) == (1000.0, 1000, 50, 10, 100)


def test_the_first_fifty_losses_set_the_limit():
    guard = LossGuard(torch.device("cpu"))
    for _ in range(2):
        assert feed(guard, [1.0] * 10 + [2000.0] * 39) is None
        guard.reset()
        assert feed(guard, [1.0] * 39 + [2000.0] * 30).step == 59
        guard.reset()


def test_losses_of_zero_may_rise_to_a_thousandth():
    for loss, found in ((0.00099, False), (0.0011, True)):
        bad = feed(LossGuard(torch.device("cpu")), [0.0] * 50 + [loss] * 40)
        assert (bad is not None) is found
    assert bad.reason == "above 0.001 for 10 steps in a row" and bad.value == pytest.approx(0.0011)


def test_eight_demos_are_named():
    words = "; ".join(f"demo_{number} steps 0" for number in range(8))
    assert describe_batch(Samples(), torch.arange(0, 80, 10)) == words
    assert describe_batch(Samples(), torch.arange(0, 90, 10)) == f"{words} and 1 more demos"
    assert describe_batch(Samples(), torch.arange(6)) == "demo_0 steps 0, 1, 2, 3"
    assert describe_batch(Samples(), torch.arange(0, 20, 10), limit=1).endswith("and 1 more demos")


def test_a_loss_at_the_limit_is_no_explosion():
    assert feed(LossGuard(torch.device("cpu")), [1.0] * 50 + [1001.0] * 20) is None
    assert feed(LossGuard(torch.device("cpu")), [1.0] * 50 + [1001.5] * 20).step == 59
