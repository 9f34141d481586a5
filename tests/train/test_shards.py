"""Training on a folder of shards, all of them at once or a few in memory at a time."""

import shutil
from pathlib import Path

import fsspec
import pytest
import torch

from imitate.algo.bc import BC
from imitate.checks.algo import check_algo
from imitate.config import load_config
from imitate.config.data_needs import Transitions
from imitate.data import build_datasets
from imitate.data.batches import streamed as module
from imitate.data.batches.build import training_sources
from imitate.data.batches.rewards import RewardTransform
from imitate.data.batches.streamed import build_streamed
from imitate.data.download import download
from imitate.data.download.fetch import make_room, remote_folder
from imitate.data.edit.shard import shard_files
from imitate.data.shards.data_files import DataFiles
from imitate.data.shards.folder import _fetched
from imitate.errors import CheckpointError, ConfigError, UserError
from imitate.train.online.demonstrations import load_demonstrations
from imitate.train.setup import build, resolve
from imitate.train.trainer import train
from tests.refusals import refused

from .conftest import assert_same_nets, config_dict, resume, write_demos

ALL = {"hdf5_filter_key": "all"}
NORMALIZED = {
    "obs_normalization": "mean_std",
    "action_config": {"actions": {"normalization": "min_max"}},
    "hdf5_validation_filter_key": "valid",
}
WINDOWS = {**NORMALIZED, "shard_window": 2}


def tree(path, name="point", experiment=(), **train_keys):
    experiment = {"name": name, "validate": "shard_window" in train_keys, **dict(experiment)}
    rate = {"optim_params": {"policy": {"learning_rate": {"initial": 0.01}}}}
    return config_dict(path, experiment=experiment, train=train_keys, algo=rate)


def run(tmp_path, path, name="x", **settings):
    return train(tree(path, name, **settings), output_dir=tmp_path / "runs", quiet=True)


def resolved(path, **settings):
    return resolve(load_config(tree(path, **settings)), None, None)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def whole_file(place):
    return write_demos(place / "demos.hdf5")


@pytest.fixture(scope="module")
def folder(place, whole_file):
    """The twelve demonstrations in six shards; the last one holds those of the mask 'valid'."""
    shard_files([whole_file], place / "shards", 2)
    return place / "shards"


@pytest.fixture
def own_folder(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "shards"))


@pytest.fixture
def server(file_server, folder, monkeypatch):
    """A server of the folder on the loopback address."""
    monkeypatch.setattr(download, "WAIT_S", 0.001)
    with file_server() as server:
        server.put_folder(folder, "/demos")
        yield server


def asked(server):
    return sum("hdf5" in path for path in server.asked)


@pytest.fixture(scope="module")
def of_file(place, whole_file):
    """The run on the one file that the shards were cut from, with validation and normalization."""
    return run(place, whole_file, "file", experiment={"validate": True}, **NORMALIZED)


@pytest.fixture(scope="module")
def of_folder(place, folder):
    return run(place, folder, "folder", experiment={"validate": True}, **NORMALIZED)


@pytest.fixture(scope="module")
def of_all(place, whole_file):
    """The run on all demos of the file."""
    return run(place, whole_file, "all", num_epochs=1, **ALL)


def assert_same_losses(one, two):
    for name in ("train_loss", "valid_loss"):
        assert one.results[name] == two.results[name]


def test_a_folder_trains_as_the_one_file_it_was_cut_from(of_file, of_folder, folder):
    assert_same_losses(of_file, of_folder)
    (share,) = of_folder.results["training_data"]["files"]
    # The sixth shard holds the two validation demos alone.
    assert [share[key] for key in ("demos", "of", "shards", "path")] == [10, 12, 5, str(folder)]


@pytest.mark.parametrize("name", ["index.json", "{000..005}.hdf5"])
def test_the_index_itself_may_be_named_and_numbered_files_as_a_range(
    folder, tmp_path, of_all, name
):
    # Of 'all' demos, else the last file would have no mask 'train'.
    assert_same_losses(run(tmp_path, folder / name, num_epochs=1, **ALL), of_all)


def test_a_demo_limit_counts_over_all_shards(folder, tmp_path):
    data = [{"path": str(folder), "demo_limit": 7, "filter_key": "train"}]
    (share,) = run(tmp_path, None, data=data, num_epochs=1).results["training_data"]["files"]
    assert (share["demos"], share["shards"]) == (7, 4)


def test_a_run_is_not_resumed_with_other_shards(own_folder, tmp_path):
    result = run(tmp_path, own_folder, num_epochs=1)
    shutil.rmtree(own_folder)
    shard_files([write_demos(tmp_path / "other.hdf5", seed=5)], own_folder, 5)
    with refused("has changed since the run began", error=CheckpointError):
        resume(result, 2)


