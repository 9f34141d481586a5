"""Parts of the writer of LeRobot datasets: statistics by numpy's formulas, columns of ends, rates, refusals."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from imitate.data.formats.base import ConversionReport, NamedDemo, OpenedDataset, Options
from imitate.data.formats.lerobot_writer import (
    QUANTILES,
    RunningStats,
    histogram,
    stats_of,
    stats_of_frames,
    write,
)
from tests.demo_files import episode
from tests.refusals import refused

LEVELS = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def by_numpy(values):
    exact = values.astype(np.float64)
    named = {name: getattr(exact, name)(axis=0) for name in ("min", "max", "mean", "std")}
    return named | {name: np.quantile(exact, q, axis=0) for name, q in LEVELS.items()}


def test_statistics_of_numbers():
    assert QUANTILES == LEVELS
    values = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    found = stats_of(values)
    assert found.pop("count").tolist() == [7]
    for name, value in by_numpy(values).items():
        np.testing.assert_allclose(found[name], value, err_msg=name)
    several = RunningStats()
    for part in (values[:3], values[3:]):
        each = several.add(part)
        np.testing.assert_allclose(each["mean"], part.mean(axis=0), rtol=1e-6)
    whole = several.result()
    assert whole.pop("count").tolist() == [7] and whole.keys() == found.keys()
    for name, value in found.items():
        np.testing.assert_allclose(whole[name], value, err_msg=name)


@pytest.mark.parametrize("values", [[0, 255, 7, 7, 9, 200], [5] * 6, [0] * 6, [255] * 5 + [254]])
def test_statistics_of_frames(values):
    frames = np.zeros((3, 2, 1, 3), np.uint8)
    frames[..., 0].flat, frames[..., 2].flat = values, values[::-1]
    counts = histogram(frames)
    assert (
        counts.shape == (3, 256)
        and counts.sum() == 18
        and counts[0, values[0]] == values.count(values[0])
    )
    pixels = frames.reshape(6, 3) / 255
    several = RunningStats()
    several.add(frames[:1])
    several.add(frames[1:])
    for found in (stats_of_frames(counts, 3), several.result(), RunningStats().add(frames)):
        assert found.pop("count").tolist() == [3]
        for name, value in by_numpy(pixels).items():
            assert found[name].shape == (3, 1, 1)
            np.testing.assert_allclose(found[name].ravel(), value, atol=1e-12, err_msg=name)


META = {"env_name": "arm", "type": 4, "env_kwargs": {}}


def written(path, *demos, **more):
    report = ConversionReport()
    source = OpenedDataset(more.pop("meta", META), iter(()), **more)
    with write(path, source, Options(), report) as append:
        for number, demo in enumerate(demos):
            append(NamedDemo(f"d{number}", demo))
    return report, json.loads((path / "meta/info.json").read_text()), source


def demo(length=3, end="timeout", rows=0.0, **attrs):
    return episode(length, {"s": rows + np.zeros((length, 2))}, end=end, attrs=attrs)


@pytest.mark.parametrize(
    ("rate", "fps", "changed", "synthesised"),
    [
        (None, 20, {}, {"fps": "20: the dataset does not record its rate"}),
        (30.0, 30, {}, {}),
        (29.6, 30, {"fps": "29.6 -> 30: LeRobot needs a whole number"}, {}),
        (0.4, 1, {"fps": "0.4 -> 1: LeRobot needs a whole number"}, {}),
    ],
)
def test_whole_rates(tmp_path, rate, fps, changed, synthesised):
    report, info, source = written(tmp_path / "l", demo(), control_freq=rate)
    assert (info["fps"], report.changed, report.synthesised) == (fps, changed, synthesised)
    table = pq.read_table(tmp_path / "l/data/chunk-000/file-000.parquet")
    times = table["timestamp"].to_numpy()
    np.testing.assert_allclose(times, np.arange(3) / fps, rtol=1e-6)
    assert times.dtype == np.float32 and source.attrs == {}
    assert (
        "data that LeRobot's format cannot store are in meta/imitate.hdf5, from which"
        in report.notes[0]
    )
    assert report.renamed == {
        "actions": "action",
        "rewards": "next.reward",
        "obs/s": "observation.state",
    }


def test_rows_of_several_episodes(tmp_path):
    demos = [
        demo(2, success=True, language="lift"),
        demo(1, end="terminal", success=False, language="drop"),
        demo(2, end=None, success=True, language="lift"),
    ]
    _, info, _ = written(tmp_path / "l", *demos)
    rows = pq.read_table(tmp_path / "l/data/chunk-000/file-000.parquet").to_pydict()
    assert rows["next.done"] == [False, True, True, False, True]
    assert rows["next.truncated"] == [False, True, False, False, False]
    assert rows["next.success"] == [False, True, False, False, True]
    assert rows["episode_index"] == [0, 0, 1, 2, 2] and rows["index"] == [0, 1, 2, 3, 4]
    assert rows["frame_index"] == [0, 1, 0, 0, 1] and rows["task_index"] == [0, 0, 1, 0, 0]
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 5, 2)
    assert (info["splits"], info["robot_type"], info["video_path"]) == (
        {"train": "0:3"},
        "arm",
        None,
    )
    tasks = pq.read_table(tmp_path / "l/meta/tasks.parquet").to_pydict()
    assert tasks == {"task_index": [0, 1], "task": ["lift", "drop"]}
    listed = pq.read_table(tmp_path / "l/meta/episodes/chunk-000/file-000.parquet").to_pydict()
    assert listed["length"] == [2, 1, 2] and listed["tasks"] == [["lift"], ["drop"], ["lift"]]
    assert listed["dataset_from_index"] == [0, 2, 3] and listed["dataset_to_index"] == [2, 3, 5]
    assert listed["data/chunk_index"] == listed["data/file_index"] == [0, 0, 0]
    stats = json.loads((tmp_path / "l/meta/stats.json").read_text())
    assert stats["index"]["count"] == [5] and stats["index"]["max"] == [4.0]


def test_a_task_without_words_is_that_of_the_environment(tmp_path):
    written(tmp_path / "l", demo())
    assert pq.read_table(tmp_path / "l/meta/tasks.parquet")["task"].to_pylist() == ["arm"]
    _, info, _ = written(tmp_path / "m", demo(), meta={"type": 4, "env_kwargs": {}})
    assert pq.read_table(tmp_path / "m/meta/tasks.parquet")["task"].to_pylist() == [""]
    assert info["robot_type"] == "unknown" and "next.success" not in info["features"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (episode(3, {"t": np.zeros((3, 2))}), "demo 'd1' has no 'obs/s', which the first demo has: give it"),
        (episode(3, {"s": np.zeros((3, 4))}), "has shape [4] in one demo and [2] in another: give the same"),
    ],
)  # fmt: skip
def test_demos_with_other_arrays_are_refused(tmp_path, other, words):
    with refused(f"{tmp_path / 'l'}: |{words}"):
        written(tmp_path / "l", demo(), other)


def test_numbers_after_the_images_of_another_demo_are_refused(tmp_path):
    demos = [episode(3, {"cam": np.zeros((3, 16, 16, 3), kind)}) for kind in ("uint8", "float32")]
    with refused("has type float32 in one demo and image in another: give the same type"):
        written(tmp_path / "l", *demos)


def test_joined_observations_of_other_dimensions_are_refused(tmp_path):
    plain = {"a": np.zeros((3, 2)), "b": np.zeros((3, 2))}
    with refused("demo 'd1' has arrays of other dimensions than the first"):
        written(tmp_path / "l", episode(3, plain), episode(3, {**plain, "b": np.zeros((3, 2, 2))}))
