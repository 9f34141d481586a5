import sys

import pytest

from imitate.envs import make_env
from imitate.errors import EnvError


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (
            {"env_name": "Lift", "type": 3},
            r"env_args\['type'\] is 3.*1 \(robosuite\), 2 \(gymnasium\)",
        ),
        ({}, "is missing"),
        ({"type": 1}, "'env_name'"),
    ],
)
def test_a_description_that_names_no_environment(meta, words):
    with pytest.raises(EnvError, match=words):
        make_env(meta)


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
