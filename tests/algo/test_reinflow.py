"""ReinFlow on a flow of a constant velocity c: each of its four steps adds c / 4, so that densities are by hand."""

import math

import numpy as np
import pytest
import torch

from imitate.functional.policy_gradient import generalized_advantages
from imitate.policy.checkpoint import checkpoint_dict
from tests.tiny import tiny_algo

LOW, HIGH = 0.1, 0.4
STD = 0.2  # their geometric mean


def flow(constant=None, name="flow_policy", hidden=8, **section):
    """A flow policy of chunks of two actions; with a constant velocity, or as it is initialized."""
    horizon = {"observation_horizon": 1, "action_horizon": 2, "prediction_horizon": 2}
    section |= {"horizon": horizon, "mlp": {"enabled": True, "hidden_dim": hidden}}
    train = {"frame_stack": 1, "seq_length": 2}
    base = tiny_algo(name, obs={"s": 1}, algo=section, train=train)
    for nets in (base.nets, base.ema.module) if constant is not None else ():
        for parameter in nets["policy"].network.parameters():
            parameter.data.zero_()
        last_layer(nets["policy"]).bias.data.fill_(constant)
    return base


def last_layer(policy):
    return [x for x in policy.modules() if isinstance(x, torch.nn.Linear)][-1]


def untaught(section, hidden, seed):
    """The algorithm without a policy."""
    train = {"obs_normalization": None, "max_grad_norm": None}
    words = {"hidden": hidden, "seed": seed, "algo": section, "train": train}
    return tiny_algo("reinflow", obs={"s": 1}, **words)


def make(base=None, hidden=(), seed=0, **section):
    """The algorithm on a flow; the noise of each step has the standard deviation 0.2."""
    noise = {"min_std": LOW, "max_std": HIGH}
    section = {"n_step": 2, "noise": noise, "normalize_advantages": False, **section}
    algo = untaught(section, hidden, seed)
    base = flow(0.8) if base is None else base
    algo.base.adopt(checkpoint_dict(base, env_metadata={}, shape_metadata={}), algo.preprocess)
    torch.nn.init.zeros_(algo.noise.last.weight)
    torch.nn.init.zeros_(algo.noise.last.bias)
    return algo


def batch_of(algo, chain, advantages, **more):
    """A minibatch of chains (B, 5, 2, 1) in the states 1, 2 ..., as if they had just been drawn."""
    obs = {"s": torch.arange(1.0, len(chain) + 1)[:, None]}
    with torch.no_grad():
        log_prob = algo.policy_of(obs, chain).log_prob(chain[:, 1:].flatten(1))
    count = len(chain)
    return {
        **{"obs": obs, "actions": chain, "log_prob": log_prob},
        **{"advantages": torch.tensor(advantages), "returns": torch.ones(count)},
        **{"values": torch.zeros(count), **more},
    }


def chains(size, seed=0):
    return torch.randn(size, 5, 2, 1, generator=torch.Generator().manual_seed(seed))


def test_the_density_of_a_chain_is_that_of_its_steps():
    algo, chain = make(), chains(1)
    states = chain[0, :, :, 0].tolist()
    wanted = 0.0
    for before, after in zip(states[:-1], states[1:], strict=True):
        for x, y in zip(before, after, strict=True):
            error = y - (x + 0.8 / 4)
            wanted += -0.5 * (error / STD) ** 2 - math.log(STD * math.sqrt(2 * math.pi))
    batch = batch_of(algo, chain, [1.0])
    assert batch["log_prob"].item() == pytest.approx(wanted, rel=1e-5)


def test_gradients_are_those_of_the_log_density_times_the_advantage(worlds):
    algo, chain = make(), chains(2)
    advantages = [2.0, -1.0]
    info = worlds.gradients(algo, batch_of(algo, chain, advantages))
    assert info["Policy_Loss"] == pytest.approx(-0.5) and info["KL"] == pytest.approx(0.0)
    errors = (chain[:, 1:] - chain[:, :-1] - 0.2)[..., 0]  # (B, S, T)
    weight = torch.tensor(advantages) / 2
    found = last_layer(algo.base).bias.grad
    # each step adds a quarter of the velocity
    wanted = -(weight[:, None] * errors.sum(1) / STD**2 / 4).sum(0)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    # the logarithm of the deviation moves by its range log 4 times 1/4 where its share is 1/2
    slope = ((errors / STD).square() - 1).sum((1, 2))
    wanted = -(weight * slope).sum() * math.log(HIGH / LOW) / 4
    assert algo.noise.last.bias.grad.item() == pytest.approx(wanted.item(), rel=1e-4)


