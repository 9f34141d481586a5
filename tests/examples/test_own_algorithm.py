"""The plug-in package examples/own_algorithm, as docs/own_algorithm.md tells it, through the command line."""

import json
from functools import partial
from pathlib import Path

import pytest

from imitate import policy_from_checkpoint
from imitate.config import algorithms
from scripts.tutorials import install
from tests.demo_files import make_demo_file
from tests.docs.pages import python_blocks
from tests.tiny import tiny_run

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "own_algorithm"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package, as pip installs it."""
    site = tmp_path_factory.mktemp("site")
    install(PACKAGE, site)
    return site


@pytest.fixture(scope="module")
def run(installed, imitate):
    return partial(imitate, path=[installed], check=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "own.hdf5"
    masks = {"train": [0, 1, 2], "valid": [3]}
    return make_demo_file(
        path, obs_dims={"position": 2, "goal": 2}, action_dim=2, filter_keys=masks
    )


def test_the_example_is_one_short_file():
    assert len((PACKAGE / "noisy_bc.py").read_text().splitlines()) < 80


def test_it_trains_through_the_command_line_and_deploys(
    run, data, tmp_path, installed, monkeypatch
):
    config = PACKAGE / "noisy_bc.json"
    checked = run("config", "check", config, cwd=data.parent)
    assert checked.stdout == f"{config}: good\n", checked.stderr
    small = ["train.num_epochs=2", "experiment.epoch_every_n_steps=3", "train.device=cpu"]
    small += ["experiment.validation_epoch_every_n_steps=1", "experiment.logging.log_tb=false"]
    options = [word for value in small for word in ("--set", value)]
    train = ("train", "--config", config, "--dataset", data, "-o", tmp_path, "--json")
    done = run(*train, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"
    (last,) = tmp_path.glob("noisy_bc/*/checkpoints/last.pth")
    monkeypatch.syspath_prepend(installed)
    policy, _ = policy_from_checkpoint(ckpt_path=last, device="cpu")
    policy.start_episode()
    assert policy({"position": [0.0, 0.0], "goal": [0.5, 0.5]}).shape == (2,)


def test_a_misspelt_key_of_its_section_is_answered_with_the_near_one(run, data):
    done = run(
        "config", "show", PACKAGE / "noisy_bc.json", "--set", "algo.noize=1", cwd=data.parent
    )
    assert done.returncode == 2
    assert "algo.noize: unknown key, did you mean 'noise'?" in done.stderr


def test_the_smallest_algorithm_of_the_docs_runs(data, tmp_path, monkeypatch):
    """The text's own class, registered, trained for two epochs with validation."""
    (block,) = [text for text in python_blocks("docs/own_algorithm.md") if "class HuberBC" in text]
    algo_name = "huber_bc_of_the_page"
    (tmp_path / "own_algorithm_page.py").write_text(block.replace("huber_bc", algo_name))
    monkeypatch.syspath_prepend(tmp_path)
    __import__("own_algorithm_page")
    run_dir = tiny_run(
        tmp_path,
        algo_name,
        obs={"position": 2, "goal": 2},
        data=data,
        experiment={"validate": True, "validation_epoch_every_n_steps": 1},
        train={"num_epochs": 2, "hdf5_filter_key": "train", "hdf5_validation_filter_key": "valid"},
    )
    algorithms.unregister(algo_name)  # for the tests that list all
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert all(record["Valid/Loss"] >= 0 for record in metrics)
    assert len(metrics) == 2
