import numpy as np
import pytest

from imitate.data import DatasetFile, DatasetWriter
from imitate.data.file.observed import observed
from imitate.errors import DatasetError

STEP = {
    "joints": np.zeros(3),
    "pose": np.zeros((4, 4)),
    "count": np.zeros((), dtype=np.int64),
    "camera_image": np.zeros((8, 6, 3), dtype=np.uint8),
    "camera_depth": np.zeros((8, 6, 1), dtype=np.float32),
    "lidar_scan": np.zeros((16, 1), dtype=np.float32),
    "video": np.zeros((2, 8, 6, 3), dtype=np.uint8),
}


def write(path, keys):
    with DatasetWriter(path, {"env_name": "X", "type": 4, "env_kwargs": {}}) as writer:
        writer.start_episode()
        for _ in range(3):
            writer.append(obs={key: STEP[key] for key in keys}, action=np.zeros(2))
        writer.finish_episode()
    return path


def test_keys_by_modality(tmp_path):
    path = write(tmp_path / "a.hdf5", [key for key in STEP if key != "video"])
    with DatasetFile(path) as file:
        found = observed([(file, "demo_0")])
    assert found.keys("low_dim") == ["count", "joints", "pose"]
    assert found.keys("rgb") == ["camera_image"]
    assert found.keys("depth") == ["camera_depth"]
    assert found.keys("scan") == ["lidar_scan"]
    assert found.left_out == {}
    assert "joints (3,)" in found.words


def test_what_is_in_every_file_counts(tmp_path):
    first = write(tmp_path / "a.hdf5", ["joints", "count"])
    second = write(tmp_path / "b.hdf5", ["joints", "pose"])
    third = write(tmp_path / "c.hdf5", ["count"])
    with DatasetFile(first) as a, DatasetFile(second) as b, DatasetFile(third) as c:
        assert list(observed([(a, "demo_0"), (b, "demo_0")]).modalities) == ["joints"]
        with pytest.raises(DatasetError, match="have no observation in common"):
            observed([(b, "demo_0"), (c, "demo_0")])
