"""LeRobot: versions 2.0 to 3.0 in, 3.0 out, tasks, videos, exact statistics, nothing lost."""

import json
import os
import re
import shutil
from fractions import Fraction

import av
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imitate.data import DatasetFile
from imitate.data.file.features import dimension_names, features_of
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert
from imitate.data.formats.frames import as_png
from imitate.data.formats.lerobot_video import VideoEncoder
from imitate.errors import DatasetError, UserError
from tests.demo_files import assert_equal_contents, contents, episode, write_demos

IMAGES, EPISODES = "observation.images.agentview", "meta/episodes/chunk-000/file-000.parquet"
LENGTHS, FPS, CAMERA = (4, 3, 5), 10, "observation.images.top"


def video(path, levels, millis=None):
    """Gray frames of the given levels, lossless, at the given milliseconds or evenly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=FPS, options={"qp": "0"})
        stream.width = stream.height = 32
        stream.pix_fmt = "rgb24"
        if millis is not None:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for number, level in enumerate(levels):
            gray = np.full((32, 32, 3), level, np.uint8)
            frame = av.VideoFrame.from_ndarray(gray, format="rgb24")
            if millis is not None:
                frame.pts, frame.time_base = millis[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def rows(number, length, offset):
    return {
        "observation.state": [[number + 0.5, float(t)] for t in range(length)],
        "action": [[t / 10] for t in range(length)],
        "next.reward": [float(t == length - 1) for t in range(length)],
        "next.done": [t == length - 1 for t in range(length)],
        **own_columns(number, length, offset, (0, 7, 3)[number]),
    }


def own_columns(number, length, offset=0, task=0):
    steps = range(length)
    return {
        **{"timestamp": [t / FPS for t in steps], "frame_index": list(steps)},
        **{"episode_index": [number] * length, "task_index": [task] * length},
        "index": [offset + t for t in steps],
    }


def info_of(root):
    return json.loads((root / "meta/info.json").read_text())


def write_info(root, info):
    (root / "meta/info.json").write_text(json.dumps(info))


def make(root, version, lengths=LENGTHS, index_name="task"):
    """By hand, after the description of each version; episode i's frame t is gray 20 * i + 4 * t."""
    is_v3 = version == "v3.0"
    meta = root / "meta"
    meta.mkdir(parents=True)
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": None},
        "action": {"dtype": "float32", "shape": [1], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        CAMERA: {"dtype": "video", "shape": [32, 32, 3], "names": ["height", "width", "channels"]},
    }
    tail = "{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    info = {
        "codebase_version": version, "fps": FPS, "features": features, "robot_type": "so100",
        "total_episodes": len(lengths), "total_frames": sum(lengths), "chunks_size": 2,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet" if is_v3
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if is_v3
        else f"videos/chunk-{tail}",
    }  # fmt: skip
    write_info(root, info)
    tasks = {0: "pick", 7: "place", 3: "push"}
    tables, levels, offset = [], [], 0
    for number, length in enumerate(lengths):
        tables.append(pa.table(rows(number, length, offset)))
        levels.append([20 * number + 4 * t for t in range(length)])
        offset += length
    if not is_v3:
        lines = [json.dumps({"task_index": index, "task": task}) for index, task in tasks.items()]
        (meta / "tasks.jsonl").write_text("\n".join(lines))
        for number, table in enumerate(tables):
            place = root / f"data/chunk-{number // 2:03d}/episode_{number:06d}.parquet"
            place.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, place)
            place = f"videos/chunk-{number // 2:03d}/{CAMERA}/episode_{number:06d}.mp4"
            video(root / place, levels[number])
        return root
    table = pa.table({"task_index": list(tasks), index_name: list(tasks.values())})
    pq.write_table(table, meta / "tasks.parquet")
    (root / "data/chunk-000").mkdir(parents=True)
    pq.write_table(pa.concat_tables(tables[:2]), root / "data/chunk-000/file-000.parquet")
    pq.write_table(tables[2], root / "data/chunk-000/file-001.parquet")
    video(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", sum(levels, []))
    starts = np.cumsum([0, *lengths])
    episodes = [
        {
            "episode_index": i, "length": length, "data/chunk_index": 0, "data/file_index": int(i == 2),
            f"videos/{CAMERA}/chunk_index": 0, f"videos/{CAMERA}/file_index": 0,
            f"videos/{CAMERA}/from_timestamp": starts[i] / FPS, "stats/action/min": [0.0],
        }
        for i, length in enumerate(lengths)
    ]  # fmt: skip
    (meta / "episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(episodes), root / EPISODES)
    return root


@pytest.mark.parametrize(
    ("version", "index_name"),
    [("v2.0", None), ("v2.1", None), ("v3.0", "task"), ("v3.0", "__index_level_0__")],
)
def test_every_version_gives_the_same(converted, tmp_path, version, index_name):
    report, file = converted(make(tmp_path / "l", version, index_name=index_name), images="raw")
    assert (report.source_format, report.demos, report.steps) == ("lerobot", 3, 12)
    assert report.renamed == {
        "task": "attribute language",
        "observation.state": "obs/state",
        CAMERA: "obs/top_image",
        "action": "actions",
        "next.reward": "rewards",
    }
    assert report.synthesised.keys() == {"env_args", "terminals", "timeouts"}
    assert file.read("demo_2", "obs/state").tolist() == [[2.5, float(t)] for t in range(5)]
    actions = file.read("demo_2", "actions")[:, 0]
    np.testing.assert_allclose(actions, np.arange(5) / 10, rtol=1e-6)
    assert file.read("demo_1", "rewards").tolist() == [0, 0, 1]
    assert file.read("demo_1", "terminals").tolist() == [0, 0, 1]
    assert [file.attrs(demo)["language"] for demo in file.demos()] == ["pick", "place", "push"]
    for number, demo in enumerate(file.demos()):
        image = file.read(demo, "obs/top_image")
        assert image.shape == (LENGTHS[number], 32, 32, 3)
        assert image[:, 0, 0, 0].tolist() == [20 * number + 4 * t for t in range(LENGTHS[number])]
    assert file.file_attrs["control_freq"] == 10
    assert file.env_meta["env_name"] == "so100"


def every(period, count, first=0):
    return [first + period * number for number in range(count)]


@pytest.mark.parametrize("images", ["raw", None])
@pytest.mark.parametrize(
    ("millis", "length", "seen"),
    [
        (every(100, 5, first=500), 5, [0, 1, 2, 3, 4]),
        ([0, 130, 180, 310, 390, 500], 5, [0, 1, 2, 3, 4]),  # an uneven clock, and a frame more
        (every(50, 9), 5, [0, 2, 4, 6, 8]),
        ([0, 100, 120, 200, 300, 400], 5, [0, 1, 3, 4, 5]),
        (every(101, 60), 60, [*range(51), *range(50, 59)]),
        ([0, 100, 300, 400, 500], 5, "row 2 of episode 0, at 0.200 s: the nearest is at 0.300 s"),
        ([100, 200, 400, 500], 3, "row 2 of episode 0, at 0.200 s"),
        (every(200, 5), 5, "row 1 of episode 0, at 0.100 s"),
        (every(100, 4), 5, "ends at 0.300 s, but row 4 of episode 0 is at 0.400 s"),
        (every(80, 5), 5, "ends at 0.320 s, but row 4"),
    ],
)  # fmt: skip
def test_a_row_has_the_frame_of_its_time_or_is_refused(
    converted, tmp_path, millis, length, seen, images
):
    root = make(tmp_path / "l", "v2.1", lengths=[length])
    levels = [4 * number for number in range(len(millis))]
    video(root / f"videos/chunk-000/{CAMERA}/episode_000000.mp4", levels, millis)
    if isinstance(seen, str):
        with pytest.raises(DatasetError, match=seen):
            converted(root, images=images)
        return
    report, file = converted(root, images=images)
    found = file.read("demo_0", "obs/top_image")[:, 0, 0, 0] / 4
    assert np.rint(found).tolist() == seen
    assert bool(report.doubts) == (len(set(seen)) < len(seen))


@pytest.mark.parametrize(
    ("starts", "lost", "words"),
    [
        ([0.0, 0.4, 0.7], [3], "row 3 of episode 0, at 0.300 s"),
        ([0.0, 0.4, 0.7], [4], "row 0 of episode 1, at 0.400 s"),
        ([0.0, 0.3, 0.6], [], "episode 0 has 4 rows, to 0.300 s, .* from 0.000 to 0.300 s"),
        ([0.0, 0.4, 0.4], [], "two episodes begin at 0.400 s"),
    ],
)  # fmt: skip
def test_episodes_of_one_video_do_not_take_frames_of_each_other(
    tmp_path, made, starts, lost, words
):
    root = shutil.copytree(made, tmp_path / "l")
    left = [number for number in range(12) if number not in lost]
    video(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", left, [100 * number for number in left])
    table = pq.read_table(root / EPISODES)
    key = f"videos/{CAMERA}/from_timestamp"
    pq.write_table(table.set_column(table.column_names.index(key), key, [starts]), root / EPISODES)
    for images in ("raw", None):
        with pytest.raises(DatasetError, match=words):
            convert(root, tmp_path / "o.hdf5", options=Options(images=images))


def other_info(**values):
    return lambda root: write_info(root, {**info_of(root), **values})


def one_task(root):
    pq.write_table(pa.table({"task_index": [0], "task": ["pick"]}), root / "meta/tasks.parquet")


def with_column(key, values):
    """Give the rows of episode 1 (there are 3) other values in a column."""

    def change(root):
        file = root / "data/chunk-000/file-000.parquet"
        table = pq.read_table(file)
        column = [*table.column(key).to_pylist()[: LENGTHS[0]], *values]
        pq.write_table(table.set_column(table.column_names.index(key), key, [column]), file)

    return change


def a_list_for_a_video(root):
    """In the place of a video text that FFmpeg takes for a list of videos, of which it reads the first."""
    (file, *_) = sorted((root / "videos").rglob("*.mp4"))
    shutil.copy(file, file.with_name("other.bin"))
    file.write_text("ffconcat version 1.0\nfile other.bin\n")


def many_rows(root):
    file = root / "data/chunk-000/file-000.parquet"
    pq.write_table(pa.table({"episode_index": np.zeros(10**5, "i8")}), file)


def without_videos(root):
    features = info_of(root)["features"]
    del features[CAMERA]
    other_info(features=features)(root)


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("timestamp", [1e4, 1e4 + 0.1, 1e4 + 0.2], {}),  # without videos the origin is free
        ("timestamp", [0.0, 0.1, 0.4], {"timestamp": "1 episode .0.1 is followed by 0.4 in episode 1"}),
        ("frame_index", [0, 1, 5], {"frame_index": "1 is followed by 5 in episode 1"}),
    ],
)  # fmt: skip
def test_steps_that_were_lost_are_reported(tmp_path, made, column, values, words):
    root = shutil.copytree(made, tmp_path / "l")
    without_videos(root)
    with_column(column, values)(root)
    report = convert(root, tmp_path / "o.hdf5")
    assert report.doubts.keys() == words.keys()
    for key, text in words.items():
        assert re.search(text, report.doubts[key])
        assert any(key in line and "warning" in line for line in report.lines())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_column("timestamp", [0.0, 0.2, 0.1]), "'timestamp' of episode 1 does not advance: row 2 is at 0.1"),
        (with_column("frame_index", [0, 2, 1]), "'frame_index' of episode 1 does not advance: row 2"),
        (with_column("timestamp", [0.0, 0.05, 0.1]), "episode 1 runs at 20 Hz, but 'meta/info.json' says fps 10"),
        (with_column("timestamp", [0.0, 0.1, 0.3]), "episode 1 has 3 rows, to 0.300 s, but its part"),
        (with_column("task_index", [7, 7, 3]), "task of episode 1 changes at row 2 from 'place' to 'push'.*--language"),
        (with_column("episode_index", [2, 2, 2]), "episode 1 has no rows: if .* 'meta/episodes'"),
        (with_column("episode_index", [5, 5, 5]), "rows of episode 5, which 'meta/episodes' does not list"),
        (lambda root: unlist(root, 1), "rows of episode 1, which 'meta/episodes' does not list"),
        (lambda root: (root / "data/chunk-000/file-001.parquet").unlink(), "file-001.parquet: is missing"),
        (other_info(codebase_version="v4.0"), "codebase_version is 'v4.0'"),
        (other_info(storage_format="lance"), "storage_format is 'lance'"),
        (other_info(total_episodes=4), "lists 3 episodes, 'meta/info.json' says 4"),
        (one_task, "no task with index 7"),
        (other_info(data_path="/etc/passwd"), "names '/etc/passwd', which is outside"),
        (other_info(video_path="videos/../../{video_key}.mp4"), "is outside"),
        (other_info(data_path="{chunk_index:0999999999d}"), "data_path' in .* expected a path with parts"),
        (other_info(video_path="{video_key.__class__}.mp4"), "video_path' in .* expected a path with parts"),
        (a_list_for_a_video, "cannot be read"),
        (many_rows, "claims 100000 rows in"),
    ],
)  # fmt: skip
def test_what_is_missing_or_unknown_is_named(tmp_path, made, change, words):
    root = shutil.copytree(made, tmp_path / "l")
    change(root)
    with pytest.raises(UserError, match=words):
        convert(root, tmp_path / "o.hdf5")
    assert [path.name for path in tmp_path.iterdir()] == ["l"]


