"""ACT: loss terms, padding, the latent, the decoder, observations of each kind."""

from math import log

import numpy as np
import pytest
import torch

from imitate.algo.act import Reconstruction
from imitate.policy.rollout_policy import RolloutPolicy
from tests.algo.conftest import gradients, losses, within
from tests.tiny import tiny_algo, tiny_batch

SMALL = {
    "chunk": {"size": 4, "execute": 2},
    "transformer": {"feedforward_dim": 24, "decoder_layers": 2, "dropout": 0.0},
    "vae": {"latent_dim": 2},
}
IMAGE = (3, 40, 64)


def make(*overrides, obs=None, encoder=None, **words):
    observation = {"encoder": {"rgb": encoder}} if encoder else {}
    obs = obs or {"state": 3}
    return tiny_algo(
        "act", *overrides, obs=obs, action=2, algo=SMALL, observation=observation, **words
    )


def loss_and_gradient(algo, batch):
    torch.manual_seed(1)
    info = gradients(algo, algo.process_batch_for_training(batch))
    return (
        info["Loss"],
        [p.grad.clone() for p in algo.nets.parameters() if p.grad is not None],
        info,
    )


class Fixed(torch.nn.Module):
    """A network that answers 0.5, with a divergence of 0.25 and 0.75."""

    def forward(self, obs, goal, actions, mask):
        return Reconstruction(torch.full_like(actions, 0.5), torch.tensor([0.25, 0.75]))

    def act(self, obs, goal):
        return torch.zeros(2, 4, 2)


def test_the_loss_is_the_mean_over_real_elements_and_ten_times_the_divergence():
    algo = make()
    algo.nets["policy"] = Fixed()
    actions = torch.tensor([[[1.0, -1.0], [2.0, 0.0], [3.0, 3.0], [9.0, 9.0]]] * 2)
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    batch = {"obs": {}, "goal_obs": None, "actions": actions, "pad_mask": mask}
    info = losses(algo, batch)
    # Steps of (0.5 + 1.5) / 2, (1.5 + 0.5) / 2 and 2.5 in the first row, 1 in the second: 5.5 / 4.
    assert info["L1_Loss"] == pytest.approx(1.375)
    assert info["KL_Loss"] == pytest.approx(0.5)
    assert info["Loss"] == pytest.approx(1.375 + 10 * 0.5)


def test_the_divergence_is_summed_over_the_latent():
    algo = make()
    head = algo.nets["policy"].posterior.latent
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([1.0, 2.0, 0.0, 0.0]))  # means 1 and 2, variances 1
    _, _, info = loss_and_gradient(algo, tiny_batch(algo))
    assert info["KL_Loss"] == pytest.approx(0.5 * (1 + 4))


def test_the_latent_is_drawn_with_the_mean_and_the_standard_deviation_of_the_posterior():
    """Means 1 and 2; log-variances 2 log 2 and -2 log 4, so standard deviations 2 and 1/4."""
    policy = make().nets["policy"].eval()
    with torch.no_grad():
        policy.posterior.latent.weight.zero_()
        policy.posterior.latent.bias.copy_(torch.tensor([1.0, 2.0, 2 * log(2), -2 * log(4)]))
    drawn = []
    policy.decode = lambda z, features, goal: drawn.append(z)
    torch.manual_seed(3)
    policy({"state": torch.zeros(5, 3)}, None, torch.zeros(5, 4, 2), torch.ones(5, 4).bool())
    torch.manual_seed(3)
    expected = torch.tensor([1.0, 2.0]) + torch.tensor([2.0, 0.25]) * torch.randn(5, 2)
    torch.testing.assert_close(drawn[0], expected)


def test_what_padded_actions_hold_does_not_matter():
    algo = make()
    batch = tiny_batch(algo)
    batch["pad_mask"][:2, 2:] = False
    loss, gradient, _ = loss_and_gradient(algo, batch)
    batch["actions"][:2, 2:] = 50.0
    other_loss, other_gradient, _ = loss_and_gradient(algo, batch)
    assert other_loss == loss
    assert all(torch.equal(a, b) for a, b in zip(gradient, other_gradient, strict=True))
    batch["actions"][2, 3] += 0.1  # a real one does
    assert loss_and_gradient(algo, batch)[0] != loss


def test_a_batch_without_a_mask_is_all_real():
    algo = make()
    batch = tiny_batch(algo)
    with_mask = loss_and_gradient(algo, batch)[0]
    del batch["pad_mask"]
    assert loss_and_gradient(algo, batch)[0] == with_mask


