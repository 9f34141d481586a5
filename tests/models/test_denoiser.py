"""Networks that denoise chunks."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F

from imitate.errors import ConfigError
from imitate.functional.realtime import Given
from imitate.models.denoising_networks import DenoisingMLP, DiffusionTransformer
from imitate.models.unet import ConditionalUnet1D
from tests.tiny import tiny_algo

NETWORKS = {
    "unet": {"down_dims": [8, 16], "diffusion_step_embed_dim": 8},
    "mlp": {"hidden_dim": 16},
    "transformer": {"embed_dim": 16, "num_layers": 1, "num_heads": 2},
}


def make_denoiser(network, max_delay=0):
    sections = {name: {"enabled": name == network, **NETWORKS[name]} for name in NETWORKS}
    algo = {**sections, "prefix": {"max_delay": max_delay}}
    return tiny_algo("flow_policy", obs={"state": 3}, action=2, algo=algo).nets["policy"].eval()


@pytest.mark.parametrize("network", NETWORKS)
def test_for_steps_is_the_forward_pass(network):
    denoiser = make_denoiser(network)
    condition = denoiser.condition({"state": torch.randn(5, 2, 3)})
    at = denoiser.for_steps([0.0, 50.0, 100.0], condition)
    noisy = torch.randn(5, 16, 2)
    for step in (0.0, 50.0, 100.0):
        torch.testing.assert_close(at(noisy, step), denoiser(noisy, step, condition))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_with_marks_sees_given_actions_and_where_they_are(network):
    denoiser = make_denoiser(network, max_delay=4)
    condition = denoiser.condition({"state": torch.randn(2, 2, 3)})
    noisy, actions = torch.randn(2, 2, 16, 2).unbind()
    mask = torch.zeros(2, 16, dtype=torch.bool)
    mask[:, :3] = True
    given = Given(actions, mask)
    seen = denoiser(noisy, 50.0, condition, given)
    assert seen.shape == (2, 16, 2)
    at = denoiser.for_steps([50.0], condition, given)
    torch.testing.assert_close(at(noisy, 50.0), seen)
    other = noisy.clone()
    other[:, :3] = 9.0  # in the places of given actions
    assert torch.equal(denoiser(other, 50.0, condition, given), seen)
    assert not torch.allclose(denoiser(given.fill(noisy), 50.0, condition), seen), "the marks tell"
    hidden = Given(actions, torch.zeros_like(mask))
    assert torch.equal(denoiser(noisy, 50.0, condition, hidden), denoiser(noisy, 50.0, condition))


@pytest.mark.slow("torch's compiler is imported")
def test_the_encoder_is_compiled_too():
    denoiser, compiled = make_denoiser("mlp"), []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    denoiser.compile(backend=backend)
    condition = denoiser.condition({"state": torch.randn(5, 2, 3)})
    of_encoder = len(compiled)
    assert of_encoder > 0
    denoiser(torch.randn(5, 16, 2), torch.zeros(5), condition)
    assert len(compiled) > of_encoder


def make(**kwargs):
    torch.manual_seed(0)
    return DenoisingMLP(3, 4, 5, **{"hidden_dim": 16, "num_blocks": 2, **kwargs})


def inputs():
    torch.manual_seed(1)
    return torch.randn(6, 4, 3), torch.rand(6) * 100, torch.randn(6, 5)


class Written:
    """Layers from a network's weights by name."""

    def __init__(self, net):
        self.w = net.state_dict()

    def linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def norm(self, x, name):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return x * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def step(self, t, dim, name):
        """Features of steps (B,): sines and cosines of geometric frequencies, and two layers."""
        angle = t[:, None] * 10000.0 ** (-torch.arange(dim // 2) / (dim // 2 - 1))
        x = self.linear(torch.cat([angle.sin(), angle.cos()], -1), f"{name}.1")
        return self.linear(F.mish(x), f"{name}.3")


def test_equals_the_computation_written_out():
    net = make()
    sample, t, observation = inputs()
    w = Written(net)
    x = w.linear(sample.reshape(6, 12), "enter") + w.step(t, 64, "step_encoder")
    x = x + w.linear(observation, "condition")
    for i in range(2):
        h = w.linear(w.norm(x, f"blocks.{i}.norm"), f"blocks.{i}.inner")
        x = x + w.linear(h * h.sigmoid(), f"blocks.{i}.outer")
    expected = w.linear(w.norm(x, "norm"), "leave").reshape(6, 4, 3)
    torch.testing.assert_close(net(sample, t, observation), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("observed", [5, 0])
def test_conditions_of_all_steps_at_once(observed):
    torch.manual_seed(0)
    net = DenoisingMLP(3, 4, observed, hidden_dim=16)
    sample, _, observation = inputs()
    observation = observation if observed else None
    steps = [0.0, 25.0, 75.0]
    for step, condition in zip(steps, net.stacked(steps, observation), strict=True):
        torch.testing.assert_close(net.denoise(sample, condition), net(sample, step, observation))


def test_observation_is_needed_exactly_if_declared():
    sample, t, _ = inputs()
    with pytest.raises(TypeError):
        make()(sample, t)
    assert DenoisingMLP(3, 4)(sample, t).shape == (6, 4, 3)


def make_diffusion_transformer(**kwargs):
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_emb": 8}
    net = DiffusionTransformer(3, 6, 5, 2, **{**sizes, **kwargs}).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return net


def inputs_of_diffusion_transformer(batch=4, steps=6):
    torch.manual_seed(1)
    return torch.randn(batch, steps, 3), torch.randint(0, 100, (batch,)), torch.randn(batch, 2, 5)


class Reference(Written):
    """One chunk (T, A) through the weights by name; ``causal`` as in the network."""

    def __init__(self, net, causal):
        super().__init__(net)
        self.causal = causal

    def attention(self, x, memory, name, offset):
        matrices, biases = (
            self.w[f"{name}.in_proj_{part}"].chunk(3) for part in ("weight", "bias")
        )
        q, k, v = (y @ matrices[i].T + biases[i] for i, y in enumerate((x, memory, memory)))
        out = torch.zeros_like(x)
        for h in (slice(0, 4), slice(4, 8)):
            for t in range(len(x)):
                seen = [s for s in range(len(memory)) if not self.causal or t >= s - offset]
                out[t, h] = torch.softmax(k[seen][:, h] @ q[t, h] / 2.0, 0) @ v[seen][:, h]
        return self.linear(out, f"{name}.out_proj")

    def __call__(self, sample, t, observations):
        angles = [t * 10000.0 ** (-i / 3) for i in range(4)]
        step = torch.tensor([f(a) for f in (math.sin, math.cos) for a in angles])
        memory = torch.cat([step[None], self.linear(observations, "cond_obs_emb")])
        memory = memory + self.w["cond_pos_emb"][0]
        memory = self.linear(F.mish(self.linear(memory, "encoder.0")), "encoder.2")
        x = self.linear(sample, "input_emb") + self.w["pos_emb"][0, : len(sample)]
        for i in range(2):
            name = f"decoder.layers.{i}"
            y = self.norm(x, f"{name}.norm1")
            x = x + self.attention(y, y, f"{name}.self_attn", 0)
            y = self.norm(x, f"{name}.norm2")
            x = x + self.attention(y, memory, f"{name}.multihead_attn", 1)
            y = self.linear(self.norm(x, f"{name}.norm3"), f"{name}.linear1")
            y = y * 0.5 * (1 + torch.erf(y / math.sqrt(2)))
            x = x + self.linear(y, f"{name}.linear2")
        return self.linear(self.norm(x, "ln_f"), "head")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("steps", [6, 4])
def test_equals_the_computation_written_out_in_diffusion_transformer(causal, steps):
    net = make_diffusion_transformer(causal_attn=causal)
    sample, t, observations = inputs_of_diffusion_transformer(steps=steps)
    reference = Reference(net, causal)
    expected = torch.stack([reference(sample[i], t[i].item(), observations[i]) for i in range(4)])
    with torch.no_grad():
        torch.testing.assert_close(net(sample, t, observations), expected, rtol=1e-4, atol=1e-5)


def test_causal_attention_sees_no_later_action_and_no_later_observation():
    net = make_diffusion_transformer()
    sample, t, observations = inputs_of_diffusion_transformer()
    before = net(sample, t, observations)
    later = sample.clone()
    later[:, 3:] += 1.0
    torch.testing.assert_close(net(later, t, observations)[:, :3], before[:, :3])
    newer = observations.clone()
    newer[:, 1] += 1.0
    after = net(sample, t, newer)
    torch.testing.assert_close(after[:, 0], before[:, 0])
    assert not torch.allclose(after[:, 1], before[:, 1])


@pytest.mark.parametrize("network", ["mlp", 0, 2])
def test_every_weight_and_input_gets_a_gradient(network):
    if network == "mlp":
        net, (sample, t, observation) = make(), inputs()
    else:
        net = make_diffusion_transformer(n_cond_layers=network).train()
        sample, t, observation = inputs_of_diffusion_transformer()
    seen = {"sample": sample.requires_grad_(), "observation": observation.requires_grad_()}
    net(sample, t, observation).square().sum().backward()
    for name, p in {**dict(net.named_parameters()), **seen}.items():
        assert p.grad is not None and p.grad.abs().sum() > 0, name


def test_initialization_is_the_originals():
    torch.manual_seed(0)
    net = DiffusionTransformer(7, 16, 23, 2)
    assert net.pos_emb.std().item() == pytest.approx(0.02, rel=0.1)
    layer = net.decoder.layers[0]
    assert layer.self_attn.in_proj_weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert layer.self_attn.in_proj_bias.abs().sum() == 0
    assert net.head.bias.abs().sum() == 0
    assert layer.norm1.weight.unique().tolist() == [1.0]


def test_dropout_only_in_training():
    for net, args in (
        (make(dropout=0.5), inputs()),
        (make_diffusion_transformer().train(), inputs_of_diffusion_transformer()),
    ):
        assert not torch.equal(net(*args), net(*args))
        net.eval()
        assert torch.equal(net(*args), net(*args))


@pytest.mark.parametrize("kind", ["mlp", "transformer", "unet"])
def test_a_step_is_one_number_or_one_per_row(kind):
    net, (sample, _, observation) = {
        "mlp": lambda: (make(), inputs()),
        "transformer": lambda: (make_diffusion_transformer(), inputs_of_diffusion_transformer()),
        "unet": lambda: (make_unet(), inputs_of_unet()),
    }[kind]()
    by_row = net(sample, torch.full((len(sample),), 9), observation)
    for step in (9, torch.tensor(9)):
        torch.testing.assert_close(net(sample, step, observation), by_row)
    assert not torch.allclose(net(sample, 10, observation), by_row)


def test_what_the_original_stores_besides_is_dropped():
    net = make_diffusion_transformer()
    state = net.state_dict()
    for name in ("mask", "memory_mask", "_dummy_variable"):
        state[name] = torch.zeros(2)
    net.load_state_dict(state)


SMALL = {"diffusion_step_embed_dim": 16, "down_dims": (8, 16, 24), "kernel_size": 3, "n_groups": 4}


def make_unet(**kwargs):
    torch.manual_seed(0)
    net = ConditionalUnet1D(3, 5, **{**SMALL, **kwargs})
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


def inputs_of_unet(batch=4, steps=8):
    torch.manual_seed(1)
    return torch.randn(batch, steps, 3), torch.randint(0, 100, (batch,)), torch.randn(batch, 5)


class UnetReference(Written):
    """The network written out from its weights by name, one-dimensional throughout."""

    def __init__(self, net, kernel, groups, scales=True):
        super().__init__(net)
        self.kernel, self.groups, self.scales = kernel, groups, scales

    def conv(self, x, name, **kwargs):
        return F.conv1d(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"], **kwargs)

    def block(self, x, name, groups):
        x = self.conv(x, f"{name}.block.0", padding=self.kernel // 2)
        norm = f"{name}.block.1"
        x = F.group_norm(x, groups, self.w[f"{norm}.weight"], self.w[f"{norm}.bias"])
        return F.mish(x)

    def residual(self, x, name, condition):
        out = self.block(x, f"{name}.blocks.0", self.groups)
        film = self.linear(F.mish(condition), f"{name}.cond_encoder.1")
        if self.scales:
            scale, bias = film.reshape(len(x), 2, out.shape[1], 1).unbind(1)
            out = scale * out + bias
        else:
            out = out + film.unsqueeze(-1)
        out = self.block(out, f"{name}.blocks.1", self.groups)
        if f"{name}.residual_conv.weight" in self.w:
            x = self.conv(x, f"{name}.residual_conv")
        return out + x

    def __call__(self, sample, t, observation):
        condition = torch.cat([self.step(t, 16, "diffusion_step_encoder"), observation], -1)
        x, skips = sample.transpose(1, 2), []
        for i in range(3):
            x = self.residual(x, f"down_modules.{i}.0", condition)
            x = self.residual(x, f"down_modules.{i}.1", condition)
            skips.append(x)
            if i < 2:
                x = self.conv(x, f"down_modules.{i}.2.conv", stride=2, padding=1)
        for i in range(2):
            x = self.residual(x, f"mid_modules.{i}", condition)
        for i in range(2):
            x = torch.cat([x, skips.pop()], 1)
            x = self.residual(x, f"up_modules.{i}.0", condition)
            x = self.residual(x, f"up_modules.{i}.1", condition)
            weight, bias = (self.w[f"up_modules.{i}.2.conv.{part}"] for part in ("weight", "bias"))
            x = F.conv_transpose1d(x, weight, bias, stride=2, padding=1)
        x = self.block(x, "final_conv.0", 8)
        return self.conv(x, "final_conv.1").transpose(1, 2)


@pytest.mark.parametrize("scales", [True, False])
@pytest.mark.parametrize(("batch", "steps"), [(4, 8), (1, 4), (1, 16)])
def test_equals_the_reference(scales, batch, steps):
    net = make_unet(cond_predict_scale=scales)
    sample, t, observation = inputs_of_unet(batch, steps)
    with torch.no_grad():
        expected = UnetReference(net, 3, 4, scales)(sample, t, observation)
        torch.testing.assert_close(net(sample, t, observation), expected, rtol=1e-5, atol=2e-5)


def test_gradients_equal_the_reference():
    net = make_unet()
    sample, t, observation = inputs_of_unet()
    net(sample, t, observation).square().sum().backward()
    reference = UnetReference(net, 3, 4)
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


def test_without_observation():
    net = ConditionalUnet1D(3, **SMALL)
    sample, t, _ = inputs_of_unet()
    with torch.no_grad():
        expected = net(sample, t)
        found = net.denoise(sample[:1], [film[0] for film in net.films(t.tolist(), None)])
    torch.testing.assert_close(found, expected[:1])


def test_layout_survives_copies_and_files():
    """The fast layout is kept by deepcopy and loading; the values are what a file holds."""
    net = make_unet()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = ConditionalUnet1D(3, 5, **SMALL)
    other.load_state_dict(torch.load(file, weights_only=True))
    sample, t, observation = inputs_of_unet()
    with torch.no_grad():
        for twin in (other, copy.deepcopy(net)):
            kernel = twin.mid_modules[0].blocks[0].block[0].weight
            assert kernel.stride() == (72, 1, 24)  # (24, 24, 3), input channels innermost
            assert torch.equal(twin(sample, t, observation), net(sample, t, observation))


def test_chunk_that_cannot_be_halved():
    net = make_unet()
    with pytest.raises(ConfigError, match="10 steps cannot be halved 2 times; expected a multiple"):
        net(torch.randn(1, 10, 3), 0, torch.randn(1, 5))
    net.check_horizon(12)


@pytest.mark.parametrize(
    ("make", "change", "words"),
    [
        (make_diffusion_transformer, {"n_head": 3}, "3 heads do not divide 8"),
        (make_unet, {"kernel_size": 4}, "kernel_size is 4; expected an odd number"),
        (make_unet, {"n_groups": 5}, "n_groups is 5, which does not divide 8"),
        (make_unet, {"down_dims": ()}, "down_dims is empty"),
        (make_unet, {"down_dims": (4, 8)}, "begins with 4; expected a multiple of 8"),
        (make_unet, {"diffusion_step_embed_dim": 15}, "15 features; expected an even number"),
    ],
)
def test_impossible_sizes_are_refused(make, change, words):
    with pytest.raises(ConfigError, match=words):
        make(**change)
