"""TAAC: plans, targets and losses by hand, and a world in which changes cost."""

import math

import pytest
import torch

from imitate.algo.taac import compared_returns, continued, plans_of, renewed
from imitate.errors import ConfigError
from tests.tiny import tiny_algo, tiny_config

from .conftest import set_actor, set_critic

PLANS = {"action": [[0.5]], "linear": [[0.5], [0.1]], "quadratic": [[0.5], [0.1], [0.2]]}


def numbers(*values):
    return torch.tensor([values], dtype=torch.float32)


@pytest.mark.parametrize(
    ("form", "once", "new"),
    [
        ("action", [0.5], [-0.7]),
        ("linear", [0.5 + 2 * 0.1, 0.1], [-0.7, (-0.7 - 0.5) / 2]),
        # v 0.1 + 2 0.2 = 0.5, a 0.5 + 2 0.5 beyond the limit; the change of the change is half of the change
        ("quadratic", [1.0, 0.5, 0.2], [-0.7, -0.6, -0.3]),
    ],
)
def test_plans_by_hand(form, once, new):
    plan = torch.tensor([PLANS[form]])
    torch.testing.assert_close(continued(plan)[0, :, 0], torch.tensor(once))
    torch.testing.assert_close(renewed(numbers(-0.7), plan)[0, :, 0], torch.tensor(new))
    torch.testing.assert_close(continued(-plan)[0, :, 0], -torch.tensor(once))
    first = torch.cat([plan[:, :1], torch.zeros_like(plan[:, 1:])], 1)
    assert renewed(numbers(0.5), first).flatten().tolist() == first.flatten().tolist()


def test_plans_and_their_ends_follow_from_the_actions():
    """From action 0.5 with change 0.1: kept, replaced by 0.1 (change -0.3), kept, but for rounding, and replaced."""
    actions = torch.tensor([[[0.7], [0.1], [-0.500001], [0.0]]])
    plans, new = plans_of(torch.tensor([PLANS["linear"]]), actions)
    assert new.tolist() == [[False, True, False, True]]
    wanted = [[0.7, 0.1], [0.1, -0.3], [-0.5, -0.3], [0.0, 0.25]]
    torch.testing.assert_close(plans[0, :, :, 0], torch.tensor(wanted))


def test_a_plan_is_new_if_one_number_of_the_action_is_another():
    actions = torch.tensor([[[0.5, 0.25], [0.5, 0.5]]])
    plans, new = plans_of(torch.tensor([[[0.5, 0.25]]]), actions)
    assert new.tolist() == [[False, True]]
    torch.testing.assert_close(plans[:, :, 0], actions)


def test_targets_span_the_steps_of_a_plan():
    """Rewards 1, 2, 4, values 10, 20, 30 after the steps, discount 0.5; the second step ends its plan."""
    rewards, values = numbers(1, 2, 4), numbers(10, 20, 30)
    stops = torch.tensor([[False, True, True]])
    found = compared_returns(rewards, numbers(0.5, 0.5, 0.5), values, stops)
    torch.testing.assert_close(found, numbers(1 + 0.5 * (2 + 0.5 * 20), 12, 4 + 0.5 * 30))
    found = compared_returns(rewards, numbers(0.5, 0, 0.5), values, ~stops.bool() | stops)
    torch.testing.assert_close(found, numbers(1 + 5, 2, 19))


def make(*overrides, action=1, hidden=(), **section):
    section = {"discount": 0.5, **section}
    train = {"seq_length": 3, "obs_normalization": None, "online": {"enabled": False}}
    return tiny_algo(
        "taac", *overrides, obs={"s": 1}, action=action, hidden=hidden, algo=section, train=train
    )


def by_hand(form="action"):
    """The new action is tanh(0), Q = s + a / 2, of the targets 2 s + a / 2; probabilities of choices at alpha 1."""
    algo = make(form=form)
    set_actor(algo.actor, 0.0)
    torch.nn.init.zeros_(algo.actor.head.scale.weight)
    torch.nn.init.constant_(algo.actor.head.scale.bias, -20.0)
    for name, slope in (("critic", 1.0), ("critic_target", 2.0)):
        set_critic(algo.nets[name], (slope, 0.5, 0), (slope, 0.5, 0))
    return algo


def window(algo, actions=(0.8, 0.8), rewards=(1.0, 2.0), **more):
    """Three states 1, 2, 3, two actions."""
    padded = torch.tensor([[[a] for a in (*actions, 0.0)]])
    batch = {
        "obs": {"s": torch.tensor([[[1.0], [2.0], [3.0]]])},
        "actions": padded,
        "rewards": torch.tensor([[*rewards, 0.0]]),
        "dones": torch.zeros(1, 3),
        "pad_mask": torch.ones(1, 3, dtype=torch.bool),
        **more,
    }
    return algo.process_batch_for_training(batch)


