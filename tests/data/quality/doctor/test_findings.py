"""Findings that are not faults, and data that must not be taken for faulty."""

import h5py
import numpy as np
import pytest

from imitate.config.observation import ROBOT_STATE
from imitate.data import DatasetFile
from imitate.data.edit.target import Target
from imitate.data.quality.doctor import survey
from imitate.data.quality.doctor.diagnosis import diagnose, fix
from imitate.data.quality.doctor.finding import ranges_of, runs_of
from imitate.data.quality.doctor.observations import useless_observations
from imitate.data.quality.report.page import write_report
from tests.demo_files import episode, write_demos

STEPS = 80
NO_SIMULATOR = {"env_name": "x", "type": 4, "env_kwargs": {}}


@pytest.fixture
def random():
    return np.random.default_rng(0)


@pytest.fixture
def write(tmp_path):
    """Function that writes (actions, observations) of each demo."""

    def make(pairs):
        demos = [episode(len(a), obs, a, rewards=np.ones(len(a))) for a, obs in pairs]
        return write_demos(tmp_path / "a.hdf5", demos, NO_SIMULATOR, strict=False)

    return make


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


@pytest.mark.parametrize(
    ("lag", "absolute", "words"),
    [
        *((lag, absolute, None) for lag in (0, 1, 2) for absolute in (False, True)),
        (-1, False, "motion comes 1 step before the actions"),
        (-3, False, "motion comes 3 steps before the actions"),
        (5, False, "motion comes 5 steps after the actions"),
        (9, False, "motion comes 9 steps after the actions"),
        (6, True, "motion comes 6 steps after"),
    ],
)
def test_the_lag_of_a_controller_is_no_fault_and_others_are(write, random, lag, absolute, words):
    found = findings(write([arm(random, lag, absolute) for _ in range(10)]))
    assert "lag" not in found if words is None else words in found["lag"].what


