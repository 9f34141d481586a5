"""Crews on a Ray cluster."""

import pytest

from imitate.crew import Crew, open_backend
from tests.crew.test_crew import worker

pytestmark = pytest.mark.ray


def test_results_come_in_order_from_both_nodes(ray_nodes):
    with open_backend(ray_nodes.on) as backend:
        assert backend.places == 4
        with Crew(worker, 4, backend=backend) as crew:
            items = [("echo", number) for number in range(10)]
            assert [done.result for done in crew.in_order(items)] == list(range(10))
