import gymnasium
import numpy as np
import pytest

from benchmarks.studies.offline_pendulum import ALGORITHMS, main
from benchmarks.studies.offline_pendulum_data import TASKS, balance, swing_up, write_data
from imitate.data import DatasetFile

PENDULUM, INVERTED = TASKS["pendulum"], TASKS["inverted_pendulum"]
STEPS = PENDULUM.steps


def test_the_expert_swings_up():
    env = gymnasium.make("Pendulum-v1")
    returns = []
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        total = 0.0
        for _ in range(STEPS):
            torque = np.clip([swing_up(observation)], -2, 2)
            observation, reward, *_ = env.step(torque.astype(np.float32))
            total += reward
        returns.append(total)
    assert np.mean(returns) > -250


def test_the_expert_balances():
    env = gymnasium.make("InvertedPendulum-v5")
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        for _ in range(1000):
            observation, _, fell, *_ = env.step(np.array([balance(observation)], np.float32))
            assert not fell


def test_quality_decides_who_falls(tmp_path):
    path = tmp_path / "inverted.hdf5"
    returns = write_data(path, INVERTED, episodes=60)
    with DatasetFile(path) as file:
        gains = np.array([file.attrs(demo)["gain"] for demo in file.demos()])
        ends = [
            (file.read(demo, "terminals")[-1], file.read(demo, "timeouts")[-1])
            for demo in file.demos()
        ]
    assert 2 <= (gains == 1.0).sum() <= 12
    for gain, total, end in zip(gains, returns, ends, strict=True):
        if gain == 1.0:
            assert (total, end) == (30.0, (0, 1))
        elif gain < -0.1:
            assert total < 30 and end == (1, 0)


def test_the_data_are_mixed_and_end_by_the_clock(tmp_path):
    path = tmp_path / "pendulum.hdf5"
    returns = write_data(path, PENDULUM, episodes=12)
    assert max(returns) > -800 and min(returns) < -1300
    assert returns == write_data(path, PENDULUM, episodes=12)
    with DatasetFile(path) as file:
        assert len(file.demos()) == 12
        assert file.read("demo_0", "terminals", 0, STEPS).sum() == 0
        assert file.read("demo_0", "timeouts", 0, STEPS).tolist() == [0] * (STEPS - 1) + [1]
        rewards = file.read("demo_3", "rewards", 0, STEPS)
        assert rewards.sum() == pytest.approx(returns[3], rel=1e-4)
        after = file.read("demo_0", "next_obs/flat", 0, STEPS)
        assert np.array_equal(after[:-1], file.read("demo_0", "obs/flat", 1, STEPS))


@pytest.mark.parametrize("name", ["bc, best 10 %", "rebrac"])
def test_a_line_per_algorithm(tmp_path, capsys, name):
    path = tmp_path / "pendulum.hdf5"
    write_data(path, PENDULUM, episodes=3)
    assert name in ALGORITHMS
    assert main(["--data", str(path), "--algorithms", name, "--seeds", "1", "--steps", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: mean return -")


def test_the_other_task(tmp_path, capsys):
    options = ["--task", "inverted_pendulum", "--data", str(tmp_path / "inverted.hdf5")]
    options += ["--episodes", "5", "--algorithms", "bc", "--seeds", "1", "--steps", "2"]
    assert main(options) == 0
    data, line = capsys.readouterr().out.splitlines()
    assert data.startswith("data: mean return ")
    assert line.startswith("bc: mean return ")
