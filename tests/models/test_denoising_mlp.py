"""DenoisingMLP: written out from its weights, gradients, steps."""

import pytest
import torch
import torch.nn.functional as F

from imitate.models.denoising_mlp import DenoisingMLP


def make(**kwargs):
    torch.manual_seed(0)
    return DenoisingMLP(3, 4, 5, **{"hidden_dim": 16, "num_blocks": 2, **kwargs})


def inputs():
    torch.manual_seed(1)
    return torch.randn(6, 4, 3), torch.rand(6) * 100, torch.randn(6, 5)


def test_equals_the_computation_written_out():
    net = make()
    sample, t, observation = inputs()
    w = net.state_dict()

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    angle = t[:, None] * 10000.0 ** (-torch.arange(32) / 31)
    step = linear(torch.cat([angle.sin(), angle.cos()], -1), "step_encoder.1")
    step = linear(F.mish(step), "step_encoder.3")
    x = linear(sample.reshape(6, 12), "enter") + step + linear(observation, "condition")
    for i in range(2):
        h = linear(norm(x, f"blocks.{i}.norm"), f"blocks.{i}.inner")
        x = x + linear(h * h.sigmoid(), f"blocks.{i}.outer")
    expected = linear(norm(x, "norm"), "leave").reshape(6, 4, 3)
    torch.testing.assert_close(net(sample, t, observation), expected, rtol=1e-4, atol=1e-5)


def test_every_weight_and_input_gets_a_gradient():
    net = make()
    sample, t, observation = (x.requires_grad_() for x in inputs())
    net(sample, t, observation).square().sum().backward()
    for name, p in (*net.named_parameters(), ("sample", sample), ("observation", observation)):
        assert p.grad.abs().sum() > 0, name


def test_one_step_for_all_rows():
    net = make()
    sample, _, observation = inputs()
    torch.testing.assert_close(
        net(sample, 7, observation), net(sample, torch.full((6,), 7.0), observation)
    )


@pytest.mark.parametrize("observed", [5, 0])
def test_conditions_of_all_steps_at_once(observed):
    torch.manual_seed(0)
    net = DenoisingMLP(3, 4, observed, hidden_dim=16)
    sample, _, observation = inputs()
    observation = observation if observed else None
    conditions = net.conditions([0.0, 25.0, 75.0], observation)
    for step, condition in conditions.items():
        torch.testing.assert_close(net.denoise(sample, condition), net(sample, step, observation))


def test_observation_is_needed_exactly_if_declared():
    sample, t, _ = inputs()
    with pytest.raises(TypeError):
        make()(sample, t)
    assert DenoisingMLP(3, 4)(sample, t).shape == (6, 4, 3)


def test_dropout_only_in_training():
    net = make(dropout=0.5)
    args = inputs()
    assert not torch.equal(net(*args), net(*args))
    net.eval()
    assert torch.equal(net(*args), net(*args))
