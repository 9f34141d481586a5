"""Bootstraps that are functions of the samples' numbers."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from imitate.functional.sampling import bootstrap_counts


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
