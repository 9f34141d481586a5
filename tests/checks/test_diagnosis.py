"""Healthy runs in which no cause is named, and runs and recordings with one planted fault, which comes first."""

import ast
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate import policy_from_checkpoint
from imitate.checks import recording_causes
from imitate.checks.causes import (
    Neighbours,
    copied_columns,
    limit_of,
    of_clipping,
    of_consistency,
    of_horizon,
    of_images_cropped,
    of_images_ignored,
    of_normalization,
    of_repeating,
    of_training,
    of_units,
    of_unlearnable,
    spread,
)
from imitate.checks.diagnosis import _listed, at_begin, diagnose, ranked
from imitate.checks.execution_causes import of_execution
from imitate.checks.image_causes import of_images
from imitate.checks.recording_causes import of_coverage, of_exchange, of_failed, of_reach
from imitate.checks.subject import acted, as_recorded, nearer, subject_of, unseen_by
from imitate.data.dataset_file import DatasetFile
from imitate.deploy.check.deploy_check import CheckedDemo, Predictions
from imitate.deploy.check.statistics import Range, TrainingObservations
from imitate.errors import DatasetError
from tests.calling import call
from tests.tiny import tiny_run

STEPS = 40


def episode(
    rng,
    act,
    *,
    sense=lambda obs: obs,
    send=lambda a: a,
    start=0.5,
    goal=0.8,
    delay=0,
    gain=0.1,
    limit=1,
):
    """A point that moves by `gain` times its action, `delay` steps later: observations, actions."""
    position, aim = rng.uniform(-start, start, 2), rng.uniform(-goal, goal, 2)
    seen, done, queue = [], [], [np.zeros(2)] * delay
    for _ in range(STEPS):
        obs = sense({"joint_pos": position.astype(np.float32), "goal": aim.astype(np.float32)})
        action = send(np.clip(act(obs), -1, 1))
        seen.append(obs)
        done.append(action)
        queue.append(action)
        position = position + gain * np.clip(queue.pop(0), -limit, limit)
    return {key: np.stack([obs[key] for obs in seen]) for key in seen[0]}, np.array(done)


def expert(rng, noise=0.05):
    """Move to the goal."""
    return lambda obs: (
        0.9 * np.clip(4 * (obs["goal"] - obs["joint_pos"]), -1, 1) + rng.normal(0, noise, 2)
    )


def written(path, episodes, rate=10.0, solved=None):
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "arm", "type": 4, "env_kwargs": {}})
        data.attrs["control_freq"] = rate
        for number, (obs, actions) in enumerate(episodes):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = len(actions)
            demo["actions"] = actions
            if solved is not None:
                demo.attrs["success"] = solved(number)
            for key, values in obs.items():
                demo[f"obs/{key}"] = values
    return path


def demos(path, change=lambda one: one, seed=0, number=24, noise=0.05, solved=None):
    rng = np.random.default_rng(seed)
    episodes = [change(episode(rng, expert(rng, noise))) for _ in range(number)]
    return written(path, episodes, solved=solved)


