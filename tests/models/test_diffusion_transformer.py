"""Diffusion Policy's transformer: written out from its weights, mask, groups, names."""

import math

import pytest
import torch
import torch.nn.functional as F

from imitate.errors import ConfigError
from imitate.models.diffusion_transformer import DiffusionTransformer


def make(**kwargs):
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_emb": 8}
    net = DiffusionTransformer(3, 6, 5, 2, **{**sizes, **kwargs}).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return net


def inputs(batch=4, steps=6):
    torch.manual_seed(1)
    return torch.randn(batch, steps, 3), torch.randint(0, 100, (batch,)), torch.randn(batch, 2, 5)


class Reference:
    """One chunk (T, A) through the weights by name; ``causal`` as in the network."""

    def __init__(self, net, causal):
        self.w, self.causal = net.state_dict(), causal

    def linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def norm(self, x, name):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return x * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def attention(self, x, memory, name, offset):
        parts = zip(
            (x, memory, memory),
            self.w[f"{name}.in_proj_weight"].chunk(3),
            self.w[f"{name}.in_proj_bias"].chunk(3),
            strict=True,
        )
        q, k, v = (value @ matrix.T + bias for value, matrix, bias in parts)
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
def test_equals_the_computation_written_out(causal, steps):
    net = make(causal_attn=causal)
    sample, t, observations = inputs(steps=steps)
    reference = Reference(net, causal)
    expected = torch.stack([reference(sample[i], t[i].item(), observations[i]) for i in range(4)])
    with torch.no_grad():
        torch.testing.assert_close(net(sample, t, observations), expected, rtol=1e-4, atol=1e-5)


def test_causal_attention_sees_no_later_action_and_no_later_observation():
    net = make()
    sample, t, observations = inputs()
    before = net(sample, t, observations)
    later = sample.clone()
    later[:, 3:] += 1.0
    torch.testing.assert_close(net(later, t, observations)[:, :3], before[:, :3])
    newer = observations.clone()
    newer[:, 1] += 1.0
    after = net(sample, t, newer)
    torch.testing.assert_close(after[:, 0], before[:, 0])
    assert not torch.allclose(after[:, 1], before[:, 1])


@pytest.mark.parametrize("layers", [0, 2])
def test_every_weight_gets_a_gradient(layers):
    net = make(n_cond_layers=layers).train()
    net(*inputs()).square().sum().backward()
    for name, p in net.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name


def test_groups_split_matrices_from_the_rest():
    net = make()
    decay, keep = net.optim_groups(0.001)
    assert (decay["weight_decay"], keep["weight_decay"]) == (0.001, 0.0)
    names = {id(p): name for name, p in net.named_parameters()}
    decayed = {names[id(p)] for p in decay["params"]}
    kept = {names[id(p)] for p in keep["params"]}
    assert decayed | kept == set(names.values())
    assert not decayed & kept
    assert {"decoder.layers.0.self_attn.in_proj_weight", "input_emb.weight"} <= decayed
    assert {"pos_emb", "cond_pos_emb", "ln_f.weight", "decoder.layers.1.norm3.weight"} <= kept
    assert not any(name.endswith("bias") for name in decayed)


def test_initialization_is_the_originals():
    torch.manual_seed(0)
    net = DiffusionTransformer(7, 16, 23, 2)
    assert net.pos_emb.std().item() == pytest.approx(0.02, rel=0.1)
    layer = net.decoder.layers[0]
    assert layer.self_attn.in_proj_weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert layer.self_attn.in_proj_bias.abs().sum() == 0
    assert net.head.bias.abs().sum() == 0
    assert layer.norm1.weight.unique().tolist() == [1.0]


def test_one_step_for_all_rows_and_dropout_only_in_training():
    net = make()
    sample, _, observations = inputs()
    torch.testing.assert_close(
        net(sample, 7, observations), net(sample, torch.full((4,), 7), observations)
    )
    net.train()
    assert not torch.equal(net(sample, 7, observations), net(sample, 7, observations))


def test_what_the_original_stores_besides_is_dropped():
    net = make()
    state = net.state_dict()
    for name in ("mask", "memory_mask", "_dummy_variable"):
        state[name] = torch.zeros(2)
    net.load_state_dict(state)


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="3 heads do not divide 8"):
        make(n_head=3)
