import pytest

from imitate.simulation.collect import collect
from imitate.simulation.demonstrate import Plan

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": {}}


@pytest.fixture(scope="session")
def lift_file(tmp_path_factory):
    """Three demonstrations of Lift by two processes, and the report."""
    path = tmp_path_factory.mktemp("lift") / "lift.hdf5"
    return path, collect(path, Plan(env_meta=LIFT, seed=1), num=3, workers=2)
