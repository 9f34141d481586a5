"""Rows of nested batches."""

import torch

from imitate.functional.rows import by_parts, join_rows, num_rows, select_rows

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
