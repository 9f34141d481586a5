"""A memory that learns from sequences: states, masks, targets."""

import copy

import numpy as np
import pytest
import torch
from pydantic import Field

from imitate.algo.base.factory import register
from imitate.algo.slots.memory import ReplayedMemoryConfig, from_stored
from imitate.algo.td3 import TD3, TD3Config
from imitate.config import algorithms
from imitate.config.data_needs import Sequences
from imitate.config.readiness import check_trainable
from imitate.data import DatasetWriter
from imitate.data.batches.build import build_datasets
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.replay import PrioritizedSequences, SequenceReplay
from tests.algo.conftest import learns
from tests.tiny import tiny_algo

OFFLINE = {"train": {"online": {"enabled": False}}, "burn_in": 1}
KINDS = {"numbers": (0, None), "choices": (2, None), "mixed": (2, 1)}


class Walk:
    """Random numbers to be seen; episodes of at least 3 steps, which end in either way."""

    name, longest = "walk", 12

    def __init__(self, action_dim=2):
        self.action_dim = action_dim
        self.action_low, self.action_high = -np.ones(action_dim), np.ones(action_dim)

    def reset(self, *, seed=None):
        self.rng = np.random.default_rng(seed)
        self.left = int(self.rng.integers(3, self.longest + 1))
        return {"s": self.rng.normal(size=3)}, {}

    def step(self, action):
        self.left -= 1
        over, terminal = self.left == 0, self.rng.random() < 0.5
        obs = {"s": self.rng.normal(size=3)}
        return obs, float(action[0]), over and terminal, over and not terminal, {}

    def close(self):
        pass


def make(
    kind="numbers", rnn_type="GRU", num_layers=1, burn_in=3, train=None, algo_name="sac", **section
):
    choices, numbers = KINDS[kind]
    if algo_name == "sac":
        section |= {"num_choices": choices, "num_continuous": numbers}
    rnn = {"rnn_type": rnn_type, "num_layers": num_layers, "burn_in": burn_in}
    section["rnn"] = {"enabled": True, **rnn}
    online = {"online": {"enabled": True, **(train or {}).get("online", {})}}
    train = {"batch_size": 4, "seq_length": 4, **(train or {}), **online}
    action = (choices + (numbers or 0)) or 2
    algo = tiny_algo(algo_name, action=action, hidden=[8], algo=section, train=train)
    check_trainable(algo.global_config)
    return algo


def replayed(algo, steps=40, envs=2, capacity=200):
    """A replay buffer of the algorithm's own steps."""
    group = EnvGroup(lambda: Walk(algo.ac_dim), np.arange(envs), seed=0, horizon=100)
    collector = LocalCollector(group, algo, group.envs[0].action_low, group.envs[0].action_high)
    needs = algo.config.data_needs(algo.global_config)
    memory = SequenceReplay(
        {"s": (3,)},
        algo.ac_dim,
        capacity,
        num_envs=envs,
        transitions=needs.transitions,
        state_shapes=algo.state_shapes,
        seq_length=needs.sequences.length,
        burn_in=needs.sequences.burn_in,
    )
    for step in collector.collect(steps).steps:
        memory.add(step)
    return memory


def transitions(algo, raw):
    """The transitions that the losses see, of a raw batch of sequences."""
    batch = algo.process_batch_for_training(raw)
    return algo.memory.transitions(batch, algo.recurrent("critic"), algo.recurrent("critic_target"))


def state_by_full_unroll(algo, memory, row):
    """From the beginning of the row's episode to the state before its step."""
    net = algo.recurrent("critic")
    state = net.rnn.initial_state(1)
    for back in range(int(memory.number[row]), 0, -1):
        obs = torch.from_numpy(memory.vectors[memory.later(np.array([row]), -back), :3])
        _, state = net({"s": obs[None]}, state)
    return state


