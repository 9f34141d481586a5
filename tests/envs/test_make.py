import sys

import pytest

from imitate.envs import make_env
from imitate.errors import EnvError


def test_unknown_type_names_the_known_ones():
    with pytest.raises(
        EnvError, match=r"env_args\['type'\] is 3.*1 \(robosuite\), 2 \(gymnasium\)"
    ):
        make_env({"env_name": "Lift", "type": 3})
    with pytest.raises(EnvError, match="is missing"):
        make_env({})


def test_missing_name():
    with pytest.raises(EnvError, match="'env_name'"):
        make_env({"type": 1})


def test_missing_robosuite_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "robosuite", None)
    with pytest.raises(
        EnvError, match=r"pip install 'robosuite>=1.5.2,<1.6'.*pip install '\.\[robosuite\]'"
    ):
        make_env({"env_name": "Lift", "type": 1})


def test_gymnasium_by_type():
    env = make_env({"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {"g": 5.0}})
    assert env.serialize()["env_kwargs"] == {"g": 5.0}
    env.close()
