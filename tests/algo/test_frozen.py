"""A policy inside an algorithm: in whatever units, with its memory, as it would act by itself."""

import math

import pytest
import torch

from imitate.algo.slots.frozen import FrozenPolicy
from imitate.errors import CheckpointError
from imitate.models.preprocess import Preprocess
from imitate.policy.checkpoint import checkpoint_dict


def units(obs=(0.0, 1.0), action=(0.0, 1.0), action_dim=1, key="s"):
    """A preparation of one observation, by offset and scale."""
    obs, action = (tuple(map(torch.tensor, pair)) for pair in (obs, action))
    low_dim = {key: (obs[0][None], obs[1][None])}
    actions = tuple(x.expand(action_dim) for x in action)
    return Preprocess(
        {key: (1,)}, {key: "low_dim"}, {"actions": action_dim}, low_dim, {"actions": actions}
    )


def checkpoint(algo):
    return checkpoint_dict(algo, env_metadata={}, shape_metadata={})


@pytest.fixture
def linear(worlds):
    """BC that does tanh(2 x) of what it sees."""
    algo = worlds.make_algo("bc")
    worlds.set_actor(algo.nets["policy"], 2.0)
    return algo


def act(policy, value, around):
    obs = {"s": torch.tensor([[value]])}
    return policy.act(obs, policy.initial_state(1), around)[0].item()


def test_it_sees_and_acts_in_its_own_units(linear):
    linear.preprocess = units(obs=(2.0, 4.0), action=(0.5, 0.25))
    around = units(obs=(1.0, 2.0), action=(0.0, 2.0))
    policy = FrozenPolicy(1)
    policy.adopt(checkpoint(linear), around)
    # Around it 0.5 means 2, which is 0 to the policy; 1.5 means 4, which is 0.5.
    assert act(policy, 0.5, around) == pytest.approx(0.5 / 2)
    assert act(policy, 1.5, around) == pytest.approx((0.5 + 0.25 * math.tanh(1.0)) / 2)
    # In units of 0.1 its action is beyond the limits.
    assert act(policy, 0.5, units(obs=(1.0, 2.0), action=(0.0, 0.1))) == 1.0


def test_an_empty_one_becomes_what_the_weights_say(linear):
    linear.preprocess = units(obs=(2.0, 4.0))
    first, second = FrozenPolicy(1), FrozenPolicy(1)
    first.adopt(checkpoint(linear), units())
    assert act(second, 3.0, units()) == 0.0
    second.load_state_dict(first.state_dict())
    assert act(second, 3.0, units()) == act(first, 3.0, units()) == pytest.approx(math.tanh(0.5))


def test_it_stays_as_it_is(linear):
    policy = FrozenPolicy(1)
    policy.adopt(checkpoint(linear), units())
    policy.train()
    assert not any(p.requires_grad for p in policy.parameters())
    assert not any(module.training for module in policy.modules())


def test_averaged_weights_act_where_there_are_such(worlds):
    algo = worlds.make_algo("bc", {"ema": {"enabled": True}})
    worlds.set_actor(algo.nets["policy"], 1.0)
    worlds.set_actor(algo.ema.module["policy"], 3.0)
    policy = FrozenPolicy(1)
    policy.adopt(checkpoint(algo), units())
    assert act(policy, 0.25, units()) == pytest.approx(math.tanh(0.75))
    copy = FrozenPolicy(1)
    copy.load_state_dict(policy.state_dict())
    assert act(copy, 0.25, units()) == pytest.approx(math.tanh(0.75))


def test_a_memory_is_kept_from_step_to_step_and_read_from_frames(worlds):
    rnn = {"enabled": True, "hidden_dim": 4, "horizon": 4}
    algo = worlds.make_algo("bc", {"rnn": rnn}, seq_length=4)
    algo.set_eval()
    policy = FrozenPolicy(1)
    policy.adopt(checkpoint(algo), units())
    seen = torch.tensor([[1.0], [-2.0], [3.0]])
    state, decided = policy.initial_state(1), []
    for value in seen:
        action, state = policy.act({"s": value[None]}, state, units())
        decided.append(action.item())
        assert action.item() == pytest.approx(algo.get_action({"s": value[None]}).item(), abs=1e-6)
    assert len(set(decided)) == 3
    afresh = policy.act_afresh({"s": seen[None]}, units(), frames=3)
    assert afresh.item() == pytest.approx(decided[-1], abs=1e-6)
    alone = policy.act_afresh({"s": seen[-1:]}, units(), frames=1)
    assert alone.item() != pytest.approx(decided[-1], abs=1e-4)


@pytest.mark.parametrize(
    ("around", "words"),
    [
        (units(key="t"), "the policy of bc sees s: list that in observation.modalities"),
        (units(action_dim=2), "gives actions of 1 numbers, here they have 2"),
    ],
)
def test_a_policy_of_something_else_is_refused(linear, around, words):
    with pytest.raises(CheckpointError, match=words):
        FrozenPolicy(1).adopt(checkpoint(linear), around)