@pytest.mark.parametrize(("rnn_type", "num_layers"), [("GRU", 1), ("LSTM", 2)])
@torch.no_grad()
def test_burned_in_states_are_those_of_a_full_unroll(rnn_type, num_layers):
    algo = make(rnn_type=rnn_type, num_layers=num_layers)
    memory = replayed(algo)
    rows = np.flatnonzero(memory.live)
    raw = memory.at(rows)
    assert {0, 1, 2, 3} == set(raw["burn_in"].tolist())
    batch = algo.process_batch_for_training(raw)
    net = algo.recurrent("critic")
    found = net.burned_in(batch["before"], batch["burn_in"], batch["memory"])
    for number, row in enumerate(rows):
        for name, expected in state_by_full_unroll(algo, memory, row).items():
            torch.testing.assert_close(found[name][number], expected[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_burn_in_brings_old_states_up_to_date():
    algo = make()
    memory = replayed(algo)
    for weight in algo.recurrent("critic").parameters():
        weight.mul_(1.5)
    rows = np.flatnonzero(memory.live & (memory.number > 4))
    raw = memory.at(rows)
    raw["burn_in"][:] = 3
    batch = algo.process_batch_for_training(raw)
    net = algo.recurrent("critic")
    found = net.burned_in(batch["before"], batch["burn_in"], batch["memory"])["h"]
    stale = torch.from_numpy(memory.states["memory/h"][rows])
    true = torch.cat([state_by_full_unroll(algo, memory, row)["h"] for row in rows])
    assert (found - true).abs().mean() < 0.5 * (stale - true).abs().mean()


def test_transitions_of_sequences_by_hand():
    algo = make(n_step=2)
    memory = replayed(algo)
    rows = np.flatnonzero(memory.live)
    raw = memory.at(rows)
    seen = transitions(algo, raw)
    mask = raw["mask"]
    assert len(seen["rewards"]) == int(mask.sum())
    torch.testing.assert_close(seen["rewards"], raw["n_step_rewards"][mask])
    # One sequence after another, step by step: the features at the step, and those where its sum of rewards ends.
    known, target = [], []
    sequences = zip(rows, raw["mask"].sum(1), raw["ahead"], raw["obs"]["s"], strict=True)
    with torch.no_grad():
        for row, count, ahead, obs in sequences:
            outputs = {}
            for name in ("critic", "critic_target"):
                state = state_by_full_unroll(algo, memory, row)  # the same weights in both
                outputs[name], _ = algo.recurrent(name)({"s": obs[None, 3:]}, state)
            for step in range(int(count)):
                known.append(outputs["critic"][0, step])
                target.append(outputs["critic_target"][0, step + int(ahead[step])])
    for part, expected in (("obs", known), ("next_obs", target)):
        found = seen[part]["known_to_critics"]
        torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-5)


def test_targets_use_the_targets_memory_and_the_actor_its_own():
    algo = make()
    memory = replayed(algo)
    with torch.no_grad():
        for weight in algo.recurrent("critic_target").parameters():
            weight.zero_()
    seen = transitions(algo, memory.sample(8))
    # Without weights a GRU halves its state in every step, and the stored one is not zero.
    following = seen["next_obs"]
    assert not torch.allclose(following["known_to_critics"], following["known_to_actor"])
    assert torch.equal(seen["obs"]["known_to_critics"], seen["obs"]["known_to_actor"])
    assert seen["obs"]["known_to_critics"].requires_grad
    assert not seen["obs"]["known_to_actor"].requires_grad
    assert not following["known_to_critics"].requires_grad


def test_the_critics_loss_trains_the_memory_and_the_actor_s_does_not():
    algo = make()
    memory = replayed(algo)
    before = copy.deepcopy(algo.recurrent("critic").state_dict())
    for name, loss, moves in (
        ("actor", algo._actor_loss, False),
        ("critic", algo._critic_loss, True),
    ):
        algo._gradient_step(name, loss(transitions(algo, memory.sample(8)))[0])
        now = algo.recurrent("critic").state_dict()
        assert {torch.equal(before[key], value) for key, value in now.items()} == {not moves}


def test_no_gradient_reaches_burned_in_observations():
    algo = make()
    batch = algo.process_batch_for_training(replayed(algo).sample(16))
    for part in ("before", "obs"):
        batch[part]["s"].requires_grad_()
    algo.recurrent("critic").over(batch).sum().backward()
    assert batch["before"]["s"].grad is None
    assert (batch["obs"]["s"].grad != 0).any()


def assert_it_learns(algo):
    """Three updates move every weight; the batches."""
    memory = replayed(algo)
    before = {name: p.detach().clone() for name, p in algo.nets.named_parameters()}
    algo.set_train()
    batches = [algo.process_batch_for_training(memory.sample(8)) for _ in range(3)]
    for batch in batches:
        assert torch.isfinite(algo.train_on_batch(batch, 1)["Loss"])
    assert not any(torch.equal(before[name], p) for name, p in algo.nets.named_parameters())
    return batches


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_actions_learns(kind):
    algo = make(kind)
    batches = assert_it_learns(algo)
    assert torch.isfinite(algo.train_on_batch(batches[0], 1, validate=True)["Action_Error"])


def test_acting_carries_the_state_and_stores_it():
    algo = make()
    obs = {"s": torch.randn(2, 3)}
    first = algo.act(obs, algo.initial_state(2), explore=True)
    assert torch.equal(first.extras["memory/h"], torch.zeros(2, 1, 8))
    second = algo.act(obs, first.state, explore=True)
    assert torch.equal(second.extras["memory/h"], first.state["policy"]["rnn"]["h"])
    assert from_stored(second.extras).keys() == {"h"}
    calm = algo.act(obs, first.state)
    assert calm.extras == {}
    assert not torch.allclose(calm.action, algo.act(obs, algo.initial_state(2)).action)


def test_an_algorithm_without_a_memory_gets_one_by_its_section():
    """TD3's class with ``rnn`` in a section of its own: nothing else is written."""

    class RecurrentTD3Config(TD3Config):
        """Section of TD3 with a memory."""

        rnn: ReplayedMemoryConfig = Field(ReplayedMemoryConfig())

    if "recurrent_td3" not in algorithms.available():
        register("recurrent_td3", RecurrentTD3Config)(TD3)
    rnn = {"enabled": True, "hidden_dim": 8, "burn_in": 3}
    algo = tiny_algo(
        "recurrent_td3",
        action=2,
        hidden=[8],
        algo={"actor": {"update_freq": 1}, "rnn": rnn},
        train={"batch_size": 4, "seq_length": 4, "online": {"enabled": True}},
    )
    assert algo.config.data_needs(algo.global_config).sequences == Sequences(length=4, burn_in=3)
    assert_it_learns(algo)
    first = algo.act({"s": torch.ones(1, 3)}, algo.initial_state(1))
    assert not torch.equal(first.action, algo.act({"s": torch.ones(1, 3)}, first.state).action)


# ---- windows of demonstrations ----


def window(**more):
    """Two windows of 4 steps: the first begins a demonstration that ends at its third step, the second one goes on."""
    return {
        "obs": {"s": torch.randn(2, 4, 3)},
        "actions": torch.zeros(2, 4, 2),
        "rewards": torch.tensor([[0.0, 1, 2, 2], [10, 11, 12, 13]]),
        "terminals": torch.tensor([[0.0, 0, 1, 1], [0, 0, 0, 0]]),
        "pad_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]) > 0,
        "step": torch.tensor([[0, 1, 2, 2], [7, 8, 9, 10]]),
        **more,
    }


def test_steps_of_windows_are_learned_with_their_terminal_and_after_burn_in():
    seen = transitions(make(**OFFLINE), window())
    # All of the first, whose third step is a terminal; of the second the first is burnt in, the last has no successor.
    assert seen["rewards"].tolist() == [0, 1, 2, 11, 12]
    assert seen["discounts"].tolist() == pytest.approx([0.99, 0.99, 0, 0.99, 0.99])


def test_a_demonstration_that_the_clock_cuts_ends_one_step_earlier():
    seen = transitions(make(**OFFLINE), window(terminals=torch.zeros(2, 4)))
    assert seen["rewards"].tolist() == [0, 1, 11, 12]


def test_weights_of_windows_are_those_of_their_steps():
    weight = torch.arange(8.0).reshape(2, 4)
    seen = transitions(make(**OFFLINE), window(weight=weight))
    assert seen["weight"].tolist() == [0, 1, 2, 5, 6]
    assert transitions(make(**OFFLINE), window())["weight"] is None


@torch.no_grad()
def test_the_targets_features_of_a_step_are_those_of_their_own_network():
    algo = make(**OFFLINE)
    for weight in algo.recurrent("critic_target").parameters():
        weight.mul_(2.0)
    raw = window()
    seen = transitions(algo, raw)
    expected, _ = algo.recurrent("critic_target")(raw["obs"], None)
    found = seen["target_obs"]["known_to_critics"]
    torch.testing.assert_close(found, torch.cat([expected[0, :3], expected[1, 1:3]]))


def test_windows_are_asked_for_offline_and_sequences_online():
    for enabled in (True, False):
        config = make(train={"online": {"enabled": enabled}}, burn_in=1).global_config
        needs = config.algo.data_needs(config)
        assert (needs.sequences is not None) == enabled
        assert (needs.returns is None) == enabled
        assert (needs.observed_steps is None) != enabled


def cued_demos(path, count=60):
    """A cue of -1 or 1 in the first of three steps; random actions, and in the last a reward of cue times action."""
    rng = np.random.default_rng(0)
    with DatasetWriter(path, {"env_name": "cue", "type": 4, "env_kwargs": {}}) as writer:
        for number in range(count):
            cue = 1.0 if number % 2 else -1.0
            writer.start_episode()
            for step in range(3):
                action = rng.uniform(-1, 1, 1).astype(np.float32)
                obs = {"s": np.array([cue if step == 0 else 0.0, step == 2], dtype=np.float32)}
                reward = cue * float(action[0]) if step == 2 else 0.0
                writer.append(obs=obs, action=action, reward=reward, terminal=step == 2)
            writer.finish_episode(success=True)
    return path


@pytest.mark.parametrize("remembers", [True, False])
def test_iql_with_a_memory_answers_what_it_saw_two_steps_ago(tmp_path, remembers):
    fast = {"learning_rate": {"initial": 0.01}}
    algo = tiny_algo(
        "iql",
        obs={"s": 2},
        hidden=[32],
        data=cued_demos(tmp_path / "cue.hdf5"),
        algo={
            "rnn": {"enabled": remembers, "hidden_dim": 16, "burn_in": 1},
            "adv": {"beta": 0.2},
            "optim_params": {"critic": fast, "vf": fast, "actor": fast},
        },
        train={"batch_size": 64, "seq_length": 4},
    )
    check_trainable(algo.global_config)
    data, _ = build_datasets(algo.global_config)

    batch = algo.process_batch_for_training(data[np.arange(len(data))])

    def learned():
        state = algo.initial_state(2)
        for shown in ([[1.0, 0], [-1, 0]], [[0.0, 0], [0, 0]], [[0.0, 1], [0, 1]]):
            answer, state, _ = algo.act({"s": torch.tensor(shown)}, state)
        return answer[0].item() > 0.3 and answer[1].item() < -0.3

    assert learns(algo, batch, 300 if remembers else 100, learned) == remembers


def test_iql_rates_actions_by_the_targets_memory_and_next_states_by_the_online_one():
    algo = make("numbers", algo_name="iql", **OFFLINE)
    batch = algo.process_batch_for_training(window())
    before = algo.train_on_batch(batch, 1, validate=True)
    with torch.no_grad():
        for weight in algo.recurrent("critic_target").parameters():
            weight.mul_(2.0)
    after = algo.train_on_batch(batch, 1, validate=True)
    assert before["Vf_Loss"] != after["Vf_Loss"]
    assert before["Critic_Loss"] == after["Critic_Loss"]


def test_sequences_are_drawn_by_the_errors_of_their_first_steps():
    algo = make()
    algo.keeps_errors = True
    plain = replayed(algo)
    memory = PrioritizedSequences({"s": (3,)}, algo.ac_dim, 200, num_envs=2, **plain.form)
    memory.load_state_dict(
        {**memory.state_dict(), **plain.state_dict(), "rows": rows_of(memory, plain)}
    )
    rows = np.flatnonzero(memory.live)[:3]
    memory.update_priorities(np.flatnonzero(memory.live), np.zeros(len(memory), dtype=np.float32))
    memory.update_priorities(rows, np.array([0.0, 100.0, 0.0], dtype=np.float32))
    raw = memory.sample(20)
    assert (raw["index"] == rows[1]).float().mean() > 0.8
    assert raw["weight"].shape == raw["actions"].shape[:2] == (20, 4)
    batch = algo.process_batch_for_training(raw)
    algo.train_on_batch(batch, 1)
    assert algo.sample_errors.shape == (20,)
    first = transitions(algo, raw)["first"]
    assert int(first.sum()) == 20 and first.sum() < len(first)


def rows_of(memory, plain):
    """The steps of a buffer with the priorities of another one."""
    return {**memory.state_dict()["rows"], **plain.state_dict()["rows"]}
