"""Training-time real-time chunking: chunks that continue the actions they are given."""

import pytest
import torch

from imitate.errors import UserError
from tests.tiny import tiny_algo

STEPS, MAX_DELAY = 8, 3
NETWORKS = {
    "mlp": {"hidden_dim": 64, "num_blocks": 2},
    "unet": {"down_dims": [16], "diffusion_step_embed_dim": 16},
    "transformer": {"embed_dim": 32, "num_layers": 2, "num_heads": 2, "attn_dropout": 0.0},
}


def make(algo_name="flow_policy", network="mlp", frames=1, max_delay=MAX_DELAY, rate=0.003):
    rate = {"initial": rate, "scheduler_type": "multistep"}
    section = {
        **{name: {"enabled": name == network, **NETWORKS[name]} for name in NETWORKS},
        "horizon": {
            "observation_horizon": frames,
            "prediction_horizon": STEPS,
            "action_horizon": 4,
        },
        "prefix": {"max_delay": max_delay},
        "optim_params": {"policy": {"learning_rate": rate}},
        "ema": {"enabled": False},
    }
    if algo_name == "diffusion_policy":
        samplers = {"num_train_timesteps": 100, "num_inference_timesteps": 10}
        section |= {"ddpm": {"enabled": False}, "ddim": {"enabled": True, **samplers}}
    train = {"frame_stack": frames, "seq_length": STEPS}
    words = {"algo": section, "train": train, "experiment": {"epoch_every_n_steps": 100}}
    return tiny_algo(algo_name, obs={"state": 3}, action=2, **words)


@pytest.mark.parametrize("network", NETWORKS)
def test_all_actions_but_one_may_be_given(network):
    algo = make(network=network, frames=2, max_delay=STEPS - 2)
    algo.set_eval()
    seen = {"state": torch.zeros(1, 2, 3)}
    assert algo.predict_chunk(seen).shape[-1] == 2


def batch_of(actions, frames=1):
    size, steps = len(actions), frames - 1 + STEPS
    return {
        "obs": {"state": torch.zeros(size, steps, 3)},
        "actions": actions,
        "pad_mask": torch.ones(size, steps, dtype=torch.bool),
    }


class Network(torch.nn.Module):
    """Answers with zeros and remembers what it was given."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def condition(self, obs, goal=None):
        return self.encoder(obs, goal)

    def forward(self, noisy, step, condition, given=None):
        self.given = given
        return torch.zeros_like(noisy)


@pytest.mark.parametrize("algo_name", ["flow_policy", "diffusion_policy"])
def test_the_loss_leaves_given_and_padded_actions_out(algo_name):
    algo = make(algo_name, frames=2)
    algo.set_train()
    network = algo.nets["policy"] = Network(algo.nets["policy"].encoder)
    actions = torch.rand(6, STEPS + 1, 2) - 0.5
    batch = batch_of(actions, frames=2)
    batch["pad_mask"][:, 6:] = False
    torch.manual_seed(4)
    loss, _ = algo._loss(algo.process_batch_for_training(batch))
    torch.manual_seed(4)
    noise = torch.randn(6, STEPS, 2)
    # The network says 0: the error is the square of what it had to say.
    wanted = actions[:, :STEPS] - noise if algo_name == "flow_policy" else noise
    error = wanted.square().mean(-1)
    total, count = 0.0, 0
    delays = network.given.mask.sum(1).tolist()
    assert len(set(delays)) > 1
    for row, delay in enumerate(delays):
        left = [
            0,
            *range(1 + delay, 6),
        ]  # the past action and those after the given ones, up to the padding
        total += float(error[row, left].sum())
        count += len(left)
    assert float(loss) == pytest.approx(total / count, rel=1e-5)
    torch.testing.assert_close(network.given.actions, actions[:, :STEPS])


@pytest.mark.parametrize("algo_name", ["flow_policy", "diffusion_policy"])
def test_without_it_network_and_randomness_are_as_ever(algo_name):
    algo = make(algo_name, max_delay=0)
    algo.set_train()
    assert algo.nets["policy"].network.enter.in_features == STEPS * 2
    batch = algo.process_batch_for_training(batch_of(torch.rand(4, STEPS, 2) - 0.5))
    torch.manual_seed(4)
    algo._loss(batch)
    after = torch.rand(())
    torch.manual_seed(4)
    torch.randn(4, STEPS, 2)
    torch.rand(4) if algo_name == "flow_policy" else torch.randint(100, (4,))
    assert torch.equal(after, torch.rand(()))


def left_or_right(size, generator):
    """Chunks (size, STEPS, 2) that go left or right at a constant speed, at random."""
    side = torch.randint(2, (size, 1, 1), generator=generator) * 2.0 - 1.0
    return 0.5 * side + 0.03 * torch.randn(size, STEPS, 2, generator=generator)


@pytest.mark.parametrize(
    ("algo_name", "network", "updates", "rate"),
    [
        ("flow_policy", "mlp", 50, 0.003),
        ("flow_policy", "unet", 50, 0.01),
        ("flow_policy", "transformer", 50, 0.003),
        ("diffusion_policy", "mlp", 150, 0.01),
    ],
)
def test_the_given_actions_decide_the_mode(algo_name, network, updates, rate):
    """Two modes, one observation: only the given actions tell which; one that did not see them would be at 50 %."""
    algo = make(algo_name, network, rate=rate)
    algo.set_train()
    generator = torch.Generator().manual_seed(0)
    for _ in range(updates):
        batch = batch_of(left_or_right(64, generator))
        algo.train_on_batch(algo.process_batch_for_training(batch), 1)
    algo.set_eval()
    planned = left_or_right(200, generator)
    seen = {"state": torch.zeros(200, 3)}
    side = planned[:, 0, 0].sign()

    def agreement(**given):
        chunk = algo.predict_chunk(seen, generator=torch.Generator().manual_seed(1), **given)
        return float((chunk[:, MAX_DELAY:].mean((1, 2)).sign() == side).float().mean())

    with torch.no_grad():
        assert agreement(planned=planned[:, :MAX_DELAY]) > 0.8
        assert agreement(planned=-planned[:, :MAX_DELAY]) < 0.2
        assert 0.35 < agreement() < 0.65, "without them it has to guess"
        assert 0.35 < agreement(planned=planned[:, :0]) < 0.65


@pytest.mark.parametrize("algo_name", ["flow_policy", "diffusion_policy"])
@pytest.mark.parametrize("frames", [1, 3])
def test_a_chunk_begins_with_the_given_actions(algo_name, frames):
    algo = make(algo_name, frames=frames)
    algo.set_eval()
    seen = {"state": torch.zeros(2, frames, 3) if frames > 1 else torch.zeros(2, 3)}
    planned = torch.tensor([[[0.1, 0.2], [0.3, 0.4]], [[-0.1, -0.2], [-0.3, -0.4]]])
    with torch.no_grad():
        chunk = algo.predict_chunk(seen, planned=planned)
    assert chunk.shape == (2, STEPS - frames + 1, 2)
    assert torch.equal(chunk[:, :2], planned)


def test_more_given_actions_than_in_training_are_refused():
    seen = {"state": torch.zeros(1, 3)}
    algo = make()
    with pytest.raises(UserError, match=r"4 planned actions .*max_delay 4"):
        algo.predict_chunk(seen, planned=torch.zeros(1, 4, 2))
    with pytest.raises(UserError, match="trained with at most 0"):
        make(max_delay=0).predict_chunk(seen, planned=torch.zeros(1, 1, 2))
