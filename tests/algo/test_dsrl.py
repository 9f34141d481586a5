"""DSRL on a frozen flow whose velocity is a constant c: chunks are the noise plus c, so that losses are by hand."""

import math

import pytest
import torch

from imitate.policy.checkpoint import checkpoint_dict
from tests.tiny import tiny_algo

NOISE_LIMIT = 1.5


def frozen(constant=0.0):
    """A flow policy of chunks of two actions, whose chunk is its noise plus a constant."""
    horizon = {"observation_horizon": 1, "action_horizon": 2, "prediction_horizon": 2}
    train = {"frame_stack": 1, "seq_length": 2}
    base = tiny_algo("flow_policy", obs={"s": 1}, algo={"horizon": horizon}, train=train)
    for nets in (base.nets, base.ema.module):
        for parameter in nets["policy"].network.parameters():
            parameter.data.zero_()
        last = [x for x in nets["policy"].network.modules() if isinstance(x, torch.nn.Linear)][-1]
        last.bias.data.fill_(constant)
    return checkpoint_dict(base, env_metadata={}, shape_metadata={})


@pytest.fixture
def make(worlds):
    def made(constant=0.0, hidden=(), steps=1, **section):
        critic = {"layer_norm": False, **section.pop("critic", {})}
        section = {"n_step": 2, "noise": {"steps": steps}, "critic": critic, **section}
        algo = worlds.make_algo("dsrl", section, hidden=hidden)
        algo.base.adopt(frozen(constant), algo.preprocess)
        return algo

    return made


def transitions(worlds):
    """Chunks (1, 0.5), which goes on, and (-1, 0), which ends."""
    chunk = torch.tensor([[1.0, 0.5], [-1.0, 0.0]])
    return worlds.two_transitions(chunk=chunk, valid=torch.ones(2))


def set_noise(algo, mean, log_std=-30.0):
    """Let the noise be ``1.5 tanh(mean)``, with a standard deviation before the tanh."""
    head = algo.nets["actor"].head
    for layer, value in ((head.mean, mean), (head.scale, log_std)):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.constant_(layer.bias, value)


def test_targets_are_the_least_value_of_the_frozen_chunk_from_the_actors_noise(make, worlds):
    algo = make(constant=0.1)
    set_noise(algo, math.atanh(0.2))  # noise 0.3: both actions are 0.4
    worlds.set_critic(algo.nets["critic_target"], (1, 1, 2), (0, 9, 9))
    worlds.set_critic(algo.nets["critic"], (0, 1, 2), (0, 0, 4))
    batch = transitions(worlds)
    found = worlds.losses(algo, batch)
    first = 1 + 0.5 * min(4 + 3 * 0.4, 18 * 0.4)
    assert found["Q_Targets"] == pytest.approx((first + 0.5) / 2, rel=1e-5)
    errors = [2 * (2 - first) ** 2, (-1 - 0.5) ** 2 + (0 - 0.5) ** 2]
    assert found["Critic_Loss"] == pytest.approx(sum(errors) / 2, rel=1e-5)
    found = worlds.losses(algo, {**batch, "valid": torch.tensor([1.0, 0.0])})
    assert found["Critic_Loss"] == pytest.approx(errors[0], rel=1e-5)


def test_critics_of_the_noise_learn_the_values_of_its_chunks(make, worlds):
    algo = make(constant=0.1)
    worlds.set_critic(algo.nets["critic"], (0, 1, 2), (1, 0, 4))
    worlds.set_critic(algo.nets["noise_critic"], (0, 2), (1, 1))
    torch.manual_seed(0)
    found = worlds.losses(algo, transitions(worlds))
    torch.manual_seed(0)
    torch.randn(2, 1)  # the noise of the target's actor
    noise = torch.randn(2, 1)
    action, state = (noise + 0.1).clamp(-1, 1), torch.tensor([[1.0], [2.0]])
    errors = (2 * noise - 3 * action).square() + (state + noise - state - 4 * action).square()
    assert found["Noise_Critic_Loss"] == pytest.approx(errors.mean().item(), rel=1e-5)


def test_the_error_is_the_distance_of_the_mean_noises_chunk_from_the_datas(make, worlds):
    algo = make(constant=0.1)
    set_noise(algo, math.atanh(0.2))  # both actions are 1.5 * 0.2 + 0.1 = 0.4
    found = worlds.losses(algo, transitions(worlds))  # chunks (1, 0.5) and (-1, 0)
    assert found["Action_Error"] == pytest.approx((0.6 + 0.1 + 1.4 + 0.4) / 4, rel=1e-4)


