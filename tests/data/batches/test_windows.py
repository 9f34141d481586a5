import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imitate.data.batches.windows import Windows


def naive(lengths, frame_stack, seq_length, pad_front, pad_back):
    """Every window as a list of (demo, step, real), one Python step at a time."""
    windows = []
    for demo, length in enumerate(lengths):
        for step in range(length):
            window = [
                (demo, min(max(at, 0), length - 1), 0 <= at < length)
                for at in range(step - frame_stack + 1, step + seq_length)
            ]
            reaches_before = step - frame_stack + 1 < 0
            reaches_beyond = step + seq_length > length
            if (pad_front or not reaches_before) and (pad_back or not reaches_beyond):
                windows.append((step, window))
    return windows


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    frame_stack=st.integers(1, 5),
    seq_length=st.integers(1, 6),
    pad_front=st.booleans(),
    pad_back=st.booleans(),
)
def test_windows_equal_a_naive_loop(lengths, frame_stack, seq_length, pad_front, pad_back):
    ends = np.cumsum(lengths)
    starts = ends - lengths
    windows = Windows(starts, ends, frame_stack, seq_length, pad_front, pad_back)
    wanted = naive(lengths, frame_stack, seq_length, pad_front, pad_back)
    assert len(windows) == len(wanted)
    assert windows.length == frame_stack - 1 + seq_length
    if not wanted:
        return
    got = windows.rows(np.arange(len(wanted)))
    demo, row = windows.steps(np.arange(len(wanted)))
    for i, (step, window) in enumerate(wanted):
        assert row[i] - starts[demo[i]] == step
        assert [
            (got.demo[i], r - starts[got.demo[i]], real)
            for r, real in zip(got.rows[i], got.real[i], strict=True)
        ] == window
        assert got.last[i, 0] == ends[got.demo[i]] - 1


def test_one_demo_by_hand():
    windows = Windows(np.array([0, 3]), np.array([3, 5]), frame_stack=2, seq_length=3)
    got = windows.rows(np.array([0, 2, 3]))
    np.testing.assert_array_equal(got.rows, [[0, 0, 1, 2], [1, 2, 2, 2], [3, 3, 4, 4]])
    np.testing.assert_array_equal(
        got.real,
        [[False, True, True, True], [True, True, False, False], [False, True, True, False]],
    )
    np.testing.assert_array_equal(got.demo, [0, 0, 1])


def test_a_window_is_one_step_where_nothing_else_is_asked():
    windows = Windows(np.array([0, 3]), np.array([3, 5]))
    assert windows.length == 1
    got = windows.rows(np.arange(5))
    assert got.rows.tolist() == [[0], [1], [2], [3], [4]] and got.real.all()


def test_windows_that_need_padding_are_dropped():
    windows = Windows(
        np.array([0, 3]), np.array([3, 5]), 2, 2, pad_frame_stack=False, pad_seq_length=False
    )
    np.testing.assert_array_equal(windows.rows(np.arange(len(windows))).rows, [[0, 1, 2]])


@pytest.mark.parametrize("index", [[-1], [0, 5], [2, -7]])
def test_a_window_that_is_not_there_is_an_error(index):
    windows = Windows(np.array([0, 3]), np.array([3, 5]))
    with pytest.raises(IndexError, match="of 5"):
        windows.rows(np.array(index))
