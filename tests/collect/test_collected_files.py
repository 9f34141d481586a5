"""Files of a collection, episode by episode, without a simulator: shards, lost episodes, interruptions."""

import json
from pathlib import Path

import numpy as np
import pytest

from imitate.collect.collect import (
    CollectedFile,
    CollectedFiles,
    RecordedEpisode,
    check_free,
    finish_folder,
    prepare_folder,
    recorded_in,
)
from imitate.data import DatasetFile, Episode
from imitate.errors import DatasetError
from imitate.system.recognition import INDEX_NAME

META = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 25}}
SETTINGS = json.dumps({"seed": 1, "noise": 0.5})


def episode(number):
    steps, flat = np.full((number + 2, 1), float(number)), np.zeros(number + 2)
    attrs = {"episode": number, "quality": level(number), "attempts": number + 1}
    attrs |= {"success": number != 3} if number != 2 else {}
    return Episode({"x": steps}, steps, flat, flat, flat, attrs=attrs)


def level(number):
    return "good" if number % 2 == 0 else "bad"


def split(qualities):
    keys = {"every": list(qualities)}
    for number, quality in qualities.items():
        keys.setdefault(quality, []).append(number)
    return keys


def files(pieces, settings=SETTINGS, **how):
    return CollectedFiles(pieces, settings, split, **how)


def collect(pieces, numbers, stop=None, meta=META, **how):
    """Record these episodes; then end, or be interrupted by ``stop``."""
    made = files(pieces, **how)
    if not numbers:
        return made
    with made:
        made.begin(meta)
        for number in numbers:
            made.add(number, level(number), episode(number))
        if stop is not None:
            raise stop
    return made


@pytest.fixture
def pieces(tmp_path):
    """Two files of two episodes, and one of a single one."""
    ranges = range(2), range(2, 4), range(4, 5)
    return [CollectedFile(tmp_path / f"{n}.hdf5", part) for n, part in enumerate(ranges)]


def content(path):
    with DatasetFile(path) as file:
        numbers = {demo: int(file.attrs(demo)["episode"]) for demo in file.demos()}
        return numbers, file.filter_keys()


def test_demos_are_numbered_through_all_files_and_each_has_its_keys(pieces):
    made = collect(pieces, [0, 1, 3, 4])
    assert made.are_finished and made.missing == [0, 1, 2, 3, 4] and not made.lost
    assert content(pieces[0].path) == (
        {"demo_0": 0, "demo_1": 1},
        {"every": ["demo_0", "demo_1"], "good": ["demo_0"], "bad": ["demo_1"]},
    )
    assert content(pieces[1].path) == ({"demo_2": 3}, {"every": ["demo_2"], "bad": ["demo_2"]})
    assert content(pieces[2].path) == ({"demo_3": 4}, {"every": ["demo_3"], "good": ["demo_3"]})
    with DatasetFile(pieces[0].path) as file:
        assert file.file_attrs["collected"] == SETTINGS and file.control_freq == 25
    assert recorded_in(pieces[1].path, SETTINGS) == [
        RecordedEpisode("demo_2", 3, "bad", False, 4, 5)
    ]


def test_keys_are_chosen_from_all_episodes_where_their_qualities_are_known(pieces):
    qualities = {0: "odd", 1: "odd", 2: "other", 3: "odd", 4: "odd"}
    collect(pieces[:2], [0, 3], qualities=qualities)
    assert content(pieces[0].path)[1] == {"every": ["demo_0"], "odd": ["demo_0"]}
    assert content(pieces[1].path)[1] == {"every": ["demo_1"], "odd": ["demo_1"]}


def test_a_file_of_which_all_episodes_are_lost_is_not_there(pieces, tmp_path):
    collect(pieces, [0, 4])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.hdf5", "2.hdf5"]
    assert content(pieces[2].path)[0] == {"demo_1": 4}