def test_weights_by_size_count_a_folder_as_one(whole_file, folder):
    data = [{"path": str(folder), "weight": 3.0}, {"path": str(whole_file), "weight": 1.0}]
    config = config_dict(None, train={"data": data, "normalize_weights_by_ds_size": True})
    dataset, _ = build_datasets(load_config(config))
    of_folder = [dataset.sources[s].entry == 0 for s in dataset.source_of_samples()]
    assert dataset.sample_weights[of_folder].sum() == pytest.approx(3.0)
    assert dataset.sample_weights.sum() == pytest.approx(4.0)


def test_online_rl_and_others_read_all_shards_of_an_entry(folder):
    config = load_config(config_dict(folder, train=ALL))
    words = {"transitions": Transitions(discount=0.9), "reward": RewardTransform()}
    with DataFiles() as files:
        sources = training_sources(config, files)
        memory = load_demonstrations(sources, {"pos": (2,), "goal": (2,)}, 2, files, **words)
    assert [source.path.name for source in sources] == [f"00{n}.hdf5" for n in range(6)]
    assert len(list(memory.episodes())) == 12


# ---- behind a URL --------------------------------------------------------------------------------


OTHERS = [pytest.param(end, marks=pytest.mark.nightly) for end in ("/demos/", "/demos/index.json")]


@pytest.mark.parametrize("ending", ["/demos", *OTHERS])
def test_shards_behind_a_url_train_as_the_folder(server, of_folder, tmp_path, ending):
    validated = {"validate": True}
    remote = run(tmp_path, server.url + ending, experiment=validated, **NORMALIZED)
    assert_same_losses(remote, of_folder)
    (entry,) = remote.results["datasets"]
    assert entry["path"] == f"{server.url}/demos"
    assert entry["sha256"] == of_folder.results["datasets"][0]["sha256"]
    assert sum("000.hdf5" in path for path in server.asked) == 1


@pytest.mark.parametrize("path", ["/lift.hdf5", "/demos/{000..005}.hdf5"])
def test_one_file_and_a_range_of_files_behind_a_url(server, whole_file, tmp_path, of_all, path):
    server.files["/lift.hdf5"] = whole_file.read_bytes()
    assert_same_losses(run(tmp_path, server.url + path, num_epochs=1, **ALL), of_all)


def test_a_bucket_of_fsspec(folder, tmp_path, of_all):
    bucket = fsspec.filesystem("memory")
    for path in folder.iterdir():
        bucket.pipe(f"/shards/demos/{path.name}", path.read_bytes())
    data = Path("memory://shards/demos")  # as the command line gives it: with one slash less
    config = tree(None, num_epochs=1, **ALL)
    remote = train(config, dataset=data, output_dir=tmp_path, quiet=True)
    assert_same_losses(remote, of_all)


def test_a_run_is_resumed_without_network_from_the_cache(server, of_folder, tmp_path):
    keys = {**NORMALIZED, "experiment": {"validate": True}}
    result = run(tmp_path, f"{server.url}/demos", num_epochs=1, **keys)
    server.down = True
    _fetched.cache_clear()  # as a new process would
    assert_same_losses(resume(result, 3), of_folder)


def test_what_is_not_what_was_named_is_refused(server, folder, own_folder, tmp_path):
    with refused("shards: there is no filter key 'trian'; did you mean", error=UserError):
        run(tmp_path, folder, hdf5_filter_key="trian")
    path = own_folder / "001.hdf5"
    path.write_bytes(path.read_bytes()[:-100])
    with refused("001.hdf5: has | bytes, but | according to index.json", error=UserError):
        run(tmp_path, own_folder)
    content = bytearray(server.files["/demos/001.hdf5"])
    content[5000] ^= 1
    server.files["/demos/001.hdf5"] = bytes(content)
    with refused("demos/001.hdf5: its SHA-256 is", error=UserError):
        run(tmp_path, f"{server.url}/demos")
    with refused("/nowhere/index.json: the server answers 404", error=UserError):
        run(tmp_path, f"{server.url}/nowhere")


# ---- a few shards in memory at a time ------------------------------------------------------------


PASSES = {**WINDOWS, "num_epochs": 2, "experiment": {"epoch_every_n_steps": 10}}


@pytest.fixture(scope="module")
def of_windows(place, folder):
    return run(place, folder, "windows", **PASSES)


