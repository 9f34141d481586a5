"""Training on a folder of shards."""

import pytest

from imitate.data.curate.shard import shard_files
from imitate.errors import CheckpointError, UserError
from imitate.train.trainer import train

from .conftest import config_dict, write_demos


@pytest.fixture
def folder(demos, tmp_path):
    """The twelve demonstrations in shards of five."""
    shard_files([demos], tmp_path / "shards", 5)
    return tmp_path / "shards"


def run(tmp_path, data, name, **sections):
    tree = config_dict(
        data, experiment={"name": name, **sections.pop("experiment", {})}, **sections
    )
    return train(tree, output_dir=tmp_path / "runs", quiet=True)


NORMALIZED = {
    "train": {
        "obs_normalization": "mean_std",
        "action_config": {"actions": {"normalization": "min_max"}},
        "hdf5_validation_filter_key": "valid",
    },
    "experiment": {"validate": True},
}


def test_a_folder_trains_as_the_one_file_it_was_cut_from(demos, folder, tmp_path):
    whole = run(tmp_path, demos, "whole", **NORMALIZED)
    cut = run(tmp_path, folder, "cut", **NORMALIZED)

    assert cut.results["train_loss"] == whole.results["train_loss"]
    assert cut.results["valid_loss"] == whole.results["valid_loss"]
    (share,) = cut.results["training_data"]["files"]
    assert share["demos"] == 10
    assert share["of"] == 12
    assert share["shards"] == 2  # the third holds the two validation demos alone
    assert share["path"] == str(folder)


def test_the_index_itself_may_be_named_and_numbered_files_as_a_range(demos, folder, tmp_path):
    every = {"hdf5_filter_key": "all"}  # else the last file would have no mask 'train'
    whole = run(tmp_path, demos, "whole", train=every)
    for name, data in (("index", folder / "index.json"), ("range", folder / "{000..002}.hdf5")):
        named = run(tmp_path, data, name, train=every)
        assert named.results["train_loss"] == whole.results["train_loss"]


def test_a_demo_limit_counts_over_all_shards(folder, tmp_path):
    data = [{"path": str(folder), "demo_limit": 7, "filter_key": "train"}]
    result = run(tmp_path, None, "limit", train={"data": data})

    (share,) = result.results["training_data"]["files"]
    assert (share["demos"], share["shards"]) == (7, 2)


def test_a_filter_key_that_no_shard_has_is_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"shards: there is no filter key 'trian'; did you mean"):
        run(tmp_path, folder, "x", train={"hdf5_filter_key": "trian"})


def test_a_shard_that_is_cut_short_is_refused(folder, tmp_path):
    path = folder / "001.hdf5"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"001.hdf5: has \d+ bytes, but \d+ by index.json"):
        run(tmp_path, folder, "x")


def test_a_run_is_not_resumed_with_other_shards(demos, folder, tmp_path):
    result = run(tmp_path, folder, "x", experiment={"save": {"every_n_epochs": 1}})
    for path in folder.iterdir():
        path.unlink()
    shard_files([write_demos(tmp_path / "other.hdf5", seed=5)], folder, 5)

    with pytest.raises(CheckpointError, match="has changed since the run began"):
        train(resume=result.run_dir, overrides=["train.num_epochs=5"], quiet=True)


def test_weights_by_size_count_a_folder_as_one(demos, folder, tmp_path):
    from imitate.config import load_config
    from imitate.data import build_datasets

    data = [{"path": str(folder), "weight": 3.0}, {"path": str(demos), "weight": 1.0}]
    tree = config_dict(None, train={"data": data, "normalize_weights_by_ds_size": True})
    dataset, _ = build_datasets(load_config(tree))

    of_folder = [dataset.sources[s].entry == 0 for s in dataset.source_of_samples()]
    assert dataset.sample_weights[of_folder].sum() == pytest.approx(3.0)
    assert dataset.sample_weights.sum() == pytest.approx(4.0)
