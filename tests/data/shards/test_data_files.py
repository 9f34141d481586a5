"""Files of datasets, each opened once."""

import numpy as np
import pytest

from imitate.data.shards import data_files
from imitate.data.shards.data_files import DataFiles, Outline
from imitate.data.shards.data_files import data_files as files_of
from imitate.data.shards.index import write_index
from tests.demo_files import ENV_META, data_config, episode, write_demos


@pytest.fixture
def paths(tmp_path):
    """Three files: one with instructions and a mask."""
    obs = {"s": np.zeros((2, 1))}
    told = [episode(2, obs, attrs={"language": word} if word else {}) for word in ("a", "", "b")]
    meta = {**ENV_META, "env_kwargs": {"control_freq": 10}}
    first = write_demos(tmp_path / "0.hdf5", told, meta, {"m": [0]})
    others = [write_demos(tmp_path / f"{n}.hdf5", [episode(2, obs)]) for n in (1, 2)]
    return [first, *others]


def test_a_file_is_opened_once_until_too_many_are_open(paths, monkeypatch):
    with DataFiles() as files:
        first = files.open(paths[0])
        assert files.open(str(paths[0])) is first and data_files.MOST_OPEN == 500
        monkeypatch.setattr(data_files, "MOST_OPEN", 2)
        second = files.open(paths[1])
        assert files.open(paths[0]) is first  # now the second is the oldest
        files.open(paths[2])
        assert files.open(paths[0]) is first
        assert files.open(paths[1]) is not second
    closed = []
    monkeypatch.setattr(data_files.DatasetFile, "close", lambda file: closed.append(file))
    files = DataFiles()
    opened = [files.open(path) for path in paths[:2]]
    files.close()
    files.close()
    assert sorted(map(id, closed)) == sorted(map(id, opened))
    monkeypatch.undo()
    with DataFiles() as files:
        assert files.open(paths[0]) is not first


def test_the_outline_and_the_instructions(paths):
    with DataFiles() as files:
        found = files.outline(paths[0])
        assert found == Outline(files.open(paths[0]).env_meta, 10.0, frozenset({"m"}))
        assert files.instructions(paths[0]) == {"a", "b", None}
        assert files.instructions(paths[0], " all ") == {"all"}
        assert files.instructions(paths[0], "  ") == {"a", "b", None}
        assert files.fingerprint(paths[0]) == files.open(paths[0]).fingerprint()
        assert files.swmr is False


def test_a_folder_of_shards_opens_none_of_its_files(paths, tmp_path, monkeypatch):
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "0.hdf5").write_bytes(paths[0].read_bytes())
    index = write_index(folder)
    monkeypatch.setattr(DataFiles, "open", None)
    files = DataFiles()
    assert files.outline(folder) == Outline(index.env_args, 10.0, frozenset({"m"}))
    assert files.instructions(folder) == {"a", "b", None}
    assert files.instructions(folder, "all") == {"all"}
    assert files.fingerprint(folder)["num_demos"] == 3


def test_given_files_stay_open(paths):
    config = data_config(paths[0], ["s"])
    with DataFiles() as given:
        opened = given.open(paths[0])
        with files_of(config, given) as files:
            assert files is given
        assert given.open(paths[0]) is opened
    with files_of(config) as files:
        assert files.swmr == config.train.hdf5_use_swmr
        assert files.open(paths[0]) is not opened
