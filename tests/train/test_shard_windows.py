"""Training that has a few shards in memory at a time."""

import fsspec
import pytest
import torch

from imitate.algo.bc import BC
from imitate.checks.algo import check_algo
from imitate.config import load_config
from imitate.data import build_datasets
from imitate.data.batches import streamed as module
from imitate.data.batches.streamed import build_streamed
from imitate.data.curate.shard import shard_files
from imitate.data.remote import fetch as fetching
from imitate.data.remote.store import make_room, remote_folder
from imitate.data.shards.folder import _fetched
from imitate.errors import ConfigError, UserError
from imitate.policy.checkpoint import load_checkpoint
from imitate.run_folder import open_run_folder
from imitate.train.setup import build, resolve
from imitate.train.trainer import train

from .conftest import config_dict, write_demos


@pytest.fixture
def folder(demos, tmp_path):
    """The twelve demonstrations in six shards; the last one holds those of the mask 'valid'."""
    shard_files([demos], tmp_path / "shards", 2)
    return tmp_path / "shards"


@pytest.fixture
def server(file_server, folder, monkeypatch):
    monkeypatch.setattr(fetching, "WAIT_S", 0.001)
    with file_server() as server:
        server.put_folder(folder, "/demos")
        yield server


def sections(**train_keys):
    return {
        "train": {
            "shard_window": 2,
            "obs_normalization": "mean_std",
            "action_config": {"actions": {"normalization": "min_max"}},
            "hdf5_validation_filter_key": "valid",
            **train_keys,
        },
        "experiment": {"validate": True},
    }


def run(tmp_path, data, name, **laid):
    laid = {key: dict(value) for key, value in laid.items()}
    laid["experiment"] = {"name": name, **laid.get("experiment", {})}
    return train(config_dict(data, **laid), output_dir=tmp_path / "runs", quiet=True)


def weights_of(result):
    return load_checkpoint(open_run_folder(result.run_dir).last)["model"]


