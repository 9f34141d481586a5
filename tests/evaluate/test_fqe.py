"""Fitted Q evaluation against values that can be worked out, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from imitate import policy_from_checkpoint
from imitate.cli.eval_offline import checkpoints_of
from imitate.data import DatasetWriter, Episode
from imitate.errors import CheckpointError, DatasetError
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from imitate.train import fqe
from imitate.train.fqe import (
    SAMPLES,
    Answers,
    FQEPlan,
    RecordedTransitions,
    answers_of,
    evaluate_checkpoint,
    fitted_q_evaluation,
    open_data,
    ranked,
    refuse_memory,
)
from tests.calling import call
from tests.tiny import tiny_algo

DISCOUNT = 0.9
PLAN = FQEPlan(updates=100, batch_size=64, members=3)
IN_THE_PRODUCT = fqe.HIDDEN, fqe.LEARNING_RATE, fqe.TARGET_RATE, fqe.ROWS, fqe.SAMPLES
ENV_META = {"env_name": "Line", "type": 2, "env_kwargs": {}}


@pytest.fixture(autouse=True)
def fast_learning(monkeypatch):
    """Values that take thousands of updates in the product are there after a hundred."""
    monkeypatch.setattr(fqe, "HIDDEN", (64,))
    monkeypatch.setattr(fqe, "LEARNING_RATE", 1e-2)
    monkeypatch.setattr(fqe, "TARGET_RATE", 0.2)


def test_settings_of_the_product():
    numbers = ((128, 128), 1e-3, 0.02, 1024, 8)
    assert numbers == IN_THE_PRODUCT
    assert FQEPlan() == FQEPlan(5000, 256, 5, 0)


def test_intervals_are_two_deviations_of_the_members():
    found = fqe.FQEResult((1.0, 3.0), 0.0, behind=(0.5,))
    assert (found.value, found.behind_interval) == (2.0, (0.5, 0.5))
    assert found.interval == pytest.approx((2.0 - 2.0 * 2**0.5, 2.0 + 2.0 * 2**0.5))


def recorded_bandit(discounts=0.0):
    """One state, actions uniform in [-1, 1], reward 1 - |a|; what follows is the same state."""
    actions = torch.linspace(-1, 1, 400)[:, None]
    rows = len(actions)
    state = torch.zeros(rows, 1)
    return RecordedTransitions(
        states=state,
        next_states=state,
        actions=actions,
        rewards=1.0 - actions[:, 0].abs(),
        discounts=torch.full((rows,), discounts),
        weights=torch.ones(rows),
        demo=torch.arange(rows) // 20,
        first=torch.arange(0, rows, 20),
        action_offset=torch.zeros(1),
        action_scale=torch.ones(1),
        scale=1.0,
        bounds=(0.0, 1.0 / (1.0 - discounts)),
        demo_return=0.5,
    )


def always(recorded, *actions):
    """A policy that draws one of these actions with equal chances."""
    drawn = torch.tensor(actions).view(1, -1, 1)
    return Answers(
        drawn.expand(len(recorded.states), -1, -1), drawn.expand(recorded.num_demos, -1, -1)
    )


def test_values_of_a_bandit_are_mean_rewards_of_the_actions_that_a_policy_draws():
    recorded = recorded_bandit()
    for actions, value in (((0.25,), 0.75), ((-0.5,), 0.5), ((0.25, 0.75), 0.5)):
        result = fitted_q_evaluation(recorded, always(recorded, *actions), PLAN)
        assert result.value == pytest.approx(value, abs=0.05)


def test_what_goes_on_for_ever_is_worth_the_discounted_sum():
    recorded = recorded_bandit(discounts=0.5)
    good, bad = (
        fitted_q_evaluation(recorded, always(recorded, action), PLAN) for action in (0.2, -0.8)
    )
    assert good.value == pytest.approx(0.8 / (1.0 - 0.5), abs=0.15)
    assert bad.value == pytest.approx(0.2 / (1.0 - 0.5), abs=0.12)
    first, second = ranked([bad, good])
    assert (first.members, second.members) == (good.members, bad.members)
    assert first.behind == (0.0, 0.0, 0.0)
    assert second.behind_interval[0] > 0.8


def test_the_same_seed_gives_the_same_value_and_leaves_the_callers_randomness_alone():
    recorded = recorded_bandit()
    plan = FQEPlan(updates=5, batch_size=8, members=2)
    torch.manual_seed(3)
    first = fitted_q_evaluation(recorded, always(recorded, 0.0), plan)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.rand(1) == after
    assert fitted_q_evaluation(recorded, always(recorded, 0.0), plan) == first


# ---- files and checkpoints -----------------------------------------------------------------------


def line_file(path, *, rewards=True, timeouts=False, scale=1.0, demos=60):
    """A line of states 0 to 3. Action > 0 goes right, else left, not beyond 0; 3 gives ``scale`` and ends the task.

    With ``timeouts`` nothing ends, but the clock after 8 steps; what is given at 3 is given again.
    """
    random = np.random.default_rng(0)
    with DatasetWriter(path, ENV_META) as writer:
        for _ in range(demos):
            state, states, actions, received = 0, [0], [], []
            for _ in range(8 if timeouts else 60):
                action = random.uniform(-1, 1)
                state = min(3, state + 1) if action > 0 else max(0, state - 1)
                states.append(state)
                actions.append([action])
                received.append(scale if state == 3 else 0.0)
                if state == 3 and not timeouts:
                    break
            count = len(actions)
            one_hot = np.eye(4, dtype=np.float32)[states]
            last = np.arange(count) == count - 1
            ended = last & (np.array(received) != 0) & (not timeouts)
            writer.append_episode(
                Episode(
                    obs={"s": one_hot[:-1]},
                    next_obs={"s": one_hot[1:]},
                    actions=np.array(actions, np.float32),
                    rewards=np.array(received, np.float32) if rewards else np.zeros(count),
                    terminals=ended,
                    timeouts=last & ~ended,
                )
            )
    return path


def checkpoint(path, direction, algo=None, **train):
    """A policy that always takes the action ``tanh(direction)``."""
    algo = tiny_algo(obs={"s": 4}, hidden=(), train=train, algo=algo or {})
    linear = getattr(algo.nets["policy"].head, "action", None)
    if linear is not None:
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.constant_(linear.bias, direction)
    save_checkpoint(checkpoint_dict(algo, env_metadata={}, shape_metadata={}), path)
    return path


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    return line_file(tmp_path_factory.mktemp("line") / "line.hdf5")


def value(path, data, plan=PLAN, **more):
    return evaluate_checkpoint(path, data, discount=DISCOUNT, plan=plan, **more)


def test_values_of_a_chain(line, tmp_path):
    """Always right: the third step gives 1, which is worth 0.9^2 at the start. Always left: nothing, ever."""
    right, left = (
        value(checkpoint(tmp_path / f"{name}.pth", direction), line)
        for name, direction in (("right", 1.0), ("left", -1.0))
    )
    assert right.value == pytest.approx(0.81, abs=0.1)
    assert left.value == pytest.approx(0.0, abs=0.1)
    assert [r.checkpoint for r in ranked([left, right])] == [right.checkpoint, left.checkpoint]
    assert left.value < left.demo_return < right.value


def test_values_keep_the_scale_of_rewards(tmp_path):
    data = line_file(tmp_path / "large.hdf5", scale=-50.0)
    assert value(checkpoint(tmp_path / "r.pth", 1.0), data).value == pytest.approx(-40.5, abs=4)


def test_a_timeout_does_not_end_the_rewards(tmp_path):
    """Never ending, always right: 0.9^2 (1 + 0.9 + ...) = 8.1, though no demo is longer than 8 steps."""
    data = line_file(tmp_path / "line.hdf5", timeouts=True)
    found = value(checkpoint(tmp_path / "r.pth", 1.0), data, replace(PLAN, updates=200))
    assert found.value == pytest.approx(8.1, abs=0.9)
    assert found.demo_return < 5.0


def asked(path, data, limit):
    """The policy of a checkpoint; the data, and its answers within these limits."""
    policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=path)
    dataset, recorded = open_data(data, policy, DISCOUNT)
    limits = (torch.tensor(-limit), torch.tensor(limit))
    return policy, dataset, recorded, lambda: answers_of(policy, limits, dataset, recorded)


def test_a_policy_of_several_frames_sees_them_in_order(line, tmp_path):
    """Its first frame is weighed with -2, its newest with 3: where it has just gone right to 1 it goes on."""
    path = checkpoint(tmp_path / "two.pth", 0.0, frame_stack=2)
    policy, dataset, recorded, answers = asked(path, line, 0.7)
    linear = policy.algo.nets["policy"].head.action
    linear.weight.data = torch.tensor([[-2.0, 0, 0, 0, 0, 3.0, 0, 0]])  # was in 0, is in 1
    found = answers()
    batch = dataset[[0]]["next_obs"]["s"][0]
    logit = -2.0 * float(batch[0, 0]) + 3.0 * float(batch[1, 1])
    taken = found.following[0, 0] * recorded.action_scale + recorded.action_offset
    assert float(taken) == pytest.approx(np.clip(np.tanh(logit), -0.7, 0.7), abs=1e-5)
    first = found.first[0, 0] * recorded.action_scale + recorded.action_offset
    assert float(first) == pytest.approx(-0.7, abs=1e-5)  # tanh(-2), clipped


def test_policies_that_are_random_are_asked_several_times(line, tmp_path):
    section = {"gaussian": {"enabled": True, "low_noise_eval": False}}
    path = checkpoint(tmp_path / "g.pth", 0.0, algo=section)
    _, dataset, _, answers = asked(path, line, 1.0)
    following = answers().following
    assert following.shape == (len(dataset), SAMPLES, 1)
    assert torch.equal(following, answers().following)


def test_policies_that_remember_are_refused(line, tmp_path):
    section = {"rnn": {"enabled": True, "hidden_dim": 4, "num_layers": 1, "horizon": 2}}
    path = checkpoint(tmp_path / "rnn.pth", 0.0, algo=section, seq_length=2)
    with pytest.raises(CheckpointError, match="has a memory .rnn, step"):
        value(path, line)


@pytest.mark.parametrize("name", ["td3_bc", "ddpg"])
def test_noise_of_exploration_is_no_memory(name):
    assert refuse_memory(tiny_algo(name, obs={"s": 1}), Path("p.pth")) is None


def test_all_checkpoints_of_the_newest_run_of_a_name(tmp_path):
    last = tmp_path / "name" / "20260102" / "checkpoints" / "last.pth"
    for path in (tmp_path / "name" / "20260101" / "checkpoints" / "epoch_9.pth", last):
        path.parent.mkdir(parents=True)
        (path.parents[1] / "config.json").write_text("{}")
        path.touch()
    for epoch in (10, 2):
        (last.parent / f"epoch_{epoch}.pth").touch()
    found = [last.parent / f"epoch_{epoch}.pth" for epoch in (2, 10)]
    for given in (tmp_path / "name", last.parents[1], last.parent):
        assert checkpoints_of(given) == found
    assert checkpoints_of(last) == [last]
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        checkpoints_of(tmp_path / "empty")


@pytest.mark.parametrize("name", ["flow_policy", "act"])
def test_planned_actions_are_no_memory(name):
    assert refuse_memory(tiny_algo(name, obs={"s": 1}), Path("p.pth")).startswith("p.pth: executes")


def test_hierarchies_remember_their_subgoal():
    with pytest.raises(CheckpointError, match="of hbc has a memory .actor, planner"):
        refuse_memory(tiny_algo("hbc", obs={"s": 1}), Path("p.pth"))


def test_policies_of_chunks_are_judged_by_their_first_actions_and_say_so(line, tmp_path):
    section = {"chunk": {"enabled": True, "size": 4, "execute": 2}}
    path = checkpoint(tmp_path / "chunk.pth", 1.0, algo=section, seq_length=4)
    found = value(path, line)
    assert "executes 2 actions of a chunk" in found.warning
    assert found.value == pytest.approx(0.81, abs=0.1)


def test_rewards_that_are_missing_or_nothing_are_named(line, tmp_path):
    path = checkpoint(tmp_path / "r.pth", 1.0)
    nothing = line_file(tmp_path / "zero.hdf5", rewards=False, demos=3)
    with pytest.raises(DatasetError, match="all rewards are 0"):
        value(path, nothing)
    with h5py.File(nothing, "r+") as file:
        del file["data/demo_0/rewards"]
    with pytest.raises(DatasetError, match="demo_0 has no 'rewards'"):
        value(path, nothing)


def test_the_command_ranks_a_run_folder(line, tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    for epoch, direction in ((1, -1.0), (10, 1.0)):
        checkpoint(folder / f"epoch_{epoch}.pth", direction)
    checkpoint(folder / "last.pth", 0.5)
    out = tmp_path / "out.json"
    words = ("--agent", tmp_path / "run", "--data", line, "--out", out)
    done = call("eval --fqe --updates 40 --discount 0.9", *words)
    rows = json.loads(out.read_text())["fqe"]
    assert len(rows) == 2
    assert rows[-1]["checkpoint"].endswith("epoch_1.pth")
    assert "the demonstrations themselves" in done.output
    done = call("eval --fqe --updates 40 --discount 0.9 --json", *words)
    assert [row["checkpoint"] for row in json.loads(done.stdout)["fqe"]] == [
        row["checkpoint"] for row in rows
    ]
    done = call("eval --fqe --video x.mp4", *words, code=2)
    assert "leave one of them out" in done.output
