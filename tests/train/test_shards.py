"""Training on a folder of shards."""

from pathlib import Path

import fsspec
import pytest

from imitate.config import load_config
from imitate.config.data_needs import Transitions
from imitate.data import build_datasets
from imitate.data.batches.build import training_sources
from imitate.data.batches.rewards import RewardTransform
from imitate.data.curate.shard import shard_files
from imitate.data.remote import fetch as fetching
from imitate.data.shards.folder import _fetched
from imitate.errors import CheckpointError, UserError
from imitate.online.demonstrations import load_demonstrations
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
    data = [{"path": str(folder), "weight": 3.0}, {"path": str(demos), "weight": 1.0}]
    tree = config_dict(None, train={"data": data, "normalize_weights_by_ds_size": True})
    dataset, _ = build_datasets(load_config(tree))

    of_folder = [dataset.sources[s].entry == 0 for s in dataset.source_of_samples()]
    assert dataset.sample_weights[of_folder].sum() == pytest.approx(3.0)
    assert dataset.sample_weights.sum() == pytest.approx(4.0)


# ---- behind a URL --------------------------------------------------------------------------------


@pytest.fixture
def server(file_server, folder, monkeypatch):
    """A server of the folder, and of one file, on the loopback address."""
    monkeypatch.setattr(fetching, "WAIT_S", 0.001)
    with file_server() as server:
        server.put_folder(folder, "/demos")
        yield server


@pytest.mark.parametrize("ending", ["/demos", "/demos/", "/demos/index.json"])
def test_shards_behind_a_url_train_as_the_folder(server, folder, tmp_path, ending):
    local = run(tmp_path, folder, "local", **NORMALIZED)
    remote = run(tmp_path, server.url + ending, "remote", **NORMALIZED)

    assert remote.results["train_loss"] == local.results["train_loss"]
    assert remote.results["valid_loss"] == local.results["valid_loss"]
    (entry,) = remote.results["datasets"]
    assert entry["path"] == f"{server.url}/demos"
    assert entry["sha256"] == local.results["datasets"][0]["sha256"]
    assert sum("000.hdf5" in asked for asked in server.asked) == 1


def test_one_file_and_a_range_of_files_behind_a_url(server, demos, folder, tmp_path):
    server.files["/lift.hdf5"] = demos.read_bytes()
    whole = run(tmp_path, demos, "whole", train={"hdf5_filter_key": "all"})
    for name, path in (("one", "/lift.hdf5"), ("range", "/demos/{000..002}.hdf5")):
        remote = run(tmp_path, server.url + path, name, train={"hdf5_filter_key": "all"})
        assert remote.results["train_loss"] == whole.results["train_loss"]


def test_a_bucket_of_fsspec(folder, tmp_path):
    bucket = fsspec.filesystem("memory")
    for path in folder.iterdir():
        bucket.pipe(f"/shards/demos/{path.name}", path.read_bytes())

    local = run(tmp_path, folder, "local")
    remote = train(
        config_dict(None, experiment={"name": "remote"}),
        dataset=Path("memory://shards/demos"),  # as the command line gives it: with one slash less
        output_dir=tmp_path / "runs",
        quiet=True,
    )
    assert remote.results["train_loss"] == local.results["train_loss"]


def test_a_run_is_resumed_without_network_from_the_cache(server, tmp_path):
    saves = {"save": {"every_n_epochs": 1}}
    whole = run(tmp_path, f"{server.url}/demos", "whole", experiment=saves, train={"num_epochs": 5})
    result = run(tmp_path, f"{server.url}/demos", "x", experiment=saves)
    server.down = True
    _fetched.cache_clear()  # as a new process would

    resumed = train(resume=result.run_dir, overrides=["train.num_epochs=5"], quiet=True)
    assert resumed.results["train_loss"] == whole.results["train_loss"]


def test_a_shard_that_is_not_what_the_index_says_is_refused(server, tmp_path):
    content = bytearray(server.files["/demos/001.hdf5"])
    content[5000] ^= 1
    server.files["/demos/001.hdf5"] = bytes(content)
    with pytest.raises(UserError, match=r"demos/001.hdf5: its SHA-256 is") as caught:
        run(tmp_path, f"{server.url}/demos", "x")
    assert "\n" not in str(caught.value)


def test_a_url_without_an_index_is_refused(server, tmp_path):
    with pytest.raises(UserError, match=r"/nowhere/index.json: the server answers 404"):
        run(tmp_path, f"{server.url}/nowhere", "x")


def test_online_rl_and_others_read_all_shards_of_an_entry(folder):
    sources = training_sources(load_config(config_dict(folder, train={"hdf5_filter_key": "all"})))

    assert [source.path.name for source in sources] == ["000.hdf5", "001.hdf5", "002.hdf5"]
    memory = load_demonstrations(
        sources,
        {"pos": (2,), "goal": (2,)},
        2,
        transitions=Transitions(discount=0.9),
        reward=RewardTransform(),
    )
    assert len(list(memory.episodes())) == 12
