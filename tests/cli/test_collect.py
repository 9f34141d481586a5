import json

import pytest
from typer.testing import CliRunner

from imitate.cli.collect import _as_json, _as_text
from imitate.cli.main import app
from imitate.data import DatasetFile
from imitate.simulation.collect import CollectionReport


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.robosuite
def test_one_demonstration_and_its_summary(tmp_path):
    path = tmp_path / "lift.hdf5"
    done = run(
        "collect",
        "--env",
        "Lift",
        "--num",
        "1",
        "--seed",
        "4",
        "--out",
        str(path),
        "--hold",
        "2",
        "--json",
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert (report["demos"], report["solved"], report["success_rate"]) == (1, 1, 1.0)
    with DatasetFile(path) as file:
        assert file.length("demo_0") == report["steps"]
        assert file.read("demo_0", "terminals").sum() == 3
        assert file.filter_keys() == {"train": ["demo_0"]}


@pytest.mark.robosuite
def test_mixed_quality_with_dense_rewards(tmp_path):
    path = tmp_path / "mixed.hdf5"
    options = ("--quality", "mixed", "--rewards", "dense", "--num", "2", "--horizon", "20")
    done = run("collect", "--env", "Lift", "--out", str(path), *options)
    assert done.exit_code == 0, done.output
    assert "2 demonstrations (better 1, okay 1), 0 solve the task" in done.stdout
    with DatasetFile(path) as file:
        assert file.env_meta["env_kwargs"]["reward_shaping"] is True
        rewards = file.read("demo_0", "rewards")
        assert 0 < rewards.min() < rewards.max() < 1  # the nearer the hand, the more


def test_a_task_of_metaworld_by_two_workers(tmp_path):
    path = tmp_path / "press.hdf5"
    options = ("--num", "2", "--workers", "2", "--env-kwargs", '{"reward_shaping": true}')
    done = run("collect", "--env", "metaworld:button-press-v3", "--out", str(path), *options)
    assert done.exit_code == 0, done.output
    assert "2 demonstrations (better 2), 2 solve the task" in done.stdout
    with DatasetFile(path) as file:
        assert file.env_meta["env_name"] == "metaworld:button-press-v3"
        assert file.env_meta["env_kwargs"] == {"reward_shaping": True}
        assert file.attrs("demo_0")["language"] == "press the button"
        assert 0 < file.read("demo_0", "rewards")[0] < 1


@pytest.mark.robosuite
def test_a_persons_habits(tmp_path):
    path = tmp_path / "human.hdf5"
    done = run("collect", "--env", "Lift", "--num", "1", "--human-like", "--out", str(path))
    assert done.exit_code == 0, done.output
    with DatasetFile(path) as file:
        actions = file.read("demo_0", "actions")
    assert (actions[:5, :6] == 0.0).all()  # waits before the first motion


def test_the_rate_counts_what_was_recorded_now():
    report = CollectionReport("demos", demos=40, resumed=30, seconds=60.0)
    assert json.loads(_as_json(report))["demos_per_min"] == 10.0
    assert "60 s, 10 demonstrations/min" in _as_text(report)
