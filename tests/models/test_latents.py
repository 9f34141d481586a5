"""Latents and priors against torch.distributions and numbers worked out by hand."""

import math

import pytest
import torch
import torch.distributions as D

from imitate.models.latents import (
    CategoricalLatent,
    GaussianLatent,
    GMMLatent,
    LearnedGaussianLatent,
)

B, Z, C = 6, 3, 4  # batch, latent, condition


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def gaussian_posterior():
    return {"mean": torch.randn(B, Z), "logvar": torch.randn(B, Z)}


def independent(mean, logvar):
    return D.Independent(D.Normal(mean, (0.5 * logvar).exp()), 1)


def mixture(params, log_weights):
    return D.MixtureSameFamily(
        D.Categorical(logits=log_weights), independent(params["mean"], params["logvar"])
    )


def test_posterior_sample_by_hand():
    latent = GaussianLatent(2)
    posterior = {
        "mean": torch.tensor([[1.0, -1.0]]),
        "logvar": torch.tensor([[0.0, 2.0 * math.log(3.0)]]),
    }
    torch.manual_seed(5)
    noise = torch.randn(1, 2)
    torch.manual_seed(5)
    z = latent.sample_posterior(posterior, None)
    torch.testing.assert_close(z, torch.tensor([[1.0, -1.0]]) + noise * torch.tensor([[1.0, 3.0]]))


@pytest.mark.parametrize(("logvar", "std"), [(-100.0, math.exp(-4.0)), (100.0, math.exp(15.0))])
def test_posterior_std_is_clamped(logvar, std):
    posterior = {"mean": torch.zeros(1, 1), "logvar": torch.full((1, 1), logvar)}
    torch.manual_seed(5)
    noise = torch.randn(1, 1).item()
    torch.manual_seed(5)
    z = GaussianLatent(1).sample_posterior(posterior, None)
    assert z.item() == pytest.approx(noise * std, rel=1e-5)


def test_standard_normal_prior():
    latent, condition, posterior = GaussianLatent(Z), torch.zeros(B, C), gaussian_posterior()
    torch.manual_seed(5)
    expected = torch.randn(B, Z)
    torch.manual_seed(5)
    assert torch.equal(latent.sample_prior(condition, None), expected)
    reference = D.kl_divergence(
        independent(**posterior), independent(torch.zeros(B, Z), torch.zeros(B, Z))
    )
    torch.testing.assert_close(latent.kl(posterior, torch.zeros(B, Z), condition), reference)


def test_clip_bounds_samples_of_the_prior_only():
    latent = GaussianLatent(Z, clip=0.5)
    z = latent.sample_prior(torch.zeros(200, C), None)
    assert z.abs().max().item() == 0.5
    far = {"mean": torch.full((1, Z), 9.0), "logvar": torch.zeros(1, Z)}
    assert latent.sample_posterior(far, None).min() > 0.5


@pytest.mark.parametrize("condition_dim", [None, C])
def test_learned_gaussian_prior(condition_dim):
    latent = LearnedGaussianLatent(Z, condition_dim, (8,))
    condition, posterior = torch.randn(B, C), gaussian_posterior()
    params = latent.prior(condition)
    prior = independent(params["mean"][:, 0], params["logvar"][:, 0])
    torch.testing.assert_close(
        latent.kl(posterior, torch.zeros(B, Z), condition),
        D.kl_divergence(independent(**posterior), prior),
    )
    torch.manual_seed(5)
    expected = prior.sample()
    torch.manual_seed(5)
    torch.testing.assert_close(latent.sample_prior(condition, None), expected)
    assert (params["mean"].std(0).max() > 0) == (condition_dim is not None)


@pytest.mark.parametrize("condition_dim", [None, C])
@pytest.mark.parametrize("learn_weights", [False, True])
def test_mixture_prior(condition_dim, learn_weights):
    latent = GMMLatent(Z, 5, learn_weights, condition_dim, (8,))
    condition, posterior = torch.randn(B, C), gaussian_posterior()
    params = latent.prior(condition)
    weights = params["weight"] if learn_weights else torch.zeros(B, 5)
    z = latent.sample_posterior(posterior, None)
    expected = independent(**posterior).log_prob(z) - mixture(params, weights).log_prob(z)
    torch.testing.assert_close(latent.kl(posterior, z, condition), expected)


def test_mixture_prior_clamps_variances_in_the_divergence():
    # One mode of N(0, e^-100): its variance counts as e^-8, the posterior's e^50 as e^30.
    latent = GMMLatent(1, 1, False, None, ())
    with torch.no_grad():
        latent.prior.constants["mean"].zero_()
        latent.prior.constants["logvar"].fill_(-100.0)
    posterior = {"mean": torch.zeros(1, 1), "logvar": torch.full((1, 1), 50.0)}
    kl = latent.kl(posterior, torch.full((1, 1), 0.1), torch.zeros(1, C))
    # -30/2 - 0 + (-8 + 0.01 e^8) / 2
    assert kl.item() == pytest.approx(-15.0 + 0.5 * (-8.0 + 0.01 * math.exp(8.0)), rel=1e-4)


