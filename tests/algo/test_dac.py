"""DAC and SQIL: a discriminator's rewards for replayed transitions, and rewards that say who acted."""

import math

import pytest
import torch

from tests.algo.conftest import within
from tests.tiny import tiny_algo


def make_algo(**discriminator):
    section = {"discount": 0.9, "discriminator": {"layer_dims": [], **discriminator}}
    return tiny_algo("dac", obs={"x": 1}, hidden=[8], algo=section)


def set_discriminator(algo, of_state, of_action, of_absorbing, bias=0.0):
    net = algo.reward_source.discriminator
    net.last.weight.data = torch.tensor([[of_state, of_action, of_absorbing]])
    net.last.bias.data = torch.tensor([bias])


def batch(**changes):
    """States 1 to 4, actions 0.5; the second and the fourth end. The first two are from the replay buffer."""
    x = torch.arange(1.0, 5.0).view(4, 1, 1)
    values = {
        "obs": {"x": x},
        "next_obs": {"x": x},
        "actions": torch.full((4, 1, 1), 0.5),
        "rewards": torch.full((4, 1), -7.0),
        "n_step_rewards": torch.full((4,), -7.0),
        "discounts": torch.tensor([0.9, 0.0, 0.9, 0.0]),
        "dones": torch.tensor([[0.0], [1.0], [0.0], [1.0]]),
        "part": torch.tensor([0, 0, 1, 1]),
    }
    return {**values, **changes}


def test_rewards_are_logits_and_after_a_terminal_those_of_the_absorbing_state_for_ever():
    algo = make_algo()
    set_discriminator(algo, 1.0, 2.0, -0.5, bias=0.1)
    rewards = algo.reward_source.rewards(algo.process_batch_for_training(batch()))
    # States plus 2 x 0.5 plus 0.1; the absorbing state's logit is -0.4, 0.9 / 0.1 = 9 times. -7 counts nowhere.
    torch.testing.assert_close(rewards, torch.tensor([2.1, 3.1 - 3.6, 4.1, 5.1 - 3.6]))


def test_the_discriminator_tells_demonstrations_from_replayed_steps_and_terminals_count_twice():
    algo = make_algo(gradient_penalty=0.0)
    set_discriminator(algo, 1.0, 0.0, -2.0, bias=-2.0)
    loss, info = algo.reward_source.loss(algo.process_batch_for_training(batch()))

    def softplus(x):
        return math.log1p(math.exp(x))

    # Logits -1, 0, 1, 2; of the absorbing state -4, once for each terminal.
    of_policy = (softplus(-1) + softplus(0) + softplus(-4)) / 3
    of_expert = (softplus(-1) + softplus(-2) + softplus(4)) / 3
    assert loss.item() == pytest.approx(of_policy + of_expert, abs=1e-5)
    assert info["Expert_Accuracy"].item() == 1.0 and info["Policy_Accuracy"].item() == 0.5


def test_the_gradient_penalty_is_of_the_slope():
    algo = make_algo(gradient_penalty=10.0)
    set_discriminator(algo, 3.0, 4.0, 0.0)
    prepared = algo.process_batch_for_training(batch())
    with_penalty = algo.reward_source.loss(prepared)[0]
    algo.algo_config.discriminator.__dict__["gradient_penalty"] = 0.0
    # The slope is 5 everywhere: 10 (5 - 1)^2.
    assert (with_penalty - algo.reward_source.loss(prepared)[0]).item() == pytest.approx(
        160.0, abs=1e-3
    )


def test_critics_learn_the_rewards_of_the_discriminator_after_its_own_step():
    algo = make_algo()
    seen = []
    loss = algo._critic_loss
    algo._critic_loss = lambda batch: seen.append(batch["rewards"]) or loss(batch)
    prepared = algo.process_batch_for_training(batch())
    before = algo.reward_source.rewards(prepared)
    algo.set_train()
    algo.train_on_batch(prepared, 1)
    assert torch.equal(seen[0], algo.reward_source.rewards(prepared))
    assert not torch.equal(seen[0], before)
    assert not seen[0].requires_grad


@pytest.mark.slow("actor, critics and discriminator learn against each other")
def test_a_policy_that_is_rewarded_for_likeness_becomes_like_the_expert():
    """In one state the expert does 0.5 and the replay buffer holds any action; sqil's fixed rewards are not needed."""
    algo = make_algo(layer_dims=[16])
    generator, info = torch.Generator().manual_seed(0), {}
    for name in ("actor", "critic", "discriminator"):
        scheduler = algo.schedulers[name]
        scheduler.base_lrs = [0.02 for _ in scheduler.base_lrs]

    def update(_):
        nonlocal info
        algo.set_train()
        own = torch.rand(32, generator=generator) * 2 - 1
        shown = 0.5 + 0.05 * torch.randn(32, generator=generator)
        raw = batch(
            **{key: {"x": torch.ones(64, 1, 1)} for key in ("obs", "next_obs")},
            actions=torch.cat([own, shown]).view(64, 1, 1),
            rewards=torch.zeros(64, 1),
            n_step_rewards=torch.zeros(64),
            discounts=torch.full((64,), 0.5),
            dones=torch.zeros(64, 1),
            part=torch.arange(64) // 32,
        )
        info = algo.train_on_batch(algo.process_batch_for_training(raw), 1)

    def learned():
        algo.set_eval()
        action = algo.get_action({"x": torch.ones(1, 1)}).item()
        return info["Policy_Accuracy"] > 0.6 and abs(action - 0.5) < 0.2

    assert within(600, update, learned)


def sqil_batch(**changes):
    x = torch.zeros(4, 1, 2)
    values = {
        "obs": {"x": x},
        "next_obs": {"x": x},
        "actions": torch.zeros(4, 1, 1),
        "rewards": torch.full((4, 1), -7.0),
        "n_step_rewards": torch.full((4,), -7.0),
        "discounts": torch.tensor([0.9, 0.0, 0.9, 0.0]),
        "dones": torch.tensor([[0.0], [1.0], [0.0], [1.0]]),
    }
    return {**values, **changes}


def test_demonstrations_are_worth_1_rollouts_0_and_ends_last_for_ever():
    algo = tiny_algo("sqil", obs={"x": 2}, algo={"discount": 0.9})
    mixed = algo.process_batch_for_training(sqil_batch(part=torch.tensor([0, 0, 1, 1])))
    # After a terminal: 1 / (1 - 0.9) = 10 times the reward. The environment's -7 counts nowhere.
    torch.testing.assert_close(
        algo.reward_source.rewards(mixed), torch.tensor([0.0, 0.0, 1.0, 10.0])
    )
    shown = algo.process_batch_for_training(sqil_batch())
    torch.testing.assert_close(
        algo.reward_source.rewards(shown), torch.tensor([1.0, 10.0, 1.0, 10.0])
    )
