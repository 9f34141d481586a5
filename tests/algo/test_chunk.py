"""Chunks in every variant of behavior cloning; averaged weights."""

import math

import pytest
import torch

from tests.algo.conftest import losses
from tests.tiny import tiny_algo, tiny_batch

VARIANTS = {
    "bc": (),
    "gaussian": ("algo.gaussian.enabled=true",),
    "gmm": ("algo.gmm.enabled=true",),
    "vae": ("algo.vae.enabled=true",),
    "rnn": ("algo.rnn.enabled=true", "algo.rnn.horizon=5", "algo.rnn.hidden_dim=16"),
    "rnn_gmm": (
        *("algo.rnn.enabled=true", "algo.rnn.horizon=5", "algo.rnn.hidden_dim=16"),
        "algo.gmm.enabled=true",
    ),
}


def make(overrides=(), ac_dim=2, frames=1):
    chunk = {"enabled": True, "size": 4, "execute": 2}
    train = {"seq_length": 8, "frame_stack": frames}
    words = {"obs": {"state": 2}, "hidden": [32], "algo": {"chunk": chunk}, "train": train}
    return tiny_algo("bc", *overrides, action=ac_dim, **words)


@pytest.mark.parametrize("variant", VARIANTS)
def test_padded_steps_do_not_matter(variant):
    """Values beyond the demo's end change neither loss nor gradient."""
    found = []
    for padding in (0.1, 0.7):
        algo = make(VARIANTS[variant])
        algo.set_eval()
        batch = tiny_batch(algo, 5)
        batch["pad_mask"][:, 6:] = False
        batch["pad_mask"][0, 1:] = False
        batch["actions"][~batch["pad_mask"]] = padding
        if variant == "vae":  # its encoder sees the whole chunk; only the reconstruction is masked
            out = algo.vae_policy.vae
            out.encode = lambda actions, condition: {
                "mean": torch.zeros(len(actions), 14),
                "logvar": torch.zeros(len(actions), 14),
            }
        torch.manual_seed(1)
        found.append(losses(algo, algo.process_batch_for_training(batch))["Loss"])
    assert found[0] == found[1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_actions_come_from_one_prediction(variant):
    algo = make(VARIANTS[variant])
    algo.set_eval()
    state = algo.initial_state(1)
    chunks, actions = [], []
    torch.manual_seed(0)
    for _ in range(4):
        step = algo.act({"state": torch.randn(1, 2)}, state)
        state = step.state
        chunks.append(step.extras["chunk"][0])
        actions.append(step.action[0])
    assert torch.equal(chunks[0][1], actions[1])
    assert not torch.equal(chunks[0][2], actions[2])
    assert torch.equal(chunks[2][1], actions[3])
    assert chunks[0].shape == (4, 2)


def test_the_mean_error_of_a_chunk_by_hand():
    """Actions 0, predicted 1, 2, 3, 4 with the last two padded: (1 + 4) / 2; per dimension of one."""
    algo = make(ac_dim=1)
    head = algo.policy.head
    head.forward = lambda features: type(
        "Chunk", (), {"mean": torch.tensor([[1.0, 2.0, 3.0, 4.0]])}
    )()
    algo.set_eval()
    batch = tiny_batch(algo, 1)
    batch["actions"].zero_()
    batch["pad_mask"][0, 2:] = False
    info = losses(algo, algo.process_batch_for_training(batch))
    assert info["Loss"] == pytest.approx(2.5)


def test_likelihood_of_a_chunk_is_per_real_step():
    """Zero weights: mean 0, std 0.1; actions 0.1: log N = -log 0.1 - log sqrt(2 pi) - 0.5 per value, two a step."""
    algo = make(("algo.gaussian.enabled=true", "algo.gaussian.fixed_std=true"))
    for parameter in algo.nets.parameters():
        torch.nn.init.zeros_(parameter)
    batch = tiny_batch(algo, 2)
    batch["actions"].fill_(0.1)
    batch["pad_mask"][0, 1:] = False
    expected = 2 * (math.log(0.1) + 0.5 * math.log(2 * math.pi) + 0.5)
    info = losses(algo, algo.process_batch_for_training(batch))
    assert info["Loss"] == pytest.approx(expected, rel=1e-5)


def test_the_chunk_begins_at_the_newest_frame():
    algo = make(frames=3)
    batch = tiny_batch(algo, 5)
    selected = algo.process_batch_for_training(batch)
    assert torch.equal(selected["actions"], batch["actions"][:, 2:6])
    assert torch.equal(selected["obs"]["state"], batch["obs"]["state"][:, :3])


def test_a_recurrent_policy_learns_a_chunk_at_each_step():
    algo = make(VARIANTS["rnn"])
    batch = tiny_batch(algo, 5)
    selected = algo.process_batch_for_training(batch)
    assert selected["obs"]["state"].shape == (5, 5, 2)
    assert selected["actions"].shape == (5, 5, 4, 2)
    assert torch.equal(selected["actions"][:, 3], batch["actions"][:, 3:7])


EMA = ("algo.ema.enabled=true",)


def trained_with_ema(steps=5):
    algo = make(EMA)
    for seed in range(steps):
        algo.train_on_batch(algo.process_batch_for_training(tiny_batch(algo, seed=seed)), 1)
    return algo


def test_averaged_weights_act_in_evaluation():
    algo = trained_with_ema()
    obs = {"state": torch.tensor([[0.3, -0.2]])}
    algo.set_train()
    raw = algo.act(obs, algo.initial_state(1)).action
    algo.set_eval()
    averaged = algo.act(obs, algo.initial_state(1)).action
    assert not torch.equal(raw, averaged)
    algo.nets.load_state_dict(algo.ema.module.state_dict())
    algo.set_train()
    assert torch.equal(algo.act(obs, algo.initial_state(1)).action, averaged)


def test_the_average_follows_the_formula():
    """Decays of the first five updates with power 0.75: 0, 0, 1 - 2^-.75, 1 - 3^-.75, 1 - 4^-.75."""
    algo = make(EMA)
    average = None
    for seed, decay in enumerate([0, 0, 1 - 2**-0.75, 1 - 3**-0.75, 1 - 4**-0.75]):
        algo.train_on_batch(algo.process_batch_for_training(tiny_batch(algo, seed=seed)), 1)
        weight = algo.nets["policy"].mlp.state_dict()
        average = {
            key: value.clone() if average is None else decay * average[key] + (1 - decay) * value
            for key, value in weight.items()
        }
    for key, value in algo.ema.module["policy"].mlp.state_dict().items():
        torch.testing.assert_close(value, average[key])
