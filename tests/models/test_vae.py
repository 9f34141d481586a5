"""VAE: the pass worked out by hand, and its parts put together as the configuration says."""

import pytest
import torch

from imitate.config import load_config
from imitate.errors import ConfigError
from imitate.models.vae import (
    VAE,
    CategoricalLatent,
    GaussianLatent,
    GMMLatent,
    LearnedGaussianLatent,
)

B, A, C = 6, 2, 4  # batch, action, condition


def section(**vae):
    return load_config({"algo_name": "bc", "algo": {"vae": {"enabled": True, **vae}}}).algo.vae


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def linear_vae(**kwargs):
    """Without hidden layers: encoder and decoder are linear maps."""
    return VAE(1, 1, GaussianLatent(1), (), (), **kwargs)


def test_pass_by_hand():
    vae = linear_vae()
    with torch.no_grad():
        for p in vae.parameters():
            p.zero_()
        vae.encoder.heads["mean"].weight.copy_(torch.tensor([[2.0, 1.0]]))  # mean = 2 a + s
        vae.decoder.heads["action"].weight.copy_(torch.tensor([[0.5, -1.0]]))  # tanh(z / 2 - s)
    action, condition = torch.tensor([[0.5]]), torch.tensor([[3.0]])
    noise = torch.randn(1, 1, generator=torch.Generator().manual_seed(9)).item()
    out = vae(action, condition, torch.Generator().manual_seed(9))
    z = 4.0 + noise
    reconstruction = torch.tensor(z / 2 - 3.0).tanh().item()
    assert (out.posterior["mean"].item(), out.latent.item()) == (4.0, pytest.approx(z))
    assert out.reconstruction.item() == pytest.approx(reconstruction)
    assert out.kl.tolist() == [8.0]  # 4^2 / 2
    assert out.reconstruction_loss.item() == pytest.approx((reconstruction - 0.5) ** 2)


def test_reconstruction_is_averaged_or_summed_over_action_dims():
    vaes = [
        VAE(C, A, GaussianLatent(3), (8,), (8,), reconstruction_sum_across_elements=total)
        for total in (False, True)
    ]
    vaes[1].load_state_dict(vaes[0].state_dict())
    actions, condition = torch.rand(B, A), torch.randn(B, C)
    mean, total = (vae(actions, condition, torch.Generator().manual_seed(1)) for vae in vaes)
    expected = (mean.reconstruction - actions).square()
    torch.testing.assert_close(mean.reconstruction_loss, expected.mean(-1))
    torch.testing.assert_close(total.reconstruction_loss, expected.sum(-1))


def test_acting_decodes_a_sample_of_the_prior():
    vae, condition = VAE(C, A, GaussianLatent(3), (8,), (8,)), torch.randn(B, C)
    z = torch.randn(B, 3, generator=torch.Generator().manual_seed(1))
    expected = vae.decoder(torch.cat([z, condition], -1))["action"].tanh()
    torch.testing.assert_close(vae.act(condition, torch.Generator().manual_seed(1)), expected)


def test_a_decoder_without_condition_does_not_see_it():
    latent = LearnedGaussianLatent(3, C, ())
    vae = VAE(C, A, latent, (8,), (8,), decoder_is_conditioned=False)
    z = torch.randn(B, 3)
    assert torch.equal(vae.decode(z, torch.randn(B, C)), vae.decode(z, torch.randn(B, C)))


PRIORS = [
    ({}, GaussianLatent),
    ({"learn": True}, LearnedGaussianLatent),
    ({"learn": True, "is_conditioned": True}, LearnedGaussianLatent),
    ({"learn": True, "use_gmm": True}, GMMLatent),
    (
        {"learn": True, "use_gmm": True, "is_conditioned": True, "gmm_learn_weights": True},
        GMMLatent,
    ),
    ({"use_categorical": True}, CategoricalLatent),
    ({"use_categorical": True, "learn": True}, CategoricalLatent),
    ({"use_categorical": True, "learn": True, "is_conditioned": True}, CategoricalLatent),
    ({"use_categorical": True, "categorical_gumbel_softmax_hard": True}, CategoricalLatent),
]


@pytest.mark.parametrize(("prior", "kind"), PRIORS)
def test_every_prior_of_the_configuration(prior, kind):
    vae = VAE.from_config(C, A, section(latent_dim=3, prior=prior, prior_layer_dims=[8]))
    assert type(vae.latent) is kind
    actions, condition = torch.rand(B, A), torch.randn(B, C)
    out = vae(actions, condition)
    assert out.reconstruction.shape == vae.act(condition).shape == (B, A)
    assert out.reconstruction.abs().max() <= 1.0
    assert out.kl.shape == out.reconstruction_loss.shape == (B,)
    (out.kl + out.reconstruction_loss).mean().backward()
    for name, p in vae.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name
    conditioned = prior.get("is_conditioned", False)
    has_net = any(name.startswith("latent.prior.net") for name, _ in vae.named_parameters())
    assert has_net == conditioned


def test_sizes_of_the_configuration():
    config = section(
        latent_dim=3,
        latent_clip=0.25,
        prior={"learn": True, "use_gmm": True, "gmm_num_modes": 7, "is_conditioned": True},
        prior_layer_dims=[9],
        encoder_layer_dims=[10],
        decoder_layer_dims=[11, 12],
        decoder={"reconstruction_sum_across_elements": True},
    )
    vae = VAE.from_config(C, A, config)
    shapes = {name: tuple(p.shape) for name, p in vae.named_parameters() if "weight" in name}
    assert shapes == {
        "latent.prior.net.mlp.layers.0.weight": (9, 4),
        "latent.prior.net.heads.mean.weight": (21, 9),
        "latent.prior.net.heads.logvar.weight": (21, 9),
        "encoder.mlp.layers.0.weight": (10, 6),
        "encoder.heads.mean.weight": (3, 10),
        "encoder.heads.logvar.weight": (3, 10),
        "decoder.mlp.layers.0.weight": (11, 7),
        "decoder.mlp.layers.1.weight": (12, 11),
        "decoder.heads.action.weight": (2, 12),
    }
    assert vae.latent.clip == 0.25 and vae.sums_reconstruction


def test_temperature():
    vae = VAE.from_config(C, A, section(prior={"use_categorical": True}))
    vae.set_gumbel_temperature(0.4)
    assert vae.latent.temperature == 0.4
    with pytest.raises(TypeError, match="GaussianLatent has no temperature"):
        linear_vae().set_gumbel_temperature(0.4)


@pytest.mark.parametrize(
    ("vae", "message"),
    [
        ({"prior": {"use_gmm": True}}, "use_gmm is true, but learn is false"),
        ({"prior": {"is_conditioned": True}}, "is_conditioned is true, but learn is false"),
        (
            {"prior": {"learn": True, "use_gmm": True, "use_categorical": True}},
            "exclude each other",
        ),
        ({"decoder": {"is_conditioned": False}}, "would not depend on observations"),
    ],
)
def test_impossible_combinations_are_refused(vae, message):
    with pytest.raises(ConfigError, match=message):
        VAE.from_config(C, A, section(**vae))


def test_losses_are_float32_under_autocast():
    vae = VAE(C, A, GaussianLatent(3), (8,), (8,))
    with torch.autocast("cpu", torch.bfloat16):
        out = vae(torch.rand(B, A), torch.randn(B, C))
    assert out.kl.dtype == out.reconstruction_loss.dtype == out.latent.dtype == torch.float32
