"""Named rewards: weights, means and multipliers by hand, and a speed that keeps to its limit."""

import sys

import numpy as np
import pytest
import torch

from imitate.algo.slots.reward_weights import (
    RewardsConfig,
    RewardWeights,
    RewardWeightsConfig,
    added,
    reward_weights_in,
    set_reward_weights,
)
from imitate.config.data_needs import Transitions
from imitate.data.batches.rewards import RewardTransform
from imitate.envs.env import named_reward
from imitate.errors import ConfigError, RewardError
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.learners import ReplayLearner, RolloutLearner, stacked
from imitate.train.online.normalization import RewardScaler
from imitate.train.online.replay import ReplayBuffer
from imitate.train.online.seats import merged_parts
from imitate.train.online.setup import online_env_meta
from imitate.train.online.steps import Collected
from tests.refusals import refused
from tests.tiny import tiny_algo, tiny_config

SPEED = {
    "speed": {"source": "reward"},
    "cost": {"source": "info:cost", "weight": 0, "at_most": 0.25},
}
ARRAYS = ("rewards", "signals/cost")


class Speed:
    """The reward is the action a; its cost is a^2."""

    name, action_dim = "speed", 1
    action_low, action_high = np.array([-1.0]), np.array([1.0])

    def reset(self, *, seed=None):
        return {"s": np.zeros(1, np.float32)}, {}

    def step(self, action):
        a = float(action[0])
        return {"s": np.zeros(1, np.float32)}, a, False, False, {"cost": a * a}

    def close(self):
        pass


def weights_of(rewards, **settings):
    return RewardWeights(RewardsConfig(**rewards), RewardWeightsConfig(**settings))


def test_weights_by_hand():
    made = weights_of(
        {
            "task": {"weight": 2.0},
            "cost": {"source": "info:cost", "weight": 0.0, "at_most": 0.25},
            "height": {"source": "info:z", "weight": 1.0, "at_least": 3.0},
        }
    )
    made.raw.data = torch.tensor([3.0, 1.0]).expm1().log()
    # The cost has weight -3, the height 1 + 1, all divided by 1 + 3 + 1.
    assert made.weights().tolist() == pytest.approx([0.4, -0.6, 0.4])
    assert made.combined(torch.tensor([[1.0, 1.0, 2.0]])).item() == pytest.approx(0.6)
    made.mean.copy_(torch.tensor([0.0, 0.35, 2.5]))
    assert made.breaks().tolist() == pytest.approx([0.1, 0.5])
    loss, info = made.loss()
    assert loss.item() == pytest.approx(-(3 * 0.1 + 1 * 0.5))
    assert info["Rewards/cost_Multiplier"].item() == pytest.approx(3.0)
    loss.backward()
    assert (made.raw.grad < 0).all()  # both bounds are broken, so both multipliers rise


def test_means_by_hand():
    made = weights_of(SPEED, memory_steps=4)
    made.observe(np.array([[1.0, 0.5], [3.0, 1.5]], np.float32))
    made.observe(np.zeros((2, 2), np.float32))
    assert made.mean.tolist() == pytest.approx([1.0, 0.5])  # up to 4 steps all count alike
    made.observe(np.zeros((2, 2), np.float32))  # then 3/4 are kept at each step
    assert made.mean.tolist() == pytest.approx([9 / 16, 9 / 32])
    made.observe(np.zeros((0, 2), np.float32))
    restored = weights_of(SPEED)
    restored.load_state_dict(made.state_dict())
    assert torch.equal(restored.mean, made.mean) and restored.steps == 6


def test_the_multiplier_finds_its_value():
    """The best action for the reward (a - m a^2) / (1 + m) is a = 1 / (2 m), which is 0.5 for m = 1."""
    made = weights_of(SPEED, initial=0.2, memory_steps=20)
    for _ in range(800):
        speed, cost = made.weights().tolist()
        best = min(1.0, -speed / (2 * cost))
        made.observe(np.array([[best, best**2]], np.float32))
        made.zero_grad()
        made.loss()[0].backward()
        made.raw.data -= 0.2 * made.raw.grad
    assert made.multipliers.item() == pytest.approx(1.0, abs=0.05)
    assert best == pytest.approx(0.5, abs=0.03)


def collected(steps, **changes):
    group = EnvGroup(
        Speed, np.arange(2), seed=0, horizon=3, signals=("reward", "info:cost"), **changes
    )
    group.reset()
    return [group.step(np.full((2, 1), a)) for a in steps]