def test_ratios_beyond_the_clip_have_no_gradient(worlds):
    """Ratios 1.5, 1.5, 0.5, 0.5 with advantages 1, -1, 1, -1: the first and the last are clipped."""
    algo, chain = make(clip=0.2), chains(4)
    batch = batch_of(algo, chain, [1.0, -1.0, 1.0, -1.0])
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5])
    batch["log_prob"] -= ratios.log()
    info = worlds.gradients(algo, batch)
    assert info["Policy_Loss"] == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8) / 4, rel=1e-4)
    errors = (chain[:, 1:] - chain[:, :-1] - 0.2)[..., 0].sum(1) / STD**2 / 4
    wanted = -(-1.5 * errors[1] + 0.5 * errors[2]) / 4
    torch.testing.assert_close(last_layer(algo.base).bias.grad, wanted, rtol=1e-4, atol=1e-5)
    divergence = (ratios - 1 - ratios.log()).mean().item()
    assert info["KL"] == pytest.approx(divergence, rel=1e-4) and info["Clip_Fraction"] == 1.0


def test_the_value_learns_returns_alone(worlds):
    algo = make(value_weight=0.5)
    head = algo.nets["value"].head
    head.weight.data.fill_(2.0)
    head.bias.data.zero_()
    info = worlds.gradients(algo, batch_of(algo, chains(2), [0.0, 0.0]))
    assert info["Value_Loss"] == pytest.approx((1 + 9) / 2)  # values 2 and 4, returns 1
    assert head.weight.grad.item() == pytest.approx(0.5 * (2 * 1 * 1 + 2 * 3 * 2) / 2)
    assert last_layer(algo.base).bias.grad.abs().max() < 1e-6


def steps_of(algo, number, obs, explore=True):
    """Decisions of a policy in one environment that always shows the same observation."""
    state, found = algo.initial_state(1), []
    for _ in range(number):
        found.append(algo.act({"s": torch.full((1, 1), obs)}, state, explore=explore))
        state = found[-1].state
    return found


def test_chunks_are_executed_and_their_chains_kept():
    torch.manual_seed(0)
    algo = make()
    found = steps_of(algo, 4, 0.5)
    assert [step.extras["decided"].item() for step in found] == [True, False, True, False]
    for first, second in (found[:2], found[2:]):
        chain = first.extras["policy_action"]
        acted = torch.stack([first.action, second.action], 1)
        torch.testing.assert_close(acted, chain[:, -1].clamp(-1, 1))
        own = batch_of(algo, chain, [0.0])["log_prob"]
        torch.testing.assert_close(first.extras["log_prob"], own)
        assert second.extras["log_prob"].item() == 0 and not second.extras["policy_action"].any()
    torch.manual_seed(1)
    alone = steps_of(algo, 2, 0.5, explore=False)
    torch.manual_seed(1)
    noise = torch.randn(1, 2, 1)
    acted = torch.stack([step.action for step in alone], 1)
    torch.testing.assert_close(acted, (noise + 0.8).clamp(-1, 1))


def test_advantages_are_of_whole_chunks():
    """Six steps: the end of an old chunk, a chunk, and one whose first action ends the episode; then a cut one."""
    algo = make(discount=0.5, trace=0.25)
    head = algo.nets["value"].head
    head.weight.data.fill_(1.0)  # V(s) = s
    head.bias.data.zero_()
    decided = np.array([False, True, False, True, True, False])[:, None]
    rewards = np.array([9.0, 1.0, 2.0, 4.0, 8.0, 16.0], dtype=np.float32)[:, None]
    terminals = np.array([False, False, False, True, False, False])[:, None]
    obs = np.arange(6, dtype=np.float32)[:, None, None]
    rollout = {
        **{"obs": {"s": obs}, "end_obs": {"s": np.array([[6.0]], dtype=np.float32)}},
        **{"end_rows": np.array([5]), "rewards": rewards, "terminals": terminals},
        **{"timeouts": np.zeros_like(terminals), "mask": np.ones_like(terminals)},
        **{"decided": decided, "log_prob": np.zeros((6, 1), dtype=np.float32)},
        "policy_action": np.zeros((6, 1, 5, 2, 1), dtype=np.float32),
    }
    batch = algo.prepare_rollout(rollout)
    third = 4 - 3  # ends
    second = 1 + 0.5 * 2 + 0.25 * 3 - 1 + 0.25 * (0.5**2 * third)
    fourth = 8 + 0.5 * 16 + 0.25 * 6 - 4
    assert batch["advantages"].tolist() == pytest.approx([second, third, fourth])
    assert batch["returns"].tolist() == pytest.approx([second + 1, third + 3, fourth + 4])
    assert batch["obs"]["s"][:, 0].tolist() == [1, 3, 4]


