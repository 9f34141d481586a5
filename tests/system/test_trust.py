"""No file chooses a module that is imported."""

import json
import os
import sys
from functools import partial

import pytest

from imitate import load_config
from imitate.envs import make_env
from imitate.errors import EnvError
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.system.trust import VARIABLE, check_trusted, trust, trust_env, trust_file
from tests.calling import call
from tests.tiny import tiny_checkpoint, tiny_demos

SEEN = {"flat": 3}

EVIL = """
import pathlib
import gymnasium
pathlib.Path(__file__).with_name("CANARY").write_text("this code ran")
gymnasium.register("Evil-v0", entry_point="gymnasium.envs.classic_control:PendulumEnv")
"""


def meta(name="evilmod:Evil-v0"):
    return {"env_name": name, "type": 2, "env_kwargs": {}}


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """Nothing is trusted; the user's list would lie in the test's folder."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def place(tmp_path, nobody):
    """A folder with a module that leaves a trace when it runs, and a checkpoint and a dataset that name it."""
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "evilmod.py").write_text(EVIL)
    tiny_checkpoint(
        folder / "evil.pth", env=meta(), obs=SEEN, experiment={"rollout": {"horizon": 2}}
    )
    tiny_demos(folder / "evil.hdf5", SEEN, env_meta=meta())
    return folder


@pytest.fixture
def command(place, imitate):
    """Runs a command in the folder, which is on the path of modules."""
    return partial(imitate, cwd=place, check=False)


EVAL = ("eval", "--agent", "evil.pth", "--episodes", "2", "--workers", "2", "-q")


@pytest.mark.parametrize(
    "words",
    [
        EVAL,
        ("dataset", "playback", "evil.hdf5", "--video", "x.mp4"),
        (
            *("train", "--config", "bc/bc", "--dataset", "evil.hdf5", "--set", "train.cuda=false"),
            *("--set", 'observation.modalities.obs.low_dim=["flat"]'),
        ),
    ],
    ids=["eval", "playback", "train"],
)
def test_a_module_that_a_file_names_is_not_imported(place, command, words):
    done = command(*words)
    assert not (place / "CANARY").exists()
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "evilmod:Evil-v0: a file names the module 'evilmod'" in line
    assert "--trust evilmod" in line
    assert "Traceback" not in done.stderr


def test_it_is_where_the_user_says_so_and_workers_know(place, monkeypatch):
    monkeypatch.syspath_prepend(str(place))
    trust("evilmod")
    two = EvalSettings(episodes=2, workers=2)
    assert evaluate(place / "evil.pth", settings=two).not_played == 0
    assert "evilmod" not in sys.modules and (place / "CANARY").exists()


@pytest.mark.nightly
def test_so_it_is_with_the_option(place, command):
    done = command(*EVAL, "--trust", "evilmod")
    assert done.returncode == 0, done.stderr
    assert (place / "CANARY").exists()


@pytest.mark.slow("two commands")
def test_naming_it_on_the_command_line_is_saying_so(place, command):
    done = command("check-env", "evilmod:Evil-v0", "--steps", "2")
    assert (place / "CANARY").exists(), done.stderr
    (place / "CANARY").unlink()
    done = command("check-env", "evil.hdf5")
    assert not (place / "CANARY").exists()
    assert done.returncode == 2
    assert "--trust evilmod" in done.stderr


@pytest.mark.usefixtures("nobody")
class TestTrust:
    def refused(self, name):
        with pytest.raises(EnvError, match=f"{name}: a file names the module"):
            check_trusted(meta(name))

    def test_variable_names_modules_and_their_submodules(self):
        self.refused("one.sub:A-v0")
        trust("one")
        check_trusted(meta("one.sub:A-v0"))
        self.refused("ones:A-v0")
        self.refused("two:A-v0")
        trust("two:B-v0")
        check_trusted(meta("two:A-v0"))
        assert os.environ[VARIABLE] == "one,two,two:B-v0"

    def test_the_users_file_names_modules(self):
        trust_file().parent.mkdir(parents=True)
        trust_file().write_text("# ours\none  # arms\n\n")
        check_trusted(meta("one:A-v0"))
        self.refused("ours:A-v0")
        trust_file().write_bytes(b"\xff\xfe")
        with pytest.raises(EnvError, match="list of trusted modules cannot be read"):
            check_trusted(meta("one:A-v0"))

    def test_names_without_a_module_need_no_trust(self):
        check_trusted(meta("Pendulum-v1"))
        check_trusted({"type": 1, "env_name": "Lift"})
        check_trusted({})
        trust_env(None)
        trust_env({"env_kwargs": {}})
        trust_env({"env_name": 3})
        assert os.environ[VARIABLE] == ""

    def test_modules_of_this_package_and_its_extras_come_with_trust(self, tmp_path, monkeypatch):
        check_trusted(meta("imitate.envs.worlds.tasks:Recall-v0"))
        monkeypatch.delitem(sys.modules, "gymnasium_robotics", raising=False)
        check_trusted(meta("gymnasium_robotics:FetchReach-v4"))
        (tmp_path / "gymnasium_robotics.py").write_text("")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        self.refused("gymnasium_robotics:FetchReach-v4")

    def test_python_callers_are_asked_too(self):
        with pytest.raises(EnvError, match="--trust nobody_knows"):
            make_env(meta("nobody_knows:A-v0"))


def test_the_configuration_of_a_training_is_the_users(nobody):
    from imitate.evaluate.environments import trust_named

    tree = {
        "algo_name": "sac",
        "cluster": {"on": "ray:head:6379"},
        "experiment": {
            "env": "one:A-v0",
            "additional_envs": ["two.sub:A-v0", "Pendulum-v1"],
            "env_meta_update_dict": {"env_name": "three:A-v0"},
        },
        "train": {"online": {"enabled": True, "env": {"env_name": "four:A-v0", "type": 2}}},
    }
    trust_named(load_config(json.dumps(tree)))
    assert os.environ[VARIABLE] == "four,one,ray:head:6379,three,two.sub"


@pytest.mark.parametrize(
    "named",
    [
        {"experiment": {"env": "evilmod:Evil-v0"}},
        {"experiment": {"additional_envs": ["evilmod:Evil-v0"]}},
        {"experiment": {"env_meta_update_dict": meta()}},
        {"train": {"online": {"env": meta()}}},
    ],
    ids=["env", "additional_envs", "env_meta_update_dict", "online"],
)
def test_the_configuration_in_a_checkpoint_is_not_the_users(place, named):
    tiny_checkpoint(place / "own.pth", env=meta("Pendulum-v1"), obs=SEEN, **named)
    words = ("--dataset", place / "evil.hdf5", "--output-dir", place / "runs")
    assert "--trust evilmod" in call("train --init", place / "own.pth", *words, code=2).stderr
    assert os.environ[VARIABLE] == ""
    assert not (place / "runs").exists()


def test_a_file_named_as_the_environment_chooses_no_module_either(place):
    from imitate.evaluate.environments import named_env

    (place / "evil.json").write_text(json.dumps(meta()))
    for name in ("evil.hdf5", "evil.json"):
        with pytest.raises(EnvError, match="--trust evilmod"):
            named_env(str(place / name))


def test_an_evaluation_asks_before_it_starts_anything(place):
    with pytest.raises(EnvError, match="--trust evilmod"):
        evaluate(place / "evil.pth", settings=EvalSettings(episodes=1, horizon=1))
    assert not (place / "CANARY").exists()
