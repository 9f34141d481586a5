"""Heads of policies: distributions, choices and numbers beside them."""

import math

import pytest
import torch
import torch.distributions as D

from imitate.models.categorical import MixedHead
from imitate.models.heads import (
    Deterministic,
    DeterministicHead,
    Gaussian,
    GaussianHead,
    GaussianMixture,
    GMMHead,
    TanhDistribution,
)

BATCHES = [(), (5,), (3, 4)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def pair(kind, batch):
    """A distribution with random parameters, and torch's."""
    modes = () if kind == "gaussian" else (4,)
    means, stds = torch.randn(*batch, *modes, 3), torch.rand(*batch, *modes, 3) + 0.1
    reference = D.Independent(D.Normal(means, stds), 1)
    if kind == "gaussian":
        return Gaussian(means, stds), reference
    logits = torch.randn(*batch, 4)
    mixture = D.MixtureSameFamily(D.Categorical(logits=logits), reference)
    return GaussianMixture(means, stds, logits), mixture


def test_deterministic_head_is_the_tanh_of_a_linear_map():
    head = DeterministicHead(6, 3)
    features = torch.randn(2, 5, 6)
    dist = head(features)
    expected = head.action(features).tanh()
    torch.testing.assert_close(dist.mean, expected)
    torch.testing.assert_close(dist.sample(), expected)
    torch.testing.assert_close(head.act(features, explore=True), expected)


def test_density_of_a_point():
    point = Deterministic(torch.tensor([[0.5, 1.0], [0.5, 1.0]]))
    actions = torch.tensor([[0.5, 1.0], [0.5, 0.9]])
    assert point.log_prob(actions).tolist() == [0.0, -math.inf]


@pytest.mark.parametrize("kind", ["gaussian", "mixture"])
@pytest.mark.parametrize("batch", BATCHES)
def test_distributions_are_torchs_and_draw_in_its_order(batch, kind):
    ours, reference = pair(kind, batch)
    actions = torch.randn(*batch, 3)
    torch.testing.assert_close(ours.log_prob(actions), reference.log_prob(actions))
    assert ours.log_prob(actions).shape == batch
    torch.testing.assert_close(ours.mean, reference.mean)
    drawn = []
    for distribution in (ours, reference):
        torch.manual_seed(7)
        drawn.append(torch.stack([distribution.sample() for _ in range(20)]))
    torch.testing.assert_close(*drawn)
    if kind == "mixture":
        torch.testing.assert_close(ours.logits, reference.mixture_distribution.logits)


def test_a_generator_replaces_the_global_one():
    dist, _ = pair("mixture", (5,))
    before = torch.get_rng_state()
    one = dist.sample(torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, dist.sample(torch.Generator().manual_seed(3)))
    assert not torch.equal(one, dist.sample(torch.Generator().manual_seed(4)))


def test_mixture_by_hand():
    # Two modes at -0.5 and 0.5, std 0.5, weights 1/4 and 3/4, at 0.5: densities of N(0, 1) at 2 and 0, over 0.5.
    means, logits = torch.tensor([[-0.5], [0.5]]), torch.tensor([0.25, 0.75]).log() + 3.0
    dist = GaussianMixture(means, torch.full((2, 1), 0.5), logits)
    phi = [math.exp(-2.0) / math.sqrt(2 * math.pi), 1.0 / math.sqrt(2 * math.pi)]
    expected = math.log((0.25 * phi[0] + 0.75 * phi[1]) / 0.5)
    assert dist.log_prob(torch.tensor([0.5])).item() == pytest.approx(expected, abs=1e-6)
    assert dist.mean.item() == pytest.approx(0.25)


def test_samples_have_the_mixtures_moments():
    means = torch.tensor([[-0.5], [0.5]]).expand(20000, 2, 1)
    logits = torch.tensor([0.25, 0.75]).log().expand(20000, 2)
    samples = GaussianMixture(means, torch.full((20000, 2, 1), 0.1), logits).sample()
    assert samples.mean().item() == pytest.approx(0.25, abs=0.02)
    assert (samples < 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert samples[samples > 0].std().item() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("base_kind", ["gaussian", "mixture"])
def test_tanh_density_is_torchs(base_kind):
    ours, reference = pair(base_kind, (5,))
    actions = torch.rand(5, 3) * 1.8 - 0.9
    expected = reference.log_prob(torch.atanh(actions)) - (1 - actions.square()).log().sum(-1)
    got = TanhDistribution(ours).log_prob(actions)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-5)


def test_tanh_density_at_the_edge_by_hand():
    # a = 1: before the tanh 0.5 log(2 / 1e-6), the correction log(1e-6).
    dist = TanhDistribution(Gaussian(torch.zeros(1), torch.ones(1)))
    x = 0.5 * math.log(2.0 / 1e-6)
    expected = -0.5 * x * x - 0.5 * math.log(2 * math.pi) - math.log(1e-6)
    assert dist.log_prob(torch.ones(1)).item() == pytest.approx(expected, rel=1e-4)
    assert dist.log_prob(-torch.ones(1)).item() == pytest.approx(expected, rel=1e-4)


def test_tanh_samples_are_tanh_of_the_bases():
    base = Gaussian(torch.randn(5, 3), torch.ones(5, 3))
    torch.manual_seed(1)
    expected = base.sample().tanh()
    torch.manual_seed(1)
    assert torch.equal(TanhDistribution(base).sample(), expected)
    torch.testing.assert_close(TanhDistribution(base).mean, base.mean.tanh())


def raw_outputs(head, mean, scale):
    """Make the linear maps give these numbers whatever the features."""
    with torch.no_grad():
        for p in head.parameters():
            p.zero_()
        head.mean.bias.fill_(mean)
        if head.scale is not None:
            head.scale.bias.fill_(scale)


@pytest.mark.parametrize(
    ("raw_scale", "expected"),
    [
        (0.0, 0.1),  # softplus(0) / softplus(0) * init_std
        (2.0, 0.1 * math.log(1 + math.exp(2.0)) / math.log(2.0)),
        (-20.0, 0.01),  # floor
        (1000.0, 7.5),  # ceiling
    ],
)
def test_gaussian_std_softplus(raw_scale, expected):
    head = GaussianHead(4, 2, init_std=0.1, min_std=0.01)
    raw_outputs(head, 0.0, raw_scale)
    assert head(torch.randn(3, 4)).stds[0, 0].item() == pytest.approx(expected, rel=1e-5)


def test_gaussian_std_exp_and_fixed():
    head = GaussianHead(4, 2, std_activation="exp")
    raw_outputs(head, 0.0, -1.0)
    assert head(torch.randn(3, 4)).stds[0, 0].item() == pytest.approx(math.exp(-1.0))
    fixed = GaussianHead(4, 2, init_std=0.3, fixed_std=True)
    assert fixed(torch.randn(3, 4)).stds.tolist() == [[pytest.approx(0.3)] * 2] * 3
    assert [name for name, _ in fixed.named_parameters()] == ["mean.weight", "mean.bias"]


def test_gaussian_mean_is_clamped_then_squashed():
    head = GaussianHead(4, 2)
    raw_outputs(head, 0.5, 0.0)
    assert head(torch.zeros(1, 4)).mean[0, 0].item() == pytest.approx(math.tanh(0.5))
    wrapped = GaussianHead(4, 2, use_tanh=True)
    raw_outputs(wrapped, 50.0, 0.0)
    dist = wrapped(torch.zeros(1, 4))
    assert dist.base.mean[0, 0].item() == 9.0
    assert dist.mean[0, 0].item() == pytest.approx(math.tanh(9.0))


def test_gaussian_acts_with_its_mean_and_explores_with_its_noise():
    head = GaussianHead(4, 2)
    features = torch.randn(2000, 4) * 0.01
    mean = head(features).mean
    assert torch.equal(head.act(features), mean)
    noise = head.act(features, explore=True) - mean
    assert noise.std().item() == pytest.approx(head(features).stds.mean().item(), rel=0.05)
    noisy = GaussianHead(4, 2, low_noise_eval=False)
    assert not torch.equal(noisy.act(features), noisy(features).mean)
    wrapped = GaussianHead(4, 2, use_tanh=True)
    assert torch.equal(wrapped.act(features), wrapped(features).base.mean.tanh())


def test_init_last_fc_weight():
    head = GaussianHead(64, 8, init_last_fc_weight=0.001)
    for p in head.parameters():
        assert p.abs().max().item() <= 0.001 and p.abs().max().item() > 0.0005


@pytest.mark.parametrize(
    ("activation", "raw_scale", "expected"),
    [
        ("softplus", 0.0, math.log(2.0) + 1e-4),
        ("softplus", -50.0, 1e-4),
        ("exp", 1.5, math.exp(1.5) + 1e-4),
    ],
)
def test_mixture_std(activation, raw_scale, expected):
    head = GMMHead(4, 2, num_modes=3, min_std=1e-4, std_activation=activation)
    raw_outputs(head, 0.5, raw_scale)
    dist = head(torch.zeros(1, 4))
    assert dist.means.shape == dist.stds.shape == (1, 3, 2)
    assert dist.stds[0, 2, 1].item() == pytest.approx(expected, rel=1e-5)
    assert dist.means[0, 2, 1].item() == pytest.approx(math.tanh(0.5))


def test_mixture_rows_are_modes_then_actions():
    head = GMMHead(4, 2, num_modes=3, use_tanh=True)
    with torch.no_grad():
        head.mean.weight.zero_()
        head.mean.bias.copy_(torch.arange(6.0))
    base = head(torch.zeros(1, 4)).base
    assert base.means[0].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_mixture_acts_close_to_a_mode_and_explores_with_its_noise():
    head = GMMHead(4, 2, num_modes=3)
    features = torch.randn(50, 4)
    dist = head(features)
    action = head.act(features, generator=torch.Generator().manual_seed(0))
    distance = (action.unsqueeze(1) - dist.means).abs().amax(-1).amin(-1)
    assert distance.max().item() < 1e-3 and distance.max().item() > 1e-5
    explored = head.act(features, explore=True)
    assert (explored.unsqueeze(1) - dist.means).abs().amax(-1).amin(-1).max().item() > 0.1
    assert GMMHead(4, 2, num_modes=3, low_noise_eval=False).act(features).std().item() > 0.3


def test_evaluation_mode_does_not_change_the_density():
    head = GMMHead(4, 2)
    features, actions = torch.randn(5, 4), torch.rand(5, 2)
    trained = head.train()(features).log_prob(actions)
    assert torch.equal(head.eval()(features).log_prob(actions), trained)
    assert head(features, low_noise=True).stds.max().item() == pytest.approx(1e-4)


@pytest.mark.parametrize(
    "head", [GaussianHead(4, 2), GMMHead(4, 2), GaussianHead(4, 2, use_tanh=True)]
)
def test_every_weight_gets_a_gradient(head):
    (-head(torch.randn(5, 4)).log_prob(torch.rand(5, 2)).mean()).backward()
    for name, p in head.named_parameters():
        assert p.grad.abs().sum() > 0, name


@pytest.mark.parametrize("head", [DeterministicHead(8, 2), GaussianHead(8, 2), GMMHead(8, 2)])
def test_distributions_are_float32_under_autocast(head):
    features = torch.randn(50, 8)
    expected = head(features).mean
    with torch.autocast("cpu", torch.bfloat16):
        dist = head(features)
        assert dist.mean.dtype == torch.float32
        assert head.act(features).dtype == torch.float32
        assert dist.log_prob(torch.zeros(50, 2)).dtype == torch.float32
    torch.testing.assert_close(dist.mean, expected, atol=0.02, rtol=0)


def test_draws_of_a_gaussian_have_the_density_of_torch_and_a_gradient():
    mean = torch.tensor([[0.2, -0.4], [0.0, 1.0]], requires_grad=True)
    stds = torch.tensor([[0.5, 1.5], [0.1, 2.0]], requires_grad=True)
    actions, log_prob = Gaussian(mean, stds).draw(5, torch.Generator().manual_seed(0))
    assert actions.shape == (2, 5, 2)
    reference = D.Independent(D.Normal(mean.unsqueeze(1), stds.unsqueeze(1)), 1)
    torch.testing.assert_close(log_prob, reference.log_prob(actions))
    actions.sum().backward()
    torch.testing.assert_close(mean.grad, torch.full((2, 2), 5.0))


def test_draws_through_tanh_have_the_density_of_torch_also_at_the_edge():
    mean = torch.tensor([[0.2, -0.4], [6.0, -6.0]], dtype=torch.float64)
    stds = torch.full_like(mean, 0.5)
    distribution = TanhDistribution(Gaussian(mean, stds))
    actions, log_prob = distribution.draw(1000, torch.Generator().manual_seed(0))
    base = D.Normal(mean.unsqueeze(1), stds.unsqueeze(1))
    transform = D.transforms.TanhTransform(cache_size=1)
    reference = D.Independent(D.TransformedDistribution(base, [transform]), 1)
    torch.testing.assert_close(log_prob, reference.log_prob(actions), rtol=1e-3, atol=1e-3)
    again = distribution.log_prob(actions.transpose(0, 1))[:, 0]
    torch.testing.assert_close(log_prob[0], again, atol=1e-3, rtol=1e-3)
    assert actions.abs().max() <= 1.0


def test_a_mixture_has_no_draws_with_a_gradient():
    base = GaussianMixture(torch.zeros(1, 2, 3), torch.ones(1, 2, 3), torch.zeros(1, 2))
    with pytest.raises(TypeError, match="GaussianMixture"):
        TanhDistribution(base).draw(1)


def test_one_std_for_all_states_is_learned_between_its_bounds():
    head = GaussianHead(3, 2, init_std=0.5, min_std=0.1, max_std=2.0, state_independent_std=True)
    features = torch.randn(4, 3)
    torch.testing.assert_close(head(features).stds, torch.full((4, 2), 0.5))
    head(features).log_prob(torch.zeros(4, 2)).sum().backward()
    assert (head.log_std.grad != 0).all()
    head.log_std.data = torch.tensor([-9.0, 9.0])
    torch.testing.assert_close(head(features).stds, torch.tensor([[0.1, 2.0]]).expand(4, 2))
    assert "scale.weight" not in head.state_dict()


def head(choices=2, numbers=1, std=0.5):
    torch.manual_seed(0)
    stds = {"min_std": std, "max_std": std, "std_activation": "exp"}
    made = MixedHead(1, choices, numbers, use_tanh=True, **stds)
    for linear in (made.choice.logits, made.numbers.mean):
        linear.weight.data.zero_()
    made.choice.logits.bias.data = torch.tensor([math.log(3.0)] + [0.0] * (choices - 1))
    made.numbers.mean.bias.data = torch.linspace(-1, 1, choices * numbers)
    return made


def test_the_likeliest_choice_comes_with_the_mean_of_its_own_numbers():
    made = head()
    assert made.act(torch.ones(1, 1))[0].tolist() == pytest.approx([1, 0, math.tanh(-1)])
    made.choice.logits.bias.data = torch.tensor([0.0, 1.0])
    assert made.act(torch.ones(1, 1))[0].tolist() == pytest.approx([0, 1, math.tanh(1)])


def test_samples_of_a_choice_are_samples_of_its_numbers():
    drawn = head(std=1e-4).act(torch.ones(20_000, 1), explore=True)
    first = drawn[:, 0] == 1
    assert first.float().mean().item() == pytest.approx(0.75, abs=0.02)
    assert drawn[first, 2].mean().item() == pytest.approx(math.tanh(-1), abs=1e-3)
    assert drawn[~first, 2].mean().item() == pytest.approx(math.tanh(1), abs=1e-3)


def test_log_prob_is_that_of_the_choice_and_of_its_numbers():
    actions = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    # tanh(0) = 0, where the slope of tanh is 1; the means are -1 and 1, two standard deviations away.
    density = -0.5 * 4 - math.log(0.5) - 0.5 * math.log(2 * math.pi)
    expected = [math.log(0.75) + density, math.log(0.25) + density]
    found = head()(torch.ones(2, 1)).log_prob(actions)
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


def test_numbers_lie_by_choice():
    policy = head(choices=3, numbers=2)(torch.ones(4, 1))
    assert policy.numbers.mean.shape == (4, 3, 2)
    assert policy.numbers.mean[0, 1].tolist() == pytest.approx([math.tanh(-0.2), math.tanh(0.2)])
    assert policy.sample().shape == policy.mean.shape == (4, 5)
