"""Tokens, latents and subgoals."""

import math

import pytest
import torch
import torch.distributions as D
from torch import nn

from imitate.algo.base.sections import VAEConfig
from imitate.config import ObservationConfig, load_config
from imitate.models.actor import GroupEncoder
from imitate.models.detr import ObservationTokens, sinusoidal_positions_2d
from imitate.models.observation import ObservationEncoder
from imitate.models.subgoals import SubgoalNetwork, SubgoalVAE
from imitate.models.vae import CategoricalLatent, GaussianLatent, GMMLatent, LearnedGaussianLatent

B, Z, C = 6, 3, 4  # batch, latent, condition


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def gaussian_posterior():
    return {"mean": torch.randn(B, Z), "logvar": torch.randn(B, Z)}


def independent(mean, logvar):
    return D.Independent(D.Normal(mean, (0.5 * logvar).exp()), 1)


def mixture(params, log_weights):
    modes = independent(params["mean"], params["logvar"])
    return D.MixtureSameFamily(D.Categorical(logits=log_weights), modes)


def drawn(draw, *args):
    """Draw from the same state of the global generator each time."""
    torch.manual_seed(5)
    return draw(*args)


@pytest.mark.parametrize(
    ("mean", "logvar", "std"),
    [
        ([1.0, -1.0], [0.0, 2.0 * math.log(3.0)], [1.0, 3.0]),
        ([0.0, 0.0], [-100.0, 100.0], [math.exp(-4.0), math.exp(15.0)]),  # clamped
    ],
)
def test_posterior_sample_by_hand(mean, logvar, std):
    mean, logvar, std = torch.tensor([[mean], [logvar], [std]]).unbind()
    z = drawn(GaussianLatent(2).sample_posterior, {"mean": mean, "logvar": logvar}, None)
    torch.testing.assert_close(z, mean + drawn(torch.randn, 1, 2) * std)


def test_standard_normal_prior():
    latent, condition, posterior = GaussianLatent(Z), torch.zeros(B, C), gaussian_posterior()
    expected = drawn(torch.randn, B, Z)
    assert torch.equal(drawn(latent.sample_prior, condition, None), expected)
    normal = independent(torch.zeros(B, Z), torch.zeros(B, Z))
    reference = D.kl_divergence(independent(**posterior), normal)
    torch.testing.assert_close(latent.kl(posterior, torch.zeros(B, Z), condition), reference)


def test_clip_bounds_samples_of_the_prior_only():
    latent = GaussianLatent(Z, clip=0.5)
    assert latent.sample_prior(torch.zeros(200, C), None).abs().max().item() == 0.5
    far = {"mean": torch.full((1, Z), 9.0), "logvar": torch.zeros(1, Z)}
    assert latent.sample_posterior(far, None).min() > 0.5


@pytest.mark.parametrize("condition_dim", [None, C])
def test_learned_gaussian_prior(condition_dim):
    latent = LearnedGaussianLatent(Z, condition_dim, (8,))
    condition, posterior = torch.randn(B, C), gaussian_posterior()
    params = latent.prior(condition)
    prior = independent(params["mean"][:, 0], params["logvar"][:, 0])
    reference = D.kl_divergence(independent(**posterior), prior)
    torch.testing.assert_close(latent.kl(posterior, torch.zeros(B, Z), condition), reference)
    found = drawn(latent.sample_prior, condition, None)
    torch.testing.assert_close(found, drawn(prior.sample))
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
    posterior = D.Categorical(logits=logits.view(B, Z, 5))
    reference = D.kl_divergence(posterior, D.Categorical(logits=prior)).sum(-1)
    got = latent.kl({"logit": logits}, torch.zeros(0), condition)
    torch.testing.assert_close(got, reference)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_gumbel_softmax_is_torchs(hard, temperature):
    latent = CategoricalLatent(Z, 5, False, None, (), hard=hard)
    latent.temperature = temperature
    logits = torch.randn(B, Z * 5)
    torchs = torch.nn.functional.gumbel_softmax
    expected = drawn(torchs, logits.view(B, Z, 5), temperature, hard).flatten(1)
    found = drawn(latent.sample_posterior, {"logit": logits}, None)
    torch.testing.assert_close(found, expected)


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


MAP = {"pool_class": None, "feature_dimension": None, "flatten": False}
SHAPES = {"cam": (3, 40, 64), "joints": (4,), "speed": (2,)}
MODALITIES = {"cam": "rgb", "left": "rgb", "right": "rgb", "joints": "low_dim", "speed": "low_dim"}


