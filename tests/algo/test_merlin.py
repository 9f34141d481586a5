"""MERLIN: its memory and losses by hand, and a cue that it remembers longer than its windows are."""

import math

import numpy as np
import pytest
import torch

from imitate.algo.merlin import read, write
from imitate.envs.gymnasium_env import GymnasiumEnv
from imitate.errors import ConfigError
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.learners import stacked
from tests.tiny import tiny_algo, tiny_config

ROWS = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])


def make(*overrides, obs=None, action=2, seed=0, **section):
    words = {"num_choices": action, "slots": {"size": 4, "latent_dim": 2}}
    train = {"seq_length": 2, "online": {"collect_steps": 8, "num_envs": 2}}
    section = {**words, **section}
    return tiny_algo(
        "merlin",
        *overrides,
        obs=obs or {"s": 2},
        action=action,
        seed=seed,
        algo=section,
        train=train,
    )


def test_a_reading_by_hand():
    # cosines 1, 0 and, with the empty row, 0; the row's length does not count
    found, weights = read(ROWS, torch.tensor([[[3.0, 0.0]]]), torch.tensor([[math.log(2.0)]]))
    torch.testing.assert_close(weights, torch.tensor([[[0.5, 0.25, 0.25]]]))
    torch.testing.assert_close(found, torch.tensor([[[0.5, 0.5]]]))


def test_writes_by_hand():
    slots, usage, trail = torch.zeros(1, 2, 2), torch.zeros(1, 2), torch.zeros(1, 2)
    slots, usage, trail = write(slots, usage, trail, torch.tensor([[8.0]]), 0.75)
    assert slots.tolist() == [[[8, 0], [0, 0]]]
    assert usage.tolist() == [[1, 0]] and trail.tolist() == [[0.25, 0]]
    slots, usage, trail = write(slots, usage, trail, torch.tensor([[16.0]]), 0.75)
    # the first row gets a quarter of the second latent
    assert slots.tolist() == [[[8, 4], [16, 0]]]
    assert usage.tolist() == [[1, 1]] and trail.tolist() == [[0.1875, 0.25]]
    usage = torch.tensor([[1.5, 1.25]])
    slots, usage, trail = write(slots, usage, trail, torch.tensor([[32.0]]), 0.75)
    # the row that was read least is replaced, and has no part of this latent twice
    assert slots.tolist() == [[[8, 10], [32, 0]]]
    assert usage.tolist() == [[1.5, 1]] and trail.tolist() == [[0.140625, 0.25]]


def test_a_write_does_not_decay_the_other_rows():
    """ALF multiplies all other rows by 1 - 1 / size at each write, so that old ones fade."""
    usage = torch.tensor([[1.0, 1.0, 0.0]])
    after, _, _ = write(ROWS, usage, torch.zeros(1, 3), torch.tensor([[5.0]]), 0.9)
    assert after.tolist() == [[[1, 0], [0, 2], [5, 0]]]


def test_episodes_of_a_batch_write_to_rows_of_their_own():
    usage = torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    latent = torch.tensor([[5.0], [6.0]])
    after, _, _ = write(ROWS.repeat(2, 1, 1), usage, torch.zeros(2, 3), latent, 0.9)
    assert after[:, :, 0].tolist() == [[5, 0, 0], [1, 0, 6]]


def test_a_step_of_the_memory_by_hand():
    """The posterior adds 1 .. 4 to the prior of 5 each. Three keys read each of four empty rows by a quarter."""
    core = make(slots={"size": 4, "latent_dim": 2, "num_keys": 2}, rnn={"hidden_dim": 8}).net.memory
    for weight in core.parameters():
        torch.nn.init.zeros_(weight)
    core.prior[-1].bias.data = torch.full((4,), 5.0)
    core.posterior[-1].bias.data = torch.arange(1.0, 5.0)
    state = core.initial_state(1)
    state["usage"] += torch.tensor([3.0, 2.0, 4.0, 6.0])
    outputs, after = core(torch.zeros(1, 1, core.posterior[0].in_features - 8 - 8 - 4), state)
    assert outputs[0, 0, :8].tolist() == [6, 7, 8, 9, 5, 5, 5, 5]
    assert after["usage"].flatten().tolist() == [3.75, 1.0, 4.75, 6.75]
    assert after["slots"][0].tolist() == [[0] * 4, [6, 7, 0, 0], [0] * 4, [0] * 4]


