"""Images of LeRobot stay as they are compressed: packets of videos and PNGs are copied, and read as the same frames."""

import gc
import json
import signal
import tracemalloc

import av
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imitate.data import DatasetFile, SequenceDataset, build_datasets
from imitate.data.batches import store
from imitate.data.edit.rewrite import FileChanges, Rows, rewrite
from imitate.data.file.cache import cache_folder
from imitate.data.formats import cached, frames
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert
from imitate.data.formats.frames import as_encoded, as_png
from imitate.data.formats.lerobot_tables import Tables
from imitate.data.formats.lerobot_video import PacketReader, opened_video
from imitate.errors import DatasetError
from imitate.system import memory
from imitate.system.processes import scheduled_as_before
from tests.demo_files import data_config
from tests.forked import Forked

LENGTHS, FPS, HEIGHT, WIDTH = (17, 9), 10, 48, 64
CODECS = {
    "every second frame a key": ("libx264", {"g": "2", "crf": "18"}),
    "frames between others": ("libx264", {"g": "12", "bf": "3", "b_strategy": "0", "crf": "18"}),
    "av1": ("libsvtav1", {"g": "2", "crf": "30"}),
}
TOP, WRIST = "observation.images.top", "observation.images.wrist"


def scene(length, offset=0):
    ramp = np.add.outer(2 * np.arange(HEIGHT), 3 * np.arange(WIDTH))
    frames = [np.stack([ramp + 5 * (t + offset), ramp // 2, 200 - ramp], -1) for t in range(length)]
    return (np.stack(frames) % 256).astype(np.uint8)


def encode(path, frames, codec):
    path.parent.mkdir(parents=True, exist_ok=True)
    encoder, options = CODECS[codec]
    with scheduled_as_before(), av.open(str(path), "w") as container:
        stream = container.add_stream(encoder, rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def make(root, codec, *, together=False):
    """Two episodes, version 2.1 with a video each, or 3.0 with both in one video that was encoded in one go."""
    (root / "meta").mkdir(parents=True)
    image = {"shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channels"]}
    info = {
        "codebase_version": "v3.0" if together else "v2.1", "fps": FPS, "robot_type": "arm",
        "features": {
            "action": {"dtype": "float32", "shape": [1], "names": ["j"]},
            "observation.state": {"dtype": "float32", "shape": [1], "names": ["j"]},
            TOP: {"dtype": "video", **image}, WRIST: {"dtype": "image", **image},
        },
        "total_episodes": 2, "total_frames": sum(LENGTHS), "chunks_size": 1000,
        "data_path": "data/{episode_index}.parquet" if not together else "data/{chunk_index}-{file_index}.parquet",
        "video_path": "videos/{video_key}/{episode_index}.mp4" if not together
        else "videos/{video_key}/{chunk_index}-{file_index}.mp4",
    }  # fmt: skip
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "data").mkdir()
    tables = []
    for number, length in enumerate(LENGTHS):
        steps = [t / 20 for t in range(length)]
        cells = [{"bytes": as_png(frame), "path": None} for frame in scene(length, 7)]
        rows = {"action": steps, "observation.state": steps, WRIST: cells}
        tables.append(pa.table(rows | {"episode_index": [number] * length}))
    if not together:
        for number, table in enumerate(tables):
            pq.write_table(table, root / f"data/{number}.parquet")
            encode(root / f"videos/{TOP}/{number}.mp4", scene(LENGTHS[number], number), codec)
        return root
    pq.write_table(pa.concat_tables(tables), root / "data/0-0.parquet")
    frames = [scene(length, number) for number, length in enumerate(LENGTHS)]
    encode(root / f"videos/{TOP}/0-0.mp4", np.concatenate(frames), codec)
    episodes = [
        {
            "episode_index": i, "length": LENGTHS[i], "data/chunk_index": 0, "data/file_index": 0,
            f"videos/{TOP}/chunk_index": 0, f"videos/{TOP}/file_index": 0,
            f"videos/{TOP}/from_timestamp": (0, LENGTHS[0])[i] / FPS,
        }
        for i in range(2)
    ]  # fmt: skip
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(episodes), root / "meta/episodes/chunk-000/0.parquet")
    return root


def changes(root):
    """When each file and folder was written last."""
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def of_file(path):
    """The frames of a video as PyAV gives them."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.fixture(scope="module", params=list(CODECS))
def copied(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    root = make(folder / "l", request.param)
    report = convert(root, folder / "a.hdf5")
    return root, folder / "a.hdf5", report


def test_packets_and_pngs_are_copied_and_give_the_same_frames(copied):
    root, path, report = copied
    assert not report.changed and f"video packets of {TOP}" in report.kept
    folder = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
    assert path.stat().st_size < folder + 24_000  # HDF5's own records
    with DatasetFile(path) as file:
        for number, demo in enumerate(file.demos()):
            assert file.storage(demo, "obs/top_image") == "video"
            assert file.shape(demo, "obs/top_image") == (LENGTHS[number], HEIGHT, WIDTH, 3)
            wanted = of_file(root / f"videos/{TOP}/{number}.mp4")
            np.testing.assert_array_equal(file.read(demo, "obs/top_image"), wanted)
            assert file.storage(demo, "obs/wrist_image") == "png"
            wrist = file.read(demo, "obs/wrist_image")
            np.testing.assert_array_equal(wrist, scene(LENGTHS[number], 7))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ranges=st.lists(st.tuples(st.integers(0, 17), st.integers(0, 8)), min_size=1, max_size=4))
def test_any_frames_in_any_order(copied, ranges):
    root, path, _ = copied
    wanted = of_file(root / f"videos/{TOP}/0.mp4")
    with DatasetFile(path) as file:
        for start, count in ranges:
            found = file.read("demo_0", "obs/top_image", start, start + count)
            np.testing.assert_array_equal(found, wanted[start : start + count])
            # the next reading goes on with the same decoder
            following = file.read("demo_0", "obs/top_image", start + count, start + count + 1)
            np.testing.assert_array_equal(following, wanted[start + count : start + count + 1])


def test_batches_of_the_folder_are_those_of_the_converted_file_wherever_frames_lie(
    copied, monkeypatch
):
    root, path, _ = copied
    keys, rows = ("state", "top_image", "wrist_image"), [3, 25, 0, 16, 17, 11]
    wanted = SequenceDataset(path, keys, hdf5_cache_mode="all", seq_length=3)[rows]
    with DatasetFile(path) as file:
        first = file.read("demo_0", "obs/top_image", 3, 6)
    np.testing.assert_array_equal(wanted["obs"]["top_image"][0].numpy(), first)
    for mode in ("all", "low_dim"):
        found = SequenceDataset(root, keys, hdf5_cache_mode=mode, seq_length=3)[rows]
        for key in keys:
            assert torch.equal(found["obs"][key], wanted["obs"][key]), (mode, key)
        assert torch.equal(found["actions"], wanted["actions"])
    monkeypatch.setattr(store, "decode_once", lambda *_: (None, ""))
    from_video = SequenceDataset(root, keys, hdf5_cache_mode="low_dim", seq_length=3)[rows]
    assert torch.equal(from_video["obs"]["top_image"], wanted["obs"]["top_image"])


def test_a_list_of_folders_and_files_trains_and_the_folder_stays_as_it_is(copied):
    root, path, _ = copied
    before = changes(root)
    files = [{"path": str(root)}, {"path": str(path)}]
    train_set, _ = build_datasets(data_config(files, ["state"], rgb=["top_image"]))
    assert len(train_set) == 2 * sum(LENGTHS)
    batch = train_set[[3, sum(LENGTHS) + 3]]["obs"]["top_image"]
    assert torch.equal(batch[0], batch[1])
    assert changes(root) == before


def convert_slowly(say, path):
    real = cached.convert

    def told(*given):
        say("a demo is written")
        signal.pause()

    cached.convert = lambda *args, on_demo, **kwargs: real(*args, on_demo=told, **kwargs)
    cached.as_demonstration_file(path)


def test_a_conversion_that_was_killed_is_made_anew(copied):
    with Forked(convert_slowly, copied[0]) as process:
        assert process.line() == "a demo is written"
    assert not list(cache_folder("datasets").glob("l-????????????????.hdf5"))
    with DatasetFile(copied[0]) as file:
        assert len(file.demos()) == 2
    left = [file.suffix for file in cache_folder("datasets").iterdir()]
    assert sorted(left) == [".hdf5", ".lock"]


def test_a_forked_process_frees_open_videos(copied):
    root, path, _ = copied
    held = [opened_video(root / f"videos/{TOP}/0.mp4"), DatasetFile(path)]
    next(held[0].decode(video=0))
    held[1].read("demo_0", "obs/top_image", 0, 3)  # its decoder stays open

    def free(say):
        signal.alarm(60)
        held.clear()
        gc.collect()
        say("freed")

    with Forked(free) as process:
        assert process.line() == "freed"


def test_an_episode_without_a_key_frame_at_its_begin_is_compressed_anew(tmp_path):
    root = make(tmp_path / "l", "frames between others", together=True)
    report = convert(root, tmp_path / "a.hdf5")
    assert any("the first is no key frame" in note for note in report.notes)
    wanted = of_file(root / f"videos/{TOP}/0-0.mp4")[LENGTHS[0] :]
    with DatasetFile(tmp_path / "a.hdf5") as file:
        assert file.storage("demo_1", "obs/top_image") == "jpeg"
        off = np.abs(file.read("demo_1", "obs/top_image").astype(int) - wanted)
        assert off.mean() < 2


def test_an_episode_has_its_packets_though_the_one_before_ran_into_it(tmp_path):
    path = tmp_path / "a.mp4"
    encode(path, scene(36), "frames between others")  # key frames 0, 4, 11, 23
    reader = PacketReader(FPS, (HEIGHT, WIDTH, 3))
    times = np.arange(36) / FPS
    assert reader.read(path, times[:7]) is None  # frame 8 comes before 6 and 5
    assert reader.read(path, times[7:11]) is None  # no key frame
    found = reader.read(path, times[11:23])
    assert found is not None
    np.testing.assert_array_equal(np.asarray(found), of_file(path)[11:23])
    reader.close()


def test_raw_is_still_to_be_had(copied, tmp_path):
    root, path, _ = copied
    convert(root, tmp_path / "raw.hdf5", options=Options(images="raw"))
    with DatasetFile(tmp_path / "raw.hdf5") as raw, DatasetFile(path) as file:
        for key in ("obs/top_image", "obs/wrist_image"):
            assert raw.storage("demo_1", key) == "raw"
            np.testing.assert_array_equal(raw.read("demo_1", key), file.read("demo_1", key))


def test_back_to_lerobot_the_frames_are_the_same(copied, tmp_path):
    _, path, _ = copied
    convert(path, tmp_path / "back", to_format="lerobot")
    convert(tmp_path / "back", tmp_path / "b.hdf5")
    with DatasetFile(path) as before, DatasetFile(tmp_path / "b.hdf5") as after:
        frames = before.read("demo_0", "obs/top_image")
        np.testing.assert_array_equal(after.read("demo_0", "obs/top_image"), frames)


@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_videos_that_we_write_are_copied_back_whatever_the_lengths_of_episodes(
    copied, tmp_path, codec
):
    _, path, _ = copied  # 17 steps, then 9
    convert(path, tmp_path / "l", to_format="lerobot", options=Options(video=codec))
    convert(tmp_path / "l", tmp_path / "b.hdf5")
    with DatasetFile(tmp_path / "b.hdf5") as file:
        assert {file.storage(demo, "obs/top_image") for demo in file.demos()} == {"video"}


def test_some_steps_of_a_video_become_jpegs_and_of_pngs_stay_exact(copied, tmp_path):
    path = tmp_path / "a.hdf5"
    path.write_bytes(copied[1].read_bytes())
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs/top_image"].attrs["place"] = "above"
    kept = np.array([2, 3, 8, 12])
    rewrite(path, tmp_path / "b.hdf5", FileChanges(rows={"demo_0": Rows(kept, kept)}))
    with DatasetFile(path) as before, DatasetFile(tmp_path / "b.hdf5") as after:
        assert after.storage("demo_0", "obs/top_image") == "jpeg"
        attrs = after.array("demo_0", "obs/top_image").attrs
        assert sorted(attrs) == ["encoding", "place", "shape"]
        assert after.storage("demo_1", "obs/top_image") == "video"
        for key, most in (("obs/top_image", 2.0), ("obs/wrist_image", 0.0)):
            off = after.read("demo_0", key).astype(int) - before.read("demo_0", key)[kept]
            assert np.abs(off).mean() <= most, key


def test_a_small_file_that_claims_to_be_as_large_as_the_first_is_not_taken(monkeypatch):
    monkeypatch.setattr(frames, "ALWAYS_BYTES", 0)
    large = as_png(np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8))
    assert as_encoded([large, large]) is not None
    assert as_encoded([large, large[:100]]) is None


def test_a_file_chooses_no_decoder_of_ffmpeg(copied, tmp_path):
    path = tmp_path / "a.hdf5"
    path.write_bytes(copied[1].read_bytes())
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs/top_image"].attrs["codec"] = "ansi"
    with DatasetFile(path) as file, pytest.raises(DatasetError, match="of codec 'ansi', but only"):
        file.read("demo_0", "obs/top_image")


def test_frames_of_an_episode_have_room_before_all_are_decoded(monkeypatch):
    monkeypatch.setattr(memory, "ALWAYS_BYTES", 0)
    monkeypatch.setattr(memory, "free_memory", lambda: 2000)
    images = (np.zeros((10, 10, 3), np.uint8) for _ in range(6))
    np.testing.assert_array_equal(frames.stacked(images, 6, "a"), np.zeros((6, 10, 10, 3)))
    images = (np.zeros((10, 10, 3), np.uint8) for _ in range(7))
    with pytest.raises(DatasetError, match="a takes 2.1 kB of memory"):
        frames.stacked(images, 7, "a")
    assert next(images) is not None, "all were decoded"
    with pytest.raises(DatasetError, match=r"image 1 is \(2,\) float64, but the first is \(3,\)"):
        frames.stacked(iter([np.zeros(3), np.zeros(2)]), 2, "a")


def test_texts_are_not_made_an_array_of_the_longest():
    tables, texts = object.__new__(Tables), pa.array(["a" * 10**6] * 20)
    tables.features = {}
    tracemalloc.start()
    for column in (texts, texts.dictionary_encode()):
        assert tables.decoded("x", column) is None
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


@pytest.mark.parametrize(
    "said", [{"info": {"video.is_depth_map": True}}, {"video_info": {"is_depth_map": True}}]
)
def test_a_depth_video_is_left_out(tmp_path, said):
    root = make(tmp_path / "l", next(iter(CODECS)))
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][TOP].update(said)
    (root / "meta/info.json").write_text(json.dumps(info))
    report = convert(root, tmp_path / "a.hdf5")
    assert report.dropped[TOP].startswith("a depth video, whose colours are distances")
    with DatasetFile(tmp_path / "a.hdf5") as file:
        assert "top_image" not in file.obs_keys("demo_0")


def test_damaged_packets_are_named(copied, tmp_path):
    path = tmp_path / "a.hdf5"
    path.write_bytes(copied[1].read_bytes())
    with h5py.File(path, "a") as file:
        array = file["data/demo_0/obs/top_image"]
        for step in range(6, len(array)):
            array[step] = np.zeros(5, np.uint8)
    with (
        DatasetFile(path) as file,
        pytest.raises(DatasetError, match="'obs/top_image' at step .* cannot be decoded"),
    ):
        file.read("demo_0", "obs/top_image")
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs/top_image"].attrs["keys"]
    with DatasetFile(path) as file, pytest.raises(DatasetError, match="cannot be read"):
        file.read("demo_0", "obs/top_image")