def test_gradients_of_actor_and_temperature(make, worlds):
    """Without entropy the noise rises with the smaller critic; with it the temperature falls above its target."""
    algo = make(temperature={"initial": 1e-9, "tuned": False})
    set_noise(algo, math.atanh(0.2))
    worlds.set_critic(algo.nets["noise_critic"], (0, 2), (9, 3))
    assert worlds.gradients(algo, transitions(worlds))["Entropy"] < -10.0  # hardly any
    slope = algo.nets["actor"].head.mean.bias.grad.item()
    assert slope == pytest.approx(-2 * NOISE_LIMIT * (1 - 0.2**2), rel=1e-4)
    assert all(p.grad is None for p in algo.base.parameters())

    algo = make(temperature={"initial": 0.5, "target_entropy": -3.0})
    set_noise(algo, 0.0, log_std=0.0)
    found = worlds.gradients(algo, transitions(worlds))
    grad = algo.nets["temperature"].log.grad.item()
    assert grad == pytest.approx(found["Entropy"] + 3.0, rel=1e-5) and grad > 0
    # with critics that do not care, the noise becomes wider
    worlds.set_critic(algo.nets["noise_critic"], (0, 0), (0, 0))
    set_noise(algo, 0.0, log_std=-1.0)
    worlds.gradients(algo, transitions(worlds))
    assert algo.nets["actor"].head.scale.bias.grad.item() < -0.1
    # the entropy is of noise in units of its limit: at most that of a uniform number from -1 to 1
    assert found["Entropy"] < 2.0 and found["Temperature"] == pytest.approx(0.5)


def test_the_target_of_the_entropy_is_minus_the_size_of_the_noise(make):
    algo = make(steps=2, temperature={"target_entropy": None})
    assert algo.entropy.target.item() == -2.0  # two steps of one number


def test_errors_of_cut_chunks_do_not_count(make, worlds):
    algo = make()
    batch = {
        "obs": {"s": torch.zeros(3, 2, 1)},
        "next_obs": {"s": torch.zeros(3, 1, 1)},
        "actions": torch.zeros(3, 2, 1),
        "chunk": torch.arange(6.0).view(3, 2, 1),
        "chunk_mask": torch.tensor([[True, True], [True, False], [True, False]]),
        "n_step_rewards": torch.zeros(3),
        "rewards": torch.zeros(3, 2),
        "discounts": torch.tensor([0.25, 0.5, 0.0]),  # the second ends by a timeout
    }
    found = algo.process_batch_for_training(batch)
    assert found["valid"].tolist() == [1, 0, 1] and found["chunk"].tolist()[2] == [4, 5]


def test_it_executes_whole_chunks_of_its_mean_noise(make):
    algo = make(constant=0.1, steps=2)
    bias = algo.nets["actor"].head.mean.bias
    set_noise(algo, 0.0)
    bias.data = torch.tensor([0.2, -0.4]).atanh()
    algo.set_eval()
    state, obs = algo.initial_state(1), {"s": torch.zeros(1, 1)}
    for wanted in (1.5 * 0.2 + 0.1, -1.5 * 0.4 + 0.1, 1.5 * 0.2 + 0.1):
        step = algo.act(obs, state)
        assert step.action.item() == pytest.approx(wanted, abs=1e-5)
        state = step.state
    bias.data = bias.data.flip(0)
    assert algo.act(obs, state).action.item() == pytest.approx(-0.5, abs=1e-5)  # the plan goes on
    again = algo.act(obs, algo.cut_plan(state)).action.item()
    assert again == pytest.approx(-1.5 * 0.4 + 0.1, abs=1e-5)


def test_a_serialized_one_needs_no_file(make, worlds):
    first, second = make(constant=0.3), make()
    set_noise(first, 0.2)
    second.deserialize(first.serialize())
    assert worlds.action_in(second, 1) == worlds.action_in(first, 1)


@pytest.mark.slow("it learns until the better kind is found")
def test_it_finds_the_noise_of_the_better_of_two_kinds_of_chunks(make, worlds):
    """Chunks near 1 are worth 1, all others nothing; the frozen policy, whose chunk is its noise, makes both."""
    algo = make(hidden=(32,), steps=1)
    for name in ("critic", "noise_critic", "actor", "temperature"):
        algo.optimizers[name].param_groups[0]["lr"] = 1e-2
    generator = torch.Generator().manual_seed(0)
    chunk = (torch.randn(256, 2, generator=generator)).clamp(-1, 1)
    state = {"s": torch.ones(256, 1)}
    batch = {
        **{"obs": state, "next_obs": state, "goal_obs": None, "weight": None},
        **{"chunk": chunk, "valid": torch.ones(256), "discounts": torch.zeros(256)},
        **{"rewards": (chunk.amin(1) > 0.5).float(), "actions": chunk[:, :1]},
    }

    def mean():
        return sum(worlds.action_in(algo, 1) for _ in range(20)) / 20

    assert worlds.learns(algo, batch, 500, lambda: mean() > 0.6)
