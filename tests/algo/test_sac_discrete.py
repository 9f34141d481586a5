"""SAC of choices on worlds worked out by hand: linear maps of one observation, two or three choices."""

import math

import pytest
import torch


def make(worlds, choices=2, **section):
    return worlds.make_algo("sac", {"num_choices": choices, **section}, action=choices)


def set_values(critic, *members):
    """Let choice i of member e be worth ``members[e][i] * state``."""
    critic.head.weight.data = torch.tensor(members, dtype=torch.float32).unsqueeze(1)
    critic.head.bias.data.zero_()


def set_policy(algo, *logits):
    """The same policy in every state."""
    algo.actor.head.logits.weight.data.zero_()
    algo.actor.head.logits.bias.data = torch.tensor(logits)


def choices_taken(worlds):
    return worlds.two_transitions(actions=torch.tensor([[1.0, 0.0], [0.0, 1.0]]))


def test_the_target_is_the_mean_over_choices_of_the_least_target_critic_and_the_entropy(worlds):
    algo = make(worlds, temperature={"initial": 0.5})
    set_policy(algo, math.log(3.0), 0.0)  # probabilities 3/4 and 1/4
    set_values(algo.nets["critic"], (100, 100), (100, 100))
    set_values(algo.nets["critic_target"], (1, 4), (2, 3))
    targets = [
        worlds.losses(algo, worlds.only(choices_taken(worlds), row))["Q_Targets"] for row in (0, 1)
    ]
    # Next state 4: least values 4 and 12, mean 6; entropy of the choice 0.5623.
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert entropy == pytest.approx(0.5623, abs=1e-4)
    assert targets == pytest.approx([1 + 0.5 * (6 + 0.5 * entropy), 0.5])


def test_three_choices_equally_likely(worlds):
    algo = make(worlds, choices=3, temperature={"initial": 1.0})
    set_policy(algo, 0.0, 0.0, 0.0)
    set_values(algo.nets["critic_target"], (1, 2, 3), (3, 2, 1))
    batch = worlds.two_transitions(actions=torch.eye(3)[:2])
    # Next state 4: least values 4, 8, 4; entropy log 3.
    value = 16 / 3 + math.log(3)
    targets = [worlds.losses(algo, worlds.only(batch, row))["Q_Targets"] for row in (0, 1)]
    assert targets == pytest.approx([1 + 0.5 * value, 0.5])


def test_critics_learn_the_choice_that_was_taken(worlds):
    algo = make(worlds)
    set_values(algo.nets["critic"], (1, 50), (0, 50))
    batch = choices_taken(worlds)
    batch["discounts"] = torch.zeros(2)
    batch["actions"] = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    info = worlds.losses(algo, batch)
    # Values of choice 0 in states 1 and 2: 1, 2 and 0, 0; targets 1, 0.5.
    assert info["Critic_Loss"] == pytest.approx((0 + 2.25) / 2 + (1 + 0.25) / 2)
    assert info["Q"] == pytest.approx(0.75)


def test_the_actor_s_loss_is_exact_and_leaves_the_critics_alone(worlds):
    frozen = {"critic": {"start_epoch": 2}}
    algo = make(worlds, temperature={"initial": 2.0, "tuned": False}, optim_params=frozen)
    set_policy(algo, math.log(3.0), 0.0)
    set_values(algo.nets["critic"], (1, 4), (2, 3))
    set_values(algo.nets["critic_target"], (100, 100), (100, 100))
    info = worlds.gradients(algo, choices_taken(worlds))
    # States 1 and 2: 3/4 1 + 1/4 3 = 1.5 and 3, mean 2.25.
    entropy = 0.5623351
    assert info["Actor_Loss"] == pytest.approx(-2.25 - 2 * entropy, abs=1e-5)
    assert info["Entropy"] == pytest.approx(entropy, abs=1e-5)
    # d loss / d logit_0 = p0 p1 (alpha log(p0 / p1) - (q0 - q1)), q0 - q1 = -2 and -4.
    slope = 0.75 * 0.25 * (2 * math.log(3) + 3)
    assert algo.actor.head.logits.bias.grad.tolist() == pytest.approx([slope, -slope], abs=1e-5)
    assert all(p.grad is None for p in algo.nets["critic"].parameters())


