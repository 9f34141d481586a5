"""Findings of the deployment check in recorded demonstrations, each fault put in by hand."""

import json
import time
from dataclasses import replace

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.deploy.check import deploy_check
from imitate.deploy.check.deploy_check import (
    ActionErrors,
    CheckedDemo,
    Predictions,
    check,
    check_memory,
    limit_findings,
)
from imitate.deploy.check.inputs import Severity
from imitate.deploy.check.statistics import TrainingObservations, measured
from imitate.deploy.schema import ObservedKey, Schema
from imitate.errors import UserError
from tests.demo_files import episode, write_demos

RATE = 2.0  # a busy machine makes no call late
SCHEMA = Schema(
    observations={"joints": ObservedKey((3,)), "camera": ObservedKey((6, 8, 3), "rgb")},
    action_dim=2,
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    rate_hz=RATE,
)
KINDS = {key: spec.kind for key, spec in SCHEMA.observations.items()}


def unchanged(obs, actions):
    return obs, actions


def written(path, seed, change=unchanged, rate=RATE, demos=6, attrs=None):
    """Demonstrations of action = tanh(joints[:2]); joint 2 always is 0.5; the scene is reddish."""
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "arm", "type": 4, "env_kwargs": {}})
        data.attrs["control_freq"] = rate
        for number in range(demos):
            joints = np.cumsum(rng.normal(0, 0.1, (30, 3)), axis=0) + rng.normal(0, 0.3, 3)
            joints[:, 2] = 0.5
            shades = rng.uniform(0.6, 1.0, (30, 6, 8, 1)) * np.array([200.0, 120.0, 40.0])
            obs = {"joints": joints.astype(np.float32), "camera": shades.astype(np.uint8)}
            obs, actions = change(obs, np.tanh(obs["joints"][:, :2]).astype(np.float64))
            demo = data.create_group(f"demo_{number}")
            demo.attrs.update(attrs or {}, num_samples=len(actions))
            demo["actions"] = actions
            for key, values in obs.items():
                demo[f"obs/{key}"] = values
    return path


class Expert:
    """The policy that the demonstrations show, called as the control loop calls it."""

    control_freq = RATE

    def __init__(self, seconds=0.0, gain=1.0):
        self.seconds, self.gain, self.langs, self.calls = seconds, gain, [], 0

    def start_episode(self, lang=None):
        self.langs.append(lang)

    def __call__(self, ob):
        assert set(ob) == {"joints", "camera"}
        self.calls += 1
        time.sleep(self.seconds if self.calls > 1 else 0.0)
        if ob["camera"].dtype.kind == "f" and ob["camera"].max() > 1:
            raise UserError("image 'camera' has values up to 200")
        return self.gain * np.tanh(ob["joints"][:2]).astype(np.float64)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("training") / "training.hdf5", seed=0, demos=20)
    return TrainingObservations(measured(path, KINDS), "the file")


@pytest.fixture
def checked(tmp_path, training):
    """Check a policy on a file in which something was changed."""

    def run(change=unchanged, policy=None, schema=SCHEMA, known=training, rate=RATE, **more):
        path = written(tmp_path / "seen.hdf5", seed=1, change=change, rate=rate)
        with DatasetFile(path) as file:
            return check(policy or Expert(), schema, file, file.demos(), known, **more)

    return run


def found(report):
    """Kinds of the findings with their keys, without notes."""
    return {(f.kind, f.key) for f in report.findings if f.level is not Severity.note}


def on(key, function):
    """A change of one observation."""

    def change(obs, actions):
        return {**obs, key: function(obs[key])}, actions

    return change


def test_the_right_data_are_ok(checked):
    report = checked()
    assert found(report) == set()
    assert report.errors.mean == pytest.approx([0, 0], abs=1e-6)
    assert (report.errors.overall, report.steps) == (pytest.approx(0, abs=1e-5), 180)