def test_named_rewards_are_stored_and_summed_over_steps():
    steps = collected([0.5, 1.0, -1.0, 0.0])
    np.testing.assert_allclose(steps[0].signals, [[0.5, 0.25]] * 2)
    memory = ReplayBuffer(
        {"s": (1,)},
        1,
        20,
        num_envs=2,
        transitions=Transitions(0.5, 2, signals=ARRAYS, signal_discounts=(0.5, 0.8)),
    )
    for step in steps:
        memory.add(step)
    found = {
        (int(memory.number[row]), row % 2): [
            number
            for name in ("n_step_signals", "signal_discounts")
            for number in memory.at(np.array([row]))[name][0].tolist()
        ]
        for row in np.flatnonzero(memory.live)
    }
    assert found[1, 0] == pytest.approx([1.0 - 0.5, 1.0 + 0.8, 0.25, 0.64])
    assert found[2, 0] == pytest.approx([-1.0, 1.0, 0.5, 0.8])  # the episode's last step
    other = ReplayBuffer({"s": (1,)}, 1, 20, num_envs=2, transitions=memory.transitions)
    other.load_state_dict(memory.state_dict())
    assert np.array_equal(other.signals, memory.signals)


def test_an_environment_is_asked_for_the_parts_that_have_names():
    rewards = {"speed": {"source": "reward:0"}, "cost": {"source": "reward:1", "weight": -1}}
    online = {"online": {"enabled": True, "env": "Pendulum-v1"}}
    config = tiny_config("sac", obs={"flat": 3}, algo={"rewards": rewards}, train=online)
    assert online_env_meta(config)["reward_parts"]
    assert named_reward("reward:1", 1.5, {"reward:0": 1.0, "reward:1": 0.5}) == 0.5


def test_workers_steps_are_joined():
    (one,), (two,) = collected([0.5]), collected([1.0])
    parts = [Collected([step], np.arange(2) + 2 * n, []) for n, step in enumerate((one, two))]
    assert merged_parts(parts, [], []).steps[0].signals[:, 1].tolist() == [0.25, 0.25, 1.0, 1.0]


def test_what_the_environment_does_not_report_is_refused():
    group = EnvGroup(Speed, np.arange(1), seed=0, horizon=3, signals=("info:csot",))
    group.reset()
    with refused("info has no 'csot'|did you mean 'cost'", error=RewardError):
        group.step(np.zeros((1, 1)))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("iql", {}, "train in an environment"),
        ("sac", {"reward": {"scale": 2.0}}, "train.reward transforms a single reward"),
        ("sac", {"online": {"wrappers": [{"type": "repeated", "num": 2}]}}, "sums a single reward"),
    ],
)
def test_what_does_not_fit_is_refused(name, changes, words):
    online = {"enabled": name != "iql", "env": "x", **changes.pop("online", {})}
    with refused(f"algo.rewards: |{words}", error=ConfigError):
        tiny_config(
            name,
            obs={"s": 1, "duration": 1},
            algo={"rewards": SPEED},
            train={"online": online, **changes},
        )


def test_values_of_each_reward_by_hand():
    made = weights_of(SPEED, initial=1.0)  # weights 1/2 and -1/2, and 1 of what is added
    values = torch.tensor([[[2.0, 1.0, 0.0]], [[4.0, 3.0, -1.0]]])
    assert made.pessimistic(values).tolist() == [[2.0, 3.0, -1.0]]
    assert made.pessimistic(values, 0.75).tolist() == [[2.5, 2.5, -0.75]]
    assert made.total(values).tolist() == [[0.5], [-0.5]]
    assert made.total_distance(values.abs()).tolist() == [[1.5], [4.5]]
    assert added(values[0], torch.tensor([10.0])).tolist() == [[2.0, 1.0, 10.0]]


def test_weights_are_set_and_saved():
    nets = torch.nn.ModuleDict({"reward_weights": weights_of(SPEED)})
    set_reward_weights(nets, [3.0, 1.0])
    other = weights_of(SPEED)
    other.load_state_dict(nets["reward_weights"].state_dict())
    assert other.weights().tolist() == pytest.approx([1.5, 0.0])
    with refused("algo.rewards has 2 names|the weights have shape", error=ConfigError):
        set_reward_weights(nets, [1.0])


def algo_of_speed(name, **section):
    rewards = {**SPEED, "speed": {"source": "reward", "discount": 0.5}}
    return tiny_algo(
        name,
        obs={"s": 1},
        hidden=(8,),
        algo={"rewards": rewards, "discount": 0.8, **section},
        train={"online": {"enabled": True, "env": "x", "demo_ratio": 0}},
    )


def constant(critic, values):
    """Make all of an ensemble's members return the same ``values`` (V,)."""
    for parameter in critic.parameters():
        parameter.data.zero_()
    critic.head.bias.data[:] = torch.tensor(values)


