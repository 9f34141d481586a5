import pytest

from imitate.collect.collect import collect
from imitate.collect.demonstrate import Plan
from imitate.data import DatasetFile

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": {}}


@pytest.fixture(scope="session")
def lift_file(tmp_path_factory):
    """Two demonstrations of Lift, and the report."""
    path = tmp_path_factory.mktemp("lift") / "lift.hdf5"
    return path, collect(path, Plan(env_meta=LIFT, seed=1, signals=("joint_speed",)), num=2)


def content(*paths):
    """Arrays, attributes and filter keys of files, together."""
    arrays, attrs, keys = {}, {}, {}
    for path in paths:
        with DatasetFile(path) as file:
            for demo in file.demos():
                attrs[demo] = file.attrs(demo)
                arrays |= {(demo, key): file.read(demo, key).tobytes() for key in file.keys(demo)}
            for key, demos in file.filter_keys().items():
                keys.setdefault(key, []).extend(demos)
    return arrays, attrs, keys
