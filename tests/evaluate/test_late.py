"""Late predictions, control step by control step."""

import types
from functools import partial

import numpy as np
import pytest

from imitate.errors import UserError
from imitate.evaluate.episodes import LatePolicy
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.evaluate.result import EpisodeResult, EvalResult
from imitate.evaluate.settings import Lateness
from tests.deploy.policies import observations, policy_of

META = {"type": 2, "env_kwargs": {"control_freq": 20}}


class Clock:
    """Plans (step, ...) from the step that it saw."""

    history = 1
    control_freq = 20.0
    limits = (np.array([-100.0]), np.array([100.0]))

    def __init__(self, size=8, execute=4):
        execution = types.SimpleNamespace(size=size, execute=execute)
        self.algo = types.SimpleNamespace(execution=execution)
        self.size, self.asked = size, []

    def predict_chunk(self, history, planned=None, delay=0, guidance=None):
        self.asked.append((int(history[-1]["step"]), planned, delay, guidance))
        return (float(history[-1]["step"]) + np.arange(self.size))[:, None]


def acted(policy, steps):
    return [policy({"step": np.array(step)}).item() for step in range(1, steps + 1)]


def test_without_delay_synchronous_inference_is_receding_horizon():
    policy = Clock()
    assert acted(LatePolicy(policy, Lateness(0.0), META), 9) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [step for step, *_ in policy.asked] == [1, 5, 9]


def test_a_synchronous_robot_rests_while_it_waits():
    # 100 ms at 20 Hz are two steps: rest, rest, four actions of what was seen at step 1, rest, rest ...
    late = LatePolicy(Clock(), Lateness(100.0), META)
    assert acted(late, 12) == [0, 0, 1, 2, 3, 4, 0, 0, 7, 8, 9, 10]


def test_an_asynchronous_robot_rests_only_at_the_beginning():
    actions = acted(LatePolicy(Clock(), Lateness(100.0, "rtc"), META), 16)
    assert actions[:2] == [0, 0]
    assert 0 not in actions[2:]
    # The world has gone on for two steps when the first chunk begins, and never again.
    assert actions[2:] == [1, 2, 3, 4, 5, 6, *actions[8:]]
    assert actions[8:] == sorted(actions[8:])


@pytest.mark.parametrize(("inference", "guidance"), [("rtc-vjp", "vjp"), ("prefix", "prefix")])
def test_a_prediction_knows_what_is_planned_and_how_much_of_it_will_be_executed(
    inference, guidance
):
    policy = Clock()
    policy.max_prefix = 2
    acted(LatePolicy(policy, Lateness(100.0, inference), META), 8)
    (_, first, *_), (step, planned, delay, given) = policy.asked[:2]
    assert first is None
    assert (step, planned[:2, 0].tolist(), delay, given) == (7, [5, 6], 2, guidance)


def test_a_part_of_a_step_counts_as_a_step():
    assert acted(LatePolicy(Clock(), Lateness(51.0), META), 3) == [0, 0, 1]
    assert acted(LatePolicy(Clock(), Lateness(50.0), META), 3) == [0, 1, 2]


def test_a_delay_beyond_the_chunk_is_refused():
    with pytest.raises(UserError, match="delay of 8 control steps is longer than the chunk of 8"):
        LatePolicy(Clock(), Lateness(400.0, "async"), META)
    LatePolicy(Clock(), Lateness(400.0, "sync"), META)


def test_the_rate_has_to_be_known():
    policy = Clock()
    policy.control_freq = None
    LatePolicy(policy, Lateness(10.0), META)
    with pytest.raises(UserError, match="neither the checkpoint nor the environment contains"):
        LatePolicy(policy, Lateness(10.0), {"type": 2})


def test_a_robosuite_gripper_keeps_its_command_while_the_robot_rests():
    assert acted(LatePolicy(Clock(), Lateness(100.0), {**META, "type": 1}), 8)[6:] == [4, 4]


def test_a_policy_that_is_not_trained_for_the_delay_is_refused():
    with pytest.raises(UserError, match=r"flow_policy is not trained .* algo.prefix.max_delay"):
        LatePolicy(policy_of("flow_policy/flow_policy"), Lateness(100.0, "prefix"), META)
    with pytest.raises(UserError, match="act is not trained .* flow_policy and diffusion_policy"):
        LatePolicy(policy_of("act/act"), Lateness(100.0, "prefix"), META)
    trained = policy_of("flow_policy/flow_policy", **{"algo.prefix.max_delay": 2})
    LatePolicy(trained, Lateness(100.0, "prefix"), META)
    with pytest.raises(UserError, match="delay of 3 control steps .*max_delay 2"):
        LatePolicy(trained, Lateness(101.0, "prefix"), META)


def test_the_number_of_executed_actions_can_be_chosen():
    policy = Clock()
    acted(LatePolicy(policy, Lateness(0.0, execute=3), META), 7)
    assert [step for step, *_ in policy.asked] == [1, 4, 7]


def test_a_prediction_begins_when_its_delay_is_all_that_is_planned():
    """The first chunk of eight arrives at step 3; of it two actions are left at step 9."""
    policy = Clock()
    acted(LatePolicy(policy, Lateness(100.0, "rtc", execute=100), META), 12)
    assert [step for step, *_ in policy.asked] == [1, 9]


def test_only_asynchronous_chunks_are_blended():
    for inference, whole in (("async", False), ("rtc", True)):
        actions = acted(LatePolicy(Clock(), Lateness(100.0, inference), META), 12)
        assert all(action == int(action) for action in actions) is whole


@pytest.mark.parametrize(("latency_ms", "steps"), [(50.0 + 1e-9, 1), (50.00001, 2)])
def test_a_rounding_error_is_no_further_step(latency_ms, steps):
    assert acted(LatePolicy(Clock(), Lateness(latency_ms), META), 3).count(0) == steps


def test_a_policy_of_single_actions_is_late_with_each():
    policy = Clock(size=1)
    policy.algo.execution = None
    assert acted(LatePolicy(policy, Lateness(50.0), META), 4) == [0, 1, 0, 3]
    LatePolicy(policy, Lateness(0.0, "async"), META)
    with pytest.raises(UserError, match="delay of 1 control steps .* chunk of 1 actions"):
        LatePolicy(policy, Lateness(50.0, "async"), META)


def test_chunks_are_counted():
    late = LatePolicy(Clock(), Lateness(100.0, "async"), META)
    acted(late, 9)
    assert (late.counts.accepted, late.counts.empty) == (2, 2)


@pytest.mark.parametrize("inference", ["sync", "async", "rtc", "rtc-vjp", "prefix"])
def test_a_flow_policy_acts_late(inference):
    policy = policy_of("flow_policy/flow_policy", **{"algo.prefix.max_delay": 3})
    late = LatePolicy(policy, Lateness(100.0, inference), META)
    actions = np.array([late(ob) for ob in observations(policy, 20)])
    assert actions.shape == (20, 7)
    assert np.isfinite(actions).all()
    assert (actions[:2] == 0).all()


def test_a_result_names_the_delay_and_lockstep_is_refused():
    failed = EpisodeResult(0, 0, False, 0.0, 0, False, error="broken")
    made = partial(EvalResult, "env", None, (failed,), 1, 10, 0, "processes", 1, 0.0)
    late = made(late=Lateness(100.0, "rtc")).to_dict()
    assert (late["latency_ms"], late["inference"]) == (100.0, "rtc")
    assert "latency_ms" not in made().to_dict()
    with pytest.raises(UserError, match="without delay"):
        evaluate("no.pth", settings=EvalSettings(episodes=1, mode="vector", late=Lateness(100.0)))