def added(root, key, dtype, values):
    """Give all 12 rows a further column."""
    for file, part in (("0", values[:7]), ("1", values[7:])):
        path = root / f"data/chunk-000/file-00{file}.parquet"
        pq.write_table(pq.read_table(path).append_column(key, [part]), path)
    feature = {"dtype": dtype, "shape": [1], "names": None}
    other_info(features={**info_of(root)["features"], key: feature})(root)


def test_what_changes_within_an_episode_is_said(converted, tmp_path, made):
    root = shutil.copytree(made, tmp_path / "l")
    with_column("task_index", [7, 7, 3])(root)
    without_videos(root)
    added(root, "next.success", "bool", [False, True, True, False, *[False] * 7, True])
    added(root, "subtask", "string", ["reach"] * 5 + ["lift"] * 7)
    added(root, "note", "string", ["a"] * 4 + ["b"] * 8)
    report, file = converted(root, language="pick and place")  # one for all, so none is looked up
    assert {file.attrs(demo)["language"] for demo in file.demos()} == {"pick and place"}
    assert [file.success(demo) for demo in file.demos()] == [True, False, True]
    ends = [file.read(demo, "timeouts").tolist() for demo in file.demos()]
    assert ends == [[0, 0, 0, 1], [0, 0, 1], [0] * 5]
    assert report.doubts.keys() == {"next.success", "subtask"}
    assert "of episode 0 (and perhaps of other" in report.doubts["next.success"]
    assert report.dropped.keys() >= {"subtask", "note"}


