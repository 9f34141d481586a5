"""Columns and rows of batches, their way to a device, and code that runs eagerly."""

import pytest
import torch

from imitate.algo.base.rows import by_parts, join_rows, num_rows, select_rows
from imitate.functional import kernels
from imitate.functional.kernels import kernels_apply
from imitate.functional.transfer import to_device
from imitate.models.preprocessing.step import columns


@pytest.mark.parametrize("dims", [[2], [1, 2, 3], [3, 1], [0, 2, 4], [4, 4]])
def test_it_is_what_a_list_as_an_index_gives(dims):
    x = torch.arange(30.0).view(2, 3, 5)
    assert torch.equal(columns(x, dims), x[..., dims])


BATCH = {"obs": {"x": torch.arange(5.0)}, "reward": torch.arange(5.0) * 10}


def test_rows_by_numbers_mask_and_slice():
    for rows in (torch.tensor([1, 3]), torch.tensor([0, 1, 0, 1, 0], dtype=torch.bool)):
        chosen = select_rows(BATCH, rows)
        assert chosen["obs"]["x"].tolist() == [1, 3] and chosen["reward"].tolist() == [10, 30]
    assert select_rows(BATCH, slice(1, 3))["obs"]["x"].tolist() == [1, 2]


def test_joined_rows_are_of_the_first_and_then_of_the_second():
    other = {**select_rows(BATCH, slice(0, 2)), "more": torch.zeros(2)}
    joined = join_rows(BATCH, other)
    assert joined.keys() == BATCH.keys()
    assert joined["obs"]["x"].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert num_rows(joined) == 7


def test_parts_give_the_same_as_the_whole():
    sizes = []

    def doubled(part):
        sizes.append(num_rows(part))
        return part["obs"]["x"] + part["reward"]

    assert by_parts(doubled, BATCH, size=2).tolist() == [0, 11, 22, 33, 44]
    assert sizes == [2, 2, 1]
    assert by_parts(lambda part: None, BATCH) is None


class Recorded:
    """Stands for a tensor."""

    def to(self, device, dtype, non_blocking):
        return device, dtype, non_blocking


@pytest.mark.parametrize(
    ("device", "non_blocking"), [("cuda", True), ("cuda:1", True), ("mps", False), ("cpu", False)]
)
def test_only_copies_to_devices_that_take_the_memory_at_once_are_not_waited_for(
    device, non_blocking
):
    assert to_device(Recorded(), device) == (device, None, non_blocking)


def test_values_and_dtype():
    moved = to_device(torch.tensor([1, 2]), torch.device("cpu"), torch.float32)
    assert moved.tolist() == [1.0, 2.0]
    assert moved.dtype == torch.float32


def test_kernels_apply_to_plain_code_alone_and_where_they_are_not_switched_off(monkeypatch):
    found = []

    def noted(x):
        found.append(kernels_apply())
        return x * 2

    noted(torch.ones(2))
    torch.func.vmap(noted)(torch.ones(2))
    torch.func.grad(lambda x: noted(x).sum())(torch.ones(2))
    torch.jit.trace(noted, torch.ones(2), check_trace=False)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    noted(torch.ones(2))
    monkeypatch.undo()
    monkeypatch.setenv("IMITATE_KERNELS", "0")
    kernels.switched_on.cache_clear()
    noted(torch.ones(2))
    monkeypatch.undo()
    kernels.switched_on.cache_clear()
    noted(torch.ones(2))
    assert found == [True, False, False, False, False, False, True]
