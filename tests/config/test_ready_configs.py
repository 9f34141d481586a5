import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imitate.config import load_config
from imitate.config.loading import bundled, folder, names
from imitate.config.readiness import check_trainable

ROOT = Path(__file__).parents[2]
VARIANTS = ["bc", "bc_gaussian", "bc_gmm", "bc_rnn", "bc_rnn_gmm", "bc_vae"]


def test_every_variant_has_a_template_and_a_configuration_per_task():
    found = set(names())
    assert {f"bc/{variant}" for variant in VARIANTS} <= found
    for task in ("lift", "stack", "pick_place_can"):
        assert {f"robosuite/{task}/{variant}" for variant in VARIANTS} <= found
    assert not any(name.startswith("schema") for name in found)


@pytest.mark.parametrize("name", names())
def test_a_bundled_configuration(name, subtests):
    path = folder() / f"{name}.json"
    config = load_config(path)
    of_data = config.train.data is not None
    with subtests.test("it can be trained, is what it writes, and points at its schema"):
        check_trainable(config)
        if name.split("/")[0] == config.algo_name:
            assert load_config(config.to_json()) == config
        schema = path.parent / json.loads(path.read_text())["$schema"]
        assert schema.resolve() == (folder() / "schema" / f"{config.algo_name}.json").resolve()
        named = name.removeprefix("robosuite/").replace("/", "_")
        assert config.experiment.name == named or not of_data
    if not name.startswith("robosuite/"):
        return
    task = name.split("/")[1]
    with subtests.test("those of robosuite are alike"):
        env = None if of_data else config.train.online.env["env_name"].lower()
        assert env in (None, task.replace("_", ""))
        assert not of_data or config.train.data[0].path.startswith(f"datasets/{task}/")
        assert config.train.output_dir == "runs"
        assert config.train.obs_normalization == "mean_std"
    if "policy" not in config.algo.get("optim_params", default={}):
        return
    with subtests.test("those that clone have the settings that work"):
        rate = config.algo.optim_params.policy.learning_rate
        data = {"image": "image_84", "mixed": "mixed"}.get(name.rpartition("_")[2], "scripted")
        assert config.train.data[0].path == f"datasets/{task}/{data}.hdf5"
        assert (rate.scheduler_type, rate.warmup_steps > 0) == ("cosine", True)
        assert config.experiment.rollout.horizon is None  # whatever file they are given
        if config.algo_name == "bc" and config.algo.rnn.enabled:
            assert config.train.seq_length == config.algo.rnn.horizon


@pytest.mark.parametrize("before", ["", "configs/", "./configs/"])
@pytest.mark.parametrize("after", ["", ".json"])
def test_a_configuration_is_found_by_its_name(before, after, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"{before}robosuite/lift/bc{after}"
    assert bundled(name) == folder() / "robosuite" / "lift" / "bc.json"
    assert load_config(name).experiment.name == "lift_bc"


@pytest.mark.parametrize("name", ["lift/bc", "schema/bc", "", "../configs/bc/bc", "/bc/bc"])
def test_other_names_are_not_found(name):
    assert bundled(name) is None


def test_a_file_of_the_user_comes_first(tmp_path, monkeypatch):
    (tmp_path / "robosuite" / "lift").mkdir(parents=True)
    (tmp_path / "robosuite" / "lift" / "bc").write_text('{"algo_name": "config_toy"}')
    monkeypatch.chdir(tmp_path)
    assert load_config("robosuite/lift/bc").algo_name == "config_toy"


@pytest.mark.nightly
def test_an_installed_wheel_has_the_files_of_data(tmp_path):
    source, site = tmp_path / "source", tmp_path / "site"
    no_junk = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in ("imitate", "configs"):
        shutil.copytree(ROOT / part, source / part, ignore=no_junk)
    (source / "datasets").mkdir()
    shutil.copy(ROOT / "datasets" / "catalogue.json", source / "datasets")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(wheel, check=True)
    (built,) = tmp_path.glob("imitate-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(built)], check=True)
    code = (
        "import imitate.config.loading as ready_configs; from imitate.config import load_config;"
        "print(ready_configs.folder(), len(ready_configs.names()), sep='\\n');"
        "print(load_config('robosuite/lift/bc').algo_name);"
        "from imitate.data.download.catalogue import catalogue_path, load_catalogue; load_catalogue();"
        "print(catalogue_path())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        str(site / "imitate" / "configs"),
        str(len(names())),
        "bc",
        str(site / "imitate" / "catalogue.json"),
    ]
    beside = [path for path in (ROOT / "imitate").rglob("*.*") if "__pycache__" not in path.parts]
    missing = [path for path in beside if not (site / path.relative_to(ROOT)).is_file()]
    assert not missing and any(path.suffix == ".html" for path in beside)