def test_sequences_of_a_replay_buffer_have_a_row_for_each_state():
    """Three states around two steps; the goal belongs to each state, the weight to each step."""
    words = {"algo": {"discount": 0.5}, "train": {"seq_length": 3, "obs_normalization": None}}
    algo = tiny_algo("taac", obs={"s": 1}, goal=("s",), action=1, hidden=(), **words)
    steps = {"actions": numbers(0.8, 0.3), "discounts": numbers(0.5, 0.0)}
    batch = {
        **{
            name: value.unsqueeze(-1) if name == "actions" else value
            for name, value in steps.items()
        },
        "obs": {"s": torch.tensor([[[1.0], [2.0], [3.0]]])},
        "goal_obs": {"s": torch.tensor([[7.0]])},
        "n_step_rewards": numbers(1, 2),
        "mask": torch.ones(1, 2, dtype=torch.bool),
        "weight": numbers(4, 5, 6),
        "ahead": numbers(0),
        "memory/current_plan": torch.tensor([[[0.8]]]),
    }
    found = algo.process_batch_for_training(batch)
    assert found["goal_obs"]["s"].flatten().tolist() == [7, 7, 7]
    assert found["obs"]["s"].flatten().tolist() == [1, 2, 3]
    assert found["weight"].tolist() == [[4, 5]] and found["rewards"].tolist() == [[1, 2]]
    assert found["before"].flatten().tolist() == pytest.approx([0.8, 0.8, 0.3])
    assert found["new"].tolist() == [[False, True]]


def share(value):
    """Probability of a plan whose value is this much above the other's."""
    return 1 / (1 + math.exp(-value))


def test_the_target_of_a_window_by_hand(monkeypatch):
    algo = by_hand()
    # Kept 0.8 against new 0: 0.4 more. The state 3 has 2 s + 0.4 or 2 s.
    value = {state: 2 * state + share(0.4) * 0.4 for state in (2, 3)}
    for choice, first in ((0, 1 + 0.5 * (2 + 0.5 * value[3])), (1, 1 + 0.5 * value[2])):
        drawn = torch.full((3,), choice)
        monkeypatch.setattr("imitate.algo.taac.draw_class", lambda *_, drawn=drawn: drawn)
        found = algo.td_targets(window(algo))
        torch.testing.assert_close(found, numbers(first, 2 + 0.5 * value[3]), rtol=1e-5, atol=1e-5)
    # Another action is a new plan in the data: whatever today's policy does, the first target ends there.
    monkeypatch.setattr("imitate.algo.taac.draw_class", lambda *_: torch.zeros(3))
    found = algo.td_targets(window(algo, actions=(0.8, -0.6)))
    torch.testing.assert_close(found[0, 0].item(), 1 + 0.5 * value[2], rtol=1e-5, atol=1e-5)


def test_the_losses_by_hand():
    algo = by_hand()
    torch.nn.init.constant_(algo.actor.head.scale.bias, -1.0)
    torch.manual_seed(0)
    loss, info = algo.actor_loss(batch := window(algo))
    torch.manual_seed(0)
    plans, log_prob = algo.candidates(*algo.at_steps(batch), torch.tensor([[[0.0]], [[0.8]]]))
    new = plans[:, 1, 0]
    shares = torch.sigmoid(0.5 * (new - torch.tensor([0.0, 0.8])))
    q = torch.tensor([1.0, 2.0]) + 0.5 * new
    torch.testing.assert_close(loss, (log_prob - shares * q).mean())
    entropy = -(shares * shares.log() + (1 - shares) * (1 - shares).log()).mean()
    torch.testing.assert_close(info["Choice_Entropy"], entropy)
    torch.testing.assert_close(info["Entropy"], -log_prob.detach().mean())
    loss.backward()
    # dQ / da is 1/2, that of log pi by the number before the tanh 2 a; the probability has no gradient
    slope = (2 * new - 0.5 * shares * (1 - new**2)).mean()
    torch.testing.assert_close(algo.actor.head.mean.bias.grad, slope.detach().reshape(1))
    learned = algo.temperature_loss({"Entropy": numbers(1)[0, 0], "Choice_Entropy": entropy})
    algo.entropy.net.log.data += 0.1
    moved = algo.temperature_loss({"Entropy": numbers(1)[0, 0], "Choice_Entropy": entropy})
    rise = 0.1 * (1 + 1) + 0.1 * (entropy - 0.5 * math.log(2))
    torch.testing.assert_close(moved - learned, rise)


def test_padding_and_what_follows_an_end_count_for_nothing():
    algo = by_hand()
    torch.nn.init.constant_(algo.actor.head.scale.bias, -1.0)

    def losses(value, **more):
        batch = window(algo, actions=(0.8, value), rewards=(1.0, value), **more)
        torch.manual_seed(0)
        with torch.no_grad():
            return [algo.critic_loss(batch)[0].item(), algo.actor_loss(batch)[0].item()]

    shown = torch.tensor([[True, True, False]])
    assert losses(0.5, pad_mask=shown) == losses(-0.5, pad_mask=shown)
    ends = torch.tensor([[0.0, 1.0, 0.0]])
    batch = window(algo, dones=ends, pad_mask=shown)
    assert algo.td_targets(batch)[0, 1] == 2.0 and batch["mask"].all()


