import pytest

from imitate.config import load_config
from imitate.data.catalogue import download_advice
from imitate.errors import ConfigError
from imitate.train.setup import resolve


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "datasets/lift/ph/low_dim_v15.hdf5",
            "`imitate dataset download robomimic/lift/ph/low_dim` brings it: then give "
            "--dataset datasets/robomimic/lift/ph/low_dim_v15.hdf5",
        ),
        (
            "datasets/can/mh/image_v15.hdf5",
            "download robomimic/can/mh/low_dim` brings its demonstr",
        ),
        ("datasets/can/mh/low_dim_abs.hdf5", "`imitate dataset actions --to absolute"),
    ],
)
def test_the_command_for_a_public_file(path, words):
    assert words in download_advice(path)


@pytest.mark.parametrize("path", ["own.hdf5", "ph/own.hdf5", "/data/monday/ph/low_dim_v15.hdf5"])
def test_none_for_files_of_ones_own(path):
    assert download_advice(path) is None


def test_a_training_without_its_public_data_names_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        resolve(load_config("paper/what_matters/lift_ph/bc_rnn"), None, None)
    text = str(error.value)
    assert text.startswith(
        f"train.data.0.path: no file {tmp_path}/datasets/lift/ph/low_dim_v15.hdf5"
    )
    assert "imitate dataset download robomimic/lift/ph/low_dim" in text
    assert "\n" not in text