@pytest.mark.parametrize(
    ("key", "change", "kind", "words"),
    [
        ("joints", np.rad2deg, "units", "joints[0, 1] are more than 10 standard deviations"),
        ("joints", np.rad2deg, "units", "degrees instead of radians?"),
        ("joints", np.rad2deg, "constant", ""),  # joint 2, which never moved
        ("joints", np.deg2rad, "still", "joints[0, 1] vary less"),
        ("joints", np.deg2rad, "still", "radians instead of degrees?"),
        ("joints", lambda x: np.where(np.arange(30)[:, None] == 4, np.nan, x), "not finite", ""),
        ("camera", lambda x: x[..., ::-1], "channels", "'camera': red and blue seem to be swapped (BGR"),
        ("camera", lambda x: (x / 255.0 / 255.0).astype(np.float32), "image range", "divided by 255 twice"),
        ("camera", lambda x: (x / 255.0).astype(np.uint8), "image range", "images are black"),
        ("camera", lambda x: (x > 99).astype(np.uint8), "image range", "perhaps floats from 0 to 1 became integers"),
        ("camera", lambda x: x.astype(np.float32), "image range", "the policy expects uint8"),
        ("camera", lambda x: np.zeros_like(x), "image range", "all images are black"),
        ("camera", lambda x: np.full_like(x, 90), "blank image", "100% of the images have a single colour"),
        ("camera", lambda x: np.repeat(x[:1], len(x), axis=0), "frozen image", "never changes in 6 of 6"),
        ("camera", lambda x: x // 3, "brightness", "other colours or brightness"),
        ("camera", lambda x: x[:, :4], "shape", "4 x 8 x 3 in the file, but the policy expects 6 x 8 x 3"),
        ("camera", lambda x: np.moveaxis(x, -1, 1), "shape", "channels must be last"),
    ],
)  # fmt: skip
def test_what_is_found_in_observations(checked, key, change, kind, words):
    report = checked(on(key, change))
    assert (kind, key) in found(report)
    assert any(words in finding.words for finding in report.findings if finding.kind == kind)


def test_values_beyond_the_training(checked, training):
    high = float(training.ranges["joints"].high[0])
    report = checked(on("joints", lambda x: x + np.array([high + 1.0, 0, 0], np.float32)))
    (finding,) = [f for f in report.findings if f.kind in ("range", "units")]
    assert finding.words.startswith("joints[0] ")


@pytest.mark.parametrize(
    ("changes", "findings", "verdict"),
    [
        ({}, set(), "ok"),
        ({"change": on("joints", np.rad2deg)}, None, "fails"),
        ({"change": on("joints", lambda x: x + np.float32([0, 0, 0.1]))}, {("constant", "joints")}, "warnings"),
        ({"change": on("camera", lambda x: x[..., ::-1])}, {("channels", "camera")}, "fails"),
        ({"change": on("camera", lambda x: (x / 255.0).astype(np.float32))}, set(), "ok"),
        ({"rate": 10.0}, {("rate", "")}, "fails"),
        ({"change": lambda obs, actions: ({"camera": obs["camera"]}, actions)}, {("missing", "joints")}, "fails"),
        ({"change": lambda obs, actions: (obs, np.tile(actions, 2))}, {("action size", "")}, "fails"),
        ({"policy": Expert(gain=0.5), "tolerance": 0.1}, None, "fails"),
    ],
)  # fmt: skip
def test_verdicts(checked, changes, findings, verdict):
    report = checked(**changes)
    assert findings is None or found(report) == findings
    assert report.verdict == verdict


def test_words_of_a_rate_and_of_what_is_missing(checked):
    (rate,) = checked(rate=10.0).findings[:1]
    assert "the file has 10 Hz, but the policy was trained at 2 Hz" in rate.words
    report = checked(lambda obs, actions: ({"camera": obs["camera"]}, actions))
    assert "the observation 'joints' is missing; the file has camera" in report.findings[0].words
    assert report.errors is None


def test_grey_scenes_do_not_tell_the_order(checked, tmp_path):
    def grey(x):
        return np.repeat(x[..., :1], 3, axis=-1)

    path = written(tmp_path / "grey.hdf5", 5, on("camera", grey))
    report = checked(on("camera", grey), known=TrainingObservations(measured(path, KINDS), "grey"))
    assert found(report) == set()
    assert any("order cannot be checked" in f.words for f in report.findings)


def test_another_size_is_no_problem_of_a_policy_that_resizes(checked):
    smaller = on("camera", lambda x: x[:, :3, :4])
    assert ("shape", "camera") in found(checked(smaller))
    assert found(checked(smaller, resizes=True)) == set()
    grey = on("camera", lambda x: x[..., :1])
    assert ("shape", "camera") in found(checked(grey, resizes=True))


def test_a_slow_policy(checked):
    assert ("slow", "") not in found(checked())
    slow = checked(policy=Expert(seconds=0.012), schema=replace(SCHEMA, rate_hz=100.0), rate=100.0)
    assert ("slow", "") in found(slow)
    assert slow.verdict == "fails" and slow.latency_ms["p50"] >= 12


def test_a_policy_that_does_something_else(checked):
    report = checked(policy=Expert(gain=-1.0))
    assert ("actions", "") in found(report)
    assert report.errors.overall > 1.5
    assert report.errors.relative[0] == pytest.approx(2.0, abs=0.4)
    assert checked(policy=Expert(gain=0.5)).errors.overall < 1


def test_the_worst_demo_and_step_are_named(checked):
    count = iter(range(99))

    def jump(obs, actions):
        if next(count) == 3:
            actions[7, 1] += 0.9
        return obs, actions

    errors = checked(jump).errors
    assert (errors.worst_step, errors.worst_demo) == (("demo_3", 7, 1), "demo_3")


def test_actions_at_their_limits(checked):
    class Saturated(Expert):
        def __call__(self, ob):
            return np.sign(super().__call__(ob))

    report = checked(policy=Saturated())
    assert ("limits", "") in found(report)
    assert report.verdict in ("warnings", "fails")


def test_a_refusal_is_a_finding(checked):
    report = checked(on("camera", lambda x: x.astype(np.float32)))
    assert ("refused", "") in found(report)


def test_without_statistics_it_says_so(checked):
    report = checked(on("joints", np.rad2deg), known=TrainingObservations({}, ""))
    assert any("give --training FILE" in f.words for f in report.findings)
    assert ("units", "joints") not in found(report)


def test_each_demo_is_an_episode_with_its_instruction(tmp_path, training):
    path = written(tmp_path / "told.hdf5", seed=1, demos=2, attrs={"language": "push"})
    schema = replace(SCHEMA, languages=("push",))
    for lang, options in (("push", {}), ("pull", {"lang": "pull"})):
        policy = Expert()
        with DatasetFile(path) as file:
            check(policy, schema, file, file.demos(), training, **options)
        assert policy.langs == [lang] * 3  # the first for the warm-up


def test_it_is_json(checked):
    told = json.loads(json.dumps(checked(policy=Expert(gain=-1.0)).to_dict()))
    assert (told["verdict"], told["findings"][-1]["level"]) == ("fails", "problem")
    assert told["actions"]["worst_step"]["demo"].startswith("demo_")


@pytest.mark.parametrize(
    ("wrong", "words"), [(True, "'left' and 'right' look exchanged"), (False, None)]
)
def test_exchanged_observations_are_found_by_what_the_policy_makes_of_them(checked, wrong, words):
    class Follows(Expert):
        def __call__(self, ob):
            return (1 if wrong else 3) * np.tanh(ob["left"][:2]).astype(np.float64)

    def change(obs, actions):
        other, mine = np.sin(np.arange(90)).reshape(30, 3), obs["joints"]
        left, right = (other, mine) if wrong else (mine, other)
        return {"left": left, "right": right, "camera": obs["camera"]}, actions

    keys = {key: ObservedKey((3,)) for key in ("left", "right")}
    nothing = TrainingObservations({}, "the file")
    report = checked(change, Follows(), replace(SCHEMA, observations=keys), nothing)
    told = [entry.words for entry in report.findings if entry.kind == "exchanged"]
    assert len(told) == wrong and all(entry.startswith(words) for entry in told)
    assert report.errors.overall > 1


# ---- by hand -------------------------------------------------------------------------------------


def predictions(*pairs):
    """Recorded and predicted actions of some demos."""
    made = [(np.array(a, float), np.array(b, float)) for a, b in pairs]
    demos = [CheckedDemo(f"d{n}", {}, recorded) for n, (recorded, _) in enumerate(made)]
    return Predictions(demos, [predicted for _, predicted in made], 1.0, np.ones(3))


def test_errors_of_actions_by_hand():
    first = ([[0, 0, 7], [2, 0.01, 7]], [[1, 0, 7], [2, 0.01, 8]])
    second = ([[4, 0, 7], [2, 0.01, 7]], [[4, 0, 7], [5, 0.01, 7]])
    errors = ActionErrors(predictions(first, second), ["x", "y", "z"])
    assert errors.mean.tolist() == [1.0, 0.0, 0.25]
    assert errors.p95 == pytest.approx([1 + 0.85 * 2, 0, 0.85])  # between the third and the fourth
    assert errors.std == pytest.approx([2**0.5, 0.005, 0])
    assert errors.constant == pytest.approx([1.0, 0.005, 0])
    # The second number varies by less than a hundredth of the first, the third never.
    np.testing.assert_array_equal(errors.relative, [1.0, np.nan, np.nan])
    assert (errors.overall, errors.worst_demo, errors.worst_step) == (1.0, "d1", ("d1", 1, 0))
    told = errors.to_dict()
    assert told["relative"] == [1.0, None, None] and told["overall"] == 1.0
    assert told["worst_step"] == {"demo": "d1", "step": 1, "dimension": 0}
    assert errors.findings(1.0) == []
    (finding,) = errors.findings(0.99)
    assert (finding.level, finding.kind) == (Severity.problem, "actions")
    assert finding.words.startswith("the policy's action error is 1.00 times that of the best")


def test_a_number_with_larger_errors_than_a_constant_is_a_warning():
    recorded = [[0, 0], [2, 2]]
    errors = ActionErrors(predictions((recorded, [[0, 1.5], [2, 3]])), ["x", "y"])
    assert errors.relative.tolist() == [0.0, 1.25] and errors.overall == 0.625
    for tolerance in (0.7, 1.0, 1.24):
        (finding,) = errors.findings(tolerance)
        assert (finding.level, finding.words.partition(" have")[0]) == (
            Severity.warning,
            "actions[1 (y)]",
        )
    assert errors.findings(1.25) == []


def test_actions_that_never_vary_are_not_judged():
    errors = ActionErrors(predictions(([[1.0], [1.0]], [[5.0], [5.0]])))
    assert np.isnan(errors.overall) and errors.to_dict()["overall"] is None
    assert errors.findings(1.0) == []


@pytest.mark.parametrize(
    ("acted", "low", "found"),
    [
        ([0, 0, 0, 1, 1], -1, True),  # two of five steps, and none of the demos'
        ([0, 0, 0, 0, 1], -1, False),  # a fifth
        ([0, 0, 0, -1, 1], -1, True),
        ([0, 0, 0, 1 - 1e-6, 1], -1, True),
        ([0, 0, 0, 1 - 1e-5, 1], -1, False),
        ([0, 0, 0, 1, 1], -np.inf, True),
    ],
)
def test_limits_that_only_the_policy_reaches(acted, low, found):
    made = predictions((np.zeros((5, 2)), np.column_stack([np.zeros(5), acted])))
    told = limit_findings(made, np.array([-9.0, low]), np.array([9.0, 1.0]), names=["x", "y"])
    assert [entry.level for entry in told] == [Severity.warning] * found
    if found:
        assert told[0].words.endswith("of the steps: dimension 1 (y): 40%, demos 0%")
    same = predictions((np.ones((5, 1)), np.ones((5, 1))))
    assert limit_findings(same, np.array([-1.0]), np.array([1.0])) == []


@pytest.mark.parametrize(
    ("dtype", "each"), [(np.uint8, 256 + 72 + 192), (np.float32, 256 + 72 + 4 * 192)]
)
def test_the_memory_of_a_comparison(tmp_path, monkeypatch, dtype, each):
    obs = {"v": np.zeros((4, 3)), "depth": np.zeros((4, 12, 16, 1), dtype)}
    write_demos(tmp_path / "a.hdf5", [episode(4, obs), episode(4, obs)])
    claimed = []
    monkeypatch.setattr(deploy_check, "check_room", lambda *given: claimed.append(given[1]))
    with DatasetFile(tmp_path / "a.hdf5") as file:
        check_memory(file, file.demos(), ["obs/v", "obs/depth", "obs/none"])
    assert claimed == [8 * each]


@pytest.mark.parametrize(
    ("policy_hz", "file_hz", "level"),
    [
        (20.0, 20.2, None),
        (20.0, 19.8, None),
        (20.0, 20.3, Severity.problem),
        (20.0, 19.7, Severity.problem),
        (None, 20.0, Severity.note),
    ],
)
def test_rates(checked, policy_hz, file_hz, level):
    report = checked(schema=replace(SCHEMA, rate_hz=policy_hz), rate=file_hz)
    assert [found.level for found in report.findings if found.kind == "rate"] == (
        [level] if level else []
    )
    assert report.rate_hz == (policy_hz or file_hz)


def test_predictions_of_each_observation_and_their_durations(monkeypatch):
    calls = []

    class Policy:
        def start_episode(self, lang):
            calls.append(lang)

        def __call__(self, obs):
            calls.append(obs["x"])
            return [obs["x"], 2 * obs["x"]]

    moments = iter([0.0, 0.5, 1.0, 1.002, 2.0, 2.003, 3.0, 3.004])
    monkeypatch.setattr(deploy_check.time, "perf_counter", lambda: next(moments))
    demos = [
        CheckedDemo("a", {"x": np.array([1, 2])}, np.zeros((2, 2)), "lift"),
        CheckedDemo("b", {"x": np.array([3])}, np.zeros((1, 2)), None),
    ]
    made = deploy_check.predict(Policy(), demos)
    assert calls == ["lift", 1, "lift", 1, 2, None, 3]
    assert [actions.tolist() for actions in made.actions] == [[[1, 2], [2, 4]], [[3, 6]]]
    assert made.first_ms == 500.0
    assert made.calls_ms == pytest.approx([2.0, 3.0, 4.0])
    assert made.demos == demos


def test_a_single_demo_is_checked(tmp_path, training):
    path = written(tmp_path / "one.hdf5", seed=1, demos=1, change=on("camera", lambda x: x[:, :4]))
    with DatasetFile(path) as file:
        report = check(Expert(), SCHEMA, file, file.demos(), training)
    assert ("shape", "camera") in found(report) and report.demos == ["demo_0"]