@pytest.mark.parametrize("name", ["sac", "rlpd", "td3", "ddpg"])
def test_targets_of_each_reward_by_hand(name, monkeypatch):
    algo, seen = algo_of_speed(name), {}
    constant(algo.nets["critic_target"], [2.0, 4.0, 10.0])
    monkeypatch.setattr(
        type(algo),
        "_td_loss",
        lambda own, values, target, weight: seen.update(target=target) or values.sum(),
    )
    algo.train_on_batch(one_step([0.0]), 1, validate=True)
    assert seen["target"][1].tolist() == [1.0, 0.25, 0.0]
    speed, cost, more = seen["target"][0].tolist()
    assert (speed, cost) == pytest.approx((1 + 0.5 * 2, 0.25 + 0.8 * 4))
    assert (more == 8.0) == (name in ("td3", "ddpg"))  # the others add the entropy


def one_step(action):
    obs = {"s": torch.zeros(2, 1)}
    return {
        "obs": obs,
        "next_obs": obs,
        "goal_obs": None,
        "actions": torch.tensor([action] * 2),
        "signals": torch.tensor([[1.0, 0.25]] * 2),
        "discounts": torch.tensor([0.8, 0.0]),
        "signal_discounts": torch.tensor([[0.5, 0.8], [0.0, 0.0]]),
        "weight": None,
    }


def test_atoms_of_each_reward_by_hand(monkeypatch):
    """Targets drop the two highest rewards and the two lowest costs of the atoms 0 to 5 of two critics."""
    critic = {"ensemble": {"n": 2}, "num_quantiles": 3, "num_dropped": 1}
    algo, seen = (
        algo_of_speed("tqc", critic=critic, temperature={"tuned": False, "initial": 0.5}),
        {},
    )
    for name in ("critic", "critic_target"):
        constant(algo.nets[name], torch.zeros(9).tolist())
        atoms = torch.arange(6.0).reshape(2, 3, 1).repeat(1, 1, 3)  # (E, M, V)
        algo.nets[name].head.bias.data[:] = atoms.flatten(1)
    module = sys.modules[type(algo).__module__]
    loss = module.quantile_regression_loss
    monkeypatch.setattr(
        module,
        "quantile_regression_loss",
        lambda atoms, samples, huber: seen.update(samples=samples) or loss(atoms, samples),
    )
    algo.keeps_errors = True
    info = algo.train_on_batch(one_step([0.0]), 1, validate=True)
    task, cost, entropy = seen["samples"].reshape(2, 3, 2, 4)[0]  # of the first critic: (V, B, N)
    assert task.tolist() == [[1.0, 1.5, 2.0, 2.5], [1.0] * 4]
    wanted = [0.25 + 0.8 * atom for atom in (2, 3, 4, 5)]
    assert sorted(cost[0].tolist()) == pytest.approx(wanted) and cost[1].tolist() == [0.25] * 4
    spread = entropy[0] - entropy[0, 0]
    assert spread.tolist() == pytest.approx([0.0, 0.8, 1.6, 2.4]) and entropy[1].tolist() == [0] * 4
    assert info["Q"].item() == pytest.approx(2.5)  # (1 - 1) / 2 of the means and the added values
    assert algo.sample_errors[1].item() == pytest.approx((1.5 + 2.25) / 2 + 2.5)


@pytest.mark.parametrize("num", [1, 2])
def test_the_best_choice_is_that_of_the_weighted_values(num):
    """Two choices: the first has the greater reward, the second is better with its cost."""
    rewards = {**SPEED, "speed": {"source": "reward", "discount": 0.5}}
    algo = tiny_algo(
        "dqn",
        obs={"s": 1},
        action=2,
        hidden=(8,),
        algo={"rewards": rewards, "discount": 0.8, "critic": {"num_quantiles": num}},
        train={"online": {"enabled": True, "env": "x"}},
    )
    for name in ("critic", "critic_target"):
        values = [[[4.0, 4.0, 0.0]] * num, [[3.0, 1.0, 0.0]] * num]
        constant(algo.nets[name], torch.tensor(values).flatten().tolist())
    obs = {"s": torch.zeros(2, 1)}
    step = algo.act(obs, algo.initial_state(2))
    assert step.action.argmax(-1).tolist() == [1, 1]
    algo.keeps_errors = True
    info = algo.train_on_batch(one_step([0.0, 1.0]), 1, validate=True)
    # The targets are those of the second choice; the weights 1/2, -1/2 and 1.
    targets = [1 + 0.5 * 3 - (0.25 + 0.8 * 1), 1 - 0.25]
    assert info["Q_Targets"].item() == pytest.approx(sum(targets) / 4)
    assert algo.sample_errors.tolist() == pytest.approx([(0.5 + 0.05) / 2, (2 + 0.75) / 2])
    assert algo.acting_nets == ("reward_weights",)