def same(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    return bool((first == second).all()) if hasattr(first, "shape") else first == second


def test_it_learns_as_well_as_from_the_whole(folder, tmp_path):
    longer = {**sections(num_epochs=10)}
    windows = run(tmp_path, folder, "windows", **longer)
    longer["train"]["shard_window"] = 6
    whole = run(tmp_path, folder, "whole", **longer)

    assert windows.results["valid_loss"] < 0.1
    assert windows.results["valid_loss"] != whole.results["valid_loss"]
    (share,) = windows.results["training_data"]["files"]
    assert (share["demos"], share["shards"]) == (10, 5)
    assert windows.results["datasets"] == whole.results["datasets"]


def test_the_setup_is_that_of_the_whole_dataset(folder):

    setups = {}
    for window in (2, 6):
        tree = config_dict(folder, **sections(shard_window=window))
        tree["experiment"]["epoch_every_n_steps"] = None
        tree["experiment"]["rollout"]["horizon"] = None
        tree["train"]["num_epochs"] = None
        setups[window] = build(resolve(load_config(tree), None, None), torch.device("cpu"))
    windows, whole = setups[2], setups[6]
    assert len(windows.train_set) == len(whole.train_set) == 150
    for key in ("experiment.epoch_every_n_steps", "experiment.rollout.horizon", "train.num_epochs"):
        first, second = windows.config.to_dict(), whole.config.to_dict()
        for part in key.split("."):
            first, second = first[part], second[part]
        assert first == second
    metadata = [setup.shape_metadata for setup in (windows, whole)]
    assert metadata[0].keys() == metadata[1].keys()
    assert metadata[0] == metadata[1]
    assert windows.env_metas == whole.env_metas
    for key, numbers in whole.provenance["observations"].items():
        for name, values in numbers.items():
            assert windows.provenance["observations"][key][name] == pytest.approx(values, rel=1e-5)
    prepared = [setup.algo.preprocess.state_dict() for setup in (windows, whole)]
    assert prepared[0].keys() == prepared[1].keys()
    for key, value in prepared[1].items():
        torch.testing.assert_close(prepared[0][key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epochs", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_resumed_run_is_the_same_as_one_in_one_go(folder, tmp_path, epochs):
    saves = {"save": {"every_n_epochs": 1}, "epoch_every_n_steps": 7, "validate": True}
    laid = sections(num_epochs=4)
    whole = run(tmp_path, folder, "whole", train=laid["train"], experiment=saves)
    laid["train"]["num_epochs"] = epochs
    part = run(tmp_path, folder, "part", train=laid["train"], experiment=saves)
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=4"], quiet=True)

    assert resumed.results["train_loss"] == whole.results["train_loss"]
    assert same(weights_of(resumed), weights_of(whole))


def test_a_slow_server_changes_nothing(server, folder, tmp_path):
    local = run(tmp_path, folder, "local", **sections(num_epochs=1))
    server.every_s = 0.05
    remote = run(tmp_path, f"{server.url}/demos", "remote", **sections(num_epochs=1))

    assert remote.results["train_loss"] == local.results["train_loss"]
    assert same(weights_of(remote), weights_of(local))


def test_learning_begins_before_the_last_shard_is_there(file_server, demos, tmp_path, monkeypatch):
    shard_files([demos], tmp_path / "ten", 1)
    seen = []
    learn = BC.train_on_batch

    def noted(self, *args, **kwargs):
        seen.append(sum("hdf5" in asked for asked in server.asked))
        return learn(self, *args, **kwargs)

    monkeypatch.setattr(BC, "train_on_batch", noted)
    with file_server() as server:
        server.put_folder(tmp_path / "ten", "/demos")
        server.every_s = 0.1
        laid = sections(num_epochs=2)
        laid["experiment"] = {"validate": False}
        run(tmp_path, f"{server.url}/demos", "x", **laid)

    assert (
        seen[0] <= 6
    )  # the first shard, its window and the next one, four of which are asked for at once
    assert seen[-1] == 10


def test_a_server_that_dies_ends_the_run_in_one_line_and_it_resumes(server, tmp_path, monkeypatch):
    laid = sections(num_epochs=6)
    laid["experiment"] = {"save": {"every_n_epochs": 1}, "epoch_every_n_steps": 3}
    whole = run(tmp_path, f"{server.url}/demos", "whole", **laid)
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "empty"))
    served = len(server.asked)
    learn, updates = BC.train_on_batch, []

    def noted(self, *args, **kwargs):
        updates.append(1)
        server.down = True
        return learn(self, *args, **kwargs)

    monkeypatch.setattr(BC, "train_on_batch", noted)
    with pytest.raises(
        UserError, match=r"demos/00\d.hdf5: given up after 5 retries \(503"
    ) as caught:
        run(tmp_path, f"{server.url}/demos", "cut", **laid)
    assert "\n" not in str(caught.value)
    assert updates
    assert len(server.asked) > served
    monkeypatch.setattr(BC, "train_on_batch", learn)
    server.down = False
    (cut,) = (tmp_path / "runs" / "cut").iterdir()
    resumed = train(resume=cut, quiet=True)
    assert resumed.results["train_loss"] == whole.results["train_loss"]


def test_no_network_at_resume_with_all_shards_cached(server, tmp_path):
    laid = sections(num_epochs=4)
    whole = run(tmp_path, f"{server.url}/demos", "whole", **laid)
    laid["train"]["num_epochs"] = 2
    laid["experiment"] = {"validate": True, "save": {"every_n_epochs": 1}}
    part = run(tmp_path, f"{server.url}/demos", "part", **laid)
    server.down = True
    _fetched.cache_clear()  # as a new process would
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=4"], quiet=True)
    assert resumed.results["train_loss"] == whole.results["train_loss"]


def test_the_cache_holds_two_windows_and_no_more_than_its_bound(
    server, folder, tmp_path, monkeypatch
):
    size = sum(path.stat().st_size for path in folder.glob("*.hdf5"))
    monkeypatch.setenv("IMITATE_CACHE_GB", str(0.7 * size / 1e9))  # four of six shards
    laid = sections(shard_window=1, num_epochs=3)
    laid["experiment"] = {"validate": False}
    result = run(tmp_path, f"{server.url}/demos", "x", **laid)

    assert result.status == "finished"
    kept = [p for p in remote_folder().rglob("*.hdf5")]
    assert 2 <= len(kept) <= 4
    assert sum("hdf5" in asked for asked in server.asked) > 6  # some were fetched again
    with pytest.raises(ConfigError, match="two windows of 3 shards have .* GB, but the cache is"):
        run(tmp_path, f"{server.url}/demos", "y", **sections(shard_window=3))


def test_the_window_of_a_url_follows_from_its_size_and_is_written_down(folder, monkeypatch):
    bucket = fsspec.filesystem("memory")
    for path in folder.iterdir():
        bucket.pipe(f"/sized/{path.name}", path.read_bytes())
    of = lambda data: resolve(load_config(config_dict(data)), None, None).train.shard_window  # noqa: E731

    assert of("memory://sized") is None  # it fits one window
    monkeypatch.setattr(module, "WINDOW_BYTES", 2.5 * (folder / "000.hdf5").stat().st_size)
    assert of("memory://sized") == 2
    assert of(folder) is None  # on this disk: all, as ever


@pytest.mark.parametrize(
    ("laid", "words"),
    [
        ({"obs_normalization": "quantile"}, "train.obs_normalization 'quantile': needs all demos"),
        ({"filter_best": 0.5}, "train.filter_best: needs all demos at once"),
        ({"sample_weight": {"kind": "return"}}, "train.sample_weight: needs all demos"),
        ({"reward": {"scale": 2.0}}, "train.reward: needs all demos"),
        ({"data_on_device": True}, "train.data_on_device: needs all demos"),
    ],
)
def test_what_needs_all_demos_is_refused_by_name(folder, tmp_path, laid, words):
    with pytest.raises(ConfigError, match=words) as caught:
        run(tmp_path, folder, "x", **sections(**laid))
    assert "set train.shard_window=6" in str(caught.value)


def test_several_entries_have_no_windows(folder, demos, tmp_path):
    data = [{"path": str(folder)}, {"path": str(demos)}]
    with pytest.raises(
        ConfigError, match="train.data has 2 entries, of which windows cannot be made"
    ):
        run(tmp_path, None, "x", train={**sections()["train"], "data": data})


def test_validation_demos_that_are_trained_on_are_refused(folder, tmp_path):
    laid = sections(hdf5_filter_key="valid", hdf5_validation_filter_key="train", shard_window=1)
    laid["train"]["data"] = [{"path": str(folder), "filter_key": "all"}]
    laid["train"]["hdf5_filter_key"] = None
    config = load_config(config_dict(None, **laid))
    with pytest.raises(UserError, match="are training demos|training demos too"):
        build_streamed(config.with_overrides({"train.data.0.filter_key": "train"}))


def test_a_window_holds_the_samples_of_its_shards(folder):
    config = resolve(load_config(config_dict(folder, **sections())), None, None)
    dataset, _ = build_streamed(config)
    whole, _ = build_datasets(config)
    window = dataset.window((1, 3))

    names = dataset.demo_names()[0]
    assert names == whole.demo_names()[0]
    assert [name.rpartition("/")[2] for name in window.demos] == [*names[2:4], *names[6:8]]
    first = whole[2 * 2 * 15]["actions"]
    at = dataset.window((2,))[0]["actions"]
    assert (first == at).all()


def test_shards_whose_demos_are_too_short_are_left_out(tmp_path):
    short = write_demos(tmp_path / "a.hdf5", num=2, length=3, filter_keys=False)
    long = write_demos(tmp_path / "b.hdf5", num=4, length=15, filter_keys=False)
    shard_files([short, long], tmp_path / "s", 2)
    tree = config_dict(
        tmp_path / "s", train={"seq_length": 10, "pad_seq_length": False, "shard_window": 1}
    )
    dataset, _ = build_streamed(resolve(load_config(tree), None, None))
    assert dataset.samples == (12, 12)
    assert len(dataset.window((0,))) == 12


def test_shards_are_let_go_when_a_run_ends(server, tmp_path):
    laid = {**sections(), "experiment": {"validate": False}}
    run(tmp_path, f"{server.url}/demos", "x", **laid)

    assert len(list(remote_folder().rglob("*.hdf5"))) == 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMITATE_CACHE_GB", "0")
        make_room((), 0)
    assert not list(remote_folder().rglob("*.hdf5"))


def test_check_algo_takes_windows(folder):
    found = check_algo(resolve(load_config(config_dict(folder, **sections())), None, None))
    assert [finding for finding in found if finding.verdict in ("error", "untried")] == []


def test_reading_processes_may_help(folder, tmp_path):
    alone = run(tmp_path, folder, "alone", **sections(num_epochs=1))
    helped = run(tmp_path, folder, "helped", **sections(num_epochs=1, num_data_workers=1))
    assert helped.results["train_loss"] == alone.results["train_loss"]
