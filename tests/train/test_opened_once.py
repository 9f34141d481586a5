"""Files of a training are opened once before it learns, and once more where batches read them."""

import collections
from pathlib import Path

import h5py
import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

from imitate.data.edit.shard import shard_files
from imitate.data.formats.convert import convert
from imitate.data.shards import data_files
from imitate.train.trainer import train
from tests.demo_files import make_demo_file
from tests.tiny import tiny_tree

VALIDATED = {"experiment": {"validate": True}, "train": {"hdf5_validation_filter_key": "valid"}}


class FirstUpdateError(Exception):
    """The end of what is counted."""


def stop(*_):
    raise FirstUpdateError


@pytest.fixture
def opens(monkeypatch):
    """Train up to the first update; the openings of each file, by name."""
    opened = collections.Counter()
    real = h5py.File.__init__

    def count(file, name, *args, **kwargs):
        if isinstance(name, str | Path):  # not an object of a file that is open
            opened[Path(name).name] += 1
        real(file, name, *args, **kwargs)

    def go(tree, **words):
        opened.clear()
        with monkeypatch.context() as patched, pytest.raises(FirstUpdateError):
            patched.setattr(h5py.File, "__init__", count)
            hook = register_optimizer_step_pre_hook(stop)
            try:
                train(tree, quiet=True, **words)
            finally:
                hook.remove()
        return dict(opened)

    return go


def demos(path, **words):
    masks = {"train": [0, 1, 2], "valid": [3]}
    return make_demo_file(path, filter_keys=masks, obs_dims={"s": 3}, action_dim=1, **words)


def test_before_the_first_update_a_file_is_opened_once_or_twice(opens, tmp_path):
    one, two = demos(tmp_path / "one.hdf5"), demos(tmp_path / "two.hdf5", seed=1)
    out = {"output_dir": tmp_path / "runs"}
    auto = {"observation": {"modalities": {"obs": {"low_dim": ["auto"]}}}}
    assert opens(tiny_tree(**auto), dataset=one, env="Pendulum-v1", **out) == {"one.hdf5": 1}
    assert opens(tiny_tree(data=one, **VALIDATED), **out) == {"one.hdf5": 1}
    in_file = {"hdf5_cache_mode": None, "filter_best": 0.5}
    assert opens(tiny_tree(data=one, train=in_file), **out) == {"one.hdf5": 2}
    names = ({"path": str(one), "lang": "lift"}, {"path": str(two), "filter_key": "valid"})
    assert opens(tiny_tree(train={"data": list(names)}), **out) == {"one.hdf5": 1, "two.hdf5": 1}


def test_more_files_than_may_be_open_at_a_time_are_opened_again(opens, tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "MOST_OPEN", 1)
    paths = [demos(tmp_path / f"{number}.hdf5", seed=number) for number in range(2)]
    data = [{"path": str(path)} for path in paths]
    assert min(opens(tiny_tree(train={"data": data}), output_dir=tmp_path / "runs").values()) > 2


def test_so_are_shards_and_the_conversion_of_another_format(opens, tmp_path):
    one = make_demo_file(tmp_path / "one.hdf5", obs_dims={"s": 3}, action_dim=1)
    shard_files([one], tmp_path / "shards", 1)
    convert(one, tmp_path / "lerobot", to_format="lerobot")
    out = {"output_dir": tmp_path / "runs"}
    shards = {f"00{number}.hdf5": 1 for number in range(4)}
    assert opens(tiny_tree(data=tmp_path / "shards"), **out) == shards
    found = opens(tiny_tree(data=tmp_path / "shards", train={"shard_window": 1}), **out)
    assert found and max(found.values()) <= 2
    opens(tiny_tree(data=tmp_path / "lerobot"), **out)  # which makes the conversion
    assert list(opens(tiny_tree(data=tmp_path / "lerobot"), **out).values()) == [1]
