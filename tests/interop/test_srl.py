"""An algorithm as a policy and trainer of SRL: the same numbers as the algorithm itself, bit for bit."""

import numpy as np
import pytest
import torch

from imitate.errors import UserError
from imitate.interop.srl import NamedArray, Policy, Trainer
from tests.interop.test_ding import RECURRENT, epochs_of, same_weights
from tests.tiny import tiny_algo


def sample_of(seed=0, steps=4, agents=2, **changes):
    """Rows 0 to 4: agent 0's episode ends at row 2 and begins anew at row 3; agent 1's is cut by the clock at row 4."""
    random = np.random.default_rng(seed)

    def flags(*places):
        values = np.zeros((steps + 1, agents, 1), np.uint8)
        for place in places:
            values[place] = 1
        return values

    return NamedArray(
        obs=NamedArray(s=random.normal(size=(steps + 1, agents, 3)).astype(np.float32)),
        action=NamedArray(x=random.uniform(-1, 1, (steps + 1, agents, 1)).astype(np.float32)),
        reward=random.normal(size=(steps + 1, agents, 1)).astype(np.float32),
        done=flags((2, 0)),
        truncated=flags((4, 1)),
        on_reset=flags((0, 0), (0, 1), (3, 0)),
        policy_state=None,
        **changes,
    )


STEPS = [(0, 0), (1, 0), (3, 0), (0, 1), (1, 1), (2, 1), (3, 1)]
"""Rows and agents of the steps in a sample; no step leads from agent 0's row 2."""


@pytest.mark.parametrize(("name", "more"), [("td3", []), ("sac", []), ("ppo", RECURRENT)])
def test_ten_rollouts_equal_ten_batched_steps_with_exploration_in_the_rows_that_want_it(name, more):
    algo = tiny_algo(name, *more)
    policy = Policy(algo)
    seen = np.random.default_rng(0).normal(size=(10, 4, 3)).astype(np.float32)
    for evaluates in ([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]):
        rows = {
            False: [i for i in range(4) if not evaluates[i]],
            True: [i for i in range(4) if evaluates[i]],
        }
        torch.manual_seed(1)
        given, state = [], None
        for obs in seen:
            request = {"obs": {"s": obs}, "policy_state": state}
            out = policy.rollout({**request, "is_evaluation": np.array(evaluates)[:, None]})
            state = out.policy_state
            given.append(out)
        torch.manual_seed(1)
        algo.set_eval()
        states = {key: algo.initial_state(len(each)) for key, each in rows.items() if each}
        for obs, out in zip(seen, given, strict=True):
            for key in states:
                step = algo.act(
                    {"s": torch.from_numpy(obs[rows[key]])}, states[key], explore=not key
                )
                states[key] = step.state
                assert np.array_equal(out.action[rows[key]], step.action.detach().numpy())
                for extra, value in step.extras.items():
                    assert np.array_equal(
                        out.analyzed_result[extra][rows[key]], value.detach().numpy()
                    )


def test_an_agent_brings_its_state_and_begins_without_one():
    policy = Policy(tiny_algo("ppo", *RECURRENT))
    obs = np.ones((2, 3), np.float32)
    start = policy.default_policy_state
    both = NamedArray(policy=NamedArray(rnn=NamedArray(h=np.stack([start.policy.rnn.h] * 2))))
    ask = {"obs": {"s": obs}, "is_evaluation": np.ones((2, 1))}
    first = policy.rollout({**ask, "policy_state": both})
    assert np.array_equal(first.action, policy.rollout(ask).action)
    second = policy.rollout({**ask, "policy_state": first.policy_state})
    assert not np.array_equal(first.action, second.action)
    renewed = {**ask, "policy_state": first.policy_state, "on_reset": np.array([[1], [0]])}
    assert np.array_equal(policy.rollout(renewed).action, [first.action[0], second.action[1]])
    assert Policy(tiny_algo("sac")).default_policy_state is None
    assert second[1].action.shape == (1,) and second.length(0) == 2


