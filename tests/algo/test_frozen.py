"""A policy inside an algorithm: in whatever units, with its memory, as it would act by itself."""

import math

import pytest
import torch

from imitate.algo.base.chunk_policy import denoised
from imitate.algo.slots.frozen import FrozenPolicy
from imitate.errors import CheckpointError
from imitate.models.preprocess import Preprocess
from imitate.policy.checkpoint import checkpoint_dict
from tests.tiny import tiny_algo


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


STEERABLE = [
    ("flow_policy", {}),
    ("diffusion_policy", {"ddpm": {"enabled": False}, "ddim": {"enabled": True}}),
]


@pytest.mark.parametrize(("name", "section"), STEERABLE)
def test_chunks_from_noise_are_those_of_the_policy_in_its_own_units(name, section):
    algo = tiny_algo(name, obs={"s": 1}, algo=section)
    algo.set_eval()
    policy, around = FrozenPolicy(1, steered=4), units(action=(0.0, 2.0))
    policy.adopt(checkpoint(algo), around)
    seen, generator = torch.tensor([[0.3], [-1.0]]), torch.Generator().manual_seed(0)
    own = algo.predict_chunk({"s": seen[None]}, None, generator)
    noise = torch.randn(1, 16, 1, generator=torch.Generator().manual_seed(0))
    made = policy.from_noise({"s": seen[None]}, noise, around, frames=2)
    torch.testing.assert_close(made, (own[:, :4] / 2).clamp(-1, 1))
    # one frame is repeated, and a noise vector serves an equal part of the chunk
    made = policy.from_noise({"s": seen[:1]}, noise[:, :2], around, frames=1)
    repeated = noise[:, :2].repeat_interleave(8, dim=1)
    steps = algo.denoising_steps({"s": seen[[0, 0]][None]}, None)
    own = algo.from_prediction(denoised(steps, repeated))
    torch.testing.assert_close(made, (own[:, :4] / 2).clamp(-1, 1))


def test_a_policy_that_acts_with_ddpm_makes_chunks_from_noise_with_ddim():
    section = {"ddpm": {"num_train_timesteps": 20, "num_inference_timesteps": 20}}
    algo = tiny_algo("diffusion_policy", obs={"s": 1}, algo=section)
    obs, noise = {"s": torch.zeros(1, 2, 1)}, torch.randn(1, 16, 1)
    first, second = (denoised(algo.denoising_steps(obs, None), noise) for _ in range(2))
    assert torch.equal(first, second) and len(algo.deterministic_sampler.timesteps) == 5


@pytest.mark.parametrize(
    ("name", "steered", "words"),
    [
        ("bc", 4, "a policy of bc makes no actions from noise"),
        (
            "flow_policy",
            16,
            "the policy of flow_policy predicts 15 actions, but algo.n_step is 16: lower it",
        ),
    ],
)
def test_a_policy_that_cannot_be_steered_is_refused(name, steered, words):
    algo = tiny_algo(name, obs={"s": 1})
    with pytest.raises(CheckpointError, match=words):
        FrozenPolicy(1, steered=steered).adopt(checkpoint(algo), units())


@pytest.mark.parametrize(
    ("around", "words"),
    [
        (units(key="t"), "the policy of bc sees s: list these in observation.modalities"),
        (units(action_dim=2), "gives actions of 1 numbers, here they have 2"),
    ],
)
def test_a_policy_of_something_else_is_refused(linear, around, words):
    with pytest.raises(CheckpointError, match=words):
        FrozenPolicy(1).adopt(checkpoint(linear), around)