def encoder(shapes=SHAPES, share=False, **core_kwargs):
    section = {"encoder": {"rgb": {"core_kwargs": core_kwargs, "share": share}}}
    config = load_config({"algo_name": "bc", "observation": section}).observation.encoder
    return ObservationEncoder(shapes, {key: MODALITIES[key] for key in shapes}, config)


def observation(shapes=SHAPES, lead=(2,)):
    generator = torch.Generator().manual_seed(0)
    return {key: torch.randn(*lead, *shape, generator=generator) for key, shape in shapes.items()}


class Maps:
    """In place of an encoder: a map with 2 channels and 2 x 3 cells, counted from 0, and a vector."""

    feature_dims = {"map": 12, "vector": 1}
    encoded_shapes = {"map": (2, 2, 3)}

    def features(self, obs):
        return {"map": torch.arange(12.0).expand(1, 1, 12), "vector": torch.full((1, 1, 1), 7.0)}


def test_a_map_gives_its_cells_row_by_row_after_the_vectors():
    tokens = ObservationTokens(Maps(), 4)
    with torch.no_grad():
        tokens.state.weight.fill_(1.0)
        tokens.state.bias.zero_()
        tokens.maps[0].weight.copy_(torch.tensor([[1.0, 0], [0, 1], [0, 0], [0, 0]]))
        tokens.maps[0].bias.zero_()
        tokens.places.copy_(torch.tensor([10.0, 20.0]).view(1, 2, 1).expand(1, 2, 4))
        made, positions = tokens(tokens.features({}))
    assert made[0, 0].tolist() == [7, 7, 7, 7]
    # Channel 0 holds 0 .. 5, channel 1 holds 6 .. 11.
    assert made[0, 1:, :2].tolist() == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]
    expected = torch.cat([torch.full((1, 4), 10.0), 20.0 + sinusoidal_positions_2d(2, 3, 4)])
    torch.testing.assert_close(positions[0], expected)


@pytest.mark.parametrize(
    ("keys", "core_kwargs", "count"),
    [
        (("cam", "joints", "speed"), MAP, 1 + 4),  # ResNet18: 40 x 64 pixels to 2 x 2 cells
        (("cam", "joints", "speed"), {}, 2),  # pooled
        (("cam",), {}, 1),  # no token of vectors
    ],
)
def test_tokens_of_images_beside_one_of_all_vectors(keys, core_kwargs, count):
    shapes = {key: SHAPES[key] for key in keys}
    tokens = ObservationTokens(encoder(shapes, **core_kwargs), 8)
    made, positions = tokens(tokens.features(observation(shapes)))
    assert (made.shape, positions.shape) == ((2, count, 8), (1, count, 8))
    assert (tokens.state is None) == ("joints" not in keys)


def test_frames_are_told_apart_by_their_positions():
    shapes = {"joints": (4,), "speed": (2,)}
    tokens = ObservationTokens(encoder(shapes), 8, frames=3)
    obs = observation(shapes, lead=(2, 3))
    made, positions = tokens(tokens.features(obs))
    assert made.shape == (2, 3, 8)
    joined = torch.cat([obs["joints"], obs["speed"]], dim=-1)
    wanted = nn.functional.linear(joined[:, 1], *tokens.state.parameters())
    torch.testing.assert_close(made[:, 1], wanted)
    assert len(positions[0].unique(dim=0)) == 3


@pytest.mark.parametrize("core_kwargs", [MAP, {}])
def test_features_of_keys_joined_are_the_encoders_output(core_kwargs):
    net = encoder(**core_kwargs).eval()
    obs = observation()
    features = net.features(obs)
    assert {key: value.shape[-1] for key, value in features.items()} == net.feature_dims
    assert torch.equal(net(obs), torch.cat([features[key] for key in sorted(SHAPES)], dim=-1))


def test_each_vector_makes_a_token_of_its_own():
    shapes = {"joints": (4,), "speed": (2,)}
    tokens = ObservationTokens(encoder(shapes), 8, separate_vectors=True)
    obs = observation(shapes)
    made, positions = tokens(tokens.features(obs))
    assert made.shape == positions.expand_as(made).shape == (2, 2, 8)
    for number, key in enumerate(shapes):
        wanted = nn.functional.linear(obs[key], *tokens.vector_maps[number].parameters())
        torch.testing.assert_close(made[:, number], wanted)