def test_without_a_mask_all_steps_of_a_window_are_real():
    algo = by_hand()
    batch = {
        "obs": {"s": torch.tensor([[[1.0], [2.0], [3.0]]])},
        "actions": torch.full((1, 3, 1), 0.8),
        "rewards": numbers(1, 2, 0),
        "dones": numbers(0, 1, 0),
    }
    found = algo.process_batch_for_training(batch)
    assert found["mask"].tolist() == [[True, True]] and found["weight"].tolist() == [[1, 1]]
    assert found["discounts"].tolist() == [[0.5, 0.0]]


def test_the_policy_keeps_the_better_plan():
    """Q prefers large actions: of 0.4 kept, and 0 new, the kept; of -0.4 the new."""
    algo = by_hand("linear")
    algo.set_eval()
    state = algo.initial_state(2)
    state["policy"]["current_plan"] = torch.tensor([[[0.4], [0.1]], [[-0.4], [0.1]]])
    step = algo.act({"s": torch.ones(2, 1)}, state)
    torch.testing.assert_close(step.action, torch.tensor([[0.6], [0.0]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        step.state["policy"]["current_plan"][:, 1, 0], torch.tensor([0.1, 0.2])
    )
    assert step.state["policy"]["steps"].tolist() == [1, 1] and step.extras == {}
    tried = algo.act({"s": torch.ones(2, 1)}, state, explore=True)
    assert torch.equal(tried.extras["memory/current_plan"], state["policy"]["current_plan"])
    limited = make("algo.max_repeat=2")
    set_critic(limited.nets["critic"], (0, -9), (0, -9))
    set_actor(
        limited.actor, 0.0, 1.0
    )  # the plan 0 of the start is better, but ends after two steps
    limited.set_eval()
    state, found = limited.initial_state(1), []
    for _ in range(4):
        action, state, _ = limited.act({"s": torch.ones(1, 1)}, state)
        found.append(round(action.item(), 2))
    assert found == [0, 0, 0.76, 0.76]


@pytest.mark.parametrize("form", ["action", "linear"])
def test_where_changes_cost_it_finds_the_right_plan_and_keeps_it(form):
    """The state is (which sign is right, the action before): reward s a - |a - a_before|."""
    rates = [f"algo.optim_params.{net}.learning_rate.initial=0.01" for net in ("critic", "actor")]
    train = {"seq_length": 5, "obs_normalization": None, "online": {"enabled": False}}
    section = {"discount": 0.8, "form": form, "target_tau": 0.05, "temperature": {"initial": 0.1}}
    algo = tiny_algo(
        "taac", *rates, obs={"s": 2}, action=1, hidden=(32,), algo=section, train=train
    )
    generator = torch.Generator().manual_seed(0)

    def windows(size=32, steps=5):
        sign = torch.rand(size, 1, generator=generator).round() * 2 - 1
        before, rows = torch.zeros(size, 1), []
        for _ in range(steps):
            keeps = torch.rand(size, 1, generator=generator) < 0.5
            action = torch.where(keeps, before, torch.rand(size, 1, generator=generator) * 2 - 1)
            reward = sign * action - (action - before).abs()
            rows.append((torch.cat([sign, before], 1), action, reward[:, 0]))
            before = action
        obs, actions, rewards = (torch.stack(part, 1) for part in zip(*rows, strict=True))
        known = {"dones": torch.zeros(size, steps), "pad_mask": torch.ones(size, steps).bool()}
        return {"obs": {"s": obs}, "actions": actions, "rewards": rewards, **known}

    algo.set_train()
    torch.manual_seed(0)
    for _ in range(100):
        info = algo.train_on_batch(algo.process_batch_for_training(windows()), 1)
    assert all(value.isfinite() for value in info.values())
    algo.set_eval()
    sign = torch.tensor([[1.0], [-1.0]]).repeat(20, 1)
    state, action, new = algo.initial_state(40), torch.zeros(40, 1), []
    for _ in range(20):
        before = state["policy"]["steps"]
        seen = {"s": torch.cat([sign, action], 1)}
        action, state, _ = algo.act(seen, state, explore=True)
        new.append(state["policy"]["steps"] <= before)
    assert (action * sign > 0).float().mean() > 0.8
    assert 1 / torch.stack(new).float().mean() > 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.seq_length=1", "cannot continue within one step"),
        ("algo.n_step=3", "the policy decides"),
        ("train.frame_stack=2", "single observations"),
        ('algo.auxiliary={"novelty": {"type": "rnd"}}', "taac from windows"),
    ],
)
def test_what_it_does_not_combine_with_is_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        tiny_config("taac", change, obs={"s": 1})
