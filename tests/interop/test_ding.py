"""An algorithm with the modes of a DI-engine policy: the same numbers as the algorithm itself, bit for bit."""

from collections import namedtuple

import numpy as np
import pytest
import torch

from imitate.errors import ConfigError, UserError
from imitate.interop.ding import as_policy, create_policy, default_config, get_policy_cls
from tests.tiny import tiny_algo, tiny_batch

Timestep = namedtuple("Timestep", "obs reward done info")
RECURRENT = ["algo.rnn.enabled=true", "train.seq_length=4"]


def same_weights(one, other):
    return all(
        torch.equal(a, b)
        for a, b in zip(
            one.nets.state_dict().values(), other.nets.state_dict().values(), strict=True
        )
    )


def steps_of(policy, rewards, end=True, timeout=False):
    """A trajectory of states 0, 1, 2 ... of the observation, with these rewards."""
    steps = []
    for t, reward in enumerate(rewards):
        obs, after = {"s": np.full(1, t, np.float32)}, {"s": np.full(1, t + 1, np.float32)}
        out = policy.collect_mode.forward({0: obs})[0]
        last = t == len(rewards) - 1
        info = {"TimeLimit.truncated": True} if timeout and last else {}
        step = Timestep(after, np.float32(reward), end and last, info)
        steps.append(policy.collect_mode.process_transition(obs, out, step))
    return steps


