"""Discriminators of rollouts: transitions, rewards, and what each learns from, by hand."""

import math

import numpy as np
import pytest
import torch

NO_PENALTY = {"discriminator": {"gradient_penalty": 0.0}}


def softplus(x):
    return math.log1p(math.exp(x))


def demonstrations(count, x=1.0, terminal=1.0):
    return {
        "obs": {"x": torch.full((count, 1), x)},
        "next_obs": {"x": torch.zeros(count, 1)},
        "actions": torch.eye(2)[[0] * count],
        "terminals": torch.full((count,), terminal),
    }


def test_transitions_of_a_rollout(worlds):
    batch = worlds.make_imitator("gail").prepare_rollout(worlds.two_lanes())
    np.testing.assert_array_equal(batch["obs"]["x"][:, 0], [0, 1, 2, 3, 4, 5])
    # Two environments: the next row of the same one, or the last observation. Row 2 ended: nothing is read there.
    after = batch["next_obs"]["x"][:, 0].numpy()
    np.testing.assert_array_equal(after[[0, 1, 3, 4, 5]], [2, 91, 5, 94, 95])
    np.testing.assert_array_equal(batch["terminals"], [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(batch["executed"].argmax(-1), [0, 1, 1, 0, 0, 0])


def test_lost_episodes_are_left_out(worlds):
    lost = worlds.two_lanes()
    lost["mask"][:2, 1] = False
    batch = worlds.make_imitator("gail").prepare_rollout(lost)
    np.testing.assert_array_equal(batch["obs"]["x"][:, 0], [0, 2, 4, 5])
    np.testing.assert_array_equal(batch["terminals"], [0, 1, 0, 0])
    assert len(batch["advantages"]) == len(batch["executed"]) == 4


@pytest.mark.parametrize("name", ["gail", "airl"])
@pytest.mark.parametrize("logit", [-2.0, 0.0, 2.0])
def test_neither_to_live_on_nor_to_end_is_better_for_its_own_sake(name, logit, worlds):
    """Where the discriminator sees no difference, the return is the same whenever the episode ends."""
    algo = worlds.make_imitator(name)
    net = algo.reward_source.discriminator
    # Of airl the policy's density is a part: uniform here, and 1 in the absorbing state.
    density = 0.0 if name == "gail" else math.log(0.5)
    worlds.set_discriminator(net, 0.0, (0.0, 0.0), -density, bias=logit + density)
    if name == "airl":
        worlds.set_discriminator(algo.reward_source.potential, 0.0, (), 0.0)
        torch.nn.init.zeros_(algo.nets["policy"].head.logits.weight)
    rewards = algo.rollout_rewards(worlds.two_lanes())
    for_ever = rewards[0, 0] / (1 - 0.5)
    assert rewards[0, 0] + 0.5 * rewards[1, 0] == pytest.approx(for_ever)  # ends at its second step
    assert (rewards != 100).all()


def test_the_loss_is_of_demonstrations_against_the_minibatch(worlds):
    algo = worlds.make_imitator("gail", NO_PENALTY)
    worlds.set_discriminator(algo.reward_source.discriminator, 1.0, (0.0, 0.5), 4.0, bias=-2.0)
    own = algo.prepare_rollout(worlds.two_lanes())
    own["executed"] = torch.eye(2)[[1] * 6]  # actions as the environment took them
    own["expert"] = demonstrations(2, x=3.0)
    info = algo.train_on_batch(own, 1, validate=True)
    # Logits: of the expert 1 and 1, of the policy x - 1.5 = -1.5 ... 3.5, of the absorbing state 2. Both steps of the
    # expert and the policy's third end.
    of_expert = (2 * softplus(-1) + 2 * softplus(-2)) / 4
    of_policy = (sum(softplus(x - 1.5) for x in range(6)) + softplus(2)) / 7
    assert info["Discriminator_Loss"].item() == pytest.approx(of_expert + of_policy)
    assert info["Expert_Accuracy"].item() == 1.0
    assert info["Policy_Accuracy"].item() == pytest.approx(2 / 6)
    assert info["Absorbing_Logit"].item() == 2.0


def test_the_gradient_penalty_is_added_to_the_loss_but_not_to_what_is_logged(worlds):
    source = worlds.make_imitator(
        "gail", {"discriminator": {"gradient_penalty": 2.0}}
    ).reward_source
    worlds.set_discriminator(source.discriminator, 3.0, (4.0, 0.0), 0.0)
    batch = {**demonstrations(4), "expert": torch.tensor([1.0, 1.0, 0.0, 0.0])}
    loss, info = source.loss(batch)
    # The slope is 5 everywhere: 2 (5 - 1)^2.
    assert (loss - info["Discriminator_Loss"]).item() == pytest.approx(32.0, rel=1e-5)


def test_a_batch_of_one_side_has_no_penalty(worlds):
    source = worlds.make_imitator("gail").reward_source
    loss, info = source.loss({**demonstrations(3), "expert": torch.ones(3)})
    assert loss.item() == info["Discriminator_Loss"].item()


def test_the_discriminator_learns_to_tell_the_expert(worlds):
    rates = {"optim_params": {"discriminator": {"learning_rate": {"initial": 0.02}}}}
    network = {"discriminator": {"layer_dims": [64, 64], "gradient_penalty": 0.0}}
    algo = worlds.make_imitator("gail", {**rates, **network})
    policy = {**algo.prepare_rollout(worlds.two_lanes()), "expert": demonstrations(8)}
    policy["terminals"] = torch.zeros(6)
    before = {name: p.clone() for name, p in algo.nets["policy"].named_parameters()}
    for _ in range(60):
        info = algo.train_on_batch(policy, 1)
    assert (info["Expert_Accuracy"], info["Policy_Accuracy"]) == (1.0, 1.0)
    assert info["Absorbing_Logit"] > 0.5  # only the expert ends
    assert any(not torch.equal(before[n], p) for n, p in algo.nets["policy"].named_parameters())
    # Without demonstrations in the minibatch it stays as it is.
    learned = {name: p.clone() for name, p in algo.nets["discriminator"].named_parameters()}
    del policy["expert"]
    algo.train_on_batch(policy, 1)
    for name, p in algo.nets["discriminator"].named_parameters():
        assert torch.equal(learned[name], p)


def test_intrinsic_rewards_are_added_to_those_of_the_source(worlds):
    bonus = {"auxiliary": {"novelty": {"type": "rnd", "reward": 2.0}}}
    plain, curious = worlds.make_imitator("gail"), worlds.make_imitator("gail", bonus)
    curious.nets["discriminator"].load_state_dict(plain.nets["discriminator"].state_dict())
    more = curious.rollout_rewards(worlds.two_lanes()) - plain.rollout_rewards(worlds.two_lanes())
    assert (more > 0).all()


def test_rewards_are_never_negative_and_a_terminal_adds_those_of_the_absorbing_state(worlds):
    algo = worlds.make_imitator("gail")
    worlds.set_discriminator(algo.reward_source.discriminator, 1.0, (0.0, 0.5), 4.0, bias=-1.0)
    rewards = algo.rollout_rewards(worlds.two_lanes())

    def r(logit):
        return math.log1p(math.exp(logit))

    # States 0 to 5, the second and the third with the second action, minus 1. Discount 0.5: 0.5 / (1 - 0.5) = 1 times
    # the reward of the absorbing state, whose logit is 3, where an episode ends by a terminal.
    expected = [[r(-1), r(0.5)], [r(1.5) + r(3), r(2)], [r(3), r(4)]]
    np.testing.assert_allclose(rewards, expected, rtol=1e-6)


def test_observations_alone_are_an_option(worlds):
    algo = worlds.make_imitator("gail", {"discriminator": {"sees_actions": False}})
    changed = worlds.two_lanes()
    changed["actions"] = 1 - changed["actions"]
    torch.testing.assert_close(
        algo.rollout_rewards(changed), algo.rollout_rewards(worlds.two_lanes()), rtol=0, atol=0
    )


def test_demonstrations_are_wanted_in_the_first_passes(worlds):
    assert worlds.make_imitator("gail", {"discriminator": {"passes": 3}}).expert_passes == 3
    assert worlds.make_imitator("gail").expert_passes == 20
