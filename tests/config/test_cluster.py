"""The section cluster."""

import pytest

from imitate.config import load_config
from imitate.crew.local import LocalBackend
from imitate.errors import ConfigError


def config(**cluster):
    return load_config({"algo_name": "bc", "cluster": cluster})


@pytest.mark.parametrize("on", ["local", "ray", "ray:10.0.0.1:6379"])
def test_places(on):
    assert config(on=on).cluster.on == on


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("slurm", "on slurm: no such place; give local, ray or ray:HOST:PORT"),
        ("ray:host", "no such place"),
        ("ray:host:port", "no such place"),
        ("ray://10.0.0.1:10001", "run the command on the cluster: ray job submit"),
    ],
)
def test_what_is_no_place_is_refused(on, words):
    with pytest.raises(ConfigError, match="cluster.on") as caught:
        config(on=on)
    assert words in str(caught.value)


def test_the_back_end_of_this_machine():
    with config().cluster.backend("imitate-tests") as backend:
        assert isinstance(backend, LocalBackend) and backend.places >= 1
