"""Transformers: positions, masks, layers."""

import math

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models import attention
from imitate.models.attention import rotary_table, sinusoidal_positions
from imitate.models.transformer import CausalTransformer, GPTBackbone

POSITIONS = ["parameter", "embedding", "sinusoidal", "rotary"]
DIM = 16


def make(positions="parameter", **kwargs):
    torch.manual_seed(0)
    sizes = {"embed_dim": 16, "num_layers": 3, "num_heads": 2, "context_length": 6}
    net = CausalTransformer(5, positions=positions, **{**sizes, **kwargs}).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


def window(steps=6, batch=3):
    return torch.randn(batch, steps, 5, generator=torch.Generator().manual_seed(1))


def turn(x, position):
    """Rotary positions one pair of features at a time."""
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = position * 10000.0 ** (-i / half)
        c, s = math.cos(angle), math.sin(angle)
        out[i], out[half + i] = x[i] * c - x[half + i] * s, x[i] * s + x[half + i] * c
    return out


class Reference:
    """One sequence (T, D) through the weights by name, all loops, in double precision."""

    def __init__(self, net, positions):
        self.w = {name: value.double() for name, value in net.state_dict().items()}
        self.positions = positions

    def linear(self, x, name):
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdim=True)
        x = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def place(self, i):
        if self.positions == "parameter":
            return self.w["params.embed_timestep"][0, i]
        if self.positions == "embedding":
            return self.w["nets.embed_timestep.weight"][i]
        place = torch.zeros(DIM, dtype=torch.float64)
        if self.positions == "sinusoidal":
            for f in range(0, DIM, 2):
                angle = i / 10000 ** (f / DIM)
                place[f], place[f + 1] = math.sin(angle), math.cos(angle)
        return place

    def attention(self, x, name, reach):
        qkv = self.linear(x, f"{name}.qkv")
        attended = torch.zeros_like(x)
        for part in (slice(0, 8), slice(8, 16)):
            q, k, v = (qkv[:, n * DIM : (n + 1) * DIM][:, part] for n in range(3))
            if self.positions == "rotary":
                q = torch.stack([turn(row, i) for i, row in enumerate(q)])
                k = torch.stack([turn(row, i) for i, row in enumerate(k)])
            for i in range(len(x)):
                seen = reach(i)
                attended[i, part] = torch.softmax(k[seen] @ q[i] / math.sqrt(8), 0) @ v[seen]
        return self.linear(attended, f"{name}.output")

    def mlp(self, x, name):
        hidden = self.linear(x, f"{name}.0")
        gate = hidden[:, -4 * DIM :]
        gate = gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2)))
        gated = hidden.shape[-1] == 8 * DIM
        return self.linear(hidden[:, : 4 * DIM] * gate if gated else gate, f"{name}.2")

    def __call__(self, sequence, reach):
        """``reach(i)`` gives the steps that step i sees."""
        x = self.linear(sequence.double(), "nets.embed_encoder")
        x = x + torch.stack([self.place(i) for i in range(len(x))])
        x = self.norm(x, "nets.embed_ln")
        for layer in range(3):
            name = f"nets.transformer.nets.transformer.{layer}.nets"
            x = x + self.attention(self.norm(x, f"{name}.ln1"), f"{name}.attention.nets", reach)
            x = x + self.mlp(self.norm(x, f"{name}.ln2"), f"{name}.mlp")
        return self.norm(x, "nets.transformer.nets.output_ln").float()


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_equals_the_computation_written_out(positions, activation):
    net, x = make(positions, activation=activation), window()
    expected = Reference(net, positions)(x[0], lambda i: list(range(i + 1)))
    torch.testing.assert_close(net(x)[0], expected, rtol=1e-5, atol=1e-5)


def test_long_sequence_slides_its_window():
    net, x = make("rotary"), window(steps=14)
    expected = Reference(net, "rotary")(x[0], lambda i: list(range(max(0, i - 5), i + 1)))
    torch.testing.assert_close(net(x)[0], expected, rtol=1e-5, atol=1e-5)


def test_padded_steps_are_not_seen():
    net, x = make("rotary"), window()
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[0, :2] = False
    mask[1, 4:] = False
    seen = [[0], [1], [2], [2, 3], [2, 3, 4], [2, 3, 4, 5]]
    y = net(x, mask)
    expected = Reference(net, "rotary")(x[0], lambda i: seen[i])
    torch.testing.assert_close(y[0], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y[2], net(x)[2])
    changed = x.clone()
    changed[0, :2] += 9.0
    changed[1, 4:] += 9.0
    torch.testing.assert_close(net(changed, mask)[mask], y[mask])


