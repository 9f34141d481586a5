"""Real-time chunking against literal numbers of the mask and of the guidance."""

import math

import pytest
import torch

from imitate.algo.flow_policy import integrate
from imitate.errors import ConfigError
from imitate.functional.diffusion import (
    make_sampler,
    noise_schedule,
    output_of_data,
    predicted_data,
)
from imitate.functional.realtime import (
    Prefix,
    guidance_weight,
    guided_data,
    guided_velocity,
    prefix_weights,
)


def test_the_linear_mask():
    weights = prefix_weights(2, 6, 10, "linear")
    assert weights.tolist() == pytest.approx([1, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5, 0, 0, 0, 0])


def test_the_exponential_mask():
    # c = 4/5 .. 1/5 as above; each is c (e^c - 1) / (e - 1).
    expected = [c * (math.exp(c) - 1) / (math.e - 1) for c in (0.8, 0.6, 0.4, 0.2)]
    weights = prefix_weights(2, 6, 10)
    torch.testing.assert_close(weights, torch.tensor([1.0, 1.0, *expected, 0, 0, 0, 0]))
    assert weights[2].item() == pytest.approx(0.57060, abs=1e-4)


@pytest.mark.parametrize(("schedule", "middle"), [("ones", 1.0), ("zeros", 0.0)])
def test_hard_masks(schedule, middle):
    weights = prefix_weights(1, 3, 5, schedule)
    torch.testing.assert_close(weights, torch.tensor([1.0, middle, middle, 0.0, 0.0]))


def test_without_an_old_plan_nothing_is_guided():
    assert prefix_weights(0, 0, 4).tolist() == [0.0] * 4


@pytest.mark.parametrize("delay,end,chunk", [(3, 2, 8), (-1, 2, 8), (1, 9, 8)])
def test_impossible_lengths_are_refused(delay, end, chunk):
    with pytest.raises(ConfigError, match="0 <= delay <= end <= chunk"):
        prefix_weights(delay, end, chunk)
    with pytest.raises(ConfigError, match="unknown 'exponentail'.*exponential"):
        prefix_weights(1, 2, 8, "exponentail")


def test_the_strength_of_the_guidance():
    assert guidance_weight(0.0, 5.0) == 5.0
    # t = 1/2: c = 1, r = (1/4 + 1/4) / (1/4) = 2.
    assert guidance_weight(0.5, 5.0) == pytest.approx(2.0)
    # t = 4/5: c = 1/4, r = (1/25 + 16/25) / (1/25) = 17.
    assert guidance_weight(0.8, 5.0) == pytest.approx(4.25)
    assert guidance_weight(0.1, 5.0) == 5.0  # c r = 9.11
    assert guidance_weight(1.0, 5.0) == 0.0


def quadratic(x, time):
    """A flow whose Jacobian is not the identity: v = x^2 / 2."""
    return 0.5 * x.square()


# x = 2 at t = 1/2: v = 2, x1 = 3; W (prefix - x1) = 1 * (1 - 3) = -2, times 2: v' = 2 - 4 = -2.
# dx1/dx = 1 + (1 - t) x = 2, so the true correction is twice the identity's: v' = 2 - 8 = -6.
@pytest.mark.parametrize(("jacobian", "wanted"), [("identity", -2.0), ("vjp", -6.0)])
def test_guidance_by_hand(jacobian, wanted):
    x, prefix = torch.full((1, 1, 1), 2.0), torch.ones(1, 1, 1)
    guided = guided_velocity(quadratic, prefix, torch.ones(1), jacobian=jacobian)
    assert guided(x, 0.5).item() == pytest.approx(wanted)


def test_true_guidance_works_in_inference_mode_and_leaves_no_graph():
    net = torch.nn.Linear(1, 1)
    with torch.inference_mode():
        prefix = torch.ones(1, 1, 1)
        guided = guided_velocity(lambda x, t: net(x), prefix, torch.ones(1), jacobian="vjp")
        result = guided(torch.zeros(1, 1, 1), 0.5)
    assert not result.requires_grad
    assert net.weight.grad is None


