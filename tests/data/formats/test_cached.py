"""Datasets of other formats, read through a conversion that is made once."""

import gc
import hashlib
import json
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, SequenceDataset, build_datasets
from imitate.data.file.cache import cache_folder
from imitate.data.formats import cached
from imitate.data.formats.base import ConversionReport, Format, Options
from imitate.data.formats.cached import as_demonstration_file
from imitate.data.formats.convert import convert
from imitate.data.quality.doctor.diagnosis import diagnose
from imitate.errors import DatasetError, UserError
from tests.demo_files import data_config, episode, write_demos

LENGTH, DEMOS = 5, 3


@pytest.fixture
def demos(demo_file):
    return demo_file(num_demos=DEMOS, length=LENGTH, image=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory, make_demo_file):
    """A LeRobot dataset, 'lr', and one whose camera is a video of 64 x 64, 'film'."""
    folder = tmp_path_factory.mktemp("made")
    make_demo_file(folder / "demos.hdf5", num_demos=DEMOS, length=LENGTH, image=True)
    convert(folder / "demos.hdf5", folder / "lr", to_format="lerobot")
    ramp = np.broadcast_to(np.linspace(0, 250, 64)[None, :, None], (LENGTH, 64, 64, 3))
    film = episode(LENGTH, {"x": np.zeros((LENGTH, 2)), "top_image": ramp.astype(np.uint8)})
    write_demos(folder / "film.hdf5", [film] * 2, {"env_name": "arm", "type": 4})
    options = Options(video="h264")
    convert(folder / "film.hdf5", folder / "film", to_format="lerobot", options=options)
    return folder


@pytest.fixture
def lerobot(made, tmp_path):
    return shutil.copytree(made / "lr", tmp_path / "lr")


def conversions():
    folder = cache_folder("datasets")
    return sorted(folder.glob("*.hdf5")) if folder.exists() else []


def test_converted_once_and_told_in_one_line(lerobot, caplog):
    before = {f: f.stat().st_mtime_ns for f in lerobot.rglob("*")}
    with caplog.at_level(logging.WARNING), DatasetFile(lerobot) as file:
        assert file.demos() == ["demo_0", "demo_1", "demo_2"]
        assert file.path == lerobot
        assert file.hdf5_path.parent == cache_folder("datasets")
    (made,) = conversions()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{lerobot}: a dataset of the format 'lerobot', converted once into {made} (3 demos, 15 steps, "
        f"{made.stat().st_size / 1e6:.1f} MB)"
    )
    caplog.clear()
    changed = made.stat().st_mtime_ns
    with DatasetFile(lerobot) as file:
        assert file.hdf5_path == made
    assert made.stat().st_mtime_ns == changed
    assert caplog.records == []
    assert {f: f.stat().st_mtime_ns for f in lerobot.rglob("*")} == before


@pytest.mark.parametrize(("name", "to"), [("d.zarr", None), ("m-v0", "minari"), ("l", "lerobot")])
def test_every_format_that_needs_no_replay(demos, tmp_path, name, to):
    source = tmp_path / name
    convert(demos, source, to_format=to)
    with DatasetFile(source) as file, DatasetFile(demos) as original:
        assert file.demos() == original.demos()
        wanted = original.read("demo_1", "actions")
        np.testing.assert_allclose(file.read("demo_1", "actions"), wanted)


def test_equal_values_and_windows(lerobot, demos):
    keys = ["object", "agentview_image"]
    ours = SequenceDataset(str(demos), keys, seq_length=2)[[0, 7, 14]]
    theirs = SequenceDataset(str(lerobot), keys, seq_length=2)[[0, 7, 14]]
    for key in keys:
        np.testing.assert_array_equal(theirs["obs"][key], ours["obs"][key])
    np.testing.assert_allclose(theirs["actions"], ours["actions"], rtol=1e-6)


def test_a_changed_dataset_is_converted_anew(lerobot):
    first = as_demonstration_file(lerobot)
    (lerobot / ".cache").mkdir()
    (lerobot / ".cache" / "download.lock").touch()
    assert as_demonstration_file(lerobot) == first
    table = next(lerobot.glob("data/*/*.parquet"))
    os.utime(table, ns=(1, 1))
    second = as_demonstration_file(lerobot)
    assert second != first
    assert conversions() == sorted([first, second])


def test_equal_bytes_when_made_again(lerobot):
    with DatasetFile(lerobot) as file:
        first = file.fingerprint()
    shutil.rmtree(cache_folder("datasets"))
    with DatasetFile(lerobot) as file:
        assert file.fingerprint() == first


