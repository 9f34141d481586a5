"""Decision Transformer: tokens, masks, returns at rollout, and returns that steer."""

import numpy as np
import pytest
import torch

from imitate import RolloutPolicy
from imitate.algo.dt import DT
from tests.algo.conftest import losses
from tests.tiny import tiny_algo

K, ACTION = 4, 2


def make(overrides=(), seed=0, ac_dim=ACTION, length=K):
    algo = {
        **{"context_length": length, "max_episode_steps": 6},
        **{"target_return": 8.0, "return_scale": 2.0},
        "transformer": {"num_layers": 2, "dropout": 0.0},
        "optim_params": {"policy": {"learning_rate": {"initial": 0.01, "warmup_steps": 0}}},
    }
    words = {"obs": {"state": 3}, "algo": algo, "train": {"frame_stack": length}}
    return tiny_algo("dt", *overrides, action=ac_dim, seed=seed, **words)


def raw_batch(size=5, seed=0, ac_dim=ACTION):
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": {"state": torch.randn(size, K, 3, generator=generator)},
        "actions": torch.rand(size, K, ac_dim, generator=generator) - 0.5,
        "returns": torch.rand(size, K, generator=generator) * 4,
        "step": torch.arange(K).expand(size, -1),
        "pad_mask": torch.ones(size, K, dtype=torch.bool),
    }


def predict(algo, batch):
    """Actions that the loss of a prepared batch sees."""
    seen = []
    head = algo.policy.head
    act = head.act
    head.act = lambda features: seen.append(act(features)) or seen[-1]
    losses(algo, batch)
    del head.act
    return seen[0]


def test_the_loss_by_hand():
    algo = make()
    batch = algo.process_batch_for_training(raw_batch())
    batch["pad_mask"][0, :2] = False
    error = (predict(algo, batch) - batch["actions"]).square().mean(-1)
    error[0, :2] = 0.0
    assert losses(algo, batch)["Loss"] == pytest.approx((error.sum() / (5 * K - 2)).item())


def test_tokens_are_return_observation_and_action_plus_the_steps_embedding():
    algo, seen = make(), []
    net, batch = algo.policy, algo.process_batch_for_training(raw_batch(size=1))
    net.norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    losses(algo, batch)
    at = net.embed_step.weight[2]
    wanted = [net.embed_return(batch["returns"][0, 2:3]) + at]
    wanted += [net.embed_obs(batch["obs"]["state"][0, 2]) + at]
    wanted += [net.embed_action(batch["actions"][0, 2]) + at]
    torch.testing.assert_close(seen[0][0, 6:9], torch.stack(wanted))


def test_steps_count_by_their_weight():
    algo = make()
    weight = torch.rand(5, K)
    batch = algo.process_batch_for_training({**raw_batch(), "weight": weight})
    error = (predict(algo, batch) - batch["actions"]).square().mean(-1)
    wanted = (error * weight).sum() / weight.sum()
    assert losses(algo, batch)["Loss"] == pytest.approx(wanted.item())


def test_returns_are_scaled():
    batch = make().process_batch_for_training(raw_batch())
    torch.testing.assert_close(batch["returns"], raw_batch()["returns"] / 2.0)


def changed(batch, group, at):
    value = (batch["obs"]["state"] if group == "obs" else batch[group]).clone()
    value[:, at] += 1
    return {**batch, group: {"state": value} if group == "obs" else value}


@pytest.mark.parametrize(
    ("group", "first_that_sees_it"), [("obs", 2), ("returns", 2), ("actions", 3), ("step", 2)]
)
def test_a_step_sees_its_own_observation_and_return_and_earlier_actions(group, first_that_sees_it):
    algo = make()
    batch = algo.process_batch_for_training(raw_batch())
    before, after = predict(algo, batch), predict(algo, changed(batch, group, 2))
    differs = (before - after).abs().amax((0, 2)) > 1e-6
    assert differs.tolist() == [t >= first_that_sees_it for t in range(K)]


def test_what_lies_before_the_episode_is_not_seen():
    algo = make()
    batch = algo.process_batch_for_training(raw_batch())
    batch["pad_mask"][:, :2] = False
    for group in ("obs", "returns", "actions"):
        other = changed(batch, group, 1)
        assert torch.equal(predict(algo, batch)[:, 2:], predict(algo, other)[:, 2:])


