import pytest
import torch

from imitate.functional.columns import columns


@pytest.mark.parametrize("dims", [[2], [1, 2, 3], [3, 1], [0, 2, 4], [4, 4]])
def test_it_is_what_a_list_as_an_index_gives(dims):
    x = torch.arange(30.0).view(2, 3, 5)
    assert torch.equal(columns(x, dims), x[..., dims])