def test_videos_stay_small(made):
    with DatasetFile(made / "film") as file:
        assert file.storage("demo_0", "obs/top_image") == "video"
        assert file.shape("demo_0", "obs/top_image") == (LENGTH, 64, 64, 3)
        raw = file.read("demo_0", "obs/top_image").nbytes * 2
        assert file.hdf5_path.stat().st_size < raw
    with DatasetFile(made / "lr") as file:
        assert file.storage("demo_0", "obs/agentview_image") == "png", "without loss, exact"


def test_training_and_the_doctor_name_the_folder(lerobot):
    train_set, _ = build_datasets(data_config(lerobot, ["object"]))
    assert len(train_set) == DEMOS * LENGTH
    assert train_set.hdf5_path == str(lerobot)
    report = diagnose(lerobot)
    assert (report.path, report.demos) == (lerobot, DEMOS)


def test_unfinished_conversions_leave_nothing(lerobot, monkeypatch):
    next(lerobot.glob("data/*/*.parquet")).unlink()
    with pytest.raises(DatasetError, match="is missing: download it again"):
        DatasetFile(lerobot)
    assert [f for f in cache_folder("datasets").iterdir() if f.suffix != ".lock"] == []


def test_threads_that_come_together_convert_once(lerobot, monkeypatch):
    made = []
    original = cached.convert

    def counted(*args, **kwargs):
        made.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(cached, "convert", counted)
    with ThreadPoolExecutor(4) as pool:
        files = set(pool.map(as_demonstration_file, [lerobot] * 4))
    assert (len(files), len(made)) == (1, 1)


def test_the_cache_is_bounded_and_keeps_what_was_read_last(demos, tmp_path, monkeypatch):
    folders = [tmp_path / f"{name}.zarr" for name in "abc"]
    for folder in folders:
        convert(demos, folder)
    first, second = (as_demonstration_file(folder) for folder in folders[:2])
    os.utime(first, ns=(2_000, first.stat().st_mtime_ns))
    os.utime(second, ns=(1_000, second.stat().st_mtime_ns))
    monkeypatch.setenv("IMITATE_CACHE_GB", str(2.5 * first.stat().st_size / 1e9))
    third = as_demonstration_file(folders[2])
    assert conversions() == sorted([first, third])
    locks = {lock.stem for lock in first.parent.glob("*.lock")}
    assert locks == {first.stem, third.stem}
    monkeypatch.setenv("IMITATE_CACHE_GB", "0")
    assert as_demonstration_file(folders[1]) in conversions()
    assert len(conversions()) == 1
    monkeypatch.setenv("IMITATE_CACHE_GB", "much")
    first.unlink(missing_ok=True)
    with pytest.raises(UserError, match="IMITATE_CACHE_GB is 'much': expected a number"):
        as_demonstration_file(folders[0])


def test_a_conversion_that_a_training_reads_stays(demos, tmp_path, monkeypatch):
    folders = [tmp_path / f"{name}.zarr" for name in "ab"]
    for folder in folders:
        convert(demos, folder)
    reading = SequenceDataset(folders[0], ("object",))
    (first,) = conversions()
    monkeypatch.setenv("IMITATE_CACHE_GB", "0")
    second = as_demonstration_file(folders[1])
    assert conversions() == sorted([first, second])
    del reading
    gc.collect()
    second.unlink()
    assert as_demonstration_file(folders[1]) == second
    assert conversions() == [second]


def test_a_cache_that_cannot_be_written(lerobot, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DatasetError, match="set IMITATE_CACHE to a folder with room"):
        DatasetFile(lerobot)


@pytest.mark.parametrize(
    ("words", "is_advised"), [("{file}: no space left", True), ("x: damaged", False)]
)
def test_a_fault_of_the_conversion_or_of_the_dataset(lerobot, monkeypatch, words, is_advised):
    def fails(path, file, **options):
        raise DatasetError(words.format(file=file))

    monkeypatch.setattr(cached, "convert", fails)
    with pytest.raises(DatasetError) as caught:
        as_demonstration_file(lerobot)
    assert ("IMITATE_CACHE" in str(caught.value)) == is_advised


