"""Discriminators, their rewards and what comes after an end, against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config
from imitate.algo.adversarial import _mean_with_ends
from imitate.config.readiness import check_trainable
from imitate.errors import ConfigError
from imitate.models.discriminator import gradient_penalty


def config(name="gail", **algo):
    return load_config(
        {
            "algo_name": name,
            "experiment": {"epoch_every_n_steps": 10},
            "train": {"online": {"env": "CartPole-v1"}},
            "algo": {"discount": 0.5, "num_choices": 2, **algo},
            "observation": {"modalities": {"obs": {"low_dim": ["x"]}}},
        }
    )


def make_algo(name="gail", **algo):
    torch.manual_seed(0)
    return algo_factory(name, config(name, **algo), {"x": (1,)}, 2)


def rollout():
    """Three steps of two environments: the first ends at step 1, the second by the clock at step 0."""
    x = np.arange(6, dtype=np.float32).reshape(3, 2, 1)
    terminals, timeouts = np.zeros((2, 3, 2), dtype=bool)
    terminals[1, 0], timeouts[0, 1] = True, True
    return {
        "obs": {"x": x},
        "actions": np.eye(2, dtype=np.float32)[[[0, 1], [1, 0], [0, 0]]],
        "policy_action": np.eye(2, dtype=np.float32)[[[0, 1], [1, 0], [0, 0]]],
        "log_prob": np.full((3, 2), -0.7, dtype=np.float32),
        "rewards": np.full((3, 2), 100.0, dtype=np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
        "mask": np.ones((3, 2), dtype=bool),
        "end_rows": np.array([1, 4, 5]),
        "end_obs": {"x": np.array([[91.0], [94.0], [95.0]], dtype=np.float32)},
    }


def test_transitions_of_a_rollout():
    batch = make_algo().prepare_rollout(rollout())
    np.testing.assert_array_equal(batch["obs"]["x"][:, 0], [0, 1, 2, 3, 4, 5])
    # Two environments: the next row of the same one, or what was seen at the end. Row 2 ended: nobody looks there.
    after = batch["next_obs"]["x"][:, 0].numpy()
    np.testing.assert_array_equal(after[[0, 1, 3, 4, 5]], [2, 91, 5, 94, 95])
    np.testing.assert_array_equal(batch["terminals"], [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(batch["executed"].argmax(-1), [0, 1, 1, 0, 0, 0])


def test_lost_episodes_are_left_out():
    lost = rollout()
    lost["mask"][:2, 1] = False
    batch = make_algo().prepare_rollout(lost)
    np.testing.assert_array_equal(batch["obs"]["x"][:, 0], [0, 2, 4, 5])
    np.testing.assert_array_equal(batch["terminals"], [0, 1, 0, 0])
    assert len(batch["advantages"]) == len(batch["executed"]) == 4


@pytest.mark.parametrize("name", ["gail", "airl"])
def test_rewards_count_the_time_after_the_end(name, monkeypatch):
    algo = make_algo(name)
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.0, 0.0])
    monkeypatch.setattr(algo, "_logits", lambda batch: logits)
    monkeypatch.setattr(algo, "_absorbing_logit", lambda: torch.tensor(3.0))
    rewards = algo.rollout_rewards(rollout())

    def r(logit):
        return logit if name == "airl" else math.log(1 + math.exp(logit))

    # discount 0.5: 0.5 / (1 - 0.5) = 1 times the absorbing state's reward.
    expected = [[r(0), r(1)], [r(2) + r(3), r(-1)], [r(0), r(0)]]
    np.testing.assert_allclose(rewards, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["gail", "airl"])
@pytest.mark.parametrize("logit", [-2.0, 0.0, 2.0])
def test_neither_to_live_on_nor_to_end_is_better_for_its_own_sake(name, logit, monkeypatch):
    """Where the discriminator sees no difference, the return is the same whenever the episode ends."""
    algo = make_algo(name)
    monkeypatch.setattr(algo, "_logits", lambda batch: torch.full((6,), logit))
    monkeypatch.setattr(algo, "_absorbing_logit", lambda: torch.tensor(logit))
    rewards = algo.rollout_rewards(rollout())
    for_ever = rewards[0, 0] / (1 - 0.5)
    assert rewards[0, 0] + 0.5 * rewards[1, 0] == pytest.approx(for_ever)  # ends at its second step


def test_an_end_counts_as_one_more_step():
    values, absorbing = torch.tensor([1.0, 2.0, 6.0]), torch.tensor(11.0)
    mean = _mean_with_ends(values, absorbing, torch.tensor([0.0, 1.0, 0.0]))
    assert float(mean) == pytest.approx((1 + 2 + 6 + 11) / 4)
    assert float(_mean_with_ends(values, absorbing, torch.zeros(3))) == pytest.approx(3.0)


def test_the_discriminator_learns_who_is_the_expert():
    algo = make_algo(
        optim_params={"discriminator": {"learning_rate": {"initial": 0.02}}},
        discriminator={"gradient_penalty": 0.0},
    )
    expert = {
        "obs": {"x": torch.full((8, 1), 1.0)},
        "next_obs": {"x": torch.zeros(8, 1)},
        "executed": torch.eye(2)[[0] * 8],
        "terminals": torch.ones(8),
    }
    policy = {**algo.prepare_rollout(rollout()), "expert": expert}
    policy["terminals"] = torch.zeros(6)
    before = {name: p.clone() for name, p in algo.nets["policy"].named_parameters()}
    for _ in range(60):
        info = algo.train_on_batch(policy, 1)
    assert info["Expert_Accuracy"] == 1.0
    assert info["Policy_Accuracy"] == 1.0
    assert info["Absorbing_Logit"] > 0.5  # only the expert ends
    assert any(not torch.equal(before[n], p) for n, p in algo.nets["policy"].named_parameters())
    # Without demonstrations in the minibatch it stays as it is.
    judge = {name: p.clone() for name, p in algo.nets["discriminator"].named_parameters()}
    del policy["expert"]
    algo.train_on_batch(policy, 1)
    for name, p in algo.nets["discriminator"].named_parameters():
        assert torch.equal(judge[name], p)


def test_the_loss_of_the_discriminator(monkeypatch):
    algo = make_algo("gail", discriminator={"gradient_penalty": 0.0})
    expert, policy = {"terminals": torch.tensor([1.0])}, {"terminals": torch.zeros(2)}
    logits = {1: torch.tensor([0.0]), 2: torch.tensor([0.0, 1.0])}
    monkeypatch.setattr(algo, "_logits", lambda batch: logits[len(batch["terminals"])])
    monkeypatch.setattr(algo, "_absorbing_logit", lambda: torch.tensor(2.0))
    loss, info = algo._judge_loss(expert, policy)
    # Expert: -log D of logits 0 and 2; policy: -log(1 - D) of 0 and 1.
    of_expert = (math.log(2) + math.log(1 + math.exp(-2))) / 2
    of_policy = (math.log(2) + math.log(1 + math.exp(1))) / 2
    assert float(loss) == pytest.approx(of_expert + of_policy, rel=1e-6)
    assert info["Policy_Accuracy"] == 0.0


def test_airl_compares_a_shaped_reward_with_the_density(monkeypatch):
    algo = make_algo("airl")
    batch = algo.prepare_rollout(rollout())

    class Fake:
        def __init__(self, factor, absorbing):
            self.factor, self.end = factor, absorbing
            self.last = torch.nn.Linear(1, 1)

        def inputs(self, obs, actions):
            return obs["x"]

        def absorbing(self, like):
            return torch.full((1, 1), torch.nan)

        def __call__(self, inputs):
            return torch.nan_to_num(self.factor * inputs[:, 0], nan=self.end)

    fakes = {"reward": Fake(1.0, 5.0), "potential": Fake(10.0, 7.0)}
    monkeypatch.setattr(algo, "_judge", fakes.get)
    # g = x, h = 10 x; discount 0.5: g + 0.5 h(x') - h(x); after the terminal of row 2 h is 7.
    after = [2, 91, None, 5, 94, 95]
    expected = [
        x + 0.5 * (7 if later is None else 10 * later) - 10 * x for x, later in enumerate(after)
    ]
    np.testing.assert_allclose(algo._advantage(batch), expected, rtol=1e-6)
    with torch.no_grad():
        log_prob = algo.net.actor(batch["obs"]).log_prob(batch["executed"])
    np.testing.assert_allclose(
        algo._logits(batch), np.array(expected) - log_prob.numpy(), rtol=1e-5
    )
    assert float(algo._absorbing_logit()) == pytest.approx(5 + (0.5 - 1) * 7)


def test_absorbing_states_are_unlike_any_other():
    judge = make_algo().judge
    inputs = judge.inputs({"x": torch.zeros(1, 1)}, torch.zeros(1, 2))
    np.testing.assert_array_equal(inputs, [[0, 0, 0, 0]])
    np.testing.assert_array_equal(judge.absorbing(inputs), [[0, 0, 0, 1]])


def test_states_alone():
    judge = make_algo(discriminator={"sees_actions": False}).judge
    actions = torch.rand(3, 2)
    x = {"x": torch.rand(3, 1)}
    assert torch.equal(judge(judge.inputs(x, actions)), judge(judge.inputs(x, 1 - actions)))


def test_gradient_penalty_of_a_linear_function():
    class Linear(torch.nn.Module):
        def forward(self, inputs):
            return 3 * inputs[:, 0] + 4 * inputs[:, 1]

    penalty = gradient_penalty(Linear(), torch.rand(5, 2), torch.rand(3, 2))
    assert float(penalty) == pytest.approx((5 - 1) ** 2)  # the gradient is (3, 4)


def test_stacked_frames_are_refused():
    with pytest.raises(ConfigError, match="frame_stack is 2"):
        check_trainable(config().with_overrides({"train.frame_stack": 2}))
