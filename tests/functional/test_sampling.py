"""Bootstraps that are functions of the samples' numbers, and draws with a stream for each row."""

import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from imitate.functional.sampling import (
    RowGenerator,
    bootstrap_counts,
    draw_class,
    draw_normal,
    fill_exponential,
    fill_normal,
    fill_uniform,
    pick_class,
    split_mix,
)


def test_bootstraps_are_poisson_and_independent():
    counts = bootstrap_counts(torch.arange(100_000), 3)
    # Poisson(1): 36.8 % none, 36.8 % one, 18.4 % two, 6.1 % three; mean and variance 1.
    for number, share in enumerate((0.368, 0.368, 0.184, 0.061)):
        assert ((counts == number).double().mean(1) - share).abs().max() < 0.006
    assert (counts.double().mean(1) - 1.0).abs().max() < 0.015
    assert (counts.double().var(1) - 1.0).abs().max() < 0.03
    neighbours = torch.stack([counts[0, :-1], counts[0, 1:], counts[1, :-1], counts[2, :-1]])
    correlation = torch.corrcoef(neighbours.double()) - torch.eye(4)
    assert correlation.abs().max() < 0.015


def test_a_sample_is_in_the_same_bootstraps_wherever_it_stands():
    index = torch.tensor([7, 123456789, 0, 7])
    counts = bootstrap_counts(index, 4)
    assert counts.shape == (4, 4)
    assert torch.equal(counts[:, 0], counts[:, 3])
    assert torch.equal(bootstrap_counts(index.flip(0), 4), counts.flip(1))
    assert torch.equal(bootstrap_counts(index, 2), counts[:2])


def test_a_seed_has_the_same_draws_in_each_version():
    generator = RowGenerator(torch.tensor([2**40 + 5, -8]))
    assert generator.initial_seed() == 5
    assert generator.uniform((2, 2)).flatten().tolist() == [
        0.4777773582240222,
        0.2167475888332811,
        0.10079347495432628,
        0.7676330695969844,
    ]
    assert bootstrap_counts(torch.arange(6) * 10**12, 3).tolist() == [
        [2, 0, 2, 0, 2, 1],
        [1, 3, 4, 3, 2, 0],
        [0, 2, 0, 1, 0, 0],
    ]


def test_a_class_is_drawn_by_its_probability_and_picked_by_its_index():
    shares = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.1, 0.9]])
    drawn = draw_class(shares.log().expand(20_000, 2, 3), torch.Generator().manual_seed(0))
    for number, share in enumerate(shares.T):
        assert ((drawn == number).double().mean(0) - share).abs().max() < 0.015
    values = torch.arange(24).reshape(2, 3, 4)
    assert pick_class(values, torch.tensor([2, 0])).tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert pick_class(values[:, None], torch.tensor([[2], [0]])).shape == (2, 1, 4)


class NoDoubles(TorchDispatchMode):
    """Stand-in for a device without float64, as MPS is."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        assert not isinstance(found, Tensor) or found.dtype != torch.float64
        return found


def test_bootstraps_need_no_float64():
    index = torch.arange(10)
    with NoDoubles():
        assert bootstrap_counts(index, 2).shape == (2, 10)


SEEDS = torch.arange(50_000)


def test_split_mix_gives_the_published_numbers():
    """The first three outputs of SplitMix64 with seed 1234567."""
    states = torch.tensor([1234567]) + torch.arange(1, 4) * -0x61C8864680B583EB
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(x) % 2**64 for x in split_mix(states)] == expected


@pytest.mark.parametrize(
    ("fill", "below"),
    [
        (fill_normal, lambda x: 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))),
        (fill_uniform, lambda x: x),
        (fill_exponential, lambda x: 1.0 - math.exp(-x)),
    ],
    ids=["normal", "uniform", "exponential"],
)
def test_numbers_of_rows_have_their_distribution_and_are_independent(fill, below):
    generator = RowGenerator(SEEDS)
    draws = torch.cat([fill(torch.empty(len(SEEDS), 2), generator) for _ in range(2)], dim=1)
    for x in (0.1, 0.3, 0.5, 0.9):
        shares = (draws < x).double().mean(0)
        assert (shares - below(x)).abs().max() < 0.01
    columns = [*draws.T, draws[:, 0].roll(1)]
    correlation = torch.corrcoef(torch.stack(columns).double()) - torch.eye(5)
    assert correlation.abs().max() < 0.02
    assert draws.isfinite().all()


def test_a_row_has_the_same_numbers_whichever_rows_are_beside_it():
    first, second = RowGenerator(torch.tensor([3, 8, 5])), RowGenerator(torch.tensor([8]))
    for _ in range(2):
        mean, std = torch.zeros(3, 4), torch.ones(3, 4)
        drawn = draw_normal(mean, std, first)
        assert torch.equal(drawn[1:2], draw_normal(mean[:1], std[:1], second))
        assert torch.equal(
            draw_class(torch.zeros(3, 100), first)[1:2], draw_class(torch.zeros(1, 100), second)
        )


def test_uniform_numbers_stay_below_one():
    class Greatest(RowGenerator):
        def uniform(self, shape):
            return torch.full(tuple(shape), 1.0 - 2.0**-53, dtype=torch.float64)

    assert fill_uniform(torch.empty(1, 1), Greatest(torch.zeros(1, dtype=torch.int64))) < 1.0


def test_a_draw_for_other_rows_is_refused():
    with pytest.raises(ValueError, match="has 2 rows; wanted 1"):
        fill_normal(torch.empty(2, 3), RowGenerator(torch.tensor([0])))


@pytest.mark.parametrize("name", ["normal", "uniform", "exponential"])
def test_other_generators_give_the_numbers_of_torch(name):
    fill = {"normal": fill_normal, "uniform": fill_uniform, "exponential": fill_exponential}[name]
    drawn = fill(torch.empty(5), torch.Generator().manual_seed(4))
    expected = getattr(torch.empty(5), f"{name}_")(generator=torch.Generator().manual_seed(4))
    assert torch.equal(drawn, expected)