def test_acting_step_by_step_equals_the_window_of_training():
    """A rollout's first steps, then steps beyond the context, with rewards that lower the wanted return."""
    algo = make()
    algo.set_eval()
    generator = torch.Generator().manual_seed(3)
    seen, rewards = torch.randn(9, 2, 3, generator=generator), torch.rand(9, 2, generator=generator)
    state, wanted, actions = algo.initial_state(2), torch.full((2,), 8.0), []
    returns = []
    for t in range(9):
        returns.append(wanted)
        step = algo.act({"state": seen[t]}, state)
        actions.append(step.action.detach())
        torch.testing.assert_close(step.extras["return_to_go"], wanted)
        first = max(0, t + 1 - K)
        window = {
            "obs": {"state": seen[first : t + 1].transpose(0, 1)},
            "goal_obs": None,
            "returns": torch.stack(returns[first:], dim=1) / 2.0,
            "actions": torch.stack(actions[first:], dim=1),
            "step": torch.arange(first, t + 1).expand(2, -1),
            "pad_mask": torch.ones(2, t + 1 - first, dtype=torch.bool),
        }
        torch.testing.assert_close(step.action, predict(algo, window)[:, -1])
        state = algo.observe_reward(step.state, rewards[t])
        wanted = wanted - rewards[t]


def test_a_context_of_one_step():
    algo = make(length=1)
    algo.set_eval()
    state = algo.initial_state(2)
    for _ in range(3):
        step = algo.act({"state": torch.ones(2, 3)}, state)
        state = step.state
    assert step.action.shape == (2, ACTION)
    assert state["policy"]["actions"].shape == (2, 1, ACTION)


def test_a_rollout_policy_is_told_its_rewards_and_forgets_them_with_the_episode():
    policy = RolloutPolicy(make())
    policy.observe(1.0)  # before the first action there is nothing to count
    obs = {"state": np.ones((2, 3))}
    wanted = []
    policy(obs, batched_ob=True)
    policy.observe([1.0, 3.0])
    policy(obs, batched_ob=True)
    wanted.append(policy.last_extras["return_to_go"].tolist())
    policy.start_episode(mask=[True, False])
    policy(obs, batched_ob=True)
    wanted.append(policy.last_extras["return_to_go"].tolist())
    policy.observe(0.5)
    policy(obs, batched_ob=True)
    wanted.append(policy.last_extras["return_to_go"].tolist())
    assert wanted == [[7.0, 5.0], [8.0, 5.0], [7.5, 4.5]]


def test_the_target_may_be_changed_between_episodes():
    algo = make()
    policy = RolloutPolicy(algo)
    algo.target_return = 3.0
    policy.start_episode()
    policy({"state": np.ones(3)})
    assert policy.last_extras["return_to_go"].tolist() == [3.0]


def test_the_same_data_give_good_or_bad_behaviour_as_asked():
    """Half of the episodes do +0.5 and bring 1 a step, half do -0.5 and bring 0: imitation does the mean, 0."""
    algo = make(("algo.target_return=4.0",), ac_dim=1)
    size = 64
    good = (torch.arange(size) % 2).float()
    generator = torch.Generator().manual_seed(1)
    batch = raw_batch(size, ac_dim=1)
    noise = 0.05 * torch.randn(size, K, 1, generator=generator)
    batch["actions"] = (good - 0.5).view(-1, 1, 1) + noise
    batch["obs"]["state"] = torch.zeros(size, K, 3)
    batch["returns"] = good.unsqueeze(1) * torch.tensor([4.0, 3.0, 2.0, 1.0])
    assert abs(batch["actions"].mean().item()) < 0.02
    prepared = algo.process_batch_for_training(batch)
    algo.set_train()
    for _ in range(60):
        algo.train_on_batch(prepared, 1)
    policy = RolloutPolicy(algo)

    def first_steps(target, reward):
        algo.target_return = target
        policy.start_episode()
        actions = []
        for _ in range(3):
            actions.append(policy({"state": np.zeros(3)})[0])
            policy.observe(reward)
        return actions

    np.testing.assert_allclose(first_steps(4.0, 1.0), 0.5, atol=0.1)
    np.testing.assert_allclose(first_steps(0.0, 0.0), -0.5, atol=0.1)


def test_steps_beyond_the_longest_episode_are_alike():
    algo = make()
    batch = algo.process_batch_for_training(raw_batch())
    late, later = ({**batch, "step": batch["step"] + more} for more in (5, 50))
    assert torch.equal(predict(algo, late), predict(algo, later))


def test_without_numbers_from_data_the_scale_is_one():
    algo = make(("algo.target_return=null", "algo.return_scale=null"))
    assert isinstance(algo, DT)
    assert algo.target_return == 1.0