def test_samples_that_weigh_nothing_count_neither_in_the_loss_nor_in_the_entropy(worlds):
    algo = make(worlds, temperature={"initial": 2.0})
    set_policy(algo, 0.0, 0.0)
    # Log 3 times the state: probabilities 3/4 and 1/4 in state 1, 9/10 and 1/10 in state 2.
    algo.actor.head.logits.weight.data = torch.tensor([[math.log(3.0)], [0.0]])
    set_values(algo.nets["critic"], (1, 4), (2, 3))
    batch = choices_taken(worlds)
    info = worlds.losses(algo, batch)
    entropies = [0.5623351, -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))]
    assert info["Entropy"] == pytest.approx(sum(entropies) / 2, abs=1e-5)
    info = worlds.losses(algo, batch | {"weight": torch.tensor([1.0, 0.0])})
    # Least values 1 and 3: 3/4 1 + 1/4 3 = 1.5, and twice the entropy.
    assert info["Actor_Loss"] == pytest.approx(-1.5 - 2 * entropies[0], abs=1e-5)
    assert info["Entropy"] == pytest.approx(entropies[0], abs=1e-5)
    assert info["Temperature"] == pytest.approx(2.0)
    assert "Choice_Entropy" not in info


@pytest.mark.parametrize(("given", "share"), [({}, 0.5), ({"choice_entropy": 0.25}, 0.25)])
def test_the_entropy_is_tuned_to_a_share_of_log_choices(worlds, given, share):
    algo = make(worlds, choices=4, temperature={"initial": 0.5, **given})
    set_policy(algo, 0.0, 0.0, 0.0, 0.0)
    batch = worlds.two_transitions(actions=torch.eye(4)[:2])
    worlds.gradients(algo, batch)
    # Four choices that are equally likely have the entropy log 4.
    slope = (1 - share) * math.log(4)
    assert algo.nets["temperature"].log.grad.item() == pytest.approx(slope, abs=1e-5)
    algo.train_on_batch(batch, 1)
    assert worlds.losses(algo, batch)["Temperature"] < 0.5


def test_targets_follow_and_have_no_gradient(worlds):
    algo = make(worlds, target_tau=0.25)
    set_values(algo.nets["critic"], (1, 1), (1, 1))
    set_values(algo.nets["critic_target"], (0, 0), (0, 0))
    worlds.gradients(algo, choices_taken(worlds))
    assert algo.nets["critic_target"].head.weight.flatten().tolist() == [0.25] * 4
    assert not any(p.requires_grad for p in algo.nets["critic_target"].parameters())


def test_in_rollouts_choices_are_drawn_and_in_evaluation_the_likeliest_is_taken(worlds):
    algo = make(worlds)
    set_policy(algo, math.log(3.0), 0.0)
    obs, state = {"s": torch.ones(20_000, 1)}, algo.initial_state(20_000)
    with torch.no_grad():
        assert algo.act(obs, state).action[:, 0].mean() == 1.0
        drawn = algo.act(obs, state, explore=True).action
    assert drawn[:, 0].mean().item() == pytest.approx(0.75, abs=0.02)
    assert (drawn.sum(-1) == 1).all()


def test_it_learns_which_of_three_choices_pays(worlds):
    algo = worlds.make_algo(
        "sac", {"num_choices": 3, "temperature": {"initial": 0.1}}, action=3, hidden=(16,)
    )
    for name in ("actor", "critic"):
        algo.optimizers[name].param_groups[0]["lr"] = 1e-2
    taken = torch.randint(3, (256,), generator=torch.Generator().manual_seed(0))
    batch = worlds.bandit() | {
        "actions": torch.eye(3)[taken],
        "rewards": torch.tensor([0.0, 1.0, 0.2])[taken],
    }

    def learned():
        algo.reset()
        entropy = worlds.losses(algo, batch)["Entropy"]
        action = algo.get_action({"s": torch.ones(1, 1)}).tolist()
        return action == [[0.0, 1.0, 0.0]] and entropy < 0.9 < math.log(3)

    assert worlds.learns(algo, batch, 400, learned)


def test_validation_counts_other_choices(worlds):
    """One of four samples takes another choice than the likeliest of three."""
    algo = make(worlds, choices=3)
    set_policy(algo, 0.0, 2.0, 1.0)
    two = worlds.two_transitions()
    batch = two | {key: two[key].repeat(2) for key in ("rewards", "discounts")}
    batch |= {key: {"s": two[key]["s"].repeat(2, 1)} for key in ("obs", "next_obs")}
    batch["actions"] = torch.eye(3)[[1, 1, 1, 2]]
    assert algo.train_on_batch(batch, 1, validate=True)["Action_Error"].item() == 0.25
