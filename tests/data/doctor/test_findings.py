"""What is worth knowing without being wrong, and what must not be taken for a fault."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetWriter, Episode
from imitate.data.doctor import survey
from imitate.data.doctor.diagnosis import diagnose
from imitate.data.doctor.finding import runs_of

STEPS = 80


def write(path, episodes):
    with DatasetWriter(
        path, {"env_name": "x", "type": 4, "env_kwargs": {}}, strict=False
    ) as writer:
        for actions, obs in episodes:
            length = len(actions)
            writer.append_episode(
                Episode(obs, actions, np.ones(length), np.zeros(length), np.zeros(length))
            )
    return path


def findings(path):
    return {finding.code: finding for finding in diagnose(path).findings}


def smooth(random, steps, width=3):
    """Actions that change slowly, as people's do."""
    return np.clip(random.normal(size=(steps, width)).cumsum(axis=0) * 0.1, -0.95, 0.95)


def arm(random, lag, absolute=False, steps=STEPS):
    """An arm whose motion follows its actions ``lag`` steps later: lag 0 is done before the next observation."""
    actions = smooth(random, steps)
    if absolute:
        targets = np.concatenate([np.repeat(actions[:1], lag + 1, axis=0), actions])[:steps]
        return actions, {"eef_pos": targets}
    moves = np.concatenate([np.zeros((max(lag, 0), 3)), actions])
    moves = moves[-lag:] if lag < 0 else moves
    moves = np.concatenate([moves, np.zeros((steps, 3))])[:steps]
    return actions, {"eef_pos": 0.05 * (moves.cumsum(axis=0) - moves)}


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_the_lag_of_a_controller_is_no_fault(tmp_path, lag, absolute):
    random = np.random.default_rng(0)
    path = write(tmp_path / "a.hdf5", [arm(random, lag, absolute) for _ in range(10)])
    assert "lag" not in findings(path)


@pytest.mark.parametrize(
    ("lag", "words"),
    [
        (-1, "motion comes 1 step before the actions"),
        (-3, "motion comes 3 steps before the actions"),
        (5, "motion comes 5 steps after the actions"),
        (9, "motion comes 9 steps after the actions"),
    ],
)
def test_other_lags_are(tmp_path, lag, words):
    random = np.random.default_rng(0)
    path = write(tmp_path / "a.hdf5", [arm(random, lag) for _ in range(10)])
    assert words in findings(path)["lag"].what


def test_late_targets_are_a_lag(tmp_path):
    random = np.random.default_rng(0)
    path = write(tmp_path / "a.hdf5", [arm(random, 6, absolute=True) for _ in range(10)])
    assert "motion comes 6 steps after" in findings(path)["lag"].what


def test_motion_that_nothing_explains_has_no_lag(tmp_path):
    random = np.random.default_rng(0)
    pairs = [(smooth(random, STEPS), {"eef_pos": smooth(random, STEPS)}) for _ in range(10)]
    assert "lag" not in findings(write(tmp_path / "a.hdf5", pairs))


def test_a_switch_is_not_clipped_but_a_saturated_arm_is(tmp_path):
    random = np.random.default_rng(0)
    episodes = []
    for _ in range(3):
        actions = random.uniform(-0.5, 0.5, (100, 3))
        actions[:60, 1] = np.where(np.arange(60) % 2, 0.8, -0.8)
        actions[:30, 2] = 0.8
        actions[30, 2] = -0.5
        gripper = np.where(np.arange(100) < 50, -1.0, 1.0)[:, None]
        episodes.append((np.hstack([actions, gripper]), {"x": random.normal(size=(100, 2))}))
    report = diagnose(write(tmp_path / "a.hdf5", episodes))
    assert [(f.level.value, f.what) for f in report.findings if f.code == "clipping"] == [
        ("warning", "dimension 1 of 'actions' is at its limit (-0.8 or 0.8) in 60 % of the steps"),
        ("info", "dimension 2 of 'actions' is at its limit (-0.5 or 0.8) in 31 % of the steps"),
    ]


def test_constant_and_nearly_constant_dimensions_are_information(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 4))
    x[:, 1] = 0.7
    x[:, :3] *= 1e-5  # micrometres are a motion
    x[:, 3] = 4 + 7e-8 * np.arange(50)
    report = diagnose(write(tmp_path / "a.hdf5", [(smooth(random, 50), {"x": x})]))
    assert report.exit_code == 0
    words = {finding.code: finding.what for finding in report.findings}
    assert words["constant"] == "'obs/x' never changes in 1 of 4 dimensions: 1"
    assert (
        words["near_constant"]
        == "'obs/x' changes by less than a millionth of 4 in 1 of 4 dimensions: 3"
    )


