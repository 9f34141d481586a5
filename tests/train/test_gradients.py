"""Gradients averaged over two ranks while the backward pass runs."""

import json
from pathlib import Path

import pytest

from tests.rank_processes import run_ranks

PROGRAM = Path(__file__).parent / "rank_programs" / "gradients.py"


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    found = tmp_path_factory.mktemp("gradients") / "found.json"
    assert run_ranks(PROGRAM, found) == [0, 0]
    return json.loads(found.read_text())


@pytest.mark.parametrize(
    ("name", "buckets", "networks"),
    [
        ("bc", 2, 1),
        ("bc_accumulated", 2, 1),
        ("bc_bf16", 2, 1),
        ("bc_rnn_gmm", 5, 1),
        ("act", 10, 1),
        ("diffusion_policy", 20, 1),
        ("sac", 1, 3),
    ],
)
def test_ranks_with_different_data_have_equal_weights(findings, name, buckets, networks):
    found = findings[name]
    assert found["buckets"] >= buckets
    assert found["networks"] == networks
    assert found["moved"]
    assert found["apart without"], "without the average they would differ"
    assert found["same"]
    assert found["as reference"], "bit by bit those of an average after the backward pass"


def test_weights_without_a_gradient_on_some_or_all_ranks(findings):
    # Rank 0: 3 + 1; rank 1: 6 + 2. The second weight is used on rank 1 alone.
    for used, half, none in findings["unused"]:
        assert used == [6.0] * 3
        assert half == [4.0] * 3
        assert none is None
