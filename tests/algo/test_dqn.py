import pytest
import torch

from tests.tiny import tiny_algo


def make(**section):
    return tiny_algo("dqn", obs={"s": 1}, action=2, hidden=(), algo=section)


def set_values(net, *slopes):
    """Let choice i be worth ``slopes[i] * state``."""
    net.head.weight.data = torch.tensor([[float(slope)] for slope in slopes])
    net.head.bias.data.zero_()


def transitions():
    return {
        "obs": {"s": torch.tensor([[1.0], [2.0]])},
        "next_obs": {"s": torch.tensor([[4.0], [100.0]])},
        "goal_obs": None,
        "actions": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "rewards": torch.tensor([1.0, 0.5]),
        "discounts": torch.tensor([0.5, 0.0]),
        "weight": None,
    }


@pytest.mark.parametrize(("double", "value"), [(True, 4 * 1), (False, 4 * 3)])
def test_who_chooses_the_next_action(worlds, double, value):
    algo = make(double=double)
    set_values(algo.nets["critic"], 2, 1)
    set_values(algo.nets["critic_target"], 1, 3)
    targets = [worlds.losses(algo, worlds.only(transitions(), row))["Q_Targets"] for row in (0, 1)]
    assert targets == [1 + 0.5 * value, 0.5]


def test_the_loss_is_huber_of_the_taken_action(worlds):
    algo = make()
    set_values(algo.nets["critic"], 2, 1)
    set_values(algo.nets["critic_target"], 1, 3)
    # Values 2 and 2; targets 3 and 0.5: errors 1 and 1.5.
    assert worlds.losses(algo, transitions())["Critic_Loss"] == pytest.approx((0.5 + 1.0) / 2)


def test_quantiles_of_the_taken_action_follow_those_of_the_best_next_one(worlds):
    algo = make(critic={"num_quantiles": 2}, double=False)
    # By choice: quantiles 0 and 2 times the state, 1 and 3 times the state; the targets' second choice is best too.
    set_values(algo.nets["critic"], 0, 2, 1, 3)
    set_values(algo.nets["critic_target"], 0, 2, 1, 3)
    batch = transitions()
    assert algo.nets["critic"](batch["obs"]).tolist() == [[1.0, 2.0], [2.0, 4.0]]
    # Targets 3 and 7; 0.5 and 0.5.
    targets = [worlds.losses(algo, worlds.only(batch, row))["Q_Targets"] for row in (0, 1)]
    assert targets == [5.0, 0.5]
    algo.keeps_errors = True
    info = worlds.losses(algo, batch)
    assert algo.sample_errors.tolist() == [5.0 - 1.0, 4.0 - 0.5]  # of the means
    # First sample: quantiles 0, 2 at 1/4, 3/4 against 3, 7: errors 3, 7 and 1, 5, all above, Huber 2.5, 6.5, 0.5, 4.5.
    first = 0.25 * (2.5 + 6.5) / 2 + 0.75 * (0.5 + 4.5) / 2
    # Second: quantiles 2, 6 against 0.5 twice: errors -1.5 and -5.5, below, Huber 1 and 5.
    second = 0.75 * 1.0 + 0.25 * 5.0
    assert info["Critic_Loss"] == pytest.approx((first + second) / 2)
    assert info["Q"] == pytest.approx((1 + 4) / 2)
    action = algo.act({"s": torch.ones(1, 1)}, algo.initial_state(1)).action
    assert action.tolist() == [[0.0, 1.0]]


def test_targets_are_copied_every_few_updates():
    algo = make(target_update_freq=2)
    set_values(algo.nets["critic_target"], 50, 50)
    algo.train_on_batch(transitions(), 1)
    assert algo.nets["critic_target"].head.weight[0].item() == 50
    algo.train_on_batch(transitions(), 1)
    assert torch.equal(algo.nets["critic_target"].head.weight, algo.nets["critic"].head.weight)


def test_epsilon_falls_and_evaluation_is_greedy():
    algo = make(epsilon={"schedule": [[0, 0.8], [0.5, 0.2]]})
    set_values(algo.nets["critic"], 2, 1)
    obs, state = {"s": torch.ones(20_000, 1)}, algo.initial_state(20_000)
    assert algo.act(obs, state).action[:, 0].mean() == 1.0
    for progress, epsilon in ((0.0, 0.8), (0.25, 0.5), (0.5, 0.2), (1.0, 0.2)):
        algo.set_progress(progress)
        other = algo.act(obs, state, explore=True).action[:, 1].mean().item()
        assert other == pytest.approx(epsilon / 2, abs=0.02)


def test_actions_are_one_hot():
    algo = make()
    action = algo.act({"s": torch.randn(50, 1)}, algo.initial_state(50), explore=True).action
    assert set(action.flatten().tolist()) == {0.0, 1.0} and (action.sum(-1) == 1).all()