@pytest.mark.parametrize("mode", ["collect_mode", "eval_mode"])
@pytest.mark.parametrize(
    ("name", "more"),
    [("td3", []), ("sac", []), ("ppo", RECURRENT), ("bc", ["train.frame_stack=3"])],
)
def test_ten_steps_of_three_environments_equal_ten_batched_steps(name, more, mode):
    algo = tiny_algo(name, *more)
    functions = getattr(as_policy(algo), mode)
    seen = torch.randn(10, 3, 3, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    given = [functions.forward({8: one[0], 2: one[1], 5: one[2]}) for one in seen]
    torch.manual_seed(1)
    algo.set_eval()
    state = algo.initial_state(3)
    for obs, out in zip(seen, given, strict=True):
        step = algo.act({"s": obs}, state, explore=mode == "collect_mode")
        state = step.state
        found = torch.stack([out[each]["action"] for each in (8, 2, 5)])
        assert torch.equal(found, step.action)
        for key, value in step.extras.items():
            assert torch.equal(torch.stack([out[each][key] for each in (8, 2, 5)]), value)


def test_each_environment_has_its_own_state_until_it_is_reset():
    forward, *_, reset = as_policy(tiny_algo("ppo", *RECURRENT)).eval_mode[:2]
    obs = torch.ones(3)
    first, second = (forward({0: obs, 1: obs})[0]["action"] for _ in range(2))
    assert not torch.equal(first, second)
    reset([0])
    out = forward({1: obs, 0: obs})
    assert torch.equal(out[0]["action"], first)
    assert not torch.equal(out[1]["action"], first)
    reset()
    assert torch.equal(forward({1: obs})[1]["action"], first)


@pytest.mark.parametrize("name", ["sac", "iql", "bc"])
def test_ten_updates_from_lists_of_samples_equal_ten_batches(name):
    given, plain = tiny_algo(name), tiny_algo(name)
    learn = as_policy(given).learn_mode
    plain.set_train()
    for number in range(10):
        batch = tiny_batch(plain, seed=number)
        names = ("obs", "next_obs")
        rows = [
            {
                **{key: {"s": batch[key]["s"][row]} for key in names},
                **{key: value[row] for key, value in batch.items() if torch.is_tensor(value)},
            }
            for row in range(6)
        ]
        torch.manual_seed(number)
        out = learn.forward(rows)
        torch.manual_seed(number)
        info = plain.log_info(plain.train_on_batch(plain.process_batch_for_training(batch), 1))
        assert {key: out[key] for key in info} == info
        assert out["total_loss"] == info["Loss"]
    assert same_weights(given, plain)
    assert all(type(out[key]) is float for key in learn.monitor_vars())
    assert len(out.get("priority", [])) == (0 if name == "bc" else 6)


def test_a_rollout_gives_the_samples_that_the_algorithm_prepares():
    algo = tiny_algo("ppo", "algo.discount=0.5", "algo.trace=1.0", obs={"s": 1})
    policy = as_policy(algo)
    torch.nn.init.zeros_(algo.nets["policy"].value_head.weight)
    torch.nn.init.constant_(algo.nets["policy"].value_head.bias, 8.0)
    ended = policy.collect_mode.get_train_sample(steps_of(policy, [1, 2]))
    assert [float(sample["returns"]) for sample in ended] == [2.0, 2.0]
    cut = policy.collect_mode.get_train_sample(steps_of(policy, [1, 2], timeout=True))
    assert [float(sample["returns"]) for sample in cut] == [4.0, 6.0]
    running = policy.collect_mode.get_train_sample(steps_of(policy, [1, 2], end=False))
    assert [float(sample["advantages"]) for sample in running] == [-4.0, -2.0]
    assert policy.learn_mode.forward(ended)["Value_Loss"] == pytest.approx(36.0)


def test_rewards_are_summed_over_n_steps_up_to_the_end():
    algo = tiny_algo(
        "sac", "algo.n_step=2", "algo.discount=0.5", "train.frame_stack=2", obs={"s": 1}
    )
    policy = as_policy(algo)

    def samples(**words):
        return policy.collect_mode.get_train_sample(steps_of(policy, [1, 2, 4], **words))

    found = samples()
    assert [float(each["n_step_rewards"]) for each in found] == [2.0, 4.0, 4.0]
    assert [float(each["discounts"]) for each in found] == [0.25, 0.0, 0.0]
    assert [each["obs"]["s"].flatten().tolist() for each in found] == [[0, 0], [0, 1], [1, 2]]
    assert [each["next_obs"]["s"].flatten().tolist() for each in found] == [[1, 2], [2, 3], [2, 3]]
    for cut in (samples(end=False), samples(timeout=True)):
        assert [float(each["discounts"]) for each in cut] == [0.25, 0.25, 0.5]
    assert policy.learn_mode.forward(found)["priority"]


def test_the_next_action_is_that_of_the_next_step_and_the_last_step_has_no_weight():
    policy = as_policy(tiny_algo("rebrac", obs={"s": 1}))
    steps = steps_of(policy, [1, 2, 4], end=False, timeout=True)
    assert [step["done"] for step in steps] == [False, False, True]
    found = policy.collect_mode.get_train_sample(steps)
    assert [each["weight"].tolist() for each in found] == [[1.0], [1.0], [0.0]]
    for sample, step in zip(found, steps[1:], strict=False):
        assert torch.equal(sample["next_actions"], step["action"])
    policy.learn_mode.forward(found)
    policy.eval_mode.forward({0: np.zeros(1, np.float32)})
    assert policy.algo.nets.training


def epochs_of(algo, update):
    """Epochs of eleven updates, of which ten are an epoch, and the epochs that end."""
    epochs, ended, learn = [], [], algo.train_on_batch
    algo.train_on_batch = lambda batch, epoch: epochs.append(epoch) or learn(batch, epoch)
    algo.on_epoch_end = ended.append
    for _ in range(11):
        update()
    return epochs, ended


def test_updates_are_counted_in_epochs():
    policy = as_policy(tiny_algo("td3", obs={"s": 1}))
    steps = steps_of(policy, [1, 2])
    found = epochs_of(policy.algo, lambda: policy.learn_mode.forward(steps))
    assert found == ([1] * 10 + [2], [1])


def test_weights_of_a_prioritized_buffer_reach_the_loss():
    def critic_loss(weights, rows):
        policy = as_policy(tiny_algo("td3", "algo.actor.noise_std=0", obs={"s": 1}))
        steps = steps_of(policy, [1, 2])
        data = [{**steps[row], "IS": weight} for row, weight in zip(rows, weights, strict=True)]
        return policy.learn_mode.forward(data)["Critic_Loss"]

    alone = critic_loss([1.0], [1])
    assert critic_loss([0.0, 1.0], [0, 1]) == pytest.approx(alone)
    assert critic_loss([1.0, 1.0], [0, 1]) != pytest.approx(alone)


def test_a_policy_is_created_from_its_default_settings():
    cfg = default_config("td3")
    assert cfg["type"] == "td3"
    assert get_policy_cls(cfg).__name__ == "TD3"
    cfg["model"] = {"obs_shape": {"s": 4, "view": (3, 32, 32)}, "action_shape": 2}
    policy = create_policy({**cfg, "import_names": []}, enable_field=["collect", "command"])
    assert policy.algo.obs_shapes == {"s": (4,), "view": (3, 32, 32)}
    assert policy.algo.ac_dim == 2
    with pytest.raises(UserError, match="learn_mode is not enabled: .* has only collect, command"):
        policy.learn_mode  # noqa: B018 - the property refuses
    with pytest.raises(ConfigError, match="import_names: import these modules in your program"):
        create_policy({**cfg, "import_names": ["os"]})
    with pytest.raises(UserError, match="give a dict of s, view"):
        policy.collect_mode.forward({0: np.zeros(4)})
    total = cfg["train"]["num_epochs"] * cfg["experiment"]["epoch_every_n_steps"]
    setting = policy.command_mode.get_setting_collect({"envstep": total // 4, "train_iter": 0})
    assert setting == {"progress": 0.25}


def test_attributes_and_states_go_from_one_policy_to_another():
    one, other = (as_policy(tiny_algo("sac", seed=seed)) for seed in (0, 1))
    other.collect_mode.load_state_dict(one.collect_mode.state_dict())
    obs = {0: torch.ones(3)}
    actions = [each.eval_mode.forward(obs)[0]["action"] for each in (one, other)]
    assert torch.equal(*actions)
    assert not same_weights(one.algo, other.algo)
    other.learn_mode.load_state_dict(one.learn_mode.state_dict())
    assert same_weights(one.algo, other.algo)
    one.learn_mode.set_attribute("unroll_len", 5)
    assert one.collect_mode.get_attribute("unroll_len") == 5
    assert one.collect_mode.get_attribute("cfg")["algo_name"] == "sac"
    with pytest.raises(NotImplementedError, match="no attribute 'nothing'"):
        one.collect_mode.get_attribute("nothing")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("sac", ["train.frame_stack=2"]),
        ("sac", ["algo.n_step=2"]),
        ("ppo", []),
        ("bc", ["train.seq_length=2"]),
    ],
)
def test_single_steps_are_refused_where_samples_are_several(name, more):
    policy = as_policy(tiny_algo(name, *more, obs={"s": 1}))
    steps = steps_of(policy, [1])
    with pytest.raises(UserError, match=f"{name} learns from several steps in a row"):
        policy.learn_mode.forward(steps)
    policy.learn_mode.forward(policy.collect_mode.get_train_sample([*steps, *steps]))


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("sac", RECURRENT, "sac learns from sequences"),
        ("cal_ql", [], "learns from whole episodes"),
        (
            "sac",
            ['algo.rewards={"cost": {"at_most": 1}}'],
            "algo.rewards: its training samples exist only",
        ),
        ("mbrl", [], "algo.dynamics: its"),
        (
            "sac",
            ['algo.auxiliary={"model": {"type": "predictive", "steps": 2}}'],
            "several steps: its",
        ),
        ("dac", [], "algo.reward_source: its"),
    ],
)
def test_what_a_loop_of_samples_cannot_teach_is_refused(name, more, words):
    policy = as_policy(tiny_algo(name, *more, obs={"s": 1}))
    with pytest.raises(UserError, match=words):
        policy.collect_mode.get_train_sample(steps_of(policy, [1]))