def first_order(random, rate, constant, kind, late=0, noise=1e-3, steps=30, width=3):
    """Position targets, and an arm with a time constant of so many seconds; positions ``late`` steps old."""
    length = steps + late
    if kind == "reach":
        s = np.clip(np.arange(length) / random.integers(steps // 2, length), 0, 1)[:, None]
        targets = random.normal(size=width) + (10 * s**3 - 15 * s**4 + 6 * s**5) * random.normal(
            size=width
        )
    else:
        targets = np.repeat(random.normal(size=(length // 7 + 1, width)), 7, axis=0)[:length]
    share = 1 - np.exp(-1 / (constant * rate)) if constant else 1.0
    q = np.zeros((length, width))
    q[0] = targets[0] + 0.1 * random.normal(size=width)
    for t in range(length - 1):
        q[t + 1] = q[t] + share * (targets[t] - q[t])
    q += noise * random.normal(size=q.shape)
    gripper = np.clip(np.arange(steps) - steps // 2, 0, 3)[:, None] / 3.0  # ramped from end to end
    return np.hstack([targets[late:], gripper]), {"joint_pos": q[:steps].astype(np.float32)}


def recording(write, late=0, rate=20, constant=0.06, kind="reach", count=12):
    random = np.random.default_rng(round(rate + 100 * constant))
    path = write([first_order(random, rate, constant, kind, late) for _ in range(count)])
    with h5py.File(path, "r+") as file:
        file["data"].attrs["control_freq"] = float(rate)
    return path


@pytest.mark.parametrize("kind", ["reach", "steps"])
@pytest.mark.parametrize(
    ("rate", "constant"), [(10, 0.0), (10, 0.3), (20, 0.06), (20, 0.3), (50, 0.1), (50, 0.3)]
)
def test_an_arm_that_follows_its_targets_slowly_is_clean(write, rate, constant, kind):
    report = diagnose(recording(write, rate=rate, constant=constant, kind=kind))
    assert report.exit_code == 0, [f.what for f in report.findings]


@pytest.mark.parametrize(("late", "constant"), [(4, 0.06), (6, 0.3)])
def test_a_late_recording_of_targets_is_shifted_once(write, tmp_path, late, constant):
    path = recording(write, late, constant=constant, kind="steps")
    found = findings(path)["lag"]
    assert f"motion comes {late} steps after" in found.what
    repaired, after = fix(path, Target(tmp_path / "b.hdf5"))
    assert [finding.code for finding in repaired] == ["lag"]
    assert after.exit_code == 0, [f.what for f in after.findings]


@pytest.mark.parametrize(
    ("order", "signs", "words"),
    [
        ([0, 1, 2], [1, 1, 1], None),
        ([1, 0, 2], [1, 1, 1], "obs/joint_pos[1, 0] reach the targets of actions[0, 1]: the driver reads"),
        ([2, 0, 1], [1, 1, 1], "joint_pos[1, 2, 0] reach the targets of actions[0, 1, 2]"),
        ([0, 1, 2], [1, -1, 1], "joint_pos[1] are the negatives of the targets in actions[1]: the driver reads"),
        ([0, 1, 2], [1, 0, 1], None),  # one joint is blocked
    ],
)  # fmt: skip
@pytest.mark.parametrize("constant", [0.0, 0.2])
def test_joints_in_another_order_than_their_targets_are_found(
    write, random, order, signs, words, constant
):
    pairs = [first_order(random, 20, constant, "reach") for _ in range(8)]
    pairs = [(u, {"joint_pos": obs["joint_pos"][:, order] * signs}) for u, obs in pairs]
    found = findings(write(pairs)).get("joint_order")
    assert found is None if words is None else words in found.what


def test_no_shift_is_offered_where_it_would_not_be_the_last(write):
    found = findings(recording(write, late=14, constant=0.0, kind="steps", count=20)).get("lag")
    assert found is None or found.remedy is None


def test_motion_that_nothing_explains_has_no_lag(write, random):
    pairs = [(smooth(random, STEPS), {"eef_pos": smooth(random, STEPS)}) for _ in range(10)]
    assert "lag" not in findings(write(pairs))


def test_a_switch_is_not_clipped_but_a_saturated_arm_is(write, random):
    episodes = []
    for _ in range(3):
        actions = random.uniform(-0.5, 0.5, (100, 3))
        actions[:60, 1] = np.where(np.arange(60) % 2, 0.8, -0.8)
        actions[:30, 2] = 0.8
        actions[30, 2] = -0.5
        gripper = np.where(np.arange(100) < 50, -1.0, 1.0)[:, None]
        episodes.append((np.hstack([actions, gripper]), {"x": random.normal(size=(100, 2))}))
    report = diagnose(write(episodes))
    assert [(f.level.value, f.what) for f in report.findings if f.code == "clipping"] == [
        ("warning", "dimension 1 of 'actions' is at its limit (-0.8 or 0.8) in 60 % of the steps"),
        ("info", "dimension 2 of 'actions' is at its limit (-0.5 or 0.8) in 31 % of the steps"),
    ]


def test_copies_of_actions_are_named_and_a_state_that_follows_them_is_information(write, random):
    actions = [smooth(random, 40) for _ in range(3)]
    last = [np.concatenate([np.zeros((1, 3)), a[:-1]]) for a in actions]
    obs = [
        {"actions": b, "same": a, "state": b, "else": b * 1.01}
        for a, b in zip(actions, last, strict=True)
    ]
    path = write(list(zip(actions, obs, strict=True)))
    found = [f for f in diagnose(path).findings if f.code == "action_copy"]
    assert [(f.places[0].key, f.level.value) for f in found] == [
        ("obs/actions", "warning"), ("obs/same", "warning"), ("obs/state", "info")
    ]  # fmt: skip
    assert "is the action of the step before: a policy can copy it" in found[0].what
    assert "is the action of the same step" in found[1].what
    with DatasetFile(path) as file:
        useless = useless_observations(file, file.demos(), ["actions", "same", "state", "else"])
    assert useless.keys() == {"actions", "same"}


def test_successive_demos_are_ranges_in_commands():
    names = [f"demo_{number}" for number in (0, 1, 3, 4, 5, 10)] + ["last"]
    assert ranges_of(names) == ["demo_0", "demo_1", "demo_3-demo_5", "demo_10", "last"]


def test_constant_and_nearly_constant_dimensions_are_information(write, random):
    x = random.normal(size=(50, 4))
    x[:, 1] = 0.7
    x[:, :3] *= 1e-5  # micrometres are a motion
    x[:, 3] = 4 + 7e-8 * np.arange(50)
    report = diagnose(write([(smooth(random, 50), {"x": x})]))
    assert report.exit_code == 0
    words = {finding.code: finding.what for finding in report.findings}
    assert words["constant"] == "'obs/x' never changes in 1 of 4 dimensions: 1"
    assert (
        words["near_constant"]
        == "'obs/x' changes by less than a millionth of 4 in 1 of 4 dimensions: 3"
    )


def rotating(flip, wrap, steps=40):
    """A hand that turns, in an observation of quaternions and one of angles; with jumps of their representation."""
    angle = np.linspace(2.0, 4.4, steps)
    quat = np.stack([np.sin(angle / 2), 0 * angle, 0 * angle, np.cos(angle / 2)], axis=1)
    signs = np.where(np.arange(steps) // 7 % 2, -1, 1)[:, None] if flip else 1
    yaw = (angle + np.pi) % (2 * np.pi) - np.pi if wrap else angle - 4
    height = np.linspace(0, 1, steps)
    return {"quat": (signs * quat).astype(np.float32), "angles": np.stack([height, yaw], axis=1)}


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("wrap", [False, True])
def test_jumps_of_a_representation(write, random, tmp_path, flip, wrap):
    path = write([(smooth(random, 40), rotating(flip, wrap)) for _ in range(3)])
    found = findings(path)
    assert ("quaternion_sign" in found, "angle_wrap" in found) == (flip, wrap)
    if flip:
        assert found["quaternion_sign"].places[0].steps == tuple(
            (t, t + 1) for t in range(7, 40, 7)
        )
        assert '"observed_rotation_6d"' in found["quaternion_sign"].advice
        out = tmp_path / "b.hdf5"
        _, after = fix(path, Target(out), only=["quaternion_sign"])
        assert "quaternion_sign" not in codes(after)
        with DatasetFile(out) as file:
            expected = rotating(False, wrap)["quat"]
            np.testing.assert_array_equal(file.read("demo_0", "obs/quat"), expected)
    if wrap:
        assert "dimension 1:" in found["angle_wrap"].what
        assert '"sin_cos", "observation": "angles", "dims": [1]' in found["angle_wrap"].advice


@pytest.mark.parametrize("missing", [None, "object"])
@pytest.mark.parametrize("key", ["robot0_eef_quat", "robot0_eef_quat_site"])
def test_a_flip_where_a_new_configuration_does_not_look_is_a_remark(random, tmp_path, key, missing):
    """robosuite's `..._quat_site` flips in every recording; its usual observations are taken if all are there."""
    obs = {name: smooth(random, 40) for name in ROBOT_STATE if name != missing}
    obs[key] = rotating(True, False)["quat"]
    demo = episode(40, obs, smooth(random, 40), rewards=np.ones(40))
    lift = {"env_name": "Lift", "type": 1, "env_kwargs": {}}
    found = findings(write_demos(tmp_path / "a.hdf5", [demo], lift, strict=False))[
        "quaternion_sign"
    ]
    is_remark = missing is None and key == "robot0_eef_quat_site"
    assert found.level == ("info" if is_remark else "warning")
    assert found.what.endswith("leaves the observation out") == is_remark


def test_fast_motion_is_no_jump(write, random):
    episodes = [arm(random, 0) for _ in range(9)]
    actions, obs = arm(random, 0)
    episodes.append((actions, {"eef_pos": obs["eef_pos"] * 3}))
    assert "jump" not in findings(write(episodes))


def test_jumps_in_most_demos_are_no_reason_to_leave_them_out(write, random):
    def demos(number):
        pairs = [arm(random, 0) for _ in range(12)]
        for _, obs in pairs[:number]:
            obs["eef_pos"][40:] += 50.0
        return findings(write(pairs))["jump"]

    few, most = demos(3), demos(11)
    assert few.level.value == "warning" and len(few.remedy.drop_demos) == 3
    assert most.level.value == "info" and most.remedy is None and "fast motion" in most.advice
    assert most.demos == [f"demo_{number}" for number in range(11)]


def test_holding_still_for_a_moment_is_no_idle_stretch(write, random):
    episodes = []
    for _ in range(5):
        actions = random.uniform(-0.9, 0.9, (60, 3))
        actions[20:29] = 0
        positions = 0.05 * (actions.cumsum(axis=0) - actions)
        episodes.append((actions, {"eef_pos": positions}))
    assert "idle" not in findings(write(episodes))


def test_idle_targets_that_stay_where_they_are(write, random):
    """Absolute actions: the same target again and again."""
    episodes = []
    for _ in range(5):
        targets = smooth(random, 60)
        targets[20:40] = targets[20]
        episodes.append((targets, {"eef_pos": np.concatenate([targets[:1], targets[:-1]])}))
    found = findings(write(episodes))["idle"]
    assert found.places[0].steps == ((21, 40),)


def test_pieces_of_a_long_demo_are_seen_as_one(write, monkeypatch, random):
    monkeypatch.setattr(survey, "SMALL_BYTES", 2_000)
    monkeypatch.setattr(survey, "PIECE_BYTES", 5_000)
    actions = smooth(random, 300)
    x = random.normal(size=(300, 2))
    x[[123, 124, 250]] = np.nan
    images = random.integers(0, 256, (300, 20, 20, 3), dtype=np.uint8)
    images[77:80] = 9
    path = write([(actions, {"x": np.zeros((300, 2)), "front_image": images})])
    with h5py.File(path, "r+") as file:
        file["data/demo_0/obs/x"][...] = x
    report = diagnose(path)
    found = {finding.code: finding for finding in report.findings}
    runs = [run for place in found["nan"].places for run in place.steps]
    assert runs == [(123, 125), (250, 251)]
    runs = [run for place in found["blank_images"].places for run in place.steps]
    assert runs == [(77, 80)]
    assert report.read_bytes == 300 * (3 * 8 + 2 * 8 + 1200 + 4 + 3)


def test_large_share_of_actions_beyond_the_limits_is_not_clipped(write, random):
    path = write([(3 * smooth(random, 60), {"x": smooth(random, 60)})])
    found = findings(path)["action_range"]
    assert found.level.value == "info"  # config init scales them
    assert found.remedy is None
    assert found.command(path) is None
    assert "normalization=min_max" in found.advice


def test_a_demo_of_many_times_the_usual_length_is_information(write, random):
    lengths = [18, 20, 22, 19, 21, 20, 90]
    pairs = [(smooth(random, n), {"x": random.normal(size=(n, 2))}) for n in lengths]
    report = diagnose(write(pairs))
    (finding,) = [finding for finding in report.findings if "demos" in finding.code]
    assert (finding.code, finding.level.value, finding.demos) == ("long_demos", "info", ["demo_6"])
    assert finding.what == "1 demo is very long: 90 steps, the median is 20"
    assert finding.remedy is None
    assert "--max-length 22" in finding.advice


def test_long_demos_that_failed_are_said_to_have_failed(write, random):
    path = write([(smooth(random, n), {"x": smooth(random, n)}) for n in (20,) * 5 + (90, 80)])
    with h5py.File(path, "r+") as file:
        file["data/demo_5"].attrs["success"] = False
    (finding,) = [f for f in diagnose(path).findings if f.code == "long_demos"]
    assert finding.what == "2 demos are very long: 80 - 90 steps, the median is 20; 1 failed"


def test_depth_and_segmentation_are_no_colours(write, random):
    obs = {
        "front_depth": random.uniform(0.3, 0.9, (30, 16, 16, 1)).astype(np.float32),
        "front_segmentation": random.integers(-1, 40, (30, 16, 16, 1), dtype=np.int32),
        "front_image": random.uniform(0, 1, (30, 16, 16, 3)).astype(np.float32),
    }
    found = findings(write([(smooth(random, 30), obs)]))
    assert [place.key for place in found["image_range"].places] == ["obs/front_image"]
    assert set(found) == {"image_range"}


def test_runs():
    assert runs_of([1, 2, 3, 7, 9, 10]) == ((1, 4), (7, 8), (9, 11))
    assert runs_of([]) == ()


# ---- upside-down images, by the motion in them ---------------------------------------------------


def rising(path, upside_down, key="agentview_image", steps=40):
    """A white square that rises and sinks with the hand, over a noisy background."""
    random, demos = np.random.default_rng(0), []
    for phase in range(3):
        height = 0.5 + 0.4 * np.sin(0.3 * np.arange(steps) + phase)
        images = random.integers(0, 4, (steps, 40, 30, 3), dtype=np.uint8)
        for t, z in enumerate(height):
            row = int(30 * (1 - z))
            images[t, row : row + 6, 10:16] = 255
        hand = np.stack([0.1 * np.cos(0.7 * np.arange(steps)), height * 0, height], axis=1)
        obs = {"robot0_eef_pos": hand, key: images[:, ::-1] if upside_down else images}
        demos.append(episode(steps, obs, random.uniform(-1, 1, (steps, 2))))
    return write_demos(path, demos, NO_SIMULATOR)


def codes(report):
    return [finding.code for finding in report.findings]


def test_upright_images_are_not_mentioned(tmp_path):
    assert "orientation" not in codes(diagnose(rising(tmp_path / "a.hdf5", upside_down=False)))


def test_upside_down_images_are_a_hint_and_can_be_turned(tmp_path):
    path = rising(tmp_path / "a.hdf5", upside_down=True)
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
    assert "orientation" not in codes(diagnose(rising(tmp_path / "a.hdf5", True, key)))


# ---- frames stored as JPEG are images, and stay so in copies -------------------------------------


@pytest.fixture
def path(tmp_path, random):
    """40 smooth pictures whose upper half is light; the robot stands still from step 10 to 29."""
    demos = []
    for _ in range(3):
        actions = random.uniform(-0.9, 0.9, (40, 3))
        actions[10:30] = 0
        images = np.full((40, 16, 24, 3), 40, np.uint8)
        images[:, :8] = 200
        images[..., 0] += np.arange(40, dtype=np.uint8)[:, None, None]
        obs = {"eef_pos": 0.05 * (actions.cumsum(axis=0) - actions), "front_image": images}
        demos.append(episode(40, obs, actions))
    return write_demos(tmp_path / "a.hdf5", demos, NO_SIMULATOR, image_storage="jpeg")


def image_of(path, demo="demo_0"):
    with DatasetFile(path) as file:
        assert file.storage(demo, "obs/front_image") == "jpeg"
        return file.read(demo, "obs/front_image").astype(int)


def test_they_are_images(path):
    report = diagnose(path)
    assert codes(report) == ["idle"]
    assert report.read_bytes > 3 * 40 * 16 * 24 * 3


def test_rows_that_are_cut_are_copied_as_they_are(path, tmp_path):
    out = tmp_path / "b.hdf5"
    _, after = fix(path, Target(out))
    assert codes(after) == []
    kept = [*range(15), *range(30, 40)]
    np.testing.assert_array_equal(image_of(out), image_of(path)[kept])


def test_pictures_that_are_turned_are_compressed_again(path, tmp_path):
    with h5py.File(path, "r+") as file:
        file["data"].attrs["macros_image_convention"] = "opengl"
    out = tmp_path / "b.hdf5"
    _, after = fix(path, Target(out), only=["upside_down"])
    assert "upside_down" not in codes(after)
    turned = image_of(path)[:, ::-1]
    assert np.abs(image_of(out) - turned).max() <= 6
    assert np.abs(image_of(out) - image_of(path)).max() > 100


def test_a_damaged_frame_is_found(path, tmp_path):
    with h5py.File(path, "r+") as file:
        file["data/demo_1/obs/front_image"][7] = np.arange(9, dtype=np.uint8)
    (finding,) = [f for f in diagnose(path).findings if f.code == "unreadable"]
    assert finding.demos == ["demo_1"]
    assert "step 7" in finding.what
    fixed, after = fix(path, Target(tmp_path / "b.hdf5"), only=["unreadable"])
    assert (after.demos, codes(after)) == (2, ["idle"])


def test_an_observation_without_numbers_is_no_fault(random, write):
    pairs = [(smooth(random, 20), {"x": random.normal(size=(20, 2)), "none": np.zeros((20, 0))})]
    path = write(pairs)
    assert not [code for code, found in findings(path).items() if found.severity == "error"]
    write_report(path, Target(path.with_suffix(".html")))
