"""LeRobot's camera videos as we write them: several episodes per file, where the tables say, with little loss."""

import json

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert
from imitate.data.formats.lerobot_encoder import Encoder
from imitate.errors import DatasetError

CAMERA, FPS = "observation.images.agentview", 20


def demos(path, lengths, size=(32, 48)):
    """A gray ramp that is 5 brighter at each step, and 30 in each episode."""
    random = np.random.default_rng(0)
    ramp = np.linspace(0, 60, size[0] * size[1]).reshape(*size, 1)
    with DatasetWriter(path, {"env_name": "Lift", "type": 1}, control_freq=FPS) as writer:
        for number, length in enumerate(lengths):
            levels = 30 * number + 5 * np.arange(length + 1)
            frames = (levels[:, None, None, None] + np.repeat(ramp, 3, axis=2)).astype(np.uint8)
            vectors = random.normal(size=(length + 1, 4))
            writer.append_episode(
                Episode(
                    obs={"agentview_image": frames[:-1], "object": vectors[:-1]},
                    next_obs={"agentview_image": frames[1:], "object": vectors[1:]},
                    actions=random.uniform(-1, 1, (length, 7)),
                    rewards=np.zeros(length),
                    terminals=np.arange(length) == length - 1,
                    timeouts=np.zeros(length),
                    attrs={"success": True, "language": f"task {number % 2}"},
                )
            )


def everything(path):
    with DatasetFile(path) as file:
        found = [(demo, key) for demo in file.demos() for key in file.keys(demo)]  # noqa: SIM118
        arrays = {place: file.read(*place) for place in found}
        attrs = {demo: file.attrs(demo) for demo in file.demos()}
        return arrays, attrs, file.filter_keys(), file.file_attrs


@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_images_become_videos_of_several_episodes(tmp_path, codec):
    """Each of six episodes is where the tables say, and only its pixels have changed a little."""
    lengths = [5, 1, 7, 3, 2, 6]
    demos(tmp_path / "a.hdf5", lengths)
    report = convert(
        tmp_path / "a.hdf5", tmp_path / "l", to_format="lerobot", options=Options(video=codec)
    )
    assert report.changed["observation.images.agentview"].startswith(f"{codec} video")
    info = json.loads((tmp_path / "l/meta/info.json").read_text())
    feature = info["features"]["observation.images.agentview"]
    assert (feature["dtype"], feature["shape"]) == ("video", [32, 48, 3])
    assert feature["info"]["video.codec"] == codec
    assert (feature["info"]["video.height"], feature["info"]["video.fps"]) == (32, 20)
    table = pq.read_table(tmp_path / "l/data/chunk-000/file-000.parquet")
    assert "observation.images.agentview" not in table.column_names
    rows = pq.read_table(tmp_path / "l/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    starts = [row["videos/observation.images.agentview/from_timestamp"] for row in rows]
    np.testing.assert_allclose(starts, np.cumsum([0, *lengths[:-1]]) / 20)
    ends = [row["videos/observation.images.agentview/to_timestamp"] for row in rows]
    np.testing.assert_allclose(ends, np.cumsum(lengths) / 20)
    convert(tmp_path / "l", tmp_path / "b.hdf5")
    before, after = everything(tmp_path / "a.hdf5"), everything(tmp_path / "b.hdf5")
    assert before[0].keys() == after[0].keys()
    assert before[1:] == after[1:]
    for (demo, key), value in before[0].items():
        if key.endswith("image"):
            error = np.abs(after[0][demo, key].astype(int) - value)
            assert error.mean() < 2, (demo, key)  # frames of neighbouring steps differ by 5
        else:
            np.testing.assert_array_equal(after[0][demo, key], value)


def test_a_large_video_is_followed_by_another(tmp_path):
    encoder = Encoder(tmp_path, CAMERA, "h264", FPS, chunk_files=2, file_mb=0.001)
    # Enough of them that the encoder has to give some out before it is closed.
    frames = np.random.default_rng(0).integers(0, 256, (120, 16, 16, 3), dtype=np.uint8)
    places = [encoder.append(frames) for _ in range(3)]
    encoder.finish()
    found = [(p[f"videos/{CAMERA}/chunk_index"], p[f"videos/{CAMERA}/file_index"]) for p in places]
    assert found == [(0, 0), (0, 1), (1, 0)]
    assert [p[f"videos/{CAMERA}/from_timestamp"] for p in places] == [0, 0, 0]
    with av.open(str(tmp_path / "videos" / CAMERA / "chunk-001/file-000.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 120


def test_frames_that_a_codec_cannot_encode_are_refused_and_nothing_is_left(tmp_path):
    demos(tmp_path / "a.hdf5", [3], (15, 23))
    with pytest.raises(DatasetError, match="'h264' cannot encode frames of 15 x 23.*leave out"):
        convert(tmp_path / "a.hdf5", tmp_path / "l", to_format="lerobot", options=Options(video="h264"))  # fmt: skip
    with pytest.raises(DatasetError, match="'h265', no codec.*did you mean 'h264'"):
        convert(tmp_path / "a.hdf5", tmp_path / "l", to_format="lerobot", options=Options(video="h265"))  # fmt: skip
    with pytest.raises(DatasetError, match="no use for --video"):
        convert(tmp_path / "a.hdf5", tmp_path / "b.hdf5", options=Options(video="h264"))
    assert [item.name for item in tmp_path.iterdir()] == ["a.hdf5"]
