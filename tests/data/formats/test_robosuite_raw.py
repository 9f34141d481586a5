"""robosuite's own recordings: the environment from its attributes, states without observations."""

import h5py
import numpy as np
import pytest

from imitate.data.formats.base import ConversionReport, Options
from imitate.data.formats.robosuite_raw import FORMAT
from imitate.errors import DatasetError
from tests.data.formats.samples import robosuite


def read(path):
    report = ConversionReport()
    with FORMAT.read(path, Options(), report) as source:
        return source, [demo.episode for demo in source.demos], report


@pytest.fixture
def recording(tmp_path):
    """Writes a recording with other attributes of the group ``data``."""

    def make(**attrs):
        path = robosuite(tmp_path / "demo.hdf5")
        with h5py.File(path, "r+") as file:
            for key, value in attrs.items():
                del file["data"].attrs[key]
                if value is not None:
                    file["data"].attrs[key] = value
        return path

    return make


def test_the_environment(recording):
    path = recording(env_info='{"robots": "Panda", "env_name": "Lift"}')
    with h5py.File(path, "r+") as file:
        file["data"].attrs.update(repository_version="1.5.1", macros_image_convention="opengl")
    source, episodes, report = read(path)
    assert source.env_meta == {
        **{"env_name": "Lift", "env_version": "1.5.1", "type": 1},
        "env_kwargs": {"robots": "Panda"},
    }
    assert source.attrs == {"date": "1-1-2026"}
    assert "env_args" not in report.synthesised
    assert report.renamed == {
        **{"env": "env_args.env_name", "env_info": "env_args.env_kwargs"},
        "repository_version": "env_args.env_version",
    }
    assert len(episodes) == 2
    np.testing.assert_array_equal(episodes[0].states, np.arange(40.0).reshape(5, 8))
    assert FORMAT.needs_replay and FORMAT.recognises(path)


def test_missing_attributes(recording):
    source, _, _ = read(recording(env_info=None))
    assert source.env_meta["env_kwargs"] == {} and source.env_meta["env_version"] == ""
    path = recording(env=None)
    assert not FORMAT.recognises(path)
    with pytest.raises(DatasetError, match="group 'data' has no attribute 'env'"):
        read(path)


@pytest.mark.parametrize("text", ["{", "[]", 3])
def test_arguments_that_are_none(recording, text):
    with pytest.raises(DatasetError, match="'env_info' of group 'data' is not a JSON object"):
        read(recording(env_info=text))


def test_other_files(recording, tmp_path):
    path = recording()
    with h5py.File(path, "r+") as file:
        file["data/demo_0/obs/s"] = np.zeros(5)
        del file["data/demo_1"]
    assert not FORMAT.recognises(path)
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros(2)
    assert not FORMAT.recognises(path)
    with pytest.raises(DatasetError, match="has no group 'data'"):
        read(path)
