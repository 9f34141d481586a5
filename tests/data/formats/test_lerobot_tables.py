"""Tables of LeRobot datasets: which episodes there are, their rows, tasks and values, without any video."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imitate.data.formats import lerobot_tables as module
from imitate.data.formats.frames import as_png
from imitate.data.formats.lerobot_tables import Tables
from imitate.errors import DatasetError
from tests.refusals import refused

V2 = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
V3 = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


def write(file, **columns):
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)


def rows(*numbers):
    return {"episode_index": list(numbers), "x": [float(n) for n in range(len(numbers))]}


def info(count, version="v2.1", **more):
    path = V3 if version == "v3.0" else V2
    wanted = {"features": {}, "fps": 10, "total_episodes": count, "codebase_version": version}
    return {**wanted, "data_path": path, **more}


def v2(root, *numbers, listed=None, count=None, **more):
    """Episodes of two rows, one file each."""
    size = more.get("chunks_size", 1000)
    for number in numbers:
        name = f"data/chunk-{number // size:03d}/episode_{number:06d}.parquet"
        write(root / name, **rows(number, number))
    if listed is not None:
        (root / "meta").mkdir()
        text = "\n".join(json.dumps({"episode_index": number}) for number in listed)
        (root / "meta/episodes.jsonl").write_text(f"{text}\n\n")
    return Tables(root, info(len(numbers) if count is None else count, **more))


def v3(root, files, listed=None, count=None, **more):
    """Rows of each file, by (chunk, file); an episode is where its first row is."""
    places = {}
    for (chunk, file), numbers in files.items():
        write(root / f"data/chunk-{chunk:03d}/file-{file:03d}.parquet", **rows(*numbers))
        for number in numbers:
            places.setdefault(number, (chunk, file))
    listed = sorted(places) if listed is None else listed
    write(
        root / "meta/episodes/chunk-000/file-000.parquet",
        episode_index=listed,
        **{"data/chunk_index": [places.get(n, (0, 0))[0] for n in listed]},
        **{"data/file_index": [places.get(n, (0, 0))[1] for n in listed]},
        **{"stats/x": ["unread"] * len(listed)},
    )
    return Tables(root, info(len(listed) if count is None else count, "v3.0", **more))


def read(tables):
    return [(number, columns["x"].to_pylist()) for number, columns in tables.episodes()]


# ---- which episodes ------------------------------------------------------------------------------


def test_episodes_of_one_file_each(tmp_path):
    tables = v2(tmp_path, 0, 1, 2, 3, 4, listed=[4, 0, 1, 2, 3], chunks_size=2)
    assert (tables.numbers, tables.fps, tables.is_v3) == ([0, 1, 2, 3, 4], 10.0, False)
    assert read(tables) == [(n, [0.0, 1.0]) for n in range(5)]
    tables.skip([3, 1])
    assert (tables.numbers, tables.skipped) == ([0, 2, 4], [1, 3])
    assert [number for number, _ in read(tables)] == [0, 2, 4]


def test_without_a_list_the_files_are_the_episodes(tmp_path):
    assert v2(tmp_path, 0, 1, 2).numbers == [0, 1, 2]
    with refused("episode 3 has no rows (|is missing"):
        Tables(tmp_path, info(4))
    with refused("data/chunk-000/episode_000002.parquet is not listed"):
        Tables(tmp_path, info(2))
    with refused("episode_000001.parquet, data/chunk-000/episode_000002.parquet are not listed"):
        Tables(tmp_path, info(1))


@pytest.mark.parametrize(
    ("listed", "count", "words"),
    [
        ([0, 1], 3, "'meta/episodes.jsonl' lists 2 episodes, 'meta/info.json' says 3 (episode 2 is"),
        ([0, 2], 4, 'says 4 (episodes 1, 3 are missing): |"total_episodes": 2;'),
        ([0, 1, 2], 2, "lists 3 episodes, 'meta/info.json' says 2: if"),
        ([0, 1, 5], 3, "episode 5 has no rows (|and data/chunk-000/episode_000002.parquet is not listed"),
    ],
)  # fmt: skip
def test_lists_that_do_not_fit(tmp_path, listed, count, words):
    with refused(words):
        v2(tmp_path, 0, 1, 2, listed=listed, count=count)


def test_episodes_without_rows_may_be_skipped(tmp_path):
    v2(tmp_path, 0, 2, listed=[0, 2])
    (tmp_path / "meta/episodes.jsonl").write_text('{"episode_index": 0}\n{"episode_index": 1}\n')
    tables = Tables(tmp_path, info(7), skip=True)
    assert (tables.numbers, tables.skipped) == ([0], [1])


# ---- rows of version 3 ---------------------------------------------------------------------------


def test_episodes_in_several_files(tmp_path):
    files = {(0, 0): [0, 0, 1], (0, 10): [4], (0, 2): [1, 3, 3], (1, 0): [5, 5]}
    tables = v3(tmp_path, files)
    assert tables.numbers == [0, 1, 3, 4, 5]
    found = [(0, [0.0, 1.0]), (1, [2.0, 0.0]), (3, [1.0, 2.0]), (4, [0.0]), (5, [0.0, 1.0])]
    assert read(tables) == found
    tables.skip([4])
    assert read(tables) == [pair for pair in found if pair[0] != 4]
    assert "stats/x" not in tables.rows_of_episodes[0]


def test_places_are_files_in_natural_order_if_no_row_names_them(tmp_path):
    v3(tmp_path, {(0, 2): [0], (0, 10): [1]})
    write(tmp_path / "meta/episodes/chunk-000/file-000.parquet", episode_index=[0, 1])
    assert read(Tables(tmp_path, info(2, "v3.0"))) == [(0, [0.0]), (1, [0.0])]


@pytest.mark.parametrize(
    ("numbers", "listed", "words"),
    [
        ([0, 2], [0, 1, 2], "file-000.parquet: episode 1 has no rows"),
        ([0, 3], [0, 1, 2, 3], "episodes 1, 2 have no rows"),
        ([0, 1, 0], [0, 1], "rows of episode 0 come after rows of later episodes"),
        ([0, 1, 2], [0, 1], "has rows of episode 2, which 'meta/episodes' does not list"),
        ([0, 1], [0, 1, 2], "episode 2 has no rows: if episodes were deleted by hand"),
        ([0], [0, 1, 2], "episodes 1, 2 have no rows: if"),
    ],
)
def test_rows_that_are_not_those_of_the_list(tmp_path, numbers, listed, words):
    with refused(words):
        read(v3(tmp_path, {(0, 0): numbers}, listed))


# ---- tasks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tasks.jsonl", "task", "__index_level_0__"])
def test_the_task_of_an_episode(tmp_path, name):
    tables = v2(tmp_path, 0, listed=[0])
    assert tables.task(np.array([3]), 0) is None
    if name == "tasks.jsonl":
        lines = [json.dumps({"task_index": n, "task": word}) for n, word in ((3, "a"), (5, "b"))]
        (tmp_path / "meta/tasks.jsonl").write_text("\n".join(lines))
    else:
        write(tmp_path / "meta/tasks.parquet", **{name: ["a", "b"], "task_index": [3, 5]})
    tables = Tables(tmp_path, info(1))
    assert tables.task(np.array([[3], [3]]), 0) == "a" and tables.task(np.array([5]), 0) == "b"
    assert tables.task(None, 0) is None
    with refused("there is no task with index 4 (there are [3, 5])"):
        tables.task(np.array([4]), 0)
    with refused("the task of episode 7 changes at row 2 from 'a' to 'b'"):
        tables.task(np.array([3, 3, 5, 3]), 7)


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feature", "column", "values"),
    [
        ({"dtype": "float32", "shape": (1,)}, pa.array([1.5, 2.5]), np.float32([1.5, 2.5])),
        ({"dtype": "float32", "shape": [2]}, pa.array([[1, 2], [3, 4]]), np.float32([[1, 2], [3, 4]])),
        ({"dtype": "int64", "shape": [2, 1]}, pa.array([[1, 2]]), np.array([[[1], [2]]])),
        ({}, pa.array([True, False]), np.array([True, False])),
        ({"dtype": "bool"}, pa.array([1, 0]), np.array([True, False])),
        ({"dtype": "string"}, pa.array([1, 2]), None),
        ({"dtype": "language"}, pa.array([1, 2]), None),
        ({}, pa.array(["a", "b"]), None),
        ({}, pa.array(["a", "b"]).dictionary_encode(), None),
        ({}, pa.array([b"a"]), None),
        ({}, pa.array([None, 1.0]), None),
    ],
)  # fmt: skip
def test_values_of_a_column(tmp_path, feature, column, values):
    tables = v2(tmp_path, 0, features={"x": feature})
    found = tables.decoded("x", column)
    if values is None:
        assert found is None
        return
    np.testing.assert_array_equal(found, values)
    assert (found.dtype, found.shape) == (values.dtype, values.shape)


def test_images_in_cells_and_in_files(tmp_path):
    tables = v2(tmp_path, 0, features={"i": {"dtype": "image"}})
    png = as_png(np.full((4, 5, 3), 7, np.uint8))
    (tmp_path / "a.png").write_bytes(png)
    column = pa.array([{"bytes": png, "path": None}, {"bytes": b"", "path": "a.png"}])
    found = tables.decoded("i", column)
    assert found.shape == (2, 4, 5, 3) and (found == 7).all()
    encoded = tables.decoded("i", column, encoded=True)
    assert len(encoded) == 2
    with refused("'i': has no image bytes and no file"):
        tables.decoded("i", pa.array(["b.png"]))


# ---- bounds --------------------------------------------------------------------------------------


def test_patterns_of_paths(tmp_path):
    tables = v2(tmp_path, 0)
    for pattern in ("x/{a.b}", "x/{a!r}", "x/{a:>9}", "", "x" * 501):
        tables.info["data_path"] = pattern
        with refused("'data_path' in 'meta/info.json' is '|expected a path with parts"):
            tables.place("data_path", a=1)
    tables.info["data_path"] = "x/{a:03d}-{b}"
    assert tables.place("data_path", a=7, b=8) == tmp_path / "x/007-8"


def test_lists_of_texts_are_not_read(tmp_path):
    tables = v2(tmp_path, 0)
    name = "data/chunk-000/episode_000000.parquet"
    write(
        tmp_path / name,
        **rows(0, 0),
        words=[["a"], ["b", "c"]],
        deep=[[["a"]], []],
        text=["a", "b"],
    )
    ((_, columns),) = tables.episodes()
    assert sorted(columns) == ["episode_index", "text", "x"] and tables.unread == {"words", "deep"}


@pytest.mark.parametrize(("allowed", "fits"), [(10_012, False), (10_013, True)])
def test_texts_that_are_repeated(tmp_path, monkeypatch, allowed, fits):
    tables = v2(tmp_path, 0)
    name = tmp_path / "data/chunk-000/episode_000000.parquet"
    write(name, episode_index=[0] * 100, text=["a" * 92] * 100)  # 8 and 92 bytes and a bit a row
    monkeypatch.setattr(module, "_FREE_BYTES", allowed)
    monkeypatch.setattr(module, "_TIMES", 0)
    if fits:
        assert len(list(tables.episodes())) == 1
        return
    with refused("has |but unpacks to more than 10 kB"):
        list(tables.episodes())


@pytest.mark.parametrize(("free", "fits"), [(100, True), (99, False)])
def test_rows_that_a_file_claims(tmp_path, monkeypatch, free, fits):
    tables = v2(tmp_path, 0)
    write(tmp_path / "data/chunk-000/episode_000000.parquet", episode_index=[0] * 100)
    monkeypatch.setattr(module, "_FREE_ROWS", free)
    monkeypatch.setattr(module, "_ROWS_PER_BYTE", 0)
    if fits:
        assert len(list(tables.episodes())) == 1
        return
    with pytest.raises(DatasetError, match="claims 100 rows in"):
        list(tables.episodes())