def test_cameras_with_one_network_share_the_map_to_tokens_and_have_no_place():
    shapes = {"left": SHAPES["cam"], "right": SHAPES["cam"], "joints": (4,)}
    options = {"shared_maps": True, "learned_camera_positions": False}
    tokens = ObservationTokens(encoder(shapes, share=True, **MAP), 8, **options)
    assert tokens.maps[0] is tokens.maps[1]
    obs = observation(shapes)
    obs["right"] = obs["left"]
    made, positions = tokens(tokens.features(obs))
    vector, left, right = 0, slice(1, made.shape[1] // 2 + 1), slice(made.shape[1] // 2 + 1, None)
    torch.testing.assert_close(made[:, left], made[:, right])
    assert torch.equal(positions[:, left], positions[:, right])
    assert positions[:, vector].abs().sum() > 0
    made.sum().backward()
    positions.sum().backward()
    assert (tokens.places.grad[0, 1:] == 0).all()
    assert (tokens.places.grad[0, 0] == 1).all()


SUBGOAL_SHAPES = {"cube.pos": (3,), "grid": (2, 4)}


def encoder_of_subgoals(**shapes):
    return ObservationEncoder(shapes, dict.fromkeys(shapes, "low_dim"), ObservationConfig().encoder)


def test_a_mean_subgoal_has_the_shape_of_each_key():
    group = GroupEncoder(encoder_of_subgoals(s=(5,)), encoder_of_subgoals(task=(2,)))
    net = SubgoalNetwork(group, SUBGOAL_SHAPES, (8,))
    out = net({"s": torch.randn(4, 5)}, {"task": torch.randn(4, 2)})
    found = {key: value.shape[1:] for key, value in out.items()}
    assert found == SUBGOAL_SHAPES and len(out["grid"]) == 4
    assert net.net.heads["cube/pos"].weight.shape == (3, 8)


def test_a_head_of_its_own_predicts_each_key_without_squashing():
    net = SubgoalNetwork(GroupEncoder(encoder_of_subgoals(s=(1,))), {"a": (1,), "b": (2,)}, ())
    for key, weight, bias in (("a", 3.0, 1.0), ("b", -5.0, 0.0)):
        torch.nn.init.constant_(net.net.heads[key].weight, weight)
        torch.nn.init.constant_(net.net.heads[key].bias, bias)
    out = net({"s": torch.tensor([[2.0]])})
    assert (out["a"].tolist(), out["b"].tolist()) == ([[7.0]], [[-10.0, -10.0]])


def vae(**section):
    torch.manual_seed(0)
    subgoal = encoder_of_subgoals(x=(2,), y=(3, 2))
    config = VAEConfig.model_validate({"enabled": True, "latent_dim": 3, **section})
    return SubgoalVAE(GroupEncoder(encoder_of_subgoals(s=(4,))), subgoal, config)


def test_samples_differ_and_follow_the_generator():
    net, obs = vae(), {"s": torch.randn(5, 4)}
    samples = net.sample(obs, None, 7, torch.Generator().manual_seed(3))
    assert (samples["x"].shape, samples["y"].shape) == ((5, 7, 2), (5, 7, 3, 2))
    assert (samples["x"].std(1) > 0).all()
    again = net.sample(obs, None, 7, torch.Generator().manual_seed(3))
    assert torch.equal(samples["y"], again["y"])
    assert net.sample_prior(obs, None, 7).shape == (5, 7, 3)


def test_the_terms_of_the_bound():
    """Mean 1 and log variance 0 of three latents: KL to the standard normal 3 * 0.5."""
    net = vae()
    for head, bias in (("mean", 1.0), ("logvar", 0.0)):
        torch.nn.init.zeros_(net.vae.encoder.heads[head].weight)
        torch.nn.init.constant_(net.vae.encoder.heads[head].bias, bias)
    for head in net.vae.decoder.heads.values():
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.constant_(head.bias, 2.5)  # out of a tanh's reach
    out = net({"x": torch.randn(5, 2), "y": torch.randn(5, 3, 2)}, {"s": torch.randn(5, 4)})
    torch.testing.assert_close(out.kl, torch.full((5,), 1.5))
    assert torch.equal(out.reconstruction["y"], torch.full((5, 3, 2), 2.5))
    assert out.latent.shape == (5, 3)


def test_latents_of_classes_are_one_hot_side_by_side():
    net = vae(prior={"use_categorical": True, "categorical_dim": 4})
    latents = net.sample_prior({"s": torch.randn(2, 4)}, None, 6)
    assert latents.shape == (2, 6, 12)
    assert torch.equal(latents.sum(-1), torch.full((2, 6), 3.0))
