"""Devices that are not the CPU: the simulated one, and CUDA where there is one."""

import pytest

from tests.device.simulated_gpu import simulated_gpu


@pytest.fixture
def transfers():
    """The simulated device may be used in the test; counts the times that a GPU would have stopped the process."""
    with simulated_gpu() as transfers:
        yield transfers


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    """Name of a device other than the CPU."""
    if request.param == "cuda":
        yield "cuda"
        return
    with simulated_gpu():
        yield "simgpu"
