import json

import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.data import DatasetFile
from imitate.simulation.collect import collect
from imitate.simulation.demonstrate import Plan


def run(*arguments):
    return CliRunner().invoke(app, ["dataset", "render", *map(str, arguments)])


@pytest.mark.robosuite
@pytest.mark.render
def test_one_demo_as_jpeg_and_a_wrong_camera(tmp_path):
    path, out = tmp_path / "lift.hdf5", tmp_path / "images.hdf5"
    plan = Plan(
        env_meta={"env_name": "Lift", "type": 1, "env_kwargs": {}},
        seed=4,
        horizon=3,
        keep_failures=True,
    )
    collect(path, plan, num=1)
    wrong = run(path, "--out", out, "--cameras", "agentvew")
    assert wrong.exit_code == 2
    assert "no camera 'agentvew'; did you mean 'agentview'" in wrong.stderr
    options = ("--size", "agentview=24x32", "--storage", "jpeg", "--only-images", "--json")
    done = run(path, "--out", out, *options)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert run(path, "--out", out, *options).exit_code == 2
    again = run(path, "--out", out, "--resume", *options[:-1])
    assert again.exit_code == 0 and "1 demo, complete already" in again.stdout
    assert report["keys"] == ["agentview_image", "robot0_eye_in_hand_image"]
    assert (report["demos"], report["steps"], report["images"]) == (1, 3, 6)
    with DatasetFile(out) as file:
        assert file.obs_keys("demo_0") == report["keys"]
        assert file.shape("demo_0", "obs/agentview_image") == (3, 24, 32, 3)
        assert file.shape("demo_0", "obs/robot0_eye_in_hand_image") == (3, 84, 84, 3)
        assert file.storage("demo_0", "obs/agentview_image") == "jpeg"
        image = file.read("demo_0", "obs/agentview_image")[0]
    # the white table below, the darker wall and robot above
    assert np.mean(image[-6:]) > np.mean(image[:4]) + 40