def test_what_holds_states_alone_is_refused(tmp_path):
    path = tmp_path / "raw.data"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update({"env": "Lift", "env_info": "{}"})
        demo = data.create_group("demo_0")
        demo.attrs["model_file"] = "<mujoco/>"
        demo["states"], demo["actions"] = np.zeros((3, 4)), np.zeros((3, 2))
    with pytest.raises(DatasetError, match="states without observations.*imitate dataset convert"):
        as_demonstration_file(path)


def test_a_folder_of_nothing_known(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="is a folder in none of the known formats"):
        DatasetFile(tmp_path / "empty")
    Path(tmp_path / "note.txt").write_text("hello")
    with pytest.raises(DatasetError, match="is not an HDF5 file in none of the known formats"):
        DatasetFile(tmp_path / "note.txt")


# ---- with a format of the test -------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """A format, and a conversion that notes its arguments and writes a few bytes."""
    calls = []

    def convert_quickly(path, file, **how):
        for number, total in ((1, None), (2, 7)):
            how["on_demo"](f"d{number}", total)
        calls.append((path, file, how))
        file.write_bytes(bytes(how.pop("size", 2_500_000)))
        return ConversionReport(demos=2, steps=9, doubts={"time": "odd"})

    bars = []

    class Bar:
        total = "?"

        def __init__(self, **words):
            bars.append((words, []))

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def update(self):
            bars[-1][1].append(self.total)

    monkeypatch.setattr(cached, "convert", convert_quickly)
    monkeypatch.setattr(cached, "ProgressBar", Bar)
    return SimpleNamespace(calls=calls, bars=bars)


def form(*options):
    return Format("own", "", lambda path: True, None, options=frozenset(options))


def digest(*described):
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def test_the_name_of_a_conversion_follows_from_names_sizes_and_times(quick, tmp_path):
    source = tmp_path / "set"
    for name in ("b", "a/c", ".git/x", "a/.cache/y"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"123")
        os.utime(source / name, ns=(5, 10**9 + 7))
    (source / "gone").symlink_to(tmp_path / "nothing")
    found = as_demonstration_file(source, form())
    listed = [["a/c", 3, 10**9 + 7], ["b", 3, 10**9 + 7]]
    assert found.name == f"set-{digest(5, 'own', listed)}.hdf5"
    one = as_demonstration_file(source / "b", form())
    assert one.name == f"b-{digest(5, 'own', [['', 3, 10**9 + 7]])}.hdf5"
    assert [path for path, *_ in quick.calls] == [source, source / "b"]
    as_demonstration_file(source, form())
    assert len(quick.calls) == 2  # made once


@pytest.mark.parametrize("options", [("skip_incomplete",), ()])
def test_how_a_dataset_is_converted(quick, tmp_path, caplog, options):
    source = tmp_path / "set"
    source.write_bytes(b"1")
    with caplog.at_level(logging.WARNING):
        found = as_demonstration_file(source, form(*options))
    ((_, file, how),) = quick.calls
    assert (file, how["from_format"]) == (found, "own")
    assert how["options"] == Options(images="as-source", skip_incomplete=False if options else None)
    words = {"desc": "converting set", "unit": "demo", "delay": 2, "disable": None}
    assert quick.bars == [(words, [None, 7])]
    assert [record.getMessage() for record in caplog.records] == [
        f"{source}: a dataset of the format 'own', converted once into {found} (2 demos, 9 steps, 2.5 MB)",
        f"{source}: time: odd",
    ]


def test_what_is_held_and_what_can_be_converted(quick, tmp_path):
    found = as_demonstration_file(tmp_path, form())
    assert cached.held(found) is not None and cached.held(tmp_path / found.name) is None
    assert cached.convertible_format(tmp_path / "none") is None
    states = Format("raw", "", lambda path: True, None, needs_replay=True)
    with pytest.raises(DatasetError, match="states without observations .raw.: make a file"):
        as_demonstration_file(tmp_path, states)


def test_old_conversions_give_way_to_a_new_one(quick, tmp_path, monkeypatch):
    made = []
    for name in "abc":
        (tmp_path / name).write_bytes(b"1")
        made.append(as_demonstration_file(tmp_path / name, form()))
        os.utime(made[-1], ns=(len(made), made[-1].stat().st_mtime_ns))
    (tmp_path / "d").write_bytes(b"1")
    monkeypatch.setattr(cached, "limit_bytes", lambda: 3 * 2_500_000)
    made.append(as_demonstration_file(tmp_path / "d", form()))
    assert [file.exists() for file in made] == [False, True, True, True]
    locks = [file.with_suffix(".lock").exists() for file in made]
    assert locks == [False, True, True, True]
