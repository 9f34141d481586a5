import json

from typer.testing import CliRunner

from imitate.cli.main import app


def invoke(*args):
    return CliRunner().invoke(app, ["check-env", *map(str, args)])


def test_findings_are_printed_one_a_line():
    result = invoke("Pendulum-v1")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert any(line.startswith("ok") and "seeding" in line for line in lines)
    assert any(line.startswith("WARNING") and "states" in line for line in lines)


def test_json_and_env_args_in_a_file(tmp_path):
    path = tmp_path / "env.json"
    path.write_text(json.dumps({"env_name": "CartPole-v1", "type": 2, "env_kwargs": {}}))
    found = json.loads(invoke(path, "--json").output)
    assert {"name", "verdict", "words"} == set(found[0])


def test_an_environment_that_is_not_there():
    result = invoke("Pendulun-v1")
    assert result.exit_code == 1 and "did you mean 'Pendulum-v1'?" in result.output


def test_json_of_several_agents_is_json_alone():
    """PettingZoo's own test prints a line, which belongs to standard error."""
    found = json.loads(invoke("pettingzoo:imitate.envs.team_tasks", "--json").stdout)
    assert {"name": "agents", "verdict": "ok"}.items() <= found[1].items()