def test_it_learns_as_well_as_from_the_whole(folder, tmp_path, of_windows):
    windows, whole = of_windows, run(tmp_path, folder, **{**PASSES, "shard_window": 6})
    assert max(run.results["valid_loss"] for run in (windows, whole)) < 0.1
    assert windows.results["valid_loss"] != whole.results["valid_loss"]
    (share,) = windows.results["training_data"]["files"]
    assert (share["demos"], share["shards"]) == (10, 5)
    assert windows.results["datasets"] == whole.results["datasets"]


def test_the_setup_is_that_of_the_whole_dataset(folder):
    open_ends = {"epoch_every_n_steps": None, "rollout": {"horizon": None}}
    windows, whole = (
        build(resolved(folder, experiment=open_ends, **keys), torch.device("cpu"))
        for keys in ({**WINDOWS, "num_epochs": None, "shard_window": size} for size in (2, 6))
    )
    assert len(windows.train_set) == len(whole.train_set) == 150
    for found in (
        "experiment.epoch_every_n_steps",
        "experiment.rollout.horizon",
        "train.num_epochs",
    ):
        first, second = windows.config, whole.config
        for part in found.split("."):
            first, second = getattr(first, part), getattr(second, part)
        assert first == second is not None
    assert windows.shape_metadata == whole.shape_metadata
    assert windows.env_metas == whole.env_metas
    for key, numbers in whole.provenance["observations"].items():
        for name in ("mean", "std", "min", "max"):  # an index does not know the first steps
            values = numbers[name]
            assert windows.provenance["observations"][key][name] == pytest.approx(values, rel=1e-5)
    prepared = [setup.algo.preprocess.state_dict() for setup in (windows, whole)]
    assert prepared[0].keys() == prepared[1].keys()
    for key, value in prepared[1].items():
        torch.testing.assert_close(prepared[0][key], value, rtol=1e-5, atol=1e-6)


def test_a_resumed_run_is_the_same_as_one_in_one_go(folder, tmp_path, of_windows):
    resumed = resume(run(tmp_path, folder, **{**PASSES, "num_epochs": 1}), 2)
    assert_same_losses(resumed, of_windows)
    assert_same_nets(resumed, of_windows)


def test_a_slow_server_changes_nothing_and_a_resume_needs_none(server, tmp_path, of_windows):
    server.every_s = 0.05
    part = run(tmp_path, f"{server.url}/demos", **{**PASSES, "num_epochs": 1})
    server.down = True
    _fetched.cache_clear()  # as a new process would
    remote = resume(part, 2)
    assert_same_losses(remote, of_windows)
    assert_same_nets(remote, of_windows)


def test_shards_are_let_go_when_a_run_ends(server, tmp_path, monkeypatch):
    short = {"epoch_every_n_steps": 10, "validate": False}
    run(tmp_path, f"{server.url}/demos", **{**PASSES, "num_epochs": 1, "experiment": short})
    assert len(list(remote_folder().rglob("*.hdf5"))) == 5
    monkeypatch.setenv("IMITATE_CACHE_GB", "0")
    make_room((), 0)
    assert not list(remote_folder().rglob("*.hdf5"))


@pytest.mark.slow("a process reads the shards")
def test_reading_processes_may_help(folder, tmp_path, of_windows):
    assert_same_losses(run(tmp_path, folder, num_data_workers=1, **PASSES), of_windows)


def test_learning_begins_before_the_last_shard_is_there(
    file_server, whole_file, tmp_path, monkeypatch
):
    shard_files([whole_file], tmp_path / "ten", 1)
    seen, learn = [], BC.train_on_batch

    def noted(self, *args, **kwargs):
        seen.append(asked(server))
        return learn(self, *args, **kwargs)

    monkeypatch.setattr(BC, "train_on_batch", noted)
    with file_server() as server:
        server.put_folder(tmp_path / "ten", "/demos")
        server.every_s = 0.1
        settings = {**WINDOWS, "num_epochs": 1, "experiment": {"validate": False}}
        run(tmp_path, f"{server.url}/demos", **settings)
    # The first shard, its window and the next one, four of which are asked for at once.
    assert seen[0] <= 6
    assert seen[-1] == 10