@pytest.mark.parametrize("positions", POSITIONS)
def test_shorter_windows_fit(positions):
    net, x = make(positions), window()
    torch.testing.assert_close(net(x[:, :4]), net(x)[:, :4], rtol=1e-5, atol=1e-6)


def test_cache_equals_the_masked_whole():
    net, x = make("rotary"), window(steps=40)
    whole, cache = net(x), net.initial_cache(3)
    for t in range(40):
        y, cache = net.step(x[:, t], cache)
        torch.testing.assert_close(y, whole[:, t], rtol=0, atol=1e-5)
    assert cache["keys"].shape == cache["values"].shape == (3, 3, 2, 6, 8)
    assert cache["length"].tolist() == [6, 6, 6]


def test_rows_of_a_cache_are_reset_alone():
    net, x = make("rotary"), window(steps=9)
    cache = net.initial_cache(3)
    for t in range(4):
        _, cache = net.step(x[:, t], cache)
    fresh, reset = net.initial_cache(3), torch.tensor([False, True, False])
    for name, value in cache.items():
        rows = reset.view(-1, *[1] * (value.dim() - 1))
        cache[name] = torch.where(rows, fresh[name], value)
    for t in range(4, 9):
        y, cache = net.step(x[:, t], cache)
    torch.testing.assert_close(y[1], net(x[:, 4:])[1, -1], rtol=0, atol=1e-5)
    torch.testing.assert_close(y[2], net(x)[2, -1], rtol=0, atol=1e-5)
    assert cache["length"].tolist() == [6, 5, 6]


def test_a_step_leaves_the_given_cache_alone():
    net, x = make("rotary"), window()
    _, cache = net.step(x[:, 0], net.initial_cache(3))
    before = {name: value.clone() for name, value in cache.items()}
    first, _ = net.step(x[:, 1], cache)
    again, _ = net.step(x[:, 1], cache)
    assert torch.equal(first, again)
    assert all(torch.equal(before[name], cache[name]) for name in before)


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_weight_gets_a_gradient(positions):
    net = make(positions).train()
    net(window()).square().sum().backward()
    for name, p in net.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name


def test_dropout_only_in_training():
    for name in ("emb_dropout", "attn_dropout", "block_output_dropout"):
        off = {"emb_dropout": 0.0, "attn_dropout": 0.0, "block_output_dropout": 0.0}
        net = make(**{**off, name: 0.5}).train()
        assert not torch.equal(net(window()), net(window())), name
        net.eval()
        assert torch.equal(net(window()), net(window()))


def test_names_are_those_of_robomimic():
    net = make(num_layers=1)
    block = "nets.transformer.nets.transformer.0.nets"
    linear = ["nets.embed_encoder", "nets.embed_ln", "nets.transformer.nets.output_ln"]
    linear += [f"{block}.{part}" for part in ("ln1", "ln2", "mlp.0", "mlp.2")]
    linear += [f"{block}.attention.nets.output"]
    expected = {f"{name}.{kind}" for name in linear for kind in ("weight", "bias")}
    expected |= {f"{block}.attention.nets.qkv.weight", "params.embed_timestep"}
    assert set(net.state_dict()) == expected
    assert net.params["embed_timestep"].shape == (1, 6, 16)
    embedding = make("embedding", num_layers=1).state_dict()
    assert embedding["nets.embed_timestep.weight"].shape == (6, 16)


def test_stored_masks_of_robomimic_are_taken_and_dropped():
    net = make(num_layers=1)
    state = net.state_dict()
    state["nets.transformer.nets.transformer.0.nets.attention.mask"] = torch.ones(1, 1, 6, 6)
    net.load_state_dict(state)
    assert not any(name.endswith("mask") for name in net.state_dict())


def test_initialization_is_gpts():
    torch.manual_seed(0)
    block = GPTBackbone(64, 2, 4, 8).blocks[0].nets
    assert block["mlp"][0].weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block["mlp"][0].bias.abs().sum() == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make("learnt"), "valid names: embedding, parameter, rotary, sinusoidal"),
        (lambda: make("rotatory"), "did you mean 'rotary'"),
        (lambda: make(activation="gegl"), "did you mean 'geglu'"),
        (lambda: make(num_heads=3), "3 heads do not divide 16"),
        (lambda: make()(window(7)), "window of 7 steps is longer than context_length 6"),
        (lambda: make().initial_cache(1), "a cache needs rotary positions"),
        (lambda: attention.head_dim(10, 4), "4 heads do not divide 10"),
        (lambda: rotary_table(3, 5), "5 features per head; expected an even number"),
        (lambda: sinusoidal_positions(3, 5), "5 features; expected an even number"),
    ],
)
def test_impossible_settings_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