@pytest.mark.parametrize(
    ("first", "missing", "lost", "earlier"),
    [
        ([0], [1, 2, 3, 4], [], [0]),
        ([1], [2, 3, 4], [0], [1]),
        ([0, 1, 3], [4], [2], [0, 1, 3]),
        ([0, 2], [3, 4], [1], [0, 2]),
    ],
)
def test_an_interrupted_collection_goes_on_after_its_last_episode(
    pieces, first, missing, lost, earlier
):
    with pytest.raises(KeyboardInterrupt):
        collect(pieces, first, KeyboardInterrupt())
    with pytest.raises(DatasetError, match="--resume|exists already"):
        files(pieces)
    again = files(pieces, resume=True)
    assert (again.missing, again.lost, again.are_finished) == (missing, lost, False)
    assert [demo.episode for demo in again.earlier] == earlier
    collect(pieces, missing, resume=True)
    found = {}
    for piece in pieces:
        found |= content(piece.path)[0]
    assert list(found.values()) == [*earlier, *missing]
    assert list(found) == [f"demo_{number}" for number in range(len(found))]
    done = files(pieces, resume=True)
    assert done.are_finished and not done.missing and done.lost == lost
    with pytest.raises(DatasetError, match="was started with noise = 0.5, but now noise is 0.75"):
        files(pieces, json.dumps({"seed": 1, "noise": 0.75}), resume=True)


def test_a_finished_file_is_left_if_it_has_the_last_episode(pieces):
    single = pieces[0].path
    collect([CollectedFile(single, range(3))], [0, 1, 2])
    assert files([CollectedFile(single, range(3))], resume=True).are_finished
    for stop in (2, 4):
        with pytest.raises(DatasetError, match="exists already"):
            files([CollectedFile(single, range(stop))], resume=True)
    assert recorded_in(single, SETTINGS)[2].success is None  # the environment did not report it
    collect([CollectedFile(single, range(2))], [1], overwrite=True)
    assert content(single)[0] == {"demo_0": 1}


def test_the_rate_of_a_world_is_known_by_its_name(pieces):
    collect(pieces[:1], [0], meta={"env_name": "metaworld:push-v3", "type": 2, "env_kwargs": {}})
    with DatasetFile(pieces[0].path) as file:
        assert file.control_freq == 80


EXISTS, LEFT = "exists already", "is left from an interrupted collection"


@pytest.mark.parametrize(
    ("there", "how", "words"),
    [
        ("", {}, ""),
        ("a.hdf5", {}, EXISTS),
        ("a.hdf5", {"resume": True}, EXISTS),
        ("a.hdf5", {"overwrite": True}, ""),
        ("a.hdf5.partial", {}, LEFT),
        ("a.hdf5.partial", {"resume": True}, ""),
        ("a.hdf5.partial", {"overwrite": True}, ""),
        ("", {"overwrite": True, "resume": True}, "give only one of them"),
    ],
)
def test_files_are_replaced_or_continued_only_if_that_is_wanted(tmp_path, there, how, words):
    if there:
        (tmp_path / there).touch()
    how = {"overwrite": False, "resume": False, **how}
    if not words:
        check_free(tmp_path / "a.hdf5", **how)
        return
    with pytest.raises(DatasetError, match=words):
        check_free(tmp_path / "a.hdf5", **how)


@pytest.mark.parametrize(
    ("names", "overwrite", "stays"),
    [(["0", "1"], False, True), (["0"], False, False), (["0", "1"], True, False)],
)
def test_an_index_stays_only_with_all_of_its_files(tmp_path, names, overwrite, stays):
    pieces = [CollectedFile(tmp_path / f"{n}.hdf5", range(n, n + 1)) for n in range(2)]
    for name in names:
        (tmp_path / f"{name}.hdf5").touch()
    (tmp_path / INDEX_NAME).write_text("{}")
    prepare_folder(tmp_path, pieces, overwrite=overwrite, resume=not overwrite)
    assert (tmp_path / INDEX_NAME).exists() == stays
    if stays:
        finish_folder(tmp_path, pieces)
        assert (tmp_path / INDEX_NAME).read_text() == "{}"


def test_a_folder_with_shards_needs_a_word(tmp_path):
    pieces = [CollectedFile(tmp_path / "0.hdf5", range(1))]
    prepare_folder(Path(tmp_path / "new"), pieces, overwrite=False, resume=False)
    (tmp_path / "0.hdf5").touch()
    with pytest.raises(
        DatasetError, match="contains 0.hdf5: --resume continues the collection in the folder"
    ):
        prepare_folder(tmp_path, pieces, overwrite=False, resume=False)