def test_actions_that_are_not_guided_flow_as_before():
    weights = torch.tensor([1.0, 0.0])
    x = torch.tensor([[[2.0], [2.0]]])
    for jacobian in ("identity", "vjp"):
        guided = guided_velocity(quadratic, torch.ones(1, 2, 1), weights, jacobian=jacobian)
        assert guided(x, 0.5)[0, 1].item() == pytest.approx(2.0)


@pytest.mark.parametrize("jacobian", ["identity", "vjp"])
def test_a_guided_flow_ends_near_the_old_plan_and_an_unguided_one_does_not(jacobian):
    torch.manual_seed(0)
    target = torch.full((4, 8, 2), 1.0)

    def velocity(x, time):
        return (target - x) / (1.0 - time)  # a flow that ends at 1 wherever it begins

    prefix = torch.full((4, 8, 2), -1.0)
    weights = prefix_weights(3, 5, 8)
    noise = torch.randn(4, 8, 2)
    free = integrate(velocity, noise, 10)
    guided = integrate(guided_velocity(velocity, prefix, weights, jacobian=jacobian), noise, 10)
    torch.testing.assert_close(free, target)
    torch.testing.assert_close(guided[:, 5:], target[:, 5:])
    if jacobian == "identity":  # J of this flow is 0: every beginning ends at the target
        assert (guided[:, :3] - prefix[:, :3]).abs().max() < (free - prefix)[:, :3].abs().max()


def test_guided_diffusion_is_soft_inpainting():
    clean = torch.zeros(1, 2, 1)
    guided = guided_data(lambda x, step: clean, torch.ones(1, 2, 1), torch.tensor([1.0, 0.25]))
    torch.testing.assert_close(guided(clean, 3), torch.tensor([[[1.0], [0.25]]]))


def test_true_guided_diffusion_by_hand():
    # x0(x) = x / 2 at x = 2: 1; W (prefix - x0) = 3 - 1 = 2, J = 1/2: 1 + 1 = 2.
    x = torch.full((1, 1, 1), 2.0)
    prefix = torch.full((1, 1, 1), 3.0)
    guided = guided_data(lambda x, step: x / 2, prefix, torch.ones(1), jacobian="vjp")
    assert guided(x, 3).item() == pytest.approx(2.0)


def test_unknown_jacobians_are_refused():
    for build in (guided_velocity, guided_data):
        with pytest.raises(ConfigError, match="unknown 'true'"):
            build(quadratic, torch.ones(1, 1, 1), torch.ones(1), jacobian="true")


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_the_output_of_data_is_the_inverse_of_predicted_data(prediction):
    generator = torch.Generator().manual_seed(0)
    output, noisy = torch.randn(2, 3, 4, 2, generator=generator)
    data = predicted_data(prediction, output, noisy, 0.6, 0.8)
    torch.testing.assert_close(output_of_data(prediction, data, noisy, 0.6, 0.8), output)


@pytest.mark.parametrize("name", ["ddim", "ddpm"])
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_a_guided_sampler_keeps_the_prefix_and_leaves_the_rest(name, prediction):
    """A network that knows the data to be 0.5: the frozen part becomes the prefix, the free part stays 0.5."""
    sampler = make_sampler(name, noise_schedule("squaredcos_cap_v2", 20), 20, prediction=prediction)
    steps = {step.timestep: step for step in sampler.steps}

    def network(noisy, timestep):
        step, data = steps[timestep], torch.full_like(noisy, 0.5)
        return output_of_data(prediction, data, noisy, step.alpha, step.sigma)

    weights = torch.tensor([1.0, 1.0, 0.0, 0.0])
    prefix = Prefix(torch.full((1, 4, 2), -0.25), weights)
    noise = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(0))
    chunk = sampler.sample(prefix.network(network, sampler), noise)
    torch.testing.assert_close(chunk[:, :2], torch.full((1, 2, 2), -0.25), atol=1e-3, rtol=0)
    torch.testing.assert_close(chunk[:, 2:], torch.full((1, 2, 2), 0.5), atol=1e-3, rtol=0)
