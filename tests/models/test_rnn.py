"""RNN: torch's recurrences step by step, and an LSTM cell worked out by hand."""

import math

import pytest
import torch

from imitate.models import rnn as rnns
from imitate.models.precision import CPU_COMPUTES_BF16
from imitate.models.rnn import RNN, has_bf16_kernels


@pytest.fixture(params=["LSTM", "GRU"])
def kind(request):
    return request.param


def make(kind, bidirectional=False):
    torch.manual_seed(0)
    return RNN(6, 9, 2, kind, bidirectional)


def test_lstm_cell_by_hand():
    rnn = RNN(1, 1, 1, "LSTM")
    with torch.no_grad():
        for p in rnn.parameters():
            p.zero_()
        # Gates i, f, g, o of input x: i = sigmoid(x), f = sigmoid(0), g = tanh(2 x), o = sigmoid(0).
        rnn.nets.weight_ih_l0.copy_(torch.tensor([[1.0], [0.0], [2.0], [0.0]]))
        state = {"h": torch.zeros(1, 1, 1), "c": torch.full((1, 1, 1), 3.0)}
        y, state = rnn(torch.full((1, 1, 1), 0.5), state)
    c = 0.5 * 3.0 + 1.0 / (1.0 + math.exp(-0.5)) * math.tanh(1.0)
    assert state["c"].item() == pytest.approx(c, abs=1e-6)
    assert y.item() == pytest.approx(0.5 * math.tanh(c), abs=1e-6)
    assert state["h"].item() == y.item()


def test_steps_equal_the_whole_window(kind):
    rnn, x = make(kind), torch.randn(3, 7, 6)
    whole, last = rnn(x)
    state, steps = None, []
    with torch.no_grad():
        for t in range(7):
            y, state = rnn(x[:, t : t + 1], state)
            steps.append(y)
        without_gradient, _ = rnn(x)
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-6, rtol=0)
    torch.testing.assert_close(without_gradient, whole, atol=1e-6, rtol=0)
    assert set(state) == set(last) == ({"h", "c"} if kind == "LSTM" else {"h"})
    for name, value in state.items():
        assert value.shape == (3, 2, 9)
        torch.testing.assert_close(value, last[name], atol=1e-6, rtol=0)


def test_step_with_gradients_equals_the_fast_one(kind):
    rnn, x = make(kind), torch.randn(3, 1, 6)
    state = {k: torch.randn_like(v) for k, v in rnn.initial_state(3).items()}
    slow, slow_state = rnn(x, state)
    with torch.inference_mode():
        fast, fast_state = rnn(x, state)
    assert slow.requires_grad
    torch.testing.assert_close(fast, slow, atol=1e-6, rtol=0)
    for name, value in slow_state.items():
        torch.testing.assert_close(fast_state[name], value, atol=1e-6, rtol=0)


def test_no_state_means_zeros(kind):
    rnn, x = make(kind), torch.randn(3, 4, 6)
    torch.testing.assert_close(rnn(x)[0], rnn(x, rnn.initial_state(3))[0])


def test_state_rows_belong_to_batch_rows(kind):
    rnn, x = make(kind), torch.randn(3, 4, 6)
    state = {k: torch.randn_like(v) for k, v in rnn.initial_state(3).items()}
    together, _ = rnn(x, state)
    for i in range(3):
        alone, _ = rnn(x[i : i + 1], {k: v[i : i + 1] for k, v in state.items()})
        torch.testing.assert_close(alone[0], together[i], atol=1e-6, rtol=0)


def test_bidirectional_doubles_the_output_and_sees_the_future(kind):
    rnn, x = make(kind, bidirectional=True), torch.randn(3, 4, 6)
    y, state = rnn(x)
    assert y.shape == (3, 4, 18)
    assert rnn.output_dim == 18
    assert state["h"].shape == rnn.initial_state(3)["h"].shape == (3, 4, 9)
    later = x.clone()
    later[:, 3] += 1.0
    assert not torch.allclose(rnn(later)[0][:, 0], y[:, 0])


def test_single_step_under_autocast(kind):
    rnn, x = make(kind), torch.randn(3, 1, 6)
    with torch.no_grad():
        expected, _ = rnn(x)
        with torch.autocast("cpu", torch.bfloat16):
            y, state = rnn(x.bfloat16())
            again, _ = rnn(x.bfloat16(), {k: torch.zeros(3, 2, 9) for k in state})
    torch.testing.assert_close(again.float(), y.float(), atol=0.01, rtol=0)
    torch.testing.assert_close(y.float(), expected, atol=0.02, rtol=0)


def test_the_state_after_windows_of_unequal_length(kind):
    rnn, x = make(kind), torch.randn(3, 5, 6)
    before = {name: torch.randn_like(s) for name, s in rnn.initial_state(3).items()}
    after = rnn.state_after(x, torch.tensor([2, 0, 5]), before)
    for window, length in enumerate([2, 0, 5]):
        state = {name: s[window : window + 1] for name, s in before.items()}
        if length:
            _, state = rnn(x[window : window + 1, :length], state)
        for name, expected in state.items():
            torch.testing.assert_close(after[name][window : window + 1], expected)


@pytest.mark.cuda
def test_under_autocast_gradients_of_a_gpu_are_of_float32(kind):
    """cuDNN would compute in float16, in which gradients below 6e-8 are 0."""
    rnn, x = make(kind).cuda(), torch.randn(2, 3, 6, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        y, state = rnn(x.bfloat16())
    assert y.dtype is torch.float32
    assert all(value.dtype is torch.float32 for value in state.values())
    (y * 1e-9).sum().backward()
    assert all(weight.grad.abs().max() > 0 for weight in rnn.parameters())


@pytest.mark.parametrize("has_kernels", [False, True])
def test_under_autocast_of_a_cpu(kind, has_kernels, monkeypatch):
    """Processors without bfloat16 have no such kernels, and compute in float32."""
    has_kernels = has_kernels and CPU_COMPUTES_BF16
    monkeypatch.setattr("imitate.models.rnn.has_bf16_kernels", lambda kind: has_kernels)
    rnn, x = make(kind), torch.randn(2, 3, 6).bfloat16()
    wanted, _ = rnn(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        y, state = rnn(x)
        y, state = rnn(x, {name: torch.zeros_like(value) for name, value in state.items()})
    y.float().sum().backward()
    assert all(weight.grad.isfinite().all() for weight in rnn.parameters())
    torch.testing.assert_close(y.float(), wanted, atol=0.0 if not has_kernels else 2e-2, rtol=0)


@pytest.mark.parametrize("computes", [False, True])
def test_devices_with_kernels_in_bfloat16(computes, monkeypatch):
    monkeypatch.setattr(rnns, "CPU_COMPUTES_BF16", computes)
    found = {name: has_bf16_kernels(name) for name in ("cpu", "cuda", "mps")}
    assert found == {"cpu": computes, "cuda": False, "mps": True}
