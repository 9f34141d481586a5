"""Memory that is used again: never while somebody can still see it."""

import math
import pickle
import tracemalloc

import numpy as np
import pytest
import torch

from imitate.data.batches.buffers import Buffers

SHAPE, UINT8 = (16, 10, 32, 32, 3), np.dtype(np.uint8)


def test_memory_comes_back_when_the_tensor_is_gone():
    buffers = Buffers()
    tensor = buffers.empty(SHAPE, UINT8)
    assert (tuple(tensor.shape), tensor.dtype) == (SHAPE, torch.uint8)
    address = tensor.data_ptr()
    assert buffers.empty(SHAPE, UINT8).data_ptr() != address
    del tensor
    floats = buffers.empty((16, 10, 32, 8, 3), np.dtype(np.float32))  # as many bytes
    assert floats.dtype == torch.float32
    again = buffers.empty(SHAPE, UINT8)
    assert address in (floats.data_ptr(), again.data_ptr())


@pytest.mark.parametrize(
    "kept",
    [
        lambda t: t[3],
        lambda t: t.view(160, -1)[5:7],
        lambda t: t.numpy()[2:4],
        lambda t: np.asarray(t)[0, 0].reshape(-1),
        lambda t: memoryview(t.numpy()),
        lambda t: t.permute(0, 1, 4, 2, 3),
        lambda t: t.untyped_storage(),
        lambda t: torch.from_dlpack(t),
    ],
    ids=["row", "view", "numpy", "slice of numpy", "memoryview", "permuted", "storage", "dlpack"],
)
def test_whatever_still_looks_at_a_batch_keeps_its_memory(kept):
    buffers = Buffers()
    tensor = buffers.empty(SHAPE, UINT8)
    tensor.fill_(7)
    address = tensor.data_ptr()
    view = kept(tensor)
    del tensor
    others = [buffers.empty(SHAPE, UINT8) for _ in range(6)]
    assert address not in [other.data_ptr() for other in others]
    del view
    assert buffers.empty(SHAPE, UINT8).data_ptr() == address


def test_few_are_kept_and_none_is_pickled():
    buffers = Buffers()
    tracemalloc.start()
    try:
        held = [buffers.empty(SHAPE, UINT8) for _ in range(10)]
        del held
        batch = math.prod(SHAPE)
        assert tracemalloc.get_traced_memory()[0] == pytest.approx(4 * batch, rel=0.05)
        for size in range(200_000, 200_020):
            buffers.empty((size,), UINT8)
        # At most eight sizes: those of the large batches are gone, too.
        assert tracemalloc.get_traced_memory()[0] < 9 * 200_020
    finally:
        tracemalloc.stop()
    assert len(pickle.dumps(buffers)) < 200
    assert pickle.loads(pickle.dumps(buffers)).empty(SHAPE, UINT8).shape == SHAPE