def test_fast_motion_is_no_jump(tmp_path):
    random = np.random.default_rng(0)
    episodes = [arm(random, 0) for _ in range(9)]
    actions, obs = arm(random, 0)
    episodes.append((actions, {"eef_pos": obs["eef_pos"] * 3}))
    assert "jump" not in findings(write(tmp_path / "a.hdf5", episodes))


def test_holding_still_for_a_moment_is_no_idle_stretch(tmp_path):
    random = np.random.default_rng(0)
    episodes = []
    for _ in range(5):
        actions = random.uniform(-0.9, 0.9, (60, 3))
        actions[20:29] = 0
        positions = 0.05 * (actions.cumsum(axis=0) - actions)
        episodes.append((actions, {"eef_pos": positions}))
    assert "idle" not in findings(write(tmp_path / "a.hdf5", episodes))


def test_idle_targets_that_stay_where_they_are(tmp_path):
    """Absolute actions: the same target again and again."""
    random = np.random.default_rng(0)
    episodes = []
    for _ in range(5):
        targets = smooth(random, 60)
        targets[20:40] = targets[20]
        episodes.append((targets, {"eef_pos": np.concatenate([targets[:1], targets[:-1]])}))
    found = findings(write(tmp_path / "a.hdf5", episodes))["idle"]
    assert found.places[0].steps == ((21, 40),)


def test_pieces_of_a_long_demo_are_seen_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "_SMALL_BYTES", 2_000)
    monkeypatch.setattr(survey, "_PIECE_BYTES", 5_000)
    random = np.random.default_rng(0)
    actions = smooth(random, 300)
    x = random.normal(size=(300, 2))
    x[[123, 124, 250]] = np.nan
    images = random.integers(0, 256, (300, 20, 20, 3), dtype=np.uint8)
    images[77:80] = 9
    path = tmp_path / "a.hdf5"
    write(path, [(actions, {"x": np.zeros((300, 2)), "front_image": images})])
    with h5py.File(path, "r+") as file:
        file["data/demo_0/obs/x"][...] = x
    report = diagnose(path)
    found = {finding.code: finding for finding in report.findings}
    runs = [run for place in found["nan"].places for run in place.steps]
    assert runs == [(123, 125), (250, 251)]
    runs = [run for place in found["blank_images"].places for run in place.steps]
    assert runs == [(77, 80)]
    assert report.read_bytes == 300 * (3 * 8 + 2 * 8 + 1200 + 4 + 3)


def test_large_share_of_actions_beyond_the_limits_is_not_clipped(tmp_path):
    random = np.random.default_rng(0)
    path = write(tmp_path / "a.hdf5", [(3 * smooth(random, 60), {"x": smooth(random, 60)})])
    found = findings(path)["action_range"]
    assert found.remedy is None
    assert found.command(path) is None
    assert "normalization=min_max" in found.advice


def test_a_demo_of_many_times_the_usual_length_is_information(tmp_path):
    random = np.random.default_rng(0)
    lengths = [18, 20, 22, 19, 21, 20, 90]
    pairs = [(smooth(random, n), {"x": random.normal(size=(n, 2))}) for n in lengths]
    report = diagnose(write(tmp_path / "a.hdf5", pairs))
    (finding,) = [finding for finding in report.findings if "demos" in finding.code]
    assert (finding.code, finding.level.value, finding.demos) == ("long_demos", "info", ["demo_6"])
    assert finding.what == "1 demo is very long: 90 steps, the median is 20"
    assert finding.remedy is None
    assert "--max-length 22" in finding.advice


def test_long_demos_that_failed_are_said_to_have_failed(tmp_path):
    random = np.random.default_rng(0)
    path = tmp_path / "a.hdf5"
    write(path, [(smooth(random, n), {"x": smooth(random, n)}) for n in (20,) * 5 + (90, 80)])
    with h5py.File(path, "r+") as file:
        file["data/demo_5"].attrs["success"] = False
    (finding,) = [f for f in diagnose(path).findings if f.code == "long_demos"]
    assert finding.what == "2 demos are very long: 80 - 90 steps, the median is 20; 1 failed"


def test_depth_and_segmentation_are_no_colours(tmp_path):
    random = np.random.default_rng(0)
    obs = {
        "front_depth": random.uniform(0.3, 0.9, (30, 16, 16, 1)).astype(np.float32),
        "front_segmentation": random.integers(-1, 40, (30, 16, 16, 1), dtype=np.int32),
        "front_image": random.uniform(0, 1, (30, 16, 16, 3)).astype(np.float32),
    }
    found = findings(write(tmp_path / "a.hdf5", [(smooth(random, 30), obs)]))
    assert [place.key for place in found["image_range"].places] == ["obs/front_image"]
    assert set(found) == {"image_range"}


def test_runs():
    assert runs_of([1, 2, 3, 7, 9, 10]) == ((1, 4), (7, 8), (9, 11))
    assert runs_of([]) == ()
