import json
from pathlib import Path

import pytest

from imitate.config import load_config, located_data
from imitate.config.data_paths import expanded, url_of
from imitate.errors import ConfigError

TOY = {"algo_name": "config_toy"}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A working directory, and another folder with a configuration that names ``d/a.hdf5``."""
    cwd, folder = tmp_path / "cwd", tmp_path / "configs"
    (cwd / "d").mkdir(parents=True)
    (folder / "d").mkdir(parents=True)
    (folder / "c.json").write_text(json.dumps({**TOY, "train": {"data": "d/a.hdf5"}}))
    monkeypatch.chdir(cwd)
    return cwd, folder


def test_the_working_directory_comes_first(places):
    cwd, folder = places
    config = load_config(folder / "c.json")
    (folder / "d" / "a.hdf5").touch()
    assert located_data(config)[0].path == str(folder / "d" / "a.hdf5")
    (cwd / "d" / "a.hdf5").touch()
    assert located_data(config)[0].path == str(cwd / "d" / "a.hdf5")
    assert config.train.data[0].path == "d/a.hdf5"


def test_the_other_values_of_an_entry_stay(places):
    cwd, _ = places
    (cwd / "b").touch()
    entry = {"path": "b", "weight": 2.0, "filter_key": "better"}
    (found,) = located_data(load_config({**TOY, "train": {"data": [entry]}}))
    assert found.path == str(cwd / "b") and found.weight == 2.0
    assert found.filter_key == "better"


def test_a_missing_file_names_both_places(places):
    cwd, folder = places
    with pytest.raises(ConfigError) as error:
        located_data(load_config(folder / "c.json"))
    assert str(error.value) == (
        f"train.data.0.path: no file {cwd / 'd' / 'a.hdf5'} nor {folder / 'd' / 'a.hdf5'}: "
        "correct the path, or collect or download the data first"
    )


def test_an_absolute_path_is_looked_for_once(places):
    with pytest.raises(ConfigError, match=r"no file /nowhere/a.hdf5: correct"):
        located_data(load_config({**TOY, "train": {"data": "/nowhere/a.hdf5"}}))


@pytest.mark.parametrize("data", [None, []])
def test_no_data(data):
    with pytest.raises(ConfigError, match="train.data: no demonstrations given: name an HDF5 file"):
        located_data(load_config({**TOY, "train": {"data": data}}))


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("s_{08..11}.hdf5", ["s_08.hdf5", "s_09.hdf5", "s_10.hdf5", "s_11.hdf5"]),
        ("s_{8..10}.hdf5", ["s_8.hdf5", "s_9.hdf5", "s_10.hdf5"]),
        ("s3://b/{3..3}/x.h5", ["s3://b/3/x.h5"]),
        ("plain.hdf5", ["plain.hdf5"]),
    ],
)
def test_a_range_stands_for_its_files(path, names):
    assert expanded(path) == names


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{5..3}.hdf5", "ascending range"),
        ("{0..99999}.hdf5", "at most"),
        ("{00..100}.hdf5", r"such as \{000..100\}"),
    ],
)
def test_a_range_that_means_nothing_is_refused(path, words):
    with pytest.raises(ConfigError, match=words):
        expanded(path)


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3://bucket/demos", "s3://bucket/demos"),
        (Path("s3://bucket/demos"), "s3://bucket/demos"),  # a Path loses a slash
        ("https://host/demos/index.json", "https://host/demos"),
        (Path("file:///data/demos/"), "file:///data/demos"),
        ("demos/a.hdf5", None),
        ("/data/a.hdf5", None),
    ],
)
def test_addresses_are_told_from_paths(path, url):
    assert url_of(path) == url
