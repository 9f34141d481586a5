"""Cells of the scaling study on small data, with measurements that are made up."""

import json

import pytest

from benchmarks import scaling, scaling_data
from benchmarks.scaling_picture import (
    constant,
    draw,
    evaluation_inputs,
    points_of,
    straight,
)
from imitate.data import DatasetFile

CELLS = {
    "vectors 1000": {"opening_cpu_s": 0.5, "batches_per_cpu_s": 20.0, "peak_mb": 300.0},
    "vectors 3000": {"opening_cpu_s": 1.5, "batches_per_cpu_s": 16.0, "peak_mb": 320.0},
    "robomimic, vectors 1000": {"opening_cpu_s": 9.0, "batches_per_cpu_s": 2.0, "peak_mb": 400.0},
    "jpeg 0.25": {"opening_cpu_s": 0.5, "first_opening_cpu_s": 3.0, "updates_per_cpu_s": 2.0},
    "evaluation 1": {"first_episode_s": 7.0, "episodes_per_s": 0.5},
    "evaluation 2": {"first_episode_s": 8.0, "episodes_per_s": 0.9},
}


def test_points_are_of_one_kind_and_in_order():
    backwards = dict(reversed(CELLS.items()))
    assert points_of(backwards, "vectors", "opening_cpu_s") == [(1000.0, 0.5), (3000.0, 1.5)]
    assert points_of(CELLS, "jpeg", "peak_mb") == []


def test_lines_beyond_the_measured_sizes():
    points = points_of(CELLS, "vectors", "peak_mb")
    assert straight(points)(10_000) == pytest.approx(390)  # 10 MB for each thousand windows
    assert constant(points_of(CELLS, "vectors", "batches_per_cpu_s"))(10_000) == 16
    assert straight([(1.0, 5.0), (2.0, 4.0)])(10.0) == 4  # noise makes nothing cheaper


def test_an_episode_and_the_start_of_a_worker():
    inputs = evaluation_inputs(CELLS)
    assert inputs.start_s == pytest.approx(5)  # the first episode of 2 s ends after 7 s
    assert 100 * inputs.env_s == pytest.approx(2)


def test_the_picture(tmp_path):
    draw(CELLS, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes()[:4] == b"\x89PNG"


def test_datasets_have_the_wanted_size(tmp_path):
    path = scaling_data.write_vectors(tmp_path / "vectors.hdf5", 300)
    with DatasetFile(path) as file:
        assert [file.length(demo) for demo in file.demos()] == [100] * 3
    raw = scaling_data.write_images(tmp_path / "raw.hdf5", 0.008, "raw")
    jpeg = scaling_data.write_images(tmp_path / "jpeg.hdf5", 0.008, "jpeg")
    assert scaling_data.size_of(raw) == pytest.approx(2 * 100 * 2 * 84 * 84 * 3, rel=0.05)
    assert scaling_data.size_of(jpeg) < 0.3 * scaling_data.size_of(raw)


def test_an_interrupted_study_resumes(tmp_path, monkeypatch):
    measured = []

    def measure(study, data, size):
        with DatasetFile(data) as file:
            assert len(file.demos()) == int(size) // 100
        measured.append(size)
        if measured == ["100", "200"]:
            raise KeyboardInterrupt
        return {"opening_cpu_s": 1.23456}

    monkeypatch.setitem(scaling.MEASURES, "vectors", measure)
    words = ["--windows", "100", "200", "--only", "vectors", "--folder", str(tmp_path)]
    words += ["--json", str(tmp_path / "x.json"), "--picture", str(tmp_path / "x.png")]
    with pytest.raises(KeyboardInterrupt):
        scaling.main(words)
    assert list(json.loads((tmp_path / "x.json").read_text())["cells"]) == ["vectors 100"]
    assert scaling.main(words) == 0
    assert measured == ["100", "200", "200"]
    cells = json.loads((tmp_path / "x.json").read_text())["cells"]
    assert cells["vectors 200"]["opening_cpu_s"] == 1.235
    assert scaling.main([*words, "--again"]) == 0
    assert measured[3:] == ["100", "200"]


def test_cells_that_share_a_dataset_lie_together():
    names = scaling.names_of_cells([100_000, 1_000_000], [0.5], with_peer=True)
    assert names[:3] == ["vectors 100000", "robomimic, vectors 100000", "vectors 1000000"]
    assert names[3:6] == ["ram 0.5", "raw 0.5", "robomimic, images 0.5"]
    alone = scaling.names_of_cells([1000], [0.5], with_peer=False)
    assert [name for name in alone if name.startswith("robomimic")] == []
