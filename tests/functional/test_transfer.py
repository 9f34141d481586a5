import pytest
import torch

from imitate.functional.transfer import to_device


class Recorded:
    """Stands for a tensor."""

    def to(self, device, dtype, non_blocking):
        return device, dtype, non_blocking


@pytest.mark.parametrize(
    ("device", "non_blocking"),
    [("cuda", True), ("cuda:1", True), ("mps", False), ("cpu", False)],
)
def test_only_copies_to_devices_that_take_the_memory_at_once_are_not_waited_for(
    device, non_blocking
):
    assert to_device(Recorded(), device) == (device, None, non_blocking)


def test_values_and_dtype():
    moved = to_device(torch.tensor([1, 2]), torch.device("cpu"), torch.float32)
    assert moved.tolist() == [1.0, 2.0]
    assert moved.dtype == torch.float32