def test_advantages_of_each_reward_by_hand():
    algo = algo_of_speed("ppo", trace=1.0)
    value = algo.nets["policy"].value_head
    value.weight.data.zero_()
    value.bias.data[:] = torch.tensor([2.0, 4.0, 10.0])
    steps = collected([0.5, 1.0])
    for step in steps:
        step.extras.update(policy_action=step.actions, log_prob=np.zeros(2, np.float32))
    rollout = stacked(steps)
    rollout["rewards"] = algo.rollout_rewards(rollout)
    batch = algo.prepare_rollout(rollout)
    first = [0.5 + 0.5 * (1.0 + 0.5 * 2), 0.25 + 0.8 * (1.0 + 0.8 * 4), 0.8 * 0.8 * 10]
    assert batch["returns"][0].tolist() == pytest.approx(first)
    advantages = first[0] - 2.0, first[1] - 4.0, first[2] - 10.0
    half = 0.5 * (advantages[0] - advantages[1]) + advantages[2]
    assert batch["advantages"][0].item() == pytest.approx(half)
    info = algo.train_on_batch({name: batch[name] for name in batch}, 1, validate=True)
    errors = (batch["returns"] - torch.tensor([2.0, 4.0, 10.0])).square()
    assert info["Value_Loss"].item() == pytest.approx(errors.mean().item(), rel=1e-4)


def test_batches_have_the_named_rewards():
    online = {"online": {"enabled": True, "env": "x"}}
    algo = tiny_algo("sac", obs={"s": 1}, hidden=(8,), algo={"rewards": SPEED}, train=online)
    weights = reward_weights_in(algo.nets)
    wanted = Transitions(signals=ARRAYS, signal_discounts=(0.99, 0.99))
    memory = ReplayBuffer({"s": (1,)}, 1, 100, num_envs=2, transitions=wanted)
    learner = ReplayLearner(algo, memory, memory, batch_size=4, update_ratio=1, warmup_steps=0)
    learner.take(Collected(collected([0.5, 1.0]), np.arange(2), []))
    assert weights.mean.tolist() == pytest.approx([0.75, 0.625])
    before = weights.multipliers.item()
    for batch in learner.batches_due():
        info = algo.train_on_batch(batch, 1)
        assert {tuple(row) for row in batch["signals"].tolist()} <= {(0.5, 0.25), (1.0, 1.0)}
    assert info["Rewards/cost"].item() == pytest.approx(0.625)
    assert weights.multipliers.item() > before  # 0.625 is above the bound


def test_an_algorithm_with_rewards_of_its_own_refuses_others():
    online = {"enabled": True, "env": "x"}
    with pytest.raises(ConfigError, match=r"algo.rewards: dac computes its own rewards"):
        tiny_config("dac", obs={"s": 1}, algo={"rewards": SPEED}, train={"online": online})


def speed_of(name, updates, **section):
    """Mean actions and costs per step of the latest 200 steps after so many updates."""
    rates = {net: {"learning_rate": {"initial": 3e-3}} for net in section.pop("nets")}
    multiplier = {"optimizer": {"learning_rate": {"initial": 0.004}}, "memory_steps": 200}
    algo = tiny_algo(
        name,
        obs={"s": 1},
        hidden=(16,),
        algo={
            "rewards": SPEED,
            "reward_weights": multiplier,
            "discount": 0.0,
            "optim_params": rates,
            **section,
        },
        train={"online": {"enabled": True, "env": "x"}},
    )
    group = EnvGroup(Speed, np.arange(4), seed=0, horizon=10, signals=("reward", "info:cost"))
    collector = LocalCollector(group, algo, Speed.action_low, Speed.action_high)
    if name == "ppo":
        scaler = RewardScaler(RewardTransform(), 4)
        learner = RolloutLearner(algo, rollout_steps=32, batch_size=32, reward_scaler=scaler)
    else:
        memory = ReplayBuffer(
            {"s": (1,)},
            1,
            10_000,
            num_envs=4,
            transitions=algo.config.data_needs(algo.global_config).transitions,
        )
        learner = ReplayLearner(
            algo, memory, memory, batch_size=32, update_ratio=0.5, warmup_steps=40
        )
    seen = []
    while learner.updates < updates:
        new = collector.collect(32 if name == "ppo" else 2)
        seen += [step.signals for step in new.steps]
        learner.take(new)
        algo.set_train()
        for _ in learner.updates_due(1):
            pass
    return np.concatenate(seen[-50:]).mean(0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "updates", "section"),
    [
        (
            "sac",
            1500,
            {"nets": ("actor", "critic"), "temperature": {"tuned": False, "initial": 0.02}},
        ),
        ("ppo", 1500, {"nets": ("policy",)}),
    ],
)
def test_a_speed_keeps_to_its_limit(name, updates, section):
    """The greatest mean action with a mean square of 0.25 is 0.5; without the constraint it is 1."""
    speed, cost = speed_of(name, updates, **section)
    assert 0.2 < cost < 0.3
    assert speed > 0.35