@pytest.mark.parametrize("name", ["sac", "bc"])
def test_ten_steps_of_a_trainer_equal_ten_updates(name):
    given, plain = tiny_algo(name), tiny_algo(name)
    trainer = Trainer(Policy(given))
    plain.set_train()
    for number in range(10):
        sample = sample_of(number)
        chosen = tuple(torch.tensor(STEPS).T)
        arrays = {
            key: torch.from_numpy(sample[key])[chosen] for key in ("reward", "done", "truncated")
        }
        after = chosen[0] + 1, chosen[1]
        terminals = torch.from_numpy(sample.done)[after].float()
        obs, actions = torch.from_numpy(sample.obs.s), torch.from_numpy(sample.action.x)
        batch = {
            "obs": {"s": obs[chosen][:, None]},
            "next_obs": {"s": obs[after][:, None]},
            "actions": actions[chosen][:, None],
            "rewards": arrays["reward"],
            "dones": terminals,
            "n_step_rewards": arrays["reward"][:, 0],
            "discounts": 0.99 * (1 - terminals[:, 0]),
            "pad_mask": torch.ones(7, 1, dtype=torch.bool),
        }
        torch.manual_seed(number)
        result = trainer.step(sample)
        torch.manual_seed(number)
        info = plain.log_info(plain.train_on_batch(plain.process_batch_for_training(batch), 1))
        assert result.stats == info and result.step == number
    assert same_weights(given, plain)
    assert name == "bc" or result.priorities.shape == (7,)


def test_advantages_and_the_analysis_of_a_rollout():
    algo = tiny_algo(
        "ppo", "algo.discount=0.5", "algo.trace=1.0", "algo.normalize_advantages=false"
    )
    net = algo.nets["policy"]
    torch.nn.init.zeros_(net.value_head.weight)
    torch.nn.init.constant_(net.value_head.bias, 8.0)
    policy, sample = Policy(algo), sample_of()
    sample["reward"] = np.ones_like(sample.reward)
    out = policy.rollout({"obs": {"s": sample.obs.s.reshape(10, 3)}}).analyzed_result
    sample["analyzed_result"] = NamedArray(
        {key: x.reshape(5, 2, *x.shape[1:]) for key, x in out.items()}
    )
    found = policy.analyze(sample, "mappo")
    assert torch.equal(found.state_values, torch.full((7,), 8.0))
    assert torch.allclose(found.old_action_log_probs, found.new_action_log_probs, atol=1e-6)
    assert found.entropy.requires_grad and found.new_action_log_probs.requires_grad
    # 1 + 0.5 to the end, 1 at it, 1 + 0.5 x 8 where the sample is cut
    expected = {
        (0, 0): 1.5,
        (1, 0): 1.0,
        (3, 0): 5.0,
        (3, 1): 5.0,
        (2, 1): 3.5,
        (1, 1): 2.75,
        (0, 1): 2.375,
    }
    returns = torch.tensor([expected[step] for step in STEPS])
    loss = Trainer(policy).step(sample).stats["Value_Loss"]
    assert loss == pytest.approx(float((8.0 - returns).square().mean()), rel=1e-5)


def test_losses_by_the_name_of_the_algorithm_change_nothing():
    one, other = (Policy(tiny_algo("td3", "algo.actor.noise_std=0", seed=0)) for _ in range(2))
    losses = one.analyze(sample_of(), "td3")
    assert same_weights(one.algo, other.algo)
    assert Trainer(other).step(sample_of()).stats["Critic_Loss"] == float(losses.Critic_Loss)
    with pytest.raises(
        UserError, match="td3 has no analysis for 'ppo'; give 'td3' to get its losses"
    ):
        one.analyze(sample_of(), "ppo")
    with pytest.raises(UserError, match="bootstrap_steps 1"):
        one.analyze(sample_of()[:1], "td3")


def test_updates_are_counted_in_epochs():
    trainer = Trainer(Policy(tiny_algo("td3")))
    found = epochs_of(trainer.policy.algo, lambda: trainer.step(sample_of()))
    assert found == ([1] * 10 + [2], [1])


def test_a_checkpoint_has_the_version_and_the_optimizers():
    trainer, copy = (Trainer(Policy(tiny_algo("sac", seed=seed))) for seed in (0, 1))
    trainer.step(sample_of())
    copy.load_checkpoint(trainer.get_checkpoint())
    for each in (trainer, copy):
        torch.manual_seed(3)
        each.step(sample_of(1))
    assert copy.policy.version == trainer.policy.version == 1
    assert same_weights(copy.policy.algo, trainer.policy.algo)
