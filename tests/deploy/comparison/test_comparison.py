"""Trials of a comparison: matched beginnings, verdicts, stops, redos, pictures."""

import os

import numpy as np
import pytest
from PIL import Image

from imitate.deploy.comparison.comparison import (
    Comparison,
    ComparisonOutcome,
    blend,
    images_of,
    save_images,
    save_overlays,
)
from imitate.deploy.comparison.judges import RobotJudge, Verdict
from imitate.deploy.comparison.trial_file import TrialFile
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.robot import Observation
from imitate.errors import RobotError, UserError
from tests.deploy.comparison_world import Coin
from tests.deploy.fake_robot import Constant
from tests.refusals import refused

POLICIES = {"A": {"name": "a.pth", "sha256": "aa"}, "B": {"name": "b.pth", "sha256": "bb"}}


class Person:
    """A judge who gives verdicts one after the other."""

    blind, keys, until_success = True, None, False

    def __init__(self, *verdicts):
        self.verdicts, self.starts, self.told = list(verdicts), [], []
        self.set_by_the_robot = []

    def ready(self, start):
        self.set_by_the_robot.append(start.is_set)
        self.starts.append((start.words, list(start.before), list(start.overlay())))
        return True

    def judge(self, ended_by, stopped):
        self.told.append((ended_by, stopped))
        return self.verdicts.pop(0) if self.verdicts else None

    def close(self):
        pass


def policy(action):
    made = Constant(action)
    made.obs_keys = ("flat",)
    return made


@pytest.fixture
def world(tmp_path):
    """Make a comparison on the coin robot."""

    def make(judge=None, first=(0.8,), second=(-0.6,), robot=None, most=50):
        robot = robot or Coin()
        robot.reset_to(0)
        robot.starts.clear()
        judge = judge or RobotJudge(robot)
        settings = {"alpha": 0.05, "judge": "person" if judge.blind else "robot"}
        file = TrialFile(tmp_path / "c.jsonl", POLICIES, settings)
        patient = Safety(late=0, watchdog_s=5.0)
        loops = {
            letter: ControlLoop(robot, policy(action), 100.0, safety=patient)
            for letter, action in (("A", first), ("B", second))
        }
        lines = []
        made = Comparison(file, loops, judge, steps=4, max_pairs=most, say=lines.append)
        return made, file, robot, lines

    return make


