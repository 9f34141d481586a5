"""The plug-in package examples/own_algorithm, as docs/own_algorithm.md tells it, through the command line."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from imitate import policy_from_checkpoint
from imitate.config import algorithms
from tests.demo_files import make_demo_file

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "own_algorithm"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package's module and what pip writes of its entry points."""
    site = tmp_path_factory.mktemp("site")
    project = (PACKAGE / "pyproject.toml").read_text()
    (module,) = re.findall(r'py-modules = \["(\w+)"\]', project)
    (points,) = re.findall(r'\[project\.entry-points\."imitate\.algos"\]\n(\w+ = )"(\w+)"', project)
    (site / f"{module}.py").write_text((PACKAGE / f"{module}.py").read_text())
    info = site / "own_algorithm-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-algorithm\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[imitate.algos]\n{''.join(points)}\n")
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
    text = (PACKAGE / "noisy_bc.py").read_text()
    assert len(text.splitlines()) < 80


def test_it_trains_through_the_command_line_and_deploys(
    run, data, tmp_path, installed, monkeypatch
):
    config = PACKAGE / "noisy_bc.json"
    checked = run("config", "check", config, cwd=data.parent)
    assert checked.stdout == f"{config}: good\n", checked.stderr
    small = ["train.num_epochs=2", "experiment.epoch_every_n_steps=3", "train.device=cpu"]
    small += ["experiment.validation_epoch_every_n_steps=1", "experiment.logging.log_tb=false"]
    options = [word for value in small for word in ("--set", value)]
    done = run(
        "train",
        "--config",
        config,
        "--dataset",
        data,
        "-o",
        tmp_path,
        *options,
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"
    (last,) = tmp_path.glob("noisy_bc/*/checkpoints/last.pth")
    monkeypatch.syspath_prepend(installed)
    policy, _ = policy_from_checkpoint(ckpt_path=last, device="cpu")
    policy.start_episode()
    action = policy({"position": [0.0, 0.0], "goal": [0.5, 0.5]})
    assert action.shape == (2,)


def test_a_misspelt_key_of_its_section_is_answered_with_the_near_one(run, data):
    done = run(
        "config", "show", PACKAGE / "noisy_bc.json", "--set", "algo.noize=1", cwd=data.parent
    )
    assert done.returncode == 2
    assert "algo.noize: unknown key, did you mean 'noise'?" in done.stderr


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("name", ["docs/own_algorithm.md"])
def test_the_smallest_algorithm_of_the_docs_runs(name, data, tmp_path, monkeypatch):
    """The text's own class, registered, trained for two epochs with validation."""
    (block,) = [text for text in blocks(name) if "class HuberBC" in text]
    module = "own_algorithm_" + re.sub(r"\W", "_", name)
    algo_name = f"huber_bc_{len(name)}"
    (tmp_path / f"{module}.py").write_text(block.replace('"huber_bc"', f'"{algo_name}"'))
    monkeypatch.syspath_prepend(tmp_path)
    __import__(module)
    from imitate.train.trainer import train

    tree = {
        "algo_name": algo_name,
        "experiment": {
            "validate": True,
            "epoch_every_n_steps": 2,
            "validation_epoch_every_n_steps": 1,
            "rollout": {"enabled": False},
            "logging": {"log_tb": False},
        },
        "train": {
            "data": str(data),
            "num_epochs": 2,
            "batch_size": 8,
            "device": "cpu",
            "num_threads": 1,
            "hdf5_filter_key": "train",
            "hdf5_validation_filter_key": "valid",
        },
        "algo": {"actor_layer_dims": [8]},
        "observation": {"modalities": {"obs": {"low_dim": ["position", "goal"]}}},
    }
    result = train(tree, output_dir=tmp_path, quiet=True)
    algorithms.unregister(algo_name)  # for the tests that list all
    assert result.status == "finished"
    metrics = [
        json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()
    ]
    assert all(record["Valid/Loss"] >= 0 for record in metrics)
    assert len(metrics) == 2