def test_mixture_prior_samples_a_mode_and_then_noise():
    latent = GMMLatent(1, 2, True, None, ())
    with torch.no_grad():
        latent.prior.constants["mean"].copy_(torch.tensor([[[-3.0], [3.0]]]))
        latent.prior.constants["logvar"].fill_(2.0 * math.log(0.1))
        latent.prior.constants["weight"].copy_(torch.tensor([[0.2, 0.8]]).log())
    z = latent.sample_prior(torch.zeros(4000, C), None)
    assert (z > 0).float().mean().item() == pytest.approx(0.8, abs=0.03)
    assert z[z > 0].mean().item() == pytest.approx(3.0, abs=0.02)
    assert z[z > 0].std().item() == pytest.approx(0.1, abs=0.01)


def test_constant_prior_parameters_start_small():
    constants = GMMLatent(50, 40, False, None, ()).prior.constants
    assert constants["mean"].shape == (1, 40, 50)
    assert constants["mean"].std().item() == pytest.approx(1.0 / math.sqrt(2000), rel=0.1)


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("condition_dim", [None, C])
def test_categorical_divergence(learn, condition_dim):
    latent = CategoricalLatent(Z, 5, learn, condition_dim, (8,))
    condition, logits = torch.randn(B, C), torch.randn(B, Z * 5)
    prior = latent.prior(condition)["logit"] if learn else torch.zeros(B, Z, 5)
    reference = D.kl_divergence(
        D.Categorical(logits=logits.view(B, Z, 5)), D.Categorical(logits=prior)
    ).sum(-1)
    got = latent.kl({"logit": logits}, torch.zeros(0), condition)
    torch.testing.assert_close(got, reference)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_gumbel_softmax_is_torchs(hard, temperature):
    latent = CategoricalLatent(Z, 5, False, None, (), hard=hard)
    latent.temperature = temperature
    logits = torch.randn(B, Z * 5)
    torch.manual_seed(5)
    expected = torch.nn.functional.gumbel_softmax(
        logits.view(B, Z, 5), tau=temperature, hard=hard, dim=-1
    )
    torch.manual_seed(5)
    z = latent.sample_posterior({"logit": logits}, None)
    torch.testing.assert_close(z, expected.flatten(1))


def test_hard_samples_carry_the_gradient_of_soft_ones():
    gradients = []
    for hard in (False, True):
        latent = CategoricalLatent(Z, 5, False, None, (), hard=hard)
        logits = torch.randn(B, Z * 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
        z = latent.sample_posterior({"logit": logits}, torch.Generator().manual_seed(2))
        (z * torch.arange(Z * 5)).sum().backward()
        gradients.append(logits.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().sum() > 0


@pytest.mark.parametrize("learn", [False, True])
def test_categorical_prior_samples(learn):
    latent = CategoricalLatent(2, 3, learn, None, ())
    weights = torch.full((2, 3), 1 / 3)
    if learn:
        weights = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
        with torch.no_grad():
            latent.prior.constants["logit"].copy_(weights.log() + 4.0)
    z = latent.sample_prior(torch.zeros(6000, C), None)
    assert set(z.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(z.view(-1, 2, 3).sum(-1), torch.ones(6000, 2))
    torch.testing.assert_close(z.mean(0).view(2, 3), weights, atol=0.03, rtol=0)


def test_one_uniform_variable_is_sampled_too():
    # Rows of a batch are independent policies: none may always get the same class.
    latent = CategoricalLatent(1, 4, False, None, ())
    draws = torch.stack([latent.sample_prior(torch.zeros(8, C), None) for _ in range(50)])
    torch.testing.assert_close(draws.mean(0), torch.full((8, 4), 0.25), atol=0.25, rtol=0)


@pytest.mark.parametrize(
    "latent",
    [
        GaussianLatent(Z),
        LearnedGaussianLatent(Z, C, (8,)),
        GMMLatent(Z, 5, True, None, ()),
        CategoricalLatent(Z, 5, True, C, ()),
    ],
    ids=lambda latent: type(latent).__name__,
)
def test_a_generator_replaces_the_global_one(latent):
    before, condition = torch.get_rng_state(), torch.ones(B, C)
    one = latent.sample_prior(condition, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, latent.sample_prior(condition, torch.Generator().manual_seed(3)))
    assert one.shape == (B, latent.size)