@pytest.mark.parametrize(
    ("deleted", "listed", "total", "words"),
    [
        ([1], [0, 2], 2, None),
        ([1], [0, 2], 3, 'lists 2 episodes, .* says 3 .episode 1 is missing.: .* write "total_episodes": 2'),
        ([], [0, 1, 2], 2, 'lists 3 episodes, .* says 2: .* write "total_episodes": 3'),
        ([1], [0, 1, 2], 3, "episode 1 has no rows .*episode_000001.parquet: is missing.: if"),
        ([0, 1], [0, 1, 2], 3, "episodes 0, 1 have no rows"),
        ([], [0, 2], 2, "episode_000001.parquet is not listed: if .* 'meta/episodes.jsonl'"),
        ([1], None, 2, "episode 1 has no rows .* and .*episode_000002.parquet is not listed"),
        ([], None, 10**12, "episode 3 has no rows"),
    ],
)  # fmt: skip
def test_episodes_that_were_deleted_by_hand(converted, tmp_path, deleted, listed, total, words):
    root = make(tmp_path / "l", "v2.1")
    other_info(total_episodes=total)(root)
    for number in deleted:
        next(root.glob(f"data/*/episode_{number:06d}.parquet")).unlink()
    if listed is not None:
        lines = [json.dumps({"episode_index": number}) for number in listed]
        (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    if words is not None:
        with pytest.raises(DatasetError, match=words):
            converted(root)
        return
    _, file = converted(root, images="raw")
    assert file.demos() == ["demo_0", "demo_2"]
    assert file.attrs("demo_2")["language"] == "push"
    assert file.read("demo_2", "obs/top_image")[:, 0, 0, 0].tolist() == [40, 44, 48, 52, 56]


def unlist(root, number):
    listed = pq.read_table(root / EPISODES).to_pylist()
    rows = [row for row in listed if row["episode_index"] != number]
    pq.write_table(pa.Table.from_pylist(rows), root / EPISODES)
    other_info(total_episodes=2)(root)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n"


def without_video(root, number=1):
    next(root.glob(f"videos/*/{CAMERA}/episode_{number:06d}.mp4")).unlink()


def videos_in(name):
    return lambda root: (root / "videos").rename(root / name)


def a_pointer(pattern):
    return lambda root: sorted(root.glob(pattern))[1].write_text(LFS)


@pytest.mark.parametrize(
    ("version", "change", "words", "left", "lacking"),
    [
        ("v2.1", without_video, "episode_000001.mp4: is missing: download it again, or use", [0, 2], [1]),
        ("v2.1", a_pointer("videos/*/*/*.mp4"), "pointer of Git LFS .* `git lfs pull`", [0, 2], [1]),
        ("v2.1", videos_in("video"), "there is no folder '.*videos', but there is 'video'", [0, 1, 2], None),
        ("v3.0", videos_in("films"), "file-000.mp4: is missing: download it again", [0, 1, 2], None),
        ("v2.1", a_pointer("data/*/*.parquet"), "episode 1 has no rows .*pointer of Git LFS", [0, 2], "refused"),
        ("v3.0", a_pointer("data/*/*.parquet"), "file-001.parquet: is a pointer of Git LFS", [0, 1], "refused"),
    ],
)  # fmt: skip
def test_incomplete_datasets_are_refused_or_used_for_what_is_whole(
    converted, tmp_path, monkeypatch, version, change, words, left, lacking
):
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "cache"))
    root = make(tmp_path / "l", version)
    if version == "v2.1":
        lines = [json.dumps({"episode_index": number}) for number in range(3)]
        (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    change(root)
    with pytest.raises(DatasetError, match=rf"{words}.*--skip-incomplete"):
        converted(root)
    report, file = converted(root, skip_incomplete=True)
    assert file.demos() == [f"demo_{number}" for number in left]
    notes = [note for note in report.notes if "incomplete" in note]
    assert notes == [f"1 of 3 episodes incomplete and left out: {3 - sum(left)}"] * (len(left) < 3)
    cameras = [file.has(demo, "obs/top_image") for demo in file.demos()]
    assert all(cameras) if lacking else not any(cameras)
    if lacking == "refused":  # without its rows an episode is nothing
        with pytest.raises(DatasetError, match=words):
            DatasetFile(root)
        return
    with DatasetFile(root) as read:  # all rows are there, and the images that exist
        assert read.demos() == ["demo_0", "demo_1", "demo_2"]
        assert read.has("demo_1", "obs/top_image") is False
        assert read.demos("complete") == [f"demo_{number}" for number in left]
        assert CAMERA in read.file_attrs["incomplete"]


def test_other_names_of_features_are_taken_for_observations_and_actions(converted, tmp_path, made):
    root = shutil.copytree(made, tmp_path / "l")
    without_videos(root)
    names = {"observation.state": "state", "action": "actions", "next.reward": "extra"}
    info = (root / "meta/info.json").read_text()
    files = sorted(root.glob("data/*/*.parquet"))
    for old, new in names.items():
        info = info.replace(f'"{old}"', f'"{new}"')
    (root / "meta/info.json").write_text(info)
    for file in files:
        table = pq.read_table(file)
        pq.write_table(table.rename_columns([names.get(n, n) for n in table.column_names]), file)
    report, file = converted(root)
    assert file.obs_keys("demo_0") == ["extra", "state"]
    assert file.read("demo_2", "obs/state").tolist() == [[2.5, float(t)] for t in range(5)]
    np.testing.assert_allclose(file.read("demo_2", "actions")[:, 0], np.arange(5) / 10, rtol=1e-6)
    assert {"state": "obs/state", "actions": "actions"}.items() <= report.renamed.items()
    convert(file.path, tmp_path / "back", to_format="lerobot")
    assert info_of(tmp_path / "back")["features"].keys() >= info_of(root)["features"].keys()
    (tmp_path / "o.hdf5").unlink()
    _, chosen = converted(root, action="state")
    assert chosen.shape("demo_0", "actions") == (4, 2)
    with pytest.raises(DatasetError, match="no feature 'ctrl' .it has .*state.*--action FEATURE"):
        convert(root, tmp_path / "c.hdf5", options=Options(action="ctrl"))


def test_a_part_of_a_video_may_end_at_the_time_of_its_last_frame(converted, tmp_path, made):
    root = shutil.copytree(made, tmp_path / "l")
    rows = pq.read_table(root / EPISODES).to_pylist()
    for row in rows:
        last = row[f"videos/{CAMERA}/from_timestamp"] + (row["length"] - 1) / FPS
        row[f"videos/{CAMERA}/to_timestamp"] = last
    pq.write_table(pa.Table.from_pylist(rows), root / EPISODES)
    _, file = converted(root)
    assert file.read("demo_2", "obs/top_image")[:, 0, 0, 0].tolist() == [40, 44, 48, 52, 56]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("made") / "l", "v3.0")


