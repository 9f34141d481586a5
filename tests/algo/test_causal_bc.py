"""Causal BC: both losses by hand, which step is the instrument, and an expert whose noise outlasts a step."""

import math

import pytest
import torch

from tests.tiny import tiny_algo

SLOPE, KEPT, PUSH = -0.6, 0.9, 0.5


def make_algo(seed=0, **section):
    """Linear networks on one observation 's'."""
    train = {"seq_length": section.get("instrument_lag", 1) + 1}
    return tiny_algo("causal_bc", obs={"s": 1}, seed=seed, hidden=(), algo=section, train=train)


def set_slopes(algo, policy, discriminator):
    for linear, slope in (
        (algo.nets["policy"].head.action, policy),
        (algo.nets["discriminator"].error, discriminator),
    ):
        torch.nn.init.constant_(linear.weight, slope)
        torch.nn.init.zeros_(linear.bias)


def slope_of(algo):
    """Slope of the policy near 0."""
    algo.set_eval()
    left, right = (float(algo.get_action({"s": torch.tensor([[x]])})[0, 0]) for x in (-0.1, 0.1))
    return (right - left) / 0.2


def noisy_expert(demos=1000, steps=9, lag=1, seed=0):
    """Windows of a linear system under a linear expert, the noise of whose actions lasts ``lag + 1`` steps."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    total = steps + 20  # the first 20 make it forget where it began
    fresh = 0.15 * normal(demos, total + lag)
    state, states, actions = torch.zeros(demos), [], []
    for t in range(total):
        action = SLOPE * state + fresh[:, t : t + lag + 1].sum(1)
        states.append(state)
        actions.append(action)
        state = KEPT * state + PUSH * action + 0.05 * normal(demos)
    obs = torch.stack(states, 1)[:, 20:].unfold(1, lag + 1, 1).flatten(0, 1)
    taken = torch.stack(actions, 1)[:, 20:].unfold(1, lag + 1, 1).flatten(0, 1)
    return {"obs": {"s": obs[..., None]}, "actions": taken[..., None]}


def learn(algo, raw, updates=300):
    batch = algo.process_batch_for_training(raw)
    algo.set_train()
    for _ in range(updates):
        algo.train_on_batch(batch, 1)


FAST = {
    "policy": {"learning_rate": {"initial": 0.01}},
    "discriminator": {"learning_rate": {"initial": 0.03}},
}


def test_losses_by_hand():
    algo = make_algo(bc_weight=0.05, norm_weight=0.1)
    set_slopes(algo, 0.5, 2.0)
    raw = {
        "obs": {"s": torch.tensor([[[1.0], [0.4]], [[-0.5], [1.0]]])},
        "actions": torch.tensor([[[9.0], [0.3]], [[9.0], [-0.2]]]),
    }
    info = algo.train_on_batch(algo.process_batch_for_training(raw), 1, validate=True)
    errors = [0.3 - math.tanh(0.2), -0.2 - math.tanh(0.5)]  # the window's second step
    predicted = [2.0, -1.0]  # from its first
    game = sum(2 * e * f for e, f in zip(errors, predicted, strict=True)) / 2
    squares = sum(e * e for e in errors) / 2
    assert float(info["Loss"]) == pytest.approx(game + 0.05 * squares, rel=1e-5)
    assert float(info["Residual_Predictability"]) == pytest.approx(game - 2.5, rel=1e-5)
    expected = 0.1 * math.sqrt(2.5) - (game - 2.5)
    assert float(info["Discriminator_Loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(info["BC_Distance"]) == pytest.approx(squares, rel=1e-5)


def test_losses_of_two_numbers_are_means_and_padding_is_no_part_of_the_norm():
    """Discriminator 2 for both numbers at state 1; errors 0.3 - tanh(0.2) and 0.5 - tanh(0.2); the rest is padded."""
    config = {"bc_weight": 0.05, "norm_weight": 0.1}
    train = {"seq_length": 2}
    algo = tiny_algo("causal_bc", obs={"s": 1}, action=2, hidden=(), algo=config, train=train)
    set_slopes(algo, 0.5, 2.0)
    raw = {
        "obs": {"s": torch.tensor([[[1.0], [0.4]], [[9.0], [9.0]]])},
        "actions": torch.tensor([[[9.0, 9.0], [0.3, 0.5]], [[9.0, 9.0], [9.0, 9.0]]]),
        "pad_mask": torch.tensor([[True, True], [True, False]]),
    }
    info = algo.train_on_batch(algo.process_batch_for_training(raw), 1, validate=True)
    errors = [0.3 - math.tanh(0.2), 0.5 - math.tanh(0.2)]
    game, squares = sum(4 * e for e in errors) / 2, sum(e * e for e in errors) / 2
    assert float(info["Loss"]) == pytest.approx(game + 0.05 * squares, rel=1e-5)
    assert float(info["BC_Distance"]) == pytest.approx(squares, rel=1e-5)
    expected = 0.1 * math.sqrt(2 * 2.0**2 / 4) - (game - 4.0)
    assert float(info["Discriminator_Loss"]) == pytest.approx(expected, rel=1e-5)


def test_the_instrument_lies_as_many_steps_back_as_said():
    algo = make_algo(instrument_lag=2)
    raw = {
        "obs": {"s": torch.arange(6.0).view(2, 3, 1)},
        "actions": 10 * torch.arange(6.0).view(2, 3, 1),
        "pad_mask": torch.tensor([[True, True, True], [True, True, False]]),
        "weight": torch.tensor([[1.0, 1.0, 3.0], [1.0, 1.0, 3.0]]),
    }
    batch = algo.process_batch_for_training(raw)
    assert batch["earlier_obs"]["s"].flatten().tolist() == [0.0, 3.0]
    assert batch["obs"]["s"].flatten().tolist() == [2.0, 5.0]
    assert batch["actions"].flatten().tolist() == [20.0, 50.0]
    assert batch["weight"].tolist() == [3.0, 0.0]  # the second demo ends before


def test_stacked_frames_end_at_the_step():
    algo = tiny_algo("causal_bc", "train.frame_stack=2", obs={"s": 1})
    raw = {"obs": {"s": torch.arange(3.0).view(1, 3, 1)}, "actions": torch.zeros(1, 3, 1)}
    batch = algo.process_batch_for_training(raw)
    assert batch["obs"]["s"].flatten().tolist() == [1.0, 2.0]
    assert batch["earlier_obs"]["s"].flatten().tolist() == [0.0, 1.0]


def test_padding_is_not_learned_from():
    algo = make_algo()
    raw = {
        "obs": {"s": torch.tensor([[[1.0], [0.4]], [[2.0], [0.5]]])},
        "actions": torch.tensor([[[0.0], [0.3]], [[0.0], [0.9]]]),
    }
    alone = {"obs": {"s": raw["obs"]["s"][:1]}, "actions": raw["actions"][:1]}
    raw["pad_mask"] = torch.tensor([[True, True], [True, False]])
    with_padding = algo.train_on_batch(algo.process_batch_for_training(raw), 1, validate=True)
    without = algo.train_on_batch(algo.process_batch_for_training(alone), 1, validate=True)
    for name in ("Loss", "BC_Distance", "Residual_Predictability"):
        torch.testing.assert_close(with_padding[name], without[name])


def test_each_loss_moves_its_own_network():
    algo = make_algo()
    set_slopes(algo, 0.5, 2.0)
    batch = algo.process_batch_for_training(noisy_expert(demos=4))
    policy = list(algo.nets["policy"].parameters())
    discriminator = list(algo.nets["discriminator"].parameters())
    algo._discriminator_loss(batch)[0].backward()
    assert all(p.grad is None for p in policy)
    assert all(p.grad is not None for p in discriminator)
    algo.nets.zero_grad()
    algo._loss(batch)[0].backward()
    assert all(p.grad is None for p in discriminator)
    assert all(p.grad is not None for p in policy)


def test_it_finds_the_expert_where_regression_learns_its_noise():
    """Stationary moments, for noise of std 0.15 that lasts two steps: with v the variance of the state,
    0.64 v = 2 (0.5 * 0.15)^2 (1 + 0.6) + 0.05^2, regression is off by 0.5 * 0.15^2 / v = 0.333."""
    raw = noisy_expert()
    states, actions = raw["obs"]["s"][:, 1, 0], raw["actions"][:, 1, 0]
    variance = (2 * 0.075**2 * 1.6 + 0.05**2) / 0.64
    biased = SLOPE + PUSH * 0.15**2 / variance
    regression = float((states * actions).mean() / states.square().mean())
    assert regression == pytest.approx(biased, abs=0.02)
    assert biased > SLOPE + 0.3

    game = make_algo(optim_params=FAST, bc_weight=0.0, norm_weight=0.0)
    learn(game, raw)
    assert slope_of(game) == pytest.approx(SLOPE, abs=0.04)

    broken = make_algo(optim_params=FAST, bc_weight=0.0, norm_weight=0.0)
    batch = broken.process_batch_for_training(raw)
    batch["earlier_obs"] = batch["obs"]  # the state that noise has already moved
    for _ in range(300):
        broken.train_on_batch(batch, 1)
    assert slope_of(broken) == pytest.approx(biased, abs=0.04)
