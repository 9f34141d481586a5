import pytest

from imitate.collection.collect import collect
from imitate.collection.demonstrate import Plan

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": {}}


@pytest.fixture(scope="session")
def lift_file(tmp_path_factory):
    """Three demonstrations of Lift by two processes, and the report."""
    path = tmp_path_factory.mktemp("lift") / "lift.hdf5"
    return path, collect(path, Plan(env_meta=LIFT, seed=1), num=3, workers=2)