def demos(path, lengths, frequency=20, size=(9, 8), steady=False):
    """Demos with what LeRobot's state, observations of their own and cameras are made of."""
    random, made = np.random.default_rng(1), []
    for number, length in enumerate(lengths):
        images = random.integers(0, 256, (length + 1, *size, 3), dtype=np.uint8)
        if steady:  # a gray ramp that is 5 brighter at each step, and 30 in each episode
            ramp = np.linspace(0, 60, size[0] * size[1]).reshape(*size, 1).repeat(3, axis=2)
            levels = 30 * number + 5 * np.arange(length + 1)
            images = (levels[:, None, None, None] + ramp).astype(np.uint8)
        seen = {
            "object": random.normal(size=(length + 1, 4)),
            "eef": random.normal(size=(length + 1, 3)).astype(np.float32),
            "quat": random.normal(size=(length + 1, 2)).astype(np.float32),
            "agentview_image": images,
        }
        obs = {key: value[:-1] for key, value in seen.items()}
        after = {key: value[1:] for key, value in seen.items()}
        actions = random.normal(size=(length, 7)).astype(np.float32)
        attrs = {"success": bool(number % 2), "language": f"task {number % 2}"}
        made.append(episode(length, obs, actions, "terminal", next_obs=after, attrs=attrs))
    return write_demos(path, made, control_freq=frequency)