def test_a_server_that_dies_ends_the_run_in_one_line_and_it_resumes(
    server, tmp_path, monkeypatch, of_windows
):
    learn, updates = BC.train_on_batch, []

    def noted(self, *args, **kwargs):
        updates.append(1)
        server.down = True
        return learn(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(BC, "train_on_batch", noted)
        with refused("demos/00|.hdf5: given up after 5 retries (503", error=UserError):
            run(tmp_path, f"{server.url}/demos", "cut", **PASSES)
    assert updates and asked(server)
    server.down = False
    (cut,) = (tmp_path / "runs" / "cut").iterdir()
    assert_same_losses(train(resume=cut, quiet=True), of_windows)


def test_the_cache_holds_two_windows_and_no_more_than_its_bound(
    server, folder, tmp_path, monkeypatch
):
    size = sum(path.stat().st_size for path in folder.glob("*.hdf5"))
    monkeypatch.setenv("IMITATE_CACHE_GB", str(0.7 * size / 1e9))  # four of six shards
    short = {"epoch_every_n_steps": 10, "validate": False}
    settings = {**WINDOWS, "num_epochs": 2, "shard_window": 1, "experiment": short}
    assert run(tmp_path, f"{server.url}/demos", **settings).status == "finished"
    assert 2 <= len(list(remote_folder().rglob("*.hdf5"))) <= 4
    assert asked(server) > 6  # some were fetched again
    with refused(
        "two windows of 3 shards take | GB, but the cache is limited to", error=ConfigError
    ):
        run(tmp_path, f"{server.url}/demos", **{**WINDOWS, "shard_window": 3})


def test_the_window_of_a_url_follows_from_its_size_and_is_written_down(folder, monkeypatch):
    bucket = fsspec.filesystem("memory")
    for path in folder.iterdir():
        bucket.pipe(f"/sized/{path.name}", path.read_bytes())
    assert resolved("memory://sized").train.shard_window is None  # it fits one window
    monkeypatch.setattr(module, "WINDOW_BYTES", 2.5 * (folder / "000.hdf5").stat().st_size)
    assert resolved("memory://sized").train.shard_window == 2
    assert resolved(folder).train.shard_window is None  # on this disk: all, as ever


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("obs_normalization", "quantile"),
        ("filter_best", 0.5),
        ("sample_weight", {"kind": "return"}),
        ("reward", {"scale": 2.0}),
        ("data_on_device", True),
    ],
)
def test_what_needs_all_demos_is_refused_by_name(folder, tmp_path, key, value):
    with refused(f"train.{key}|: needs all demos|set train.shard_window=6", error=ConfigError):
        run(tmp_path, folder, **{**WINDOWS, key: value})


def test_where_windows_cannot_be_made_they_are_refused(folder, whole_file, tmp_path):
    data = [{"path": str(folder)}, {"path": str(whole_file)}]
    with refused("train.data has 2 entries: name one folder", error=ConfigError):
        run(tmp_path, None, **{**WINDOWS, "data": data})
    keys = {"shard_window": 1, "hdf5_validation_filter_key": "train"}
    data = [{"path": str(folder), "filter_key": "train"}]
    config = load_config(tree(None, **{**WINDOWS, **keys, "data": data}))
    with pytest.raises(UserError, match="are training demos|training demos too"):
        build_streamed(config, DataFiles())


def test_a_window_holds_the_samples_of_its_shards(folder):
    config = resolved(folder, **WINDOWS)
    with DataFiles() as files:
        (dataset, _), (whole, _) = build_streamed(config, files), build_datasets(config, files)
    names = dataset.demo_names()[0]
    assert names == whole.demo_names()[0]
    found = [name.rpartition("/")[2] for name in dataset.window((1, 3)).demos]
    assert found == [*names[2:4], *names[6:8]]
    assert (whole[2 * 2 * 15]["actions"] == dataset.window((2,))[0]["actions"]).all()


def test_a_window_that_cannot_be_read_is_released(folder, monkeypatch):
    with DataFiles() as files:
        dataset, _ = build_streamed(resolved(folder, **WINDOWS), files)
        released = []
        monkeypatch.setattr(type(dataset), "release", lambda _, numbers: released.append(numbers))
        monkeypatch.setattr(module, "window_set", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            dataset.window((1, 3))
    assert released == [(1, 3)]


def test_shards_whose_demos_are_too_short_are_left_out(tmp_path):
    short = write_demos(tmp_path / "a.hdf5", num=2, length=3, filter_keys=False)
    long = write_demos(tmp_path / "b.hdf5", num=4, length=15, filter_keys=False)
    shard_files([short, long], tmp_path / "s", 2)
    keys = {"seq_length": 10, "pad_seq_length": False, "shard_window": 1}
    config = resolved(tmp_path / "s", experiment={"validate": False}, **keys)
    dataset, _ = build_streamed(config, DataFiles())
    assert (dataset.samples, len(dataset)) == ((12, 12), 24)
    assert len(dataset.window((0,))) == 12
    assert dataset.tasks == () and dataset.demo_lengths.tolist() == [15] * 4


@pytest.mark.slow("all findings of the checks, each of which trains")
def test_check_algo_takes_windows(folder):
    found = check_algo(resolved(folder, **WINDOWS))
    assert [finding for finding in found if finding.verdict in ("error", "untried")] == []
