"""Several small batches make the update of one large one."""

import pytest
import torch

from imitate.config.readiness import check_trainable
from imitate.errors import ConfigError
from tests.tiny import tiny_algo


def make(accumulation, steps=8):
    words = {"algo": {"ema": {"enabled": True}}, "experiment": {"epoch_every_n_steps": steps}}
    train = {"gradient_accumulation": accumulation}
    return tiny_algo("bc", obs={"state": 3}, action=2, train=train, **words)


def batches(count, size):
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(count * size, 1, 3, generator=generator)
    actions = torch.rand(count * size, 1, 2, generator=generator) - 0.5
    return [
        {"obs": {"state": o}, "actions": a}
        for o, a in zip(obs.split(size), actions.split(size), strict=True)
    ]


def train(algo, given):
    return [
        algo.train_on_batch(algo.process_batch_for_training(batch), 1)["Policy_Grad_Norms"]
        for batch in given
    ]


def test_four_quarters_are_one_batch():
    whole, parts = make(1), make(4)
    large = train(whole, batches(2, 16))
    small = train(parts, batches(8, 4))
    for left, right in zip(whole.nets.parameters(), parts.nets.parameters(), strict=True):
        torch.testing.assert_close(left, right)
    # The norm after the last part is that of the whole.
    torch.testing.assert_close(small[3], large[0])
    assert whole.ema.num_updates == parts.ema.num_updates == 2
    assert parts.schedulers["policy"].last_epoch == 2


def test_nothing_moves_before_the_last_part():
    algo = make(4)
    before = [p.clone() for p in algo.nets.parameters()]
    train(algo, batches(3, 4))
    assert all(torch.equal(x, y) for x, y in zip(before, algo.nets.parameters(), strict=True))


def test_epochs_are_whole_updates():
    with pytest.raises(ConfigError, match="not a multiple of train.gradient_accumulation 4"):
        check_trainable(make(4, steps=10).global_config)
