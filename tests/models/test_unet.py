"""ConditionalUnet1D: against the same computation with one-dimensional convolutions, names, conditions, shapes."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F

from imitate.errors import ConfigError
from imitate.models.step_embedding import SinusoidalEmbedding
from imitate.models.unet import ConditionalUnet1D

SMALL = {"diffusion_step_embed_dim": 16, "down_dims": (8, 16, 24), "kernel_size": 3, "n_groups": 4}


def make(**kwargs):
    torch.manual_seed(0)
    net = ConditionalUnet1D(3, 5, **{**SMALL, **kwargs})
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


def inputs(batch=4, steps=8):
    torch.manual_seed(1)
    return torch.randn(batch, steps, 3), torch.randint(0, 100, (batch,)), torch.randn(batch, 5)


class Reference:
    """The network written out from its weights by name, one-dimensional throughout."""

    def __init__(self, net, kernel, groups, scales=True):
        self.w = net.state_dict()
        self.kernel, self.groups, self.scales = kernel, groups, scales

    def conv(self, x, name, **kwargs):
        return F.conv1d(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"], **kwargs)

    def block(self, x, name, groups):
        x = self.conv(x, f"{name}.block.0", padding=self.kernel // 2)
        norm = f"{name}.block.1"
        x = F.group_norm(x, groups, self.w[f"{norm}.weight"], self.w[f"{norm}.bias"])
        return x * torch.tanh(F.softplus(x))

    def residual(self, x, name, condition):
        out = self.block(x, f"{name}.blocks.0", self.groups)
        film = condition * torch.tanh(F.softplus(condition))
        encoder = f"{name}.cond_encoder.1"
        film = F.linear(film, self.w[f"{encoder}.weight"], self.w[f"{encoder}.bias"])
        if self.scales:
            scale, bias = film.reshape(len(x), 2, out.shape[1], 1).unbind(1)
            out = scale * out + bias
        else:
            out = out + film.unsqueeze(-1)
        out = self.block(out, f"{name}.blocks.1", self.groups)
        if f"{name}.residual_conv.weight" in self.w:
            x = self.conv(x, f"{name}.residual_conv")
        return out + x

    def step(self, t, dim):
        half = dim // 2
        features = torch.zeros(len(t), dim)
        for row, value in enumerate(t.tolist()):
            for i in range(half):
                angle = value * 10000.0 ** (-i / (half - 1))
                features[row, i] = math.sin(angle)
                features[row, half + i] = math.cos(angle)
        name = "diffusion_step_encoder"
        x = F.linear(features, self.w[f"{name}.1.weight"], self.w[f"{name}.1.bias"])
        x = x * torch.tanh(F.softplus(x))
        return F.linear(x, self.w[f"{name}.3.weight"], self.w[f"{name}.3.bias"])

    def __call__(self, sample, t, observation, step_dim=16, levels=3):
        condition = torch.cat([self.step(t, step_dim), observation], -1)
        x, skips = sample.transpose(1, 2), []
        for i in range(levels):
            x = self.residual(x, f"down_modules.{i}.0", condition)
            x = self.residual(x, f"down_modules.{i}.1", condition)
            skips.append(x)
            if i + 1 < levels:
                x = self.conv(x, f"down_modules.{i}.2.conv", stride=2, padding=1)
        for i in range(2):
            x = self.residual(x, f"mid_modules.{i}", condition)
        for i in range(levels - 1):
            x = torch.cat([x, skips.pop()], 1)
            x = self.residual(x, f"up_modules.{i}.0", condition)
            x = self.residual(x, f"up_modules.{i}.1", condition)
            name = f"up_modules.{i}.2.conv"
            x = F.conv_transpose1d(
                x, self.w[f"{name}.weight"], self.w[f"{name}.bias"], stride=2, padding=1
            )
        x = self.block(x, "final_conv.0", 8)
        return self.conv(x, "final_conv.1").transpose(1, 2)


@pytest.mark.parametrize("scales", [True, False])
@pytest.mark.parametrize(("batch", "steps"), [(4, 8), (1, 4), (1, 16)])
def test_equals_the_reference(scales, batch, steps):
    net = make(cond_predict_scale=scales)
    sample, t, observation = inputs(batch, steps)
    with torch.no_grad():
        expected = Reference(net, 3, 4, scales)(sample, t, observation)
        torch.testing.assert_close(net(sample, t, observation), expected, rtol=1e-5, atol=2e-5)


def test_gradients_equal_the_reference():
    net = make()
    sample, t, observation = inputs()
    net(sample, t, observation).square().sum().backward()
    reference = Reference(net, 3, 4)
    reference.w = {k: v.clone().requires_grad_() for k, v in reference.w.items()}
    reference(sample, t, observation).square().sum().backward()
    for name, p in net.named_parameters():
        assert p.grad.abs().sum() > 0, name
        torch.testing.assert_close(p.grad, reference.w[name].grad, rtol=1e-3, atol=1e-3)


def test_names_and_size_are_those_of_robomimic():
    with torch.device("meta"):
        net = ConditionalUnet1D(7, 26)
    state = net.state_dict()
    assert len(state) == 148
    assert sum(p.numel() for p in net.parameters()) == 65_591_559
    shapes = {
        "diffusion_step_encoder.1.weight": (1024, 256),
        "diffusion_step_encoder.3.bias": (256,),
        "down_modules.0.0.blocks.0.block.0.weight": (256, 7, 5),
        "down_modules.0.0.blocks.0.block.1.weight": (256,),
        "down_modules.0.0.cond_encoder.1.weight": (512, 282),
        "down_modules.0.0.residual_conv.weight": (256, 7, 1),
        "down_modules.1.2.conv.weight": (512, 512, 3),
        "mid_modules.1.blocks.1.block.0.bias": (1024,),
        "up_modules.0.0.residual_conv.weight": (512, 2048, 1),
        "up_modules.1.2.conv.weight": (256, 256, 4),
        "final_conv.0.block.0.weight": (256, 256, 5),
        "final_conv.1.weight": (7, 256, 1),
    }
    assert {name: tuple(state[name].shape) for name in shapes} == shapes
    assert "down_modules.2.2.conv.weight" not in state


def test_conditions_of_all_steps_equal_one_by_one():
    net = make().eval()
    sample, _, observation = inputs()
    with torch.no_grad():
        conditions = net.conditions([7, 0, 50], observation)
        for t in (7, 0, 50):
            torch.testing.assert_close(
                net.denoise(sample, conditions[t]), net(sample, t, observation)
            )


def test_without_observation():
    net = ConditionalUnet1D(3, **SMALL)
    sample, t, _ = inputs()
    with torch.no_grad():
        expected = net(sample, t)
        found = net.denoise(sample[:1], net.conditions(t.tolist(), None)[t[0].item()])
    torch.testing.assert_close(found, expected[:1])


def test_a_step_is_one_number_or_one_per_row():
    net = make()
    sample, _, observation = inputs()
    by_row = net(sample, torch.full((4,), 9), observation)
    torch.testing.assert_close(net(sample, 9, observation), by_row)
    torch.testing.assert_close(net(sample, torch.tensor(9), observation), by_row)
    assert not torch.allclose(net(sample, 10, observation), by_row)


def test_layout_survives_copies_and_files():
    """The fast layout is kept by deepcopy and loading; the values are what a file holds."""
    net = make()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = ConditionalUnet1D(3, 5, **SMALL)
    other.load_state_dict(torch.load(file, weights_only=True))
    sample, t, observation = inputs()
    with torch.no_grad():
        for twin in (other, copy.deepcopy(net)):
            kernel = twin.mid_modules[0].blocks[0].block[0].weight
            assert kernel.stride() == (72, 1, 24)  # (24, 24, 3), input channels innermost
            assert torch.equal(twin(sample, t, observation), net(sample, t, observation))


def test_chunk_that_cannot_be_halved():
    net = make()
    with pytest.raises(ConfigError, match="10 steps cannot be halved 2 times; expected a multiple"):
        net(torch.randn(1, 10, 3), 0, torch.randn(1, 5))
    net.check_horizon(12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kernel_size": 4}, "kernel_size is 4; expected an odd number"),
        ({"n_groups": 5}, "n_groups is 5, which does not divide 8"),
        ({"down_dims": ()}, "down_dims is empty"),
        ({"down_dims": (4, 8)}, "begins with 4; expected a multiple of 8"),
        ({"diffusion_step_embed_dim": 15}, "got 15 features; expected an even number"),
    ],
)
def test_impossible_sizes_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        make(**change)


def test_sinusoidal_embedding_by_hand():
    # 4 features: frequencies 1 and 1e-4.
    found = SinusoidalEmbedding(4)(torch.tensor([2.0])).squeeze(0).tolist()
    assert found == pytest.approx([math.sin(2), math.sin(2e-4), math.cos(2), math.cos(2e-4)])
