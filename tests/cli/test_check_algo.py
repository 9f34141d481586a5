import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from imitate.cli.main import app

FOLDER = Path(__file__).parents[1] / "train"
spec = importlib.util.spec_from_file_location("check_conftest", FOLDER / "conftest.py")
ground = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ground)


def invoke(*args):
    return CliRunner().invoke(app, ["check-algo", *map(str, args)])


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ground.ENV_FOLDER))


def test_online_rl_a_line_for_each_contract():
    result = invoke("dqn/dqn_cartpole")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) == 13 and all(line.startswith("ok") for line in lines)
    (targets,) = [line for line in lines if " targets " in line]
    assert targets.endswith("critic_target: follows its online network")


def test_demonstrations_in_place_of_online_rl(tmp_path, importable):
    data, path = tmp_path / "demos.hdf5", tmp_path / "config.json"
    ground.write_demos(data)
    path.write_text(json.dumps(ground.config_dict(experiment={"rollout": {"enabled": True}})))
    result = invoke(path, "--dataset", data, "--json")
    assert result.exit_code == 0, result.output
    found = {finding["name"]: finding for finding in json.loads(result.output)}
    assert "steps" not in found and found["targets"]["words"] == "there are none"
    assert found["evaluation"]["words"].startswith("2 episodes of point_mass:PointMass-v0")
    assert sorted(tmp_path.iterdir()) == [path, data]


def test_the_help_says_what_each_contract_is():
    text = invoke("--help").output
    for name in ("environment", "gradients", "targets", "resume", "Exit codes"):
        assert name in text
