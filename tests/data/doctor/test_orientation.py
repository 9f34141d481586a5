"""Upside-down images, by the motion in them."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetWriter, Episode
from imitate.data.curate.target import Target
from imitate.data.doctor.diagnosis import diagnose
from imitate.data.doctor.repair import fix


def write(path, upside_down, key="agentview_image", steps=40):
    """A white square that rises and sinks with the hand, over a noisy background."""
    random = np.random.default_rng(0)
    with DatasetWriter(path, {"env_name": "x", "type": 4, "env_kwargs": {}}) as writer:
        for phase in range(3):
            height = 0.5 + 0.4 * np.sin(0.3 * np.arange(steps) + phase)
            images = random.integers(0, 4, (steps, 40, 30, 3), dtype=np.uint8)
            for t, z in enumerate(height):
                row = int(30 * (1 - z))
                images[t, row : row + 6, 10:16] = 255
            hand = np.stack([0.1 * np.cos(0.7 * np.arange(steps)), height * 0, height], axis=1)
            writer.append_episode(
                Episode(
                    obs={"robot0_eef_pos": hand, key: images[:, ::-1] if upside_down else images},
                    actions=random.uniform(-1, 1, (steps, 2)),
                    rewards=np.zeros(steps),
                    terminals=np.zeros(steps),
                    timeouts=np.zeros(steps),
                )
            )
    return path


def codes(report):
    return [finding.code for finding in report.findings]


def test_upright_images_are_not_mentioned(tmp_path):
    assert "orientation" not in codes(diagnose(write(tmp_path / "a.hdf5", upside_down=False)))


def test_upside_down_images_are_a_hint_and_can_be_turned(tmp_path):
    path = write(tmp_path / "a.hdf5", upside_down=True)
    report = diagnose(path)
    (finding,) = [f for f in report.findings if f.code == "orientation"]
    assert finding.level.value == "info"
    assert "obs/agentview_image" in finding.what
    out = tmp_path / "b.hdf5"
    repaired, after = fix(path, Target(out), only=["orientation"])
    assert [f.code for f in repaired] == ["orientation"]
    assert "orientation" not in codes(after)
    with h5py.File(path) as old, h5py.File(out) as new:
        for demo in old["data"]:
            before = old[f"data/{demo}/obs/agentview_image"][()]
            np.testing.assert_array_equal(new[f"data/{demo}/obs/agentview_image"], before[:, ::-1])


@pytest.mark.parametrize("key", ["robot0_eye_in_hand_image", "birdview_image"])
def test_cameras_in_which_up_is_elsewhere_are_left_alone(tmp_path, key):
    assert "orientation" not in codes(diagnose(write(tmp_path / "a.hdf5", True, key)))