def test_the_loss_of_the_predictor_by_hand():
    algo = make(kl_weight=0.5)
    for weight in algo.net.decoder.parameters():
        torch.nn.init.zeros_(weight)
    # posterior N(1, 1) and N(3, e), prior N(0, 1) and N(1, 1); what follows is the policy's
    outputs = torch.tensor([[1.0, 3.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 9.0]])
    loss, info = algo.predictor_loss(outputs, {"s": torch.tensor([[1.0, 3.0]])})
    divergence = 0.5 * 1 + 0.5 * (4 + math.e - 1 - 1)
    assert info["Latent_KL"].item() == pytest.approx(divergence)
    assert info["Reconstruction_Loss"].item() == pytest.approx((1 + 9) / 2)
    assert loss.item() == pytest.approx(5 + 0.5 * divergence)


def rollout_of(algo, env, envs=4, steps=8):
    group = EnvGroup(env, np.arange(envs), seed=0, horizon=100)
    collector = LocalCollector(group, algo, group.envs[0].action_low, group.envs[0].action_high)
    while True:
        raw = stacked(collector.collect(steps).steps)
        yield {**raw, "rewards": algo.rollout_rewards(raw)}


def recall():
    return GymnasiumEnv("imitate.envs.worlds.tasks:Recall-v0", {"delay": 1})


@pytest.mark.parametrize("rnn_type", ["LSTM", "GRU"])
def test_an_update_has_the_policy_and_values_of_the_collection(rnn_type):
    algo = make(f"algo.rnn.rnn_type={rnn_type}", obs={"flat": 2}, rnn={"hidden_dim": 8})
    rollouts = rollout_of(algo, recall, steps=10)
    next(rollouts)
    batch = algo.prepare_rollout(next(rollouts))
    info = algo.train_on_batch(next(algo.minibatches(batch, 1000)), 1, validate=True)
    assert abs(info["KL"].item()) < 1e-6 and batch["memory"]["slots"].abs().sum() > 0
    empty = {name: torch.zeros_like(x) for name, x in batch["memory"].items()}
    info = algo.train_on_batch(next(algo.minibatches({**batch, "memory": empty}, 1000)), 1, True)
    assert info["KL"].item() > 1e-9


def gradients(algo, output):
    algo.net.zero_grad()
    output.sum().backward()
    return {name for name, x in algo.net.named_parameters() if x.grad is not None and x.grad.any()}


def test_the_policy_does_not_shape_the_latent_but_the_value_does():
    algo = make(rnn={"hidden_dim": 8})
    core, obs = algo.net.memory, torch.randn(3, 2, algo.net.encoder.output_dim)
    outputs = core(obs, core.initial_state(3))[0].flatten(0, 1)
    of_policy = gradients(algo, algo.net.policy_of(outputs).logits[:, 0])
    assert any("policy_key" in name for name in of_policy)
    assert not any("posterior" in name for name in of_policy)
    outputs = core(obs, core.initial_state(3))[0].flatten(0, 1)
    assert any("posterior" in name for name in gradients(algo, algo.net.values_of(outputs, {})))


def answers(algo, forgets):
    """Share of cues that are answered rightly; if it forgets, with an empty state at each step."""
    right = []
    for cue in (-1.0, 1.0):
        state = algo.initial_state(1)
        for seen in ([cue, 0.0], [0.0, 0.0], [0.0, 1.0]):
            state = algo.initial_state(1) if forgets else state
            step = algo.act({"flat": torch.tensor([seen])}, state)
            state = step.state
        right.append(step.action.argmax(-1).item() == (cue > 0))
    return sum(right) / 2


def test_it_remembers_a_cue_from_before_its_window():
    """It collects until 95 % of the answers are right; its windows have two steps, the cue is two steps away."""
    rate = "algo.optim_params.policy.learning_rate.initial=0.01"
    section = {"rnn": {"hidden_dim": 8}, "entropy_weight": 0.01, "trace": 1.0}
    algo = make(rate, obs={"flat": 2}, seed=1, **section)
    torch.manual_seed(1)
    for number, raw in enumerate(rollout_of(algo, recall, envs=32, steps=6)):
        right = (raw["rewards"][raw["terminals"]] > 0).mean()
        if right > 0.95 or number == 40:
            break
        batch = algo.prepare_rollout(raw)
        for _ in range(5):
            algo.train_on_batch(next(algo.minibatches(batch, 192)), 1)
    algo.set_eval()
    assert right > 0.95
    assert answers(algo, forgets=False) == 1.0 and answers(algo, forgets=True) == 0.5


def test_no_recurrent_network_is_refused():
    with pytest.raises(ConfigError, match="make the keys to its memory"):
        tiny_config("merlin", "algo.rnn.enabled=false", obs={"s": 1})
