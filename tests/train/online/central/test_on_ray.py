"""Central acting on a Ray cluster: the workers of both kinds are spread over its nodes and talk directly."""

import functools
import os
import signal
from contextlib import closing

import numpy as np
import pytest

from imitate.crew.places import open_backend
from imitate.train.online.central.collector import CentralCollector

from ..worlds import Line, blueprints, make_algo
from .test_collector import assert_alike, by_lane


class Marked(Line):
    """Writes the number of its process into a folder."""

    def __init__(self, folder):
        super().__init__()
        (folder / str(os.getpid())).touch()


@pytest.mark.ray
@pytest.mark.nightly
def test_steps_are_those_of_local_workers_also_when_a_worker_is_killed(ray_nodes, tmp_path):
    algo = make_algo()
    make = functools.partial(Marked, tmp_path)
    settings = {"step_timeout_s": 60.0, "ring": 2}
    local = CentralCollector(blueprints(algo, Line, Line, lanes=2), algo, **settings)
    place = open_backend(ray_nodes.on, cpus=0.5)
    plans = blueprints(algo, make, make, lanes=2)
    with closing(local), closing(CentralCollector(plans, algo, place=place, **settings)) as remote:
        for _ in range(2):
            assert_alike(local.collect(4), remote.collect(4), 4)
        os.kill(int(next(tmp_path.iterdir()).name), signal.SIGKILL)
        collected = remote.collect(4)
        assert len(collected.lost_lanes) == 2 and len(collected.messages) == 1
        remote.collect(4)
        kept = next(lane for lane in range(4) if lane not in collected.lost_lanes)
        local.collect(8)
        after, expected = remote.collect(4), local.collect(4)
        np.testing.assert_allclose(
            by_lane(after, kept)["place"], by_lane(expected, kept)["place"], atol=1e-3
        )