def trained(folder, data, obs=("joint_pos", "goal"), updates=300, rate=0.006, chosen=None):
    if chosen is not None:
        with h5py.File(data, "r+") as file:
            file["mask/pilot"] = np.array([f"demo_{n}" for n in range(chosen)], dtype="S")
    return tiny_run(
        folder,
        obs=dict.fromkeys(obs, 2),
        data=data,
        hidden=[64],
        experiment={"epoch_every_n_steps": updates // 10},
        train={
            "num_epochs": 10,
            "batch_size": 100,
            "obs_normalization": "mean_std",
            "hdf5_filter_key": None if chosen is None else "pilot",
        },
        algo={"optim_params": {"policy": {"learning_rate": {"initial": rate}}}},
    )


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A run that succeeds, and its policy."""
    folder = tmp_path_factory.mktemp("healthy")
    run = trained(folder, demos(folder / "demos.hdf5"))
    policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=run / "checkpoints" / "last.pth")
    return run, policy


def diagnosed(run, recording=None):
    subject, data = subject_of(run)
    with DatasetFile(data) as file:
        if recording is None:
            return diagnose(subject, file, None, most=100)
        with DatasetFile(recording) as failed:
            return diagnose(subject, file, failed, most=100)


def kinds(report):
    return [cause.kind for cause in report.named]


# ---- recordings ----------------------------------------------------------------------------------


def degrees(obs):
    return {**obs, "joint_pos": np.rad2deg(obs["joint_pos"]).astype(np.float32)}


class Stuck:
    """A sensor that gives its first value for good."""

    def __init__(self):
        self.first = None

    def __call__(self, obs):
        self.first = obs["joint_pos"] if self.first is None else self.first
        return {**obs, "joint_pos": self.first}


def exchanged(obs):
    return {**obs, "joint_pos": obs["joint_pos"][::-1]}


def negated(obs):
    return {**obs, "joint_pos": obs["joint_pos"] * np.float32([1, -1])}


def moved_aim(obs):
    return {**obs, "goal": obs["goal"] + np.float32(0.5)}


class Losing:
    """A sensor that gives every second value twice."""

    def __init__(self):
        self.calls, self.last = 0, {}

    def __call__(self, obs):
        self.last = obs if self.calls % 2 == 0 else self.last
        self.calls += 1
        return self.last


RECORDINGS = {
    None: {},
    "units": {"sense": degrees},
    "order": {"sense": exchanged},
    "sensor": {"sense": Stuck()},
    "rate": {"rate": 20.0},
    "delay": {"delay": 4},
    "shortened": {"send": lambda action: 0.4 * action},
    "outside": {"goal": 2.5},
    "sign": {"sense": negated},
    "offset": {"sense": moved_aim},
    "gain": {"gain": 0.3},
    "limits": {"limit": 0.2},
    "dropped frames": {"sense": Losing()},
}


@pytest.mark.slow("each fault is recorded by a policy")
@pytest.mark.parametrize("fault", RECORDINGS)
def test_the_fault_of_a_recording_comes_first(fault, healthy, tmp_path):
    run, policy = healthy
    rng = np.random.default_rng(5)
    planted = dict(RECORDINGS[fault])
    rate = planted.pop("rate", 10.0)
    episodes = []
    for _ in range(6):
        policy.start_episode()
        episodes.append(episode(rng, policy, **planted))
    report = diagnosed(run, written(tmp_path / "failed.hdf5", episodes, rate))
    assert kinds(report)[:1] == ([] if fault is None else [fault]), report.named


def test_recorded_actions_of_a_policy_show_what_was_cut(tmp_path):
    rng = np.random.default_rng(0)
    wanted = rng.uniform(-1, 1, (2, 60, 2))
    sent = np.clip(wanted, -0.3, 0.3)
    sent[0, :5] = 0.9  # a person acts
    path = written(tmp_path / "line.hdf5", [({}, actions) for actions in sent])
    episodes = [CheckedDemo(f"demo_{n}", {}, actions) for n, actions in enumerate(sent)]
    with DatasetFile(path) as file:
        assert as_recorded(file, episodes) is None
    with h5py.File(path, "r+") as file:
        for n, actions in enumerate(wanted):
            file[f"data/demo_{n}/policy_actions"] = actions
        file["data/demo_0/interventions"] = np.arange(60) < 5
    with DatasetFile(path) as file:
        found = as_recorded(file, episodes)
    np.testing.assert_array_equal(found.actions[0][:5], sent[0, :5])
    np.testing.assert_array_equal(found.actions[0][5:], wanted[0, 5:])
    np.testing.assert_array_equal(found.actions[1], wanted[1])
    (cause,) = of_execution(found, found)
    assert cause.kind == "shortened" and cause.is_named
    for key, values in (
        ("interventions", np.ones(3)),
        ("policy_actions", np.full((60, 2), np.nan)),
    ):
        with h5py.File(path, "r+") as file:
            del file[f"data/demo_0/{key}"]
            file[f"data/demo_0/{key}"] = values
        with DatasetFile(path) as file:
            assert as_recorded(file, episodes) is None
        with h5py.File(path, "r+") as file:
            del file["data/demo_0/interventions"]
            file["data/demo_0/interventions"] = np.zeros(60)


def test_exchanged_vectors_are_named_by_their_difference():
    draw = np.random.default_rng(0)
    middle, half = draw.normal(size=(200, 3)), 0.02 + 0.02 * draw.random((200, 1)) * [0, 1, 0]
    there = {"left": middle + half, "right": middle - half, "one": middle[:, :1]}
    turned = {"left": there["right"], "right": there["left"], "one": there["one"]}
    ((keys, cause),) = of_exchange(turned, there)
    assert (keys, cause.kind) == ("left, right", "exchanged vectors") and cause.is_named
    moved = {**there, "right": there["right"] + 1}
    for here in (there, moved):
        assert not list(of_exchange(here, there))


@pytest.mark.parametrize(("cut", "named"), [(9.0, False), (0.5, True)])
def test_commands_that_are_cut_on_their_way_are_unreached(cut, named):
    wishes = np.sin(np.arange(300)[:, None] * [0.1, 0.07])
    late = np.concatenate([wishes[:1], wishes[:-1]])
    trained = [(wishes, late + [0.001, 0.001])]
    cause = of_reach([(wishes, np.minimum(late, [cut, 9.0]))], trained)
    assert cause.is_named == named and ("position 0 stays" in cause.words) >= named
    assert of_reach([], trained) is None
    assert of_reach(trained, [(wishes, np.sin(late * 9))]) is None  # no targets


@pytest.mark.slow("a training and a recording")
@pytest.mark.parametrize(("begin", "kind"), [(0.3, "offset"), (0.0, "unreached")])
def test_a_reading_that_is_shifted_from_the_first_step_is_an_offset(begin, kind):
    """Both stay 0.3 beside their targets; a load pulls only after the first step."""
    rng = np.random.default_rng(0)

    def pairs(shift, first):
        found = []
        for _ in range(20):
            wishes = np.cumsum(rng.normal(0, 0.1, (30, 2)), axis=0)
            place = np.concatenate([wishes[:1], wishes[:-1]]) + [shift, 0.001]
            place[0, 0] += first - shift
            found.append((wishes, place))
        return found

    cause = of_reach(pairs(0.3, begin), pairs(0.001, 0.001))
    assert cause.is_named and cause.kind == kind


def test_a_missing_observation_comes_before_all(healthy, tmp_path):
    rng = np.random.default_rng(0)
    obs, actions = episode(rng, expert(rng))
    del obs["goal"]
    report = diagnosed(healthy[0], written(tmp_path / "failed.hdf5", [(obs, actions)]))
    assert kinds(report) == ["missing"] and "not compared" in report.notes[-1]


@pytest.mark.slow("a policy is trained and recorded")
def test_values_that_are_not_finite_are_a_cause_and_no_error(healthy, tmp_path):
    rng = np.random.default_rng(0)
    obs, actions = episode(rng, expert(rng))
    obs["goal"][7] = np.nan
    report = diagnosed(healthy[0], written(tmp_path / "failed.hdf5", [(obs, actions)]))
    assert kinds(report) == ["not finite"] and "first in step 7" in report.named[0].words


@pytest.mark.slow("a policy is trained and recorded")
def test_states_far_away_after_a_wrong_action_are_no_other_units(healthy, tmp_path):
    run, policy = healthy
    rng = np.random.default_rng(5)
    episodes = []
    for _ in range(6):
        policy.start_episode()
        obs, actions = episode(rng, policy, send=lambda action: action * [1, -1], start=0.05)
        episodes.append((obs, actions * [1, -1]))
    report = diagnosed(run, written(tmp_path / "failed.hdf5", episodes))
    assert kinds(report)[0] == "sign", report.named


@pytest.mark.slow("a training and a recording")
def test_arrays_of_other_lengths_are_no_traceback(healthy, tmp_path):
    rng = np.random.default_rng(0)
    obs, actions = episode(rng, expert(rng))
    path = written(tmp_path / "failed.hdf5", [(obs, actions)])
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/obs/goal"]
        file["data/demo_0/obs/goal"] = obs["goal"][:0]
    with pytest.raises(DatasetError, match="0 observations 'goal' and .* imitate dataset doctor"):
        diagnosed(healthy[0], path)


# ---- trainings -----------------------------------------------------------------------------------


def with_last(one):
    """The action before, as an observation."""
    obs, actions = one
    return {
        **obs,
        "last": np.concatenate([np.zeros((1, 2)), actions[:-1]]).astype(np.float32),
    }, actions


def sticky(one):
    """Actions that change rarely, for no visible reason."""
    obs, actions = one
    rng = np.random.default_rng(int(1e6 * abs(actions[0, 0])))
    held = np.empty_like(actions)
    held[0] = rng.uniform(-1, 1, 2)
    for step in range(1, len(held)):
        held[step] = rng.uniform(-1, 1, 2) if rng.random() < 0.08 else held[step - 1]
    return with_last((obs, held))


def observations_late(one):
    obs, actions = one
    return {key: values[3:] for key, values in obs.items()}, actions[:-3]


class InDegrees:
    """Goals of every second demonstration in degrees."""

    def __init__(self):
        self.calls = 0

    def __call__(self, one):
        self.calls += 1
        obs, actions = one
        return ({**obs, "goal": np.rad2deg(obs["goal"])} if self.calls % 2 else obs), actions


class EveryThird:
    """The second action of every third demonstration with the other sign."""

    def __init__(self):
        self.calls = 0

    def __call__(self, one):
        self.calls += 1
        obs, actions = one
        return obs, actions * [1, -1 if self.calls % 3 == 0 else 1]


TRAININGS = {
    "few demonstrations": (None, {"number": 5}, {}),
    "noise": (None, {"noise": 0.25}, {}),
    "a short training": (None, {}, {"updates": 150}),
    "the action before is seen": (
        None,
        {"change": with_last},
        {"obs": ("joint_pos", "goal", "last")},
    ),
    "undertrained": ("undertrained", {}, {"updates": 20, "rate": 0.0005}),
    "shift": ("shift", {"change": observations_late}, {}),
    "unobserved": ("unobserved", {}, {"obs": ("joint_pos",)}),
    "units": ("units", {"change": InDegrees()}, {}),
    "one demonstration": ("few demonstrations", {"number": 1}, {}),
    "failures among them": ("failed demonstrations", {"solved": lambda n: n % 4 > 0}, {}),
    "few are chosen": ("few demonstrations", {}, {"chosen": 2}),
    "other signs in some": ("sign", {"change": EveryThird()}, {}),
    "copying": ("copying", {"change": sticky}, {"obs": ("joint_pos", "goal", "last")}),
}


@pytest.mark.slow("a training each")
@pytest.mark.parametrize("name", TRAININGS)
def test_the_fault_of_a_training_comes_first(name, tmp_path):
    fault, data, training = TRAININGS[name]
    report = diagnosed(trained(tmp_path, demos(tmp_path / "demos.hdf5", **data), **training))
    assert kinds(report)[:1] == ([] if fault is None else [fault]), report.named


# ---- single measurements -------------------------------------------------------------------------


def demo(states, actions, name="demo"):
    return CheckedDemo(
        name, {"s": np.asarray(states, dtype=float)}, np.asarray(actions, dtype=float)
    )


def line(sign, offset=0.0):
    steps = np.linspace(0, 1, 30)[:, None]
    return demo(steps + offset, np.full((30, 1), sign))


def test_two_ways_in_one_state_are_inconsistent():
    alike, opposed = [line(1), line(1.01), line(-1), line(-1.01)], [line(1), line(-1)]
    one_way = [line(1 + 0.01 * n) for n in range(5)] + [line(-1, 50 + n) for n in range(5)]

    def found(demos, several_ways=False):
        return of_consistency(Neighbours(demos, ["s"]), demos, several_ways)

    assert found(opposed).is_named and found(alike).is_named
    assert not found(one_way).is_named
    assert found(opposed, True).score == pytest.approx(found(opposed).score / 5)
    assert found([line(1), line(1, 100.0)]) is None


@pytest.mark.parametrize(("parted", "named"), [(0, False), (4, True)])
def test_ways_that_part_in_few_states_are_inconsistent_and_noise_is_not(parted, named):
    draw, demos = np.random.default_rng(0), []
    for number in range(8):
        actions = np.sin(np.linspace(0, 6, 60))[:, None] + draw.normal(0, 0.3, (60, 1))
        actions[20 : 20 + parted] += 2 * (-1) ** number
        demos.append(demo(np.linspace(0, 1, 60)[:, None], actions))
    assert of_consistency(Neighbours(demos, ["s"]), demos, False).is_named == named


@pytest.mark.parametrize("seed", [1, 3])
def test_people_who_differ_in_all_states_come_to_no_fork(seed):
    draw, demos = np.random.default_rng(seed), []
    for _ in range(5):
        habits = np.repeat(draw.normal(0, 0.8, (11, 1)), 3, axis=0)[:32]
        actions = np.sin(np.linspace(0, 6, 32))[:, None] + habits
        demos.append(demo(np.linspace(0, 1, 32)[:, None], actions))
    cause = of_consistency(Neighbours(demos, ["s"]), demos, False)
    assert not cause.is_named and "0.00 times in the 5 %" in cause.words


@pytest.mark.parametrize(("before", "found"), [(0, [1]), (1, [2])])
def test_columns_that_are_an_action_are_found(before, found):
    rng = np.random.default_rng(0)
    shown = []
    for _ in range(3):
        actions = rng.normal(size=(20, 1))
        last = np.concatenate([np.zeros((1, 1)), actions[:-1]])
        shown.append(
            demo(np.concatenate([rng.normal(size=(20, 1)), actions, last], axis=1), actions)
        )
    columns = copied_columns(shown, ["s"], before)
    assert columns["s"].tolist() == found
    words = of_repeating(0.69, columns, before)
    assert words.is_named and not of_repeating(0.67, columns, before).is_named
    assert ("of the same step" in words.words) == (before == 0)


@pytest.mark.parametrize(("share", "judged"), [(0.3, 0), (0.6, 1)])
def test_ends_are_judged_only_if_most_episodes_fail(share, judged):
    shown = [line(1, 0.1 * n) for n in range(4)]
    found = [*of_failed(shown, ["s"], [line(1, 9.0)], share, {})]
    assert [cause.kind for cause in found] == ["coverage"] * judged


def test_the_nearest_demonstration_of_a_failure_is_named():
    shown = [line(1, 0.1 * n) for n in range(4)]
    near = of_coverage(Neighbours(shown, ["s"]), [line(1, 0.05)], list("abcd"))
    far = of_coverage(Neighbours(shown, ["s"]), [line(1, 9.0)], list("abcd"))
    assert not near.is_named and far.is_named
    assert "demo, step 29; nearest: step 29 of d" in far.words
    once = of_coverage(Neighbours(shown, ["s"]), [line(1, 0.05)] * 2 + [line(1, 9.0)], list("abcd"))
    assert not once.is_named and "demo, step 29; nearest" in once.words


@pytest.mark.parametrize(
    ("losses", "error", "named"),
    [
        (np.linspace(1, 0, 30), 1.0, True),
        (np.linspace(1, 0, 30), 0.1, False),
        (np.exp(-np.arange(30.0)), 1.0, False),
        ([1.0], 0.43, True),
        ([1.0], 0.4, False),
    ],
)
def test_a_falling_loss_with_large_errors_is_an_unfinished_training(losses, error, named):
    found = of_training(list(losses), error)
    assert found.is_named == named
    assert found.advice.endswith(f"--epochs {max(2 * len(losses), 10)}")


@pytest.mark.parametrize(("error", "named"), [(0.6, False), (0.62, True)])
def test_a_short_training_without_known_episodes_needs_larger_errors(error, named):
    assert of_training([1.0, 0.5], error, fails=False).is_named == named
    assert of_training([1.0, 0.5], error).is_named


@pytest.mark.parametrize(
    ("offset", "scale", "named"), [(2.0, 0.5, False), (0.0, 0.5, True), (2.0, 0.01, True)]
)
def test_a_normalization_of_other_data_is_named(offset, scale, named):
    known = {"s": Range(*(np.array([x]) for x in (2.0, 0.5, 1.0, 3.0)))}
    (cause,) = of_normalization({"s": (np.array([offset]), np.array([scale]))}, known)
    assert cause.is_named == named


@pytest.mark.parametrize(("high", "named"), [(180.0, False), (4000.0, True)])
@pytest.mark.parametrize("saved", [{}, {"s": (np.zeros(1), np.ones(1))}])
def test_large_values_without_a_normalization_are_named(saved, high, named):
    known = {"s": Range(*(np.array([x]) for x in (high - 50, 10.0, high - 90, high)))}
    (cause,) = of_normalization(saved, known)
    assert (cause.kind, cause.is_named) == ("normalization", named)
    assert f"values up to {high:.3g}" in cause.words


@pytest.mark.parametrize(("limit", "named"), [(None, []), (1.0, [False]), (0.5, [True])])
def test_values_that_a_clip_of_observations_cuts(limit, named):
    values = {"s": [np.linspace(-1, 1, 50)[:, None] * [0.1, 1.0]]}
    found = list(of_clipping(limit, values))
    assert [cause.is_named for cause in found] == named
    assert not any(named) or "s[1] at 0.5 in 52% of the steps" in found[0].words


def test_names_are_taken_from_all_parts_and_not_in_step_with_a_pattern():
    names = [f"demo_{n}" for n in range(80)]
    chosen = [int(name[5:]) for name in spread(names, 20)]
    assert [n // 4 for n in chosen] == list(range(20))
    assert 5 < sum(n % 2 for n in chosen) < 15 and 2 < sum(n % 4 == 0 for n in chosen) < 8
    assert spread(names[:5], 20) == names[:5] and spread([], 3) == []
    assert all(len(set(spread(names[:n], 20))) == min(n, 20) for n in range(1, 60))


def test_one_number_that_hardly_varies_is_no_normalization_of_other_data():
    known = {"s": Range(*(np.array([x, x]) for x in (2.0, 0.5, 1.0, 3.0)))}
    scales = np.array([0.5, 1000.0]), np.array([1000.0, 1000.0])
    causes = [next(of_normalization({"s": (np.full(2, 2.0), scale)}, known)) for scale in scales]
    assert [cause.is_named for cause in causes] == [False, True]


def test_of_two_samples_the_nearer_one_counts():
    shown = demo(np.zeros((2, 1)), [[1.0, 0.0], [0.0, 0.0]])
    ways = [[[0.9, 0.0], [2.0, 2.0]]], [[[-1.0, 0.0], [0.1, 0.0]]]
    one, other = (
        Predictions([shown], [np.array(x) for x in way], 0.0, np.zeros(0)) for way in ways
    )
    assert nearer(one, other).actions[0].tolist() == [[0.9, 0.0], [0.1, 0.0]]
    assert nearer(other, one).actions[0].tolist() == [[0.9, 0.0], [0.1, 0.0]]


@pytest.mark.slow("a policy is trained and recorded")
@pytest.mark.parametrize(("solved", "names"), [(5, False), (3, True), (0, True), (None, True)])
def test_recorded_successes_decide_whether_there_is_a_cause(solved, names, healthy, tmp_path):
    rng = np.random.default_rng(0)
    episodes = [episode(rng, expert(rng), sense=degrees) for _ in range(6)]
    outcome = None if solved is None else lambda number: number < solved
    report = diagnosed(healthy[0], written(tmp_path / "failed.hdf5", episodes, solved=outcome))
    assert bool(report.named) == names and report.causes[0].kind == "units"
    assert report.success == (None if solved is None else pytest.approx(solved / 6))
    assert report.success_of == "the recorded episodes"


def test_horizons_and_images():
    assert limit_of([6, 6, 24], [False, False, True]) is None  # a collision ends them
    assert limit_of([20, 20, 9, 20, 19], [None, False, True, False, False]) == 20
    assert (
        limit_of([20, 13, 9, 20], [False] * 4) is None and limit_of([20, 7], [False, True]) is None
    )
    assert of_horizon(20, [40] * 10).is_named and not of_horizon(40, [40] * 10).is_named
    assert of_horizon(20, [40] * 10).advice == "imitate eval --agent RUN --horizon 80"
    assert of_images_ignored(0.001, 0.9, ["image"]).is_named
    assert not of_images_ignored(0.5, 0.9, ["image"]).is_named
    assert not of_images_ignored(0.001, 0.1, ["image"]).is_named  # the vectors are enough


def test_failures_on_a_robot_that_were_cut_are_to_be_recorded_longer(healthy, tmp_path):
    rng = np.random.default_rng(0)
    whole = [episode(rng, expert(rng)) for _ in range(4)]
    cut = [({key: x[:20] for key, x in obs.items()}, actions[:20]) for obs, actions in whole]
    report = diagnosed(healthy[0], written(tmp_path / "cut.hdf5", cut))
    (cause,) = [one for one in report.causes if one.words.startswith("recorded failures end after")]
    assert cause.advice == "record longer: imitate run RUN --robot NAME --steps 80"


class Centre:
    """A policy whose action is the mean of the middle of its images, of so many rows and columns."""

    obs_keys = ("image",)

    def __init__(self, rows, columns):
        self._rows, self._columns = slice(*rows), slice(*columns)

    def start_episode(self, lang=None):
        pass

    def __call__(self, obs, batched_ob):
        return obs["image"][:, self._rows, self._columns].mean(axis=(1, 2))


@pytest.mark.parametrize(
    "rows, columns, unseen",
    [
        ((0, 20), (0, 20), 0.0),
        ((2, 18), (3, 17), 1 - 16**2 / 20**2),  # 16 pixels are a side of 0.8
        ((9, 11), (9, 11), 1 - 4**2 / 20**2),
        ((9, 11), (0, 20), 0.0),
    ],
)
def test_the_border_that_a_policy_does_not_see_is_found(rows, columns, unseen):
    frames = [np.full((2, 20, 20, 1), 50.0 * k, np.float32) for k in range(3)]
    demos = [
        CheckedDemo(f"demo_{k}", {"image": one}, np.zeros((2, 1)), None)
        for k, one in enumerate(frames)
    ]
    policy = Centre(rows, columns)
    assert unseen_by(policy, acted(policy, demos), "image") == pytest.approx(unseen)
    assert of_images_cropped("image", 0.61, 0.41).is_named
    assert not of_images_cropped("image", 0.59, 0.9).is_named
    assert not of_images_cropped("image", 0.9, 0.39).is_named


def test_a_camera_that_was_as_still_in_the_demonstrations_is_no_cause():
    still = [np.tile(np.arange(48, dtype=np.uint8).reshape(4, 4, 3), (30, 1, 1, 1))] * 2
    moving = [part + np.arange(30, dtype=np.uint8)[:, None, None, None] for part in still]
    named = [one.kind for one in of_images("top", still, None, moving) if one.is_named]
    assert named == ["frozen image"]
    assert not [one for one in of_images("top", still, None, still) if one.is_named]


def test_explanations_come_before_what_they_explain():
    def cause(kind, score):
        return type(of_horizon(1, [1]))(kind, score, "", "")

    found = [cause("coverage", 9), cause("units", 2), cause("clipping", 3), cause("delay", 0.9)]
    found.append(cause("undertrained", 1.1))
    order = ["units", "clipping", "undertrained", "coverage", "delay"]
    assert [one.kind for one in ranked(found)] == order


def test_one_odd_begin_among_many_episodes_is_no_cause():
    known = TrainingObservations({"s": Range(*(np.array([x]) for x in (2.0, 0.5, 1.0, 3.0)))}, "")
    usual, turned = demo(np.full((5, 1), 2.0), np.zeros((5, 1))), demo(-np.full((5, 1), 2.0), [[0]])

    def found(*episodes):
        return [one.kind for one in at_begin(episodes, {"s": "low_dim"}, known)]

    assert found(turned) == ["sign"] == found(*[turned] * 4, usual)
    assert not found(*[turned] * 2, *[usual] * 7)
    # the values of other episodes have the sign of the training: there the object is elsewhere
    assert not found(*[turned] * 2, *[usual] * 2)


@pytest.mark.parametrize(
    ("losses", "error", "named"),
    [
        ([1, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], 0.8, True),
        ([1, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], 0.7, False),
        (np.linspace(1, 0.5, 10), 0.8, None),
        ([1, 0.5, 0.5], 0.8, None),
    ],
)
def test_a_finished_training_that_does_not_fit_its_own_demonstrations(losses, error, named):
    cause = of_unlearnable(list(losses), error)
    assert (cause and cause.is_named) == named
    assert cause is None or cause.kind == "inconsistent"


def test_the_help_names_every_cause():
    help_ = " ".join(call("diagnose --help").output.split())
    for file in Path(recording_causes.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("scored", "Cause"):
                words = (
                    ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else ""
                )
                assert words in help_, words


# ---- the command ---------------------------------------------------------------------------------


@pytest.mark.slow("the command trains, records and diagnoses")
def test_the_command(healthy, tmp_path):
    run, _ = healthy
    assert call("diagnose", run).output.splitlines()[0] == "no cause is named"
    rng = np.random.default_rng(0)
    failed = written(tmp_path / "failed.hdf5", [episode(rng, expert(rng), sense=degrees)])
    words = (run, "--recording", failed)
    text = call("diagnose", *words, code=1).output
    assert text.startswith("1. units (score ")
    assert "next: convert the units" in text and "RUN" not in text
    told = call.json("diagnose", *words, code=1)
    assert told["named"][0] == "units" and told["causes"][0]["named"] is True


@pytest.mark.slow("a training and two recordings")
def test_other_names_of_a_recording(healthy, tmp_path):
    rng = np.random.default_rng(0)
    obs, actions = episode(rng, healthy[1])
    obs["arm_position"] = obs.pop("joint_pos")
    failed = written(tmp_path / "failed.hdf5", [(obs, actions)])
    words = (healthy[0], "--recording", failed)
    assert "1. missing" in call("diagnose", *words, code=1).output
    call("diagnose --rename arm_position=joint_pos", *words)


def test_without_data_it_says_what_to_name(healthy, tmp_path):
    alone = tmp_path / "policy.pth"
    alone.write_bytes((healthy[0] / "checkpoints" / "last.pth").read_bytes())
    subject, data = subject_of(alone)
    assert data is not None and not subject.losses
    data.rename(data.with_suffix(".moved"))
    try:
        assert "--dataset" in call("diagnose", alone, code=2).output
    finally:
        data.with_suffix(".moved").rename(data)


@pytest.mark.parametrize(("unit", "named"), [(57.3, True), (1.0, False)])
def test_velocities_are_small_in_another_unit_or_where_little_moves(unit, named):
    """In three of twelve demonstrations the velocity begins and ends alike, or is 57 times as small at each step."""
    moves = [np.linspace(0.4, 0.2, 30)[:, None] for _ in range(9)]
    for demo in moves:
        demo[3:-3] += 8.0
    still = [np.linspace(0.4, 0.2, 30)[:, None] for _ in range(3)]
    small = [moves[0] / unit for _ in range(3)] if named else still
    assert of_units("speed", [*moves, *small]).is_named == named


def test_images_are_looked_for_only_if_all_demonstrations_have_them(tmp_path):
    rng = np.random.default_rng(0)
    path = written(
        tmp_path / "demos.hdf5", [episode(rng, lambda obs: np.zeros(2)) for _ in range(3)], 10.0
    )
    with DatasetFile(path) as file:
        assert _listed(file, ["goal"]) == file.demos() and len(file.demos()) == 3
        last = file.demos()[-1]
        assert _listed(file, ["goal", "camera"]) == []
    with h5py.File(path, "a") as file:
        del file[f"data/{last}/obs/goal"]
        file[f"data/{last}/obs/goal"] = np.zeros((STEPS, 3))
    with DatasetFile(path) as file:
        assert _listed(file, ["goal"]) == []