def test_tables_and_statistics_are_as_lerobot_wants_them(tmp_path):
    demos(tmp_path / "a.hdf5", [40, 23])
    root = tmp_path / "l"
    convert(tmp_path / "a.hdf5", root, to_format="lerobot")
    info = info_of(root)
    assert (info["total_episodes"], info["total_frames"], info["fps"]) == (2, 63, 20)
    sizes = {"chunks_size": 1000, "data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
    assert {key: info[key] for key in sizes} == sizes and info["splits"] == {"train": "0:2"}
    meta = sorted(path.name for path in (root / "meta").iterdir())
    assert meta == ["episodes", "imitate.hdf5", "info.json", "stats.json", "tasks.parquet"]
    names = ["eef.0", "eef.1", "eef.2", "quat.0", "quat.1"]
    assert info["features"]["observation.state"]["names"] == names
    table = pq.read_table(root / "data/chunk-000/file-000.parquet")
    assert table.schema.field("action").type == pa.list_(pa.float32(), 7)
    assert table.schema.field("next.reward").type == pa.float32()
    assert table.schema.field("timestamp").type == pa.float32()
    assert table.column("index").to_pylist() == list(range(63))
    assert pq.ParquetFile(root / "data/chunk-000/file-000.parquet").num_row_groups == 2
    tasks = pq.read_table(root / "meta/tasks.parquet")
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    assert tasks.to_pylist() == [{"task_index": k, "task": f"task {k}"} for k in (0, 1)]
    stats = json.loads((root / "meta/stats.json").read_text())
    with DatasetFile(tmp_path / "a.hdf5") as file:
        actions, pixels = (
            np.concatenate([file.read(demo, key) for demo in file.demos()]).astype(np.float64)
            for key in ("actions", "obs/agentview_image")
        )
    levels = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
    for key, values in (("action", actions), (IMAGES, pixels.reshape(-1, 3) / 255)):
        wanted = {name: np.quantile(values, level, axis=0) for name, level in levels.items()}
        for name in ("min", "max", "mean", "std"):
            wanted[name] = getattr(values, name)(axis=0)
        for name, value in wanted.items():
            np.testing.assert_allclose(np.ravel(stats[key][name]), value, atol=1e-12)
    assert np.shape(stats[IMAGES]["mean"]) == (3, 1, 1)
    assert stats["action"]["count"] == [63]
    (first, _) = pq.read_table(root / EPISODES).to_pylist()
    np.testing.assert_allclose(first["stats/action/mean"], actions[:40].mean(axis=0), atol=1e-12)
    assert (first["dataset_from_index"], first["dataset_to_index"]) == (0, 40)


def test_a_large_table_is_followed_by_another(tmp_path, monkeypatch):
    demos(tmp_path / "a.hdf5", [3, 3, 3])

    def files(megabytes, name):
        monkeypatch.setattr("imitate.data.formats.lerobot_writer._DATA_MB", megabytes)
        convert(tmp_path / "a.hdf5", tmp_path / name, to_format="lerobot")
        return sorted((tmp_path / name / "data").rglob("*.parquet"))

    each = files(1e-6, "small")
    assert [path.name for path in each] == [f"file-00{number}.parquet" for number in range(3)]
    rows = pq.read_table(tmp_path / "small" / EPISODES).to_pylist()
    assert [row["data/file_index"] for row in rows] == [0, 1, 2]
    group = pq.ParquetFile(each[0]).metadata.row_group(0)
    columns = [group.column(number).total_compressed_size for number in range(group.num_columns)]
    size = 4 + sum(columns)  # of the first episode, with the magic number and without the footer
    assert len(files((size - 1) / 2**20, "alone")) == 3 and len(files(size / 2**20, "pairs")) == 2


def test_a_success_that_is_unknown_has_no_column(tmp_path):
    demos(tmp_path / "a.hdf5", [3])
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["data/demo_0"].attrs["success"]
    convert(tmp_path / "a.hdf5", tmp_path / "l", to_format="lerobot")
    ends = [key for key in info_of(tmp_path / "l")["features"] if key.startswith("next.")]
    assert ends == ["next.reward", "next.done", "next.truncated"]


def test_a_rate_that_is_not_whole_is_rounded_and_told(tmp_path):
    demos(tmp_path / "a.hdf5", [3], frequency=29.97)
    report = convert(tmp_path / "a.hdf5", tmp_path / "l", to_format="lerobot")
    assert report.changed["fps"].startswith("29.97 -> 30")
    assert info_of(tmp_path / "l")["fps"] == 30


JOINTS = ["shoulder.pos", "gripper.pos"]
NAMED = {
    "action": {"dtype": "float32", "shape": [2], "names": JOINTS, "fps": 10.0},
    "observation.effort": {"dtype": "float64", "shape": [2], "names": ["shoulder.nm", "gripper.nm"]},
    "observation.state": {"dtype": "float32", "shape": [2], "names": {"motors": JOINTS}},
    "observation.pose": {"dtype": "float32", "shape": [2, 3], "names": None},
    "observation.images.wrist": {"dtype": "image", "shape": [3, 8, 6], "names": ["channels", "height", "width"]},
    "complementary.penalty": {"dtype": "int64", "shape": [1], "names": None},
}  # fmt: skip
COLUMNS = {
    key: {"dtype": "float32" if key == "timestamp" else "int64", "shape": [1], "names": None}
    for key in ("timestamp", "frame_index", "episode_index", "index", "task_index")
}


def named(root):
    """One episode of four steps whose features have names, other types and more dimensions."""
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    info = {
        "codebase_version": "v3.0", "fps": 10, "features": NAMED | COLUMNS, "robot_type": "so100",
        "total_episodes": 1, "total_frames": 4, "video_path": None,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    }  # fmt: skip
    write_info(root, info)
    tasks = pa.table({"task_index": [0], "task": ["pick"]})
    pq.write_table(tasks, root / "meta/tasks.parquet")
    first = {"episode_index": 0, "length": 4, "data/chunk_index": 0, "data/file_index": 0}
    pq.write_table(pa.Table.from_pylist([first]), root / EPISODES)
    frames = [np.full((8, 6, 3), 20 * t, np.uint8) for t in range(4)]
    rows = {
        "action": [[t / 10, 1.0] for t in range(4)],
        "observation.effort": [[t / 3, -1.0] for t in range(4)],
        "observation.state": [[t / 7, 2.0] for t in range(4)],
        "observation.pose": [[[t, 1, 2], [3, 4, 5]] for t in range(4)],
        "observation.images.wrist": [{"bytes": as_png(frame), "path": None} for frame in frames],
        "complementary.penalty": [0, 1, 0, 2],
        **own_columns(0, 4),
    }
    pq.write_table(pa.table(rows), root / "data/chunk-000/file-000.parquet")
    return root


def columns_of(root):
    table = pq.read_table(root / "data/chunk-000/file-000.parquet")
    return {key: table.column(key).to_pylist() for key in NAMED if "images" not in key}


def test_features_of_lerobot_come_back_with_their_names_types_and_values(tmp_path):
    convert(named(tmp_path / "l"), tmp_path / "a.hdf5")
    with DatasetFile(tmp_path / "a.hdf5") as file:
        entries = features_of(file.file_attrs, "a")
        effort = NAMED["observation.effort"]
        assert entries["obs/effort"] == {"feature": "observation.effort", **effort}
        assert dimension_names(entries["obs/state"]["names"]) == JOINTS
    assert dimension_names([JOINTS[:2], JOINTS[2:]]) == dimension_names({"a": [JOINTS]}) == JOINTS
    convert(tmp_path / "a.hdf5", tmp_path / "back", to_format="lerobot")
    info = info_of(tmp_path / "back")
    assert info["features"] == NAMED | COLUMNS
    assert list(info["features"]) == list(NAMED | COLUMNS)
    back = columns_of(tmp_path / "back")
    for key, values in columns_of(tmp_path / "l").items():
        np.testing.assert_allclose(back[key], values, rtol=1e-7, err_msg=key)
    convert(tmp_path / "back", tmp_path / "b.hdf5")
    assert_equal_contents(tmp_path / "a.hdf5", tmp_path / "b.hdf5")


def test_added_observations_become_features_of_their_own(tmp_path):
    convert(named(tmp_path / "l"), tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["data/demo_0/obs/force"] = np.ones((4, 3), np.float32)
        del file["data/demo_0/obs/effort"]
        state = file["data/demo_0/obs/state"][:, :1]
        del file["data/demo_0/obs/state"]
        file["data/demo_0/obs/state"] = state
    convert(tmp_path / "a.hdf5", tmp_path / "back", to_format="lerobot")
    found = info_of(tmp_path / "back")["features"]
    assert found["observation.force"] == {"dtype": "float32", "shape": [3], "names": None}
    assert "observation.effort" not in found
    # two names do not fit one number any more
    assert found["observation.state"] == {"dtype": "float32", "shape": [1], "names": None}


def test_an_attribute_of_features_that_is_damaged_is_named(tmp_path):
    convert(named(tmp_path / "l"), tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["data"].attrs["features"] = '{"obs/state": 3}'
    with pytest.raises(DatasetError, match="attribute 'features' .* correct or remove it"):
        convert(tmp_path / "a.hdf5", tmp_path / "back", to_format="lerobot")


# ---- videos as we write them: several episodes per file, where the tables say --------------------


@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_images_become_videos_of_several_episodes(tmp_path, codec):
    """Each of six episodes is where the tables say, and only its pixels have changed a little."""
    lengths = [5, 1, 7, 3, 2, 6]
    demos(tmp_path / "a.hdf5", lengths, size=(32, 48), steady=True)
    options, scheduling = Options(video=codec), os.sched_getscheduler(0)
    report = convert(tmp_path / "a.hdf5", tmp_path / "l", to_format="lerobot", options=options)
    assert os.sched_getscheduler(0) == scheduling  # as root, SVT-AV1 would make it real-time
    assert report.changed[IMAGES].startswith(f"{codec} video")
    info = info_of(tmp_path / "l")
    feature = info["features"][IMAGES]
    assert (feature["dtype"], feature["shape"]) == ("video", [32, 48, 3])
    assert feature["info"]["video.codec"] == codec
    assert (feature["info"]["video.height"], feature["info"]["video.fps"]) == (32, 20)
    table = pq.read_table(tmp_path / "l/data/chunk-000/file-000.parquet")
    assert IMAGES not in table.column_names
    rows = pq.read_table(tmp_path / "l" / EPISODES).to_pylist()
    starts = [row[f"videos/{IMAGES}/from_timestamp"] for row in rows]
    np.testing.assert_allclose(starts, np.cumsum([0, *lengths[:-1]]) / 20)
    ends = [row[f"videos/{IMAGES}/to_timestamp"] for row in rows]
    np.testing.assert_allclose(ends, np.cumsum(lengths) / 20)
    convert(tmp_path / "l", tmp_path / "b.hdf5")
    before, after = contents(tmp_path / "a.hdf5"), contents(tmp_path / "b.hdf5")
    assert before[0].keys() == after[0].keys()
    assert before[1:] == after[1:]
    for (demo, key), value in before[0].items():
        if key.endswith("image"):
            error = np.abs(after[0][demo, key].astype(int) - value)
            assert error.mean() < 2, (demo, key)  # frames of neighbouring steps differ by 5
        else:
            np.testing.assert_array_equal(after[0][demo, key], value)


def test_a_large_video_is_followed_by_another(tmp_path):
    encoder = VideoEncoder(tmp_path, IMAGES, "h264", 20, chunk_files=2, file_mb=0.001)
    # Enough of them that the encoder has to give some out before it is closed.
    frames = np.random.default_rng(0).integers(0, 256, (120, 16, 16, 3), dtype=np.uint8)
    places = [encoder.append(frames) for _ in range(3)]
    encoder.finish()
    found = [(p[f"videos/{IMAGES}/chunk_index"], p[f"videos/{IMAGES}/file_index"]) for p in places]
    assert found == [(0, 0), (0, 1), (1, 0)]
    assert [p[f"videos/{IMAGES}/from_timestamp"] for p in places] == [0, 0, 0]
    with av.open(str(tmp_path / "videos" / IMAGES / "chunk-001/file-000.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 120


@pytest.mark.parametrize(
    ("target", "codec", "words"),
    [
        ("lerobot", "h264", "'h264' cannot encode frames of 15 x 23.*leave out"),
        ("lerobot", "h265", "'h265', which is not a known codec.*did you mean 'h264'"),
        ("robomimic", "h264", "does not use --video"),
    ],
)
def test_videos_that_cannot_be_made_are_refused_and_nothing_is_left(tmp_path, target, codec, words):
    demos(tmp_path / "a.hdf5", [3], size=(15, 23))
    options = Options(video=codec)
    with pytest.raises(DatasetError, match=words):
        convert(tmp_path / "a.hdf5", tmp_path / "l", to_format=target, options=options)
    assert [item.name for item in tmp_path.iterdir()] == ["a.hdf5"]