def test_the_better_policy_is_found_and_both_begin_alike(world):
    made, file, robot, lines = world()
    assert made.run()
    outcome = ComparisonOutcome(file)
    assert outcome.decided == "A"
    assert robot.starts == [k // 2 for k in range(2 * outcome.pairs)]
    assert len(lines) == 2 * outcome.pairs
    # What each policy did is what the robot's beginnings say.
    for trial in file.trials:
        difficulty = np.random.default_rng(trial.pair).uniform(-1, 1)
        action = {"A": 0.8, "B": -0.6}[file.policy(trial.pair, trial.position)]
        assert trial.success == (action > difficulty)
        assert trial.report["ended_by"] == ("success" if trial.success else "steps")
    assert made.run()  # nothing is left to do
    assert len(robot.starts) == 2 * outcome.pairs


def test_equal_policies_are_not_told_apart(world):
    made, file, _, _ = world(second=(0.8,), most=6)
    assert made.run()
    outcome = ComparisonOutcome(file)
    assert (outcome.pairs, outcome.decided) == (6, None)
    assert outcome.wins == outcome.losses == 0


def test_a_redo_repeats_the_same_policy_at_the_same_beginning(world):
    judge = Person(Verdict(True), Verdict(False, redo="the cube fell"), Verdict(False, 4, "missed"))
    made, file, robot, lines = world(judge)
    assert not made.run()
    assert robot.starts[:3] == [0, 0, 0]
    assert [(t.position, t.success, t.progress, t.note) for t in file.trials] == [
        (0, True, None, ""),
        (1, False, 4, "missed"),
    ]
    assert [(r.pair, r.position, r.reason) for r in file.redos] == [(0, 1, "the cube fell")]
    assert lines[1:3] == [
        "pair 1 of at most 50, second policy: repeated, reason: the cube fell",
        "pair 1 of at most 50, second policy: failure, progress 4 of 9",
    ]
    names = [trial.pictures["camera"] for trial in file.trials]
    assert names == [f"c_starts/pair001_{x}_camera.png" for x in ("first", "second_redo1")]


def test_the_person_sees_the_first_start_beside_the_second(world, tmp_path):
    judge = Person(Verdict(True), Verdict(True))
    made, file, _, _ = world(judge)
    made.run()
    (_, none, empty), (words, before, overlays), *_ = judge.starts
    assert none == empty == []
    assert words == "pair 1 of at most 50, second policy"
    assert before == [tmp_path / "c_starts/pair001_first_camera.png"]
    first = np.asarray(Image.open(before[0]))
    sheet = np.asarray(Image.open(overlays[0]))
    assert sheet.shape == (4, 18, 3)
    np.testing.assert_array_equal(sheet[:, :6], first)
    np.testing.assert_array_equal(sheet[:, 12:], blend(first, sheet[:, 6:12]))
    second = file.trials[1].pictures["camera"]
    assert second == "c_starts/pair001_second_camera.png"
    assert [trial.steps for trial in file.trials] == [4, 4]
    assert (tmp_path / second).is_file()


def test_only_colour_images_are_pictures_and_their_folder_is_made(tmp_path):
    values = {
        "arm/camera": np.full((4, 6, 3), 7, np.uint8),
        "depth": np.zeros((4, 6, 1), np.uint8),
        "floats": np.zeros((4, 6, 3)),
        "pose": np.zeros(3, np.uint8),
        "name": "left",
    }
    images = images_of(Observation(values, 0.0))
    assert list(images) == ["arm/camera"]
    for _ in range(2):  # the second time they are replaced
        paths = save_images(images, tmp_path / "a" / "b", "x")
    assert paths == {"arm/camera": tmp_path / "a" / "b" / "x_arm_camera.png"}
    np.testing.assert_array_equal(np.asarray(Image.open(paths["arm/camera"])), images["arm/camera"])


def test_half_of_each():
    dark, light = np.full((1, 1, 3), 10, np.uint8), np.full((1, 1, 3), 250, np.uint8)
    assert blend(dark, light)[0, 0].tolist() == [130, 130, 130]


def test_a_stop_by_the_loop_is_a_failure_with_its_reason(world):
    judge = Person(Verdict(False))

    def action(step):
        return (np.nan if step > 2 else 0.1,)

    made, file, _, lines = world(judge, action, action)
    assert not made.run()
    (ended_by, reason), *_ = judge.told
    assert ended_by == "stopped" and "not finite" in reason
    (trial,) = file.trials
    assert (trial.stopped, trial.success, trial.steps) == (reason, False, 2)
    assert lines == ["pair 1 of at most 50, first policy: failure, stopped by the control loop"]


def test_the_robot_does_not_call_a_stopped_trial_a_success():
    robot = Coin()
    robot.reset_to(0)
    robot.sent, robot._difficulty = [0.5] * 5, 0.0
    judge = RobotJudge(robot)
    assert judge.judge("steps", "").success
    assert not judge.judge("stopped", "late").success
    with refused("--judge person", error=UserError):
        RobotJudge(Coin(tells=False))


def test_a_robot_that_was_never_moved_tells_nothing_of_a_policy(world):
    made, file, _, _ = world(first=(np.nan,), second=(np.nan,))
    with pytest.raises(RobotError):
        made.run()
    assert file.trials == []


def test_the_same_pair_goes_on_after_an_interruption(world, tmp_path):
    made, file, _, _ = world(Person(Verdict(True)))
    assert not made.run()
    order = file.policy(0, 1)
    file.close()
    judge = Person(Verdict(True))
    made, file, robot, _ = world(judge)
    assert not made.run()
    assert robot.starts[0] == 0
    assert judge.starts[0][0] == "pair 1 of at most 50, second policy"
    assert judge.starts[0][1] == [tmp_path / "c_starts/pair001_first_camera.png"]
    assert file.policy(0, 1) == order


def test_nothing_moves_where_a_person_puts_up_the_scene_and_none_judges(world):
    made, file, robot, _ = world(robot=Coin(puts_up=False))
    with refused("--judge person", error=UserError):
        made.run()
    assert robot.sent == []
    assert file.trials == []
    file.close()
    file.path.unlink()
    judge = Person(Verdict(True), Verdict(True))
    made, *_ = world(judge, robot=Coin(puts_up=False))
    made.run()
    assert judge.set_by_the_robot == [False] * 3


def test_a_pipe_in_place_of_a_picture_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    image = np.zeros((2, 2, 3), np.uint8)
    assert save_overlays({"a": tmp_path / "a.png"}, {"a": image}, tmp_path, "b") == []
