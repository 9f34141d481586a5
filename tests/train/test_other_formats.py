"""A training on a LeRobot folder: its path stays, and it resumes whatever became of the conversion."""

import json
import shutil
from pathlib import Path

import pytest

from imitate.data.file.cache import cache_folder
from imitate.data.formats.convert import convert
from imitate.train.trainer import train


@pytest.fixture
def lerobot(demo_file, tmp_path):
    convert(demo_file(num_demos=3, length=6), tmp_path / "lr", to_format="lerobot")
    return tmp_path / "lr"


def test_a_run_keeps_the_folder_and_resumes_without_the_conversion(lerobot, tmp_path):
    config = {
        "algo_name": "bc",
        "experiment": {
            "name": "lr",
            "epoch_every_n_steps": 2,
            "rollout": {"enabled": False},
            "logging": {"log_tb": False},
        },
        "train": {"num_epochs": 1, "batch_size": 4, "output_dir": str(tmp_path / "runs")},
        "observation": {"modalities": {"obs": {"low_dim": ["object"]}}},
    }
    first = train(config, dataset=lerobot, quiet=True)
    (run,) = Path(tmp_path / "runs" / "lr").iterdir()
    assert first.exit_code == 0
    saved = json.loads((run / "config.json").read_text())
    assert [entry["path"] for entry in saved["train"]["data"]] == [str(lerobot)]
    shutil.rmtree(cache_folder("datasets"))
    second = train(resume=run, overrides=["train.num_epochs=2"], quiet=True)
    assert second.exit_code == 0
    assert json.loads((run / "results.json").read_text())["status"] == "finished"
    assert len(list(cache_folder("datasets").glob("*.hdf5"))) == 1