def test_lambda_of_each_step():
    rewards = np.array([[1.0], [2.0]], dtype=np.float32)
    values, following = np.array([[4.0], [5.0]]), np.array([[5.0], [6.0]])
    ends = np.zeros((2, 1), dtype=bool)
    trace = np.array([[0.5], [9.0]])  # nothing follows the last step
    found = generalized_advantages(rewards, values, following, ends, ends, 0.5, trace)
    last = 2 + 3 - 5
    assert found[:, 0].tolist() == [1 + 2.5 - 4 + 0.5 * 0.5 * last, last]


@pytest.mark.parametrize("name", ["flow_policy", "diffusion_policy"])
def test_a_restored_one_learns_on_without_the_file(name):
    off = {"unet": {"enabled": False}} if name == "diffusion_policy" else {}
    first = make(flow(name=name, **off), hidden=(8,))
    steps = first.base.num_denoising_steps
    assert steps == {"flow_policy": 4, "diffusion_policy": 5}[name]

    def learn(algo, number):
        torch.manual_seed(number)
        chain = torch.randn(6, steps + 1, 2, 1)
        algo.train_on_batch(batch_of(algo, chain, [1.0, -1.0, 2.0, 0.5, -2.0, 1.0]), 1)

    before = {key: value.clone() for key, value in first.nets.state_dict().items()}
    learn(first, 0)
    moved = {key for key, value in first.nets.state_dict().items() if not value.equal(before[key])}
    assert {key for key, _ in first.base.named_parameters(prefix="policy.base")} <= moved
    second = untaught(first.config.to_dict(), (8,), seed=5)
    second.deserialize(first.serialize())
    for algo in (first, second):
        learn(algo, 1)
    kept = second.nets.state_dict()
    assert all(value.equal(kept[key]) for key, value in first.nets.state_dict().items())


@pytest.mark.slow("it learns until the policy is better")
def test_it_improves_a_policy_that_does_both_of_two_things():
    """Chunks near 0.6 are rewarded, those near -0.6 are not; the cloned flow makes both."""
    base = flow(hidden=32, ema={"enabled": False})
    base.set_train()
    target = torch.tensor([[0.6, 0.6], [-0.6, -0.6]]).repeat(64, 1)[..., None]
    shown = {"obs": {"s": torch.ones(128, 1)}, "goal_obs": None, "pad_mask": None, "weight": None}
    base.optimizers["policy"].param_groups[0]["lr"] = 1e-2
    torch.manual_seed(0)
    for _ in range(150):
        base.train_on_batch({**shown, "actions": target}, 1)
    algo = make(base, hidden=(8,), normalize_advantages=True)
    algo.optimizers["policy"].param_groups[0]["lr"] = 3e-3
    obs = {"s": torch.ones(256, 1)}

    def rewards(explore):
        step = algo.act(obs, algo.initial_state(256), explore=explore)
        return (step.state["policy"]["chunk"]["plan"].amin((1, 2)) > 0).float(), step.extras

    before = rewards(explore=False)[0].mean()
    for _ in range(20):
        found, extras = rewards(explore=True)
        with torch.no_grad():
            value = algo.nets["value"](obs)[0]
        batch = {
            **{"obs": obs, "actions": extras["policy_action"], "log_prob": extras["log_prob"]},
            **{"advantages": found - value, "returns": found, "values": value},
        }
        for _ in range(4):
            algo.train_on_batch(batch, 1)
    after = rewards(explore=False)[0].mean()
    assert before < 0.5 and after > 0.9
