"""`imitate dagger`: who is meant, and what is refused before anything runs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from imitate.cli.dagger import _line
from imitate.config import load_config
from imitate.train.interactive.dagger import Round
from imitate.train.interactive.supervision import Labels, TakesOver
from tests.calling import call
from tests.demo_files import make_demo_file

OBS = {
    "object": np.array([0.1, 0.0, 0.82, 0, 0, 0, 1, 0, 0, 0]),
    "robot0_eef_pos": np.array([0.0, 0.0, 1.0]),
    "robot0_eef_quat": np.array([1.0, 0, 0, 0]),
    "robot0_gripper_qpos": np.array([0.04, -0.04]),
}


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Runs the command without its rounds; what they would have been called with."""

    def run(*args, config="bc/bc", env=("--env", "Pendulum-v1")):
        called = {}

        def dagger(config, plan, supervise, meta, out, **rest):
            called.update(config=config, plan=plan, supervise=supervise, meta=meta, **rest)
            return SimpleNamespace(exit_code=0, rounds=[])

        monkeypatch.setattr("imitate.train.interactive.dagger.dagger", dagger)
        command = ["dagger", "--config", config, "--out", str(tmp_path / "out")]
        call("", *command, *env, *args)
        return SimpleNamespace(**called)

    return run


@pytest.mark.slow("three rounds, with a training each")
@pytest.mark.robosuite
def test_the_experts_share_falls_from_round_to_round(planned):
    supervise = planned(env=("--env", "Lift")).supervise
    shares = []
    for number in (1, 2):
        labels = supervise(number)
        assert isinstance(labels, Labels)
        labels.start_episode(0)
        words = [labels.watch(OBS, np.zeros(7)) for _ in range(400)]
        assert all(word.label.shape == (7,) for word in words)
        shares.append(np.mean([word.takes_over for word in words]))
    assert shares == pytest.approx([0.5, 0.25], abs=0.07)


@pytest.mark.robosuite
def test_a_script_takes_over_where_the_policy_errs(planned):
    supervisor = planned("--take-over", "expert", env=("--env", "Lift")).supervise(1)
    assert isinstance(supervisor, TakesOver)
    supervisor.start_episode(0)
    words = [supervisor.watch(OBS, np.ones(7)) for _ in range(10)]
    assert [word.takes_over for word in words] == [False] * 4 + [True] * 6


def test_a_person_is_a_function_that_is_named(planned):
    supervisor = planned("--take-over", "numpy:add").supervise(1)
    assert supervisor.watch(np.ones(2), np.ones(2)).label.tolist() == [2.0, 2.0]


def test_a_null_horizon_follows_from_the_demonstrations(tmp_path, planned):
    null = ("--set", "experiment.rollout.horizon=null", "--expert", "math:sqrt")
    assert planned(*null).plan.horizon == 400
    path = make_demo_file(tmp_path / "demos.hdf5", num_demos=2, length=(30, 40))
    assert planned(*null, "--dataset", str(path)).plan.horizon == 80
    assert (
        planned("--expert", "math:sqrt", "--set", "experiment.rollout.horizon=7").plan.horizon == 7
    )


def test_the_configurations_environment_stands_in_for_a_real_robot(tmp_path, planned):
    robot = {"env_name": "my_arm", "type": 4, "env_kwargs": {"port": 1}}
    path = make_demo_file(tmp_path / "demos.hdf5", num_demos=2, length=5, env_meta=robot)
    config = tmp_path / "config.json"
    tree = {
        "algo_name": "bc",
        "experiment": {"env_meta_update_dict": {"env_name": "Pendulum-v1", "type": 2}},
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    config.write_text(json.dumps(tree))
    args = ("--dataset", str(path), "--expert", "math:sqrt")
    meta = planned(*args, config=str(config), env=()).meta
    assert (meta["env_name"], meta["type"], meta["env_kwargs"]) == ("Pendulum-v1", 2, {})
    other = planned(*args, config=str(config), env=("--env", "MountainCar-v0")).meta
    assert other["env_name"] == "MountainCar-v0"


def test_all_observations_of_the_demonstrations(tmp_path, planned):
    file = make_demo_file(
        tmp_path / "demos.hdf5", num_demos=1, length=3, obs_dims={"one": 2, "two": 1}
    )
    config = load_config("bc/bc", ["observation.modalities=auto"])
    auto = ("--set", "observation.modalities=auto", "--expert", "math:sqrt", "--dataset", str(file))
    taken = planned(*auto, env=()).config
    assert set(taken.all_obs_keys) == {"one", "two"}
    assert taken.train.data == config.train.data
    command = ["dagger", "--config", "bc/bc", "--out", str(tmp_path / "out"), *auto[:4]]
    told = call("", *command, "--env", "Pendulum-v1", code=2).output
    assert "but no data file is given" in told


def test_the_line_of_a_round_counts_in_whole_words():
    over = Round(2, episodes=1, steps=40, labels=1, success_rate=0.5, checkpoint="last.pth")
    assert _line(over) == (
        "round 2: 1 episode, 40 steps, 0 of them expert-controlled; 1 label so far, success 50 %: last.pth"
    )


def test_a_device_of_a_file_with_its_options(tmp_path, planned):
    device = tmp_path / "mine.py"
    device.write_text(
        "from imitate.deploy import Teleoperator\n\n\nclass Mine(Teleoperator):\n    pass\n"
    )
    named = ("--take-over", f"{device}:Mine", "--take-over-arg", "watches=3")
    kwargs = planned(*named, env=("--env", "robot:sim:Pendulum-v1")).meta["env_kwargs"]
    assert kwargs["take_over"] == f"{device}:Mine"
    assert kwargs["take_over_options"] == {"watches": 3}