def chunk(algo, obs):
    algo.set_eval()
    with torch.no_grad():
        return algo.act(obs, algo.initial_state(1)).extras["chunk"]


def test_the_latent_is_zero_when_acting():
    algo = make()
    obs = {"state": torch.randn(1, 3)}
    first = chunk(algo, obs)
    assert first.shape == (1, 4, 2)
    for p in algo.nets["policy"].posterior.parameters():
        p.data.normal_()
    algo.nets["policy"].latent.weight.data.normal_()
    torch.manual_seed(5)
    assert torch.equal(chunk(algo, obs), first)


def test_the_latent_reaches_the_chunk():
    policy = make().nets["policy"].eval()
    features = policy.obs.features({"state": torch.randn(1, 3)})
    one, two = (policy.decode(torch.full((1, 2), z), features, None) for z in (0.0, 1.0))
    assert (one - two).abs().max() > 1e-3


def test_without_the_autoencoder_nothing_is_drawn():
    algo = make("algo.vae.enabled=false")
    assert not any("posterior" in name for name, _ in algo.nets.named_parameters())
    _, _, info = loss_and_gradient(algo, tiny_batch(algo))
    assert info["KL_Loss"] == 0
    assert info["Loss"] == info["L1_Loss"]


def test_the_published_mistake_leaves_later_layers_of_the_decoder_out():
    right, wrong = make(), make("algo.transformer.decoder_first_layer_only=true")
    wrong.nets.load_state_dict(right.nets.state_dict())
    obs = {"state": torch.randn(1, 3)}
    before = chunk(wrong, obs)
    assert not torch.equal(chunk(right, obs), before)
    for algo in (right, wrong):
        for p in algo.nets["policy"].decoder.layers[1].parameters():
            p.data.mul_(2.0).add_(0.3)
    assert torch.equal(chunk(wrong, obs), before)
    assert not torch.equal(chunk(right, obs), before)


MAP = {"core_kwargs": {"pool_class": None, "feature_dimension": None, "flatten": False}}


@pytest.mark.parametrize(
    ("encoder", "low_dim", "frame_stack"),
    [(MAP, ["state"], 1), (MAP, [], 2), (None, ["state"], 2), (None, [], 1)],
)
def test_images_are_learned_from_and_acted_on(encoder, low_dim, frame_stack):
    obs = {**dict.fromkeys(low_dim, 3), "cam": IMAGE}
    algo = make(obs=obs, encoder=encoder, train={"frame_stack": frame_stack})
    algo.set_train()
    _, _, info = loss_and_gradient(algo, tiny_batch(algo, size=2))
    trunk = algo.nets["policy"].obs.encoder.nets["cam"].core.backbone
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trunk.parameters())
    obs = {key: torch.randn(1, *shape) for key, shape in algo.obs_shapes.items()}
    assert chunk(algo, obs).shape == (1, 4, 2)


def test_a_goal_is_further_tokens():
    algo = make(goal={"target": 2})
    loss_and_gradient(algo, tiny_batch(algo))
    algo.set_eval()
    obs = {"state": torch.zeros(1, 3)}
    chunks = [
        algo.act(obs, algo.initial_state(1), {"target": torch.full((1, 2), goal)}).extras["chunk"]
        for goal in (0.0, 1.0)
    ]
    assert not torch.equal(*chunks)


def test_it_learns_a_linear_expert():
    algo = make("algo.optim_params.policy.learning_rate.initial=0.005")
    generator = torch.Generator().manual_seed(2)
    obs, expected = torch.tensor([[0.8, -0.6, 0.3]]), torch.tensor([[0.4, -0.3]]).expand(4, 2)

    def update(_):
        algo.set_train()
        state = torch.randn(32, 4, 3, generator=generator)
        actions = (0.5 * state[:, :1, :2]).expand(-1, 4, -1).clamp(-1, 1)
        batch = algo.process_batch_for_training({"obs": {"state": state}, "actions": actions})
        algo.train_on_batch(batch, 1)

    assert within(
        300, update, lambda: (chunk(algo, {"state": obs})[0] - expected).abs().max() < 0.1
    )


def test_where_its_image_encoder_looks_can_be_drawn():
    algo = make(obs={"state": 3, "cam": IMAGE})
    algo.set_eval()
    raw = {"state": np.zeros(3), "cam": np.zeros((40, 64, 3), dtype=np.uint8)}
    assert RolloutPolicy(algo).keypoints(raw)["cam"].shape == (32, 2)
