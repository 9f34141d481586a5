"""`imitate dagger`: who is meant, and what is refused before anything runs."""

import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli import dagger
from imitate.cli.main import app
from imitate.config import load_config
from imitate.errors import ConfigError
from imitate.interactive.supervision import Labels, TakesOver
from tests.demo_files import make_demo_file

OBS = {
    "object": np.array([0.1, 0.0, 0.82, 0, 0, 0, 1, 0, 0, 0]),
    "robot0_eef_pos": np.array([0.0, 0.0, 1.0]),
    "robot0_eef_quat": np.array([1.0, 0, 0, 0]),
    "robot0_gripper_qpos": np.array([0.04, -0.04]),
}


def test_the_experts_share_falls_from_round_to_round():
    supervise = dagger._supervisor("scripted", 0.5, 1, None, "Lift")
    shares = []
    for number in (1, 2):
        labels = supervise(number)
        assert isinstance(labels, Labels)
        labels.start_episode(0)
        words = [labels.watch(OBS, np.zeros(7)) for _ in range(400)]
        assert all(word.label.shape == (7,) for word in words)
        shares.append(np.mean([word.takes_over for word in words]))
    assert shares == pytest.approx([0.5, 0.25], abs=0.07)


def test_a_script_takes_over_where_the_policy_errs():
    supervisor = dagger._supervisor("scripted", 0.5, 1, "expert", "Lift")(1)
    assert isinstance(supervisor, TakesOver)
    supervisor.start_episode(0)
    words = [supervisor.watch(OBS, np.ones(7)) for _ in range(10)]
    assert [word.takes_over for word in words] == [False] * 4 + [True] * 6


def test_a_person_is_a_function_that_is_named():
    supervisor = dagger._supervisor("scripted", 0.5, 1, "numpy:add", "Lift")(1)
    assert supervisor.watch(np.ones(2), np.ones(2)).label.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", ["nowhere.pth", "numpy:nobody", "no_such_module:hand", ":"])
def test_an_expert_that_is_not_there(name):
    with pytest.raises(ConfigError, match="--expert: .* is neither a file nor module:function"):
        dagger._expert(name, "Lift")


def test_steps_by_hand_are_not_thinned(tmp_path):
    args = ["dagger", "--config", "bc/bc", "--out", str(tmp_path / "out"), "--label-every", "2"]
    result = CliRunner().invoke(app, [*args, "--take-over", "expert"])
    assert result.exit_code == 2
    assert "--label-every: with --take-over" in result.output


def test_there_must_be_an_environment(tmp_path):
    args = ["dagger", "--config", "bc/bc", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 2
    assert "--env: name the environment" in result.output


def test_a_null_horizon_follows_from_the_demonstrations(tmp_path):
    assert dagger._horizon(None) == 400
    path = make_demo_file(tmp_path / "demos.hdf5", num_demos=2, length=(30, 40))
    assert dagger._horizon(path) == 80


def test_the_configurations_environment_stands_in_for_a_real_robot(tmp_path):
    robot = {"env_name": "my_arm", "type": 4, "env_kwargs": {"port": 1}}
    path = make_demo_file(tmp_path / "demos.hdf5", num_demos=2, length=5, env_meta=robot)
    config = load_config(
        {
            "algo_name": "bc",
            "experiment": {"env_meta_update_dict": {"env_name": "Pendulum-v1", "type": 2}},
            "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
        }
    )
    meta = dagger._environment(None, path, config)
    assert (meta["env_name"], meta["type"], meta["env_kwargs"]) == ("Pendulum-v1", 2, {})
    assert dagger._environment("MountainCar-v0", path, config)["env_name"] == "MountainCar-v0"


def test_a_real_robot_is_refused_before_anything_is_trained(tmp_path):
    robot = {"env_name": "my_arm", "type": 4, "env_kwargs": {}}
    path = make_demo_file(tmp_path / "demos.hdf5", num_demos=2, length=5, env_meta=robot)
    out = tmp_path / "out"
    args = ["dagger", "--config", "bc/bc", "--dataset", str(path), "--out", str(out)]
    result = CliRunner().invoke(app, [*args, "--expert", "math:sqrt"])
    assert result.exit_code == 2
    assert "is 4, a real robot" in result.output and "set-env" in result.output
    assert not out.exists()


def test_all_observations_of_the_demonstrations(tmp_path):
    file = make_demo_file(
        tmp_path / "demos.hdf5", num_demos=1, length=3, obs_dims={"one": 2, "two": 1}
    )
    config = load_config("bc/bc", ["observation.modalities=auto"])
    taken = dagger._with_keys(config, file)
    assert set(taken.all_obs_keys) == {"one", "two"}
    assert taken.train.data == config.train.data
    with pytest.raises(ConfigError, match="but there are none"):
        dagger._with_keys(config, None)
