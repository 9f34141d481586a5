"""``imitate check-algo`` and ``imitate check-env``: a line or an object for each contract."""

import json

from tests.loading import load

ground = load("tests/train/conftest.py")


def test_online_rl_a_line_for_each_contract(call):
    lines = call(
        "check-algo dqn/dqn_cartpole --set observation.modalities=auto"
    ).output.splitlines()
    assert len(lines) == 13 and all(line.startswith("ok") for line in lines)
    (targets,) = [line for line in lines if " targets " in line]
    assert targets.endswith("critic_target: follows its online network")


def test_demonstrations_in_place_of_online_rl(call, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ground.ENV_FOLDER))
    data, path = tmp_path / "demos.hdf5", tmp_path / "config.json"
    ground.write_demos(data)
    path.write_text(json.dumps(ground.config_dict(experiment={"rollout": {"enabled": True}})))
    findings = call.json("check-algo config.json --dataset demos.hdf5")
    found = {finding["name"]: finding for finding in findings}
    assert "steps" not in found and found["targets"]["words"] == "no target networks"
    assert found["evaluation"]["words"].startswith("2 episodes of point_mass:PointMass-v0")
    assert sorted(tmp_path.iterdir()) == [path, data]


def test_the_environment_of_a_configuration_is_trusted_as_in_training(call, tmp_path):
    tree = {"algo_name": "sac", "train": {"online": {"enabled": True, "env": "nowhere_x:A-v0"}}}
    tree["observation"] = {"modalities": {"obs": {"low_dim": ["flat"]}}}
    (tmp_path / "c.json").write_text(json.dumps(tree))
    first = call("check-algo c.json", code=1).stdout.splitlines()[0]
    assert "No module named 'nowhere_x'" in first and "--trust" not in first
    call("check-algo c.json --trust nowhere_x", code=1)


def test_findings_of_an_environment(call, tmp_path):
    lines = call("check-env Pendulum-v1").output.splitlines()
    assert any(line.startswith("ok") and "seeding" in line for line in lines)
    assert any(line.startswith("- ") and "states" in line for line in lines)
    args = {"env_name": "CartPole-v1", "type": 2, "env_kwargs": {}}
    (tmp_path / "env.json").write_text(json.dumps(args))
    assert {"name", "verdict", "words"} == set(call.json("check-env env.json")[0])
    assert "did you mean 'Pendulum-v1'?" in call("check-env Pendulun-v1", code=1).output
    # PettingZoo's own test prints a line, which belongs to standard error.
    found = call.json("check-env pettingzoo:imitate.envs.worlds.team_tasks")
    assert {"name": "agents", "verdict": "ok"}.items() <= found[1].items()


def test_the_help_says_what_each_contract_is(call):
    text = call("check-algo --help").output
    for name in ("environment", "gradients", "targets", "resume", "Exit codes"):
        assert name in text
