"""Convolutions over short sequences against conv2d, whose gradients they must have."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from imitate.functional import kernels
from imitate.functional.kernels import (
    convolution_over_images,
    convolution_over_time,
)


@pytest.fixture(autouse=True)
def processor(monkeypatch):
    """Choose the limits of a processor, whatever this one is: with AVX-512 unless a test says otherwise."""

    def choose(kind):
        monkeypatch.setattr(kernels, "_has_avx2_alone", lambda: kind == "AVX2")

    choose("AVX-512")
    return choose


def stored(*shape, dtype=torch.float64):
    """A leaf (O, I, K) with I innermost in memory."""
    weight = torch.randn(shape[0], shape[2], shape[1], dtype=dtype).transpose(1, 2)
    return weight.requires_grad_()


def gradients(function, x, kernel, bias):
    leaves = [leaf for leaf in (x, kernel, bias) if leaf is not None]
    y = function(x, kernel, bias)
    cotangent = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape).sin()
    return y, torch.autograd.grad((y * cotangent).sum(), leaves)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("steps", "size", "stride"), [(4, 5, 1), (1, 3, 1), (4, 1, 1), (8, 3, 2), (7, 3, 2)]
)
@pytest.mark.parametrize("kind", ["AVX-512", "AVX2"])
def test_a_short_convolution_has_the_gradients_of_conv2d(
    steps, size, stride, with_bias, kind, processor, monkeypatch
):
    processor(kind)
    monkeypatch.setattr(kernels, "WHOLE_KERNEL", 1)
    monkeypatch.setattr(kernels, "LEAST_RESULTS", 1)
    x = torch.randn(3, 6, 1, steps, dtype=torch.float64, requires_grad=True)
    kernel = stored(4, 6, size)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True) if with_bias else None

    def reference(x, kernel, bias):
        return F.conv2d(x, kernel.unsqueeze(2), bias, (1, stride), (0, size // 2))

    def ours(x, kernel, bias):
        y = convolution_over_time(x, kernel, bias, stride)
        assert (
            "ProductConvolution" in type(y.grad_fn).__name__
        )  # else conv2d would be compared with itself
        return y

    y, got = gradients(ours, x, kernel, bias)
    wanted_y, wanted = gradients(reference, x, kernel, bias)
    torch.testing.assert_close(y, wanted_y)
    torch.testing.assert_close(got, wanted)
    assert got[1].stride() == kernel.stride()  # no copy when it is stored


def test_a_frozen_kernel_and_a_long_sequence_take_conv2d(monkeypatch):
    used = []
    monkeypatch.setattr(
        kernels.ProductConvolution,
        "apply",
        lambda x, *rest: used.append(x.shape[-1]) or x,
    )
    kernel, bias = stored(4, 4, 3, dtype=torch.float32), None
    convolution_over_time(torch.randn(2, 4, 1, 4), kernel.detach(), bias, 1)
    convolution_over_time(torch.randn(2, 4, 1, 16), kernel, bias, 1)
    with torch.no_grad():
        convolution_over_time(torch.randn(2, 4, 1, 4), kernel, bias, 1)
    with torch.autocast("cpu", torch.bfloat16):
        convolution_over_time(torch.randn(2, 4, 1, 4), kernel, bias, 1)
    convolution_over_time(torch.randn(2, 4, 1, 4), kernel, bias, 1, learning=False)
    assert used == []
    convolution_over_time(torch.randn(2, 4, 1, 8), kernel, bias, 2)
    monkeypatch.setattr(kernels, "LARGE_KERNEL", 16)
    convolution_over_time(torch.randn(2, 4, 1, 16), kernel, bias, 1)
    assert used == [8, 16]


def test_inputs_without_a_gradient_get_none():
    kernel = stored(4, 6, 3)
    x = torch.randn(3, 6, 1, 4, dtype=torch.float64)
    convolution_over_time(x, kernel, None, 1).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(
        kernel.grad[:, :, 1],
        x.sum((0, 2, 3)).expand(4, 6),  # the middle of the kernel meets every step
    )


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("image", "window", "stride", "padding"),
    [((3, 3), (3, 3), (1, 1), (1, 1)), ((5, 4), (3, 2), (2, 1), (1, 0)), ((4, 4), (1, 1), (2, 2), (0, 0))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["AVX-512", "AVX2"])
def test_small_images_have_the_gradients_of_conv2d_of_both_orders(
    image, window, stride, padding, with_bias, kind, processor, monkeypatch
):
    processor(kind)
    monkeypatch.setattr(kernels, "LARGE_IMAGE_KERNEL", 1)
    monkeypatch.setattr(kernels, "WHOLE_KERNEL", 1)
    monkeypatch.setattr(kernels, "WHOLE_RESULTS", 100)
    monkeypatch.setattr(kernels, "LEAST_RESULTS", 1)
    x = torch.randn(2, 3, *image, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(4, 3, *window, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True) if with_bias else None
    y, got = gradients(
        lambda *leaves: convolution_over_images(*leaves, stride, padding), x, kernel, bias
    )
    assert "ProductConvolution" in type(y.grad_fn).__name__
    wanted_y, wanted = gradients(
        lambda *leaves: F.conv2d(*leaves, stride, padding), x, kernel, bias
    )
    torch.testing.assert_close(y, wanted_y)
    torch.testing.assert_close(got, wanted)
    if kind == "AVX2" or bias is None:
        return  # the second order does not depend on them
    leaves = (x, kernel, bias)
    assert torch.autograd.gradgradcheck(
        lambda x, kernel, bias=None: convolution_over_images(x, kernel, bias, stride, padding),
        leaves,
    )


def test_small_kernels_large_images_and_frozen_kernels_take_conv2d(monkeypatch):
    used = []
    monkeypatch.setattr(
        kernels.ProductConvolution,
        "apply",
        lambda x, *rest: used.append(tuple(x.shape)) or x,
    )
    kernel = torch.randn(512, 256, 3, 3, requires_grad=True)

    def convolve(kernel, *shape):
        convolution_over_images(torch.randn(*shape), kernel, None, (1, 1), (1, 1))

    convolve(kernel.detach(), 2, 256, 3, 3)
    convolve(kernel[:511], 2, 256, 3, 3)
    convolve(kernel, 2, 256, 23, 23)  # 1,058 pixels
    with torch.autocast("cpu", torch.bfloat16):
        convolve(kernel, 2, 256, 3, 3)
    assert used == []
    convolve(kernel, 2, 256, 3, 3)
    assert used == [(2, 256, 3, 3)]


def test_with_avx2_alone_the_number_of_results_decides(processor, monkeypatch):
    processor("AVX2")
    used = []
    monkeypatch.setattr(
        kernels.ProductConvolution,
        "apply",
        lambda x, kernel, bias, stride, padding, whole: used.append((len(x), whole)) or x,
    )
    small = torch.randn(2, 256, 1, 5, requires_grad=True)
    large = torch.randn(512, 512, 3, requires_grad=True)

    def over_time(kernel, batch, steps):
        convolution_over_time(torch.randn(batch, kernel.shape[1], 1, steps), kernel, None, 1)

    for batch in (8, 9):  # 2 channels of the result, so 32 results of 4 steps each
        convolution_over_images(torch.randn(batch, 256, 2, 2), small, None, (1, 1), (0, 2))
    over_time(large, 3, 5)
    over_time(large, 2, 8)
    over_time(large, 64, 32)  # 2,048 results: 4 for each channel
    over_time(large, 65, 32)
    assert used == [(8, False), (3, False), (2, True), (64, True), (65, False)]


def test_without_gradients_large_kernels_are_products_too(processor, monkeypatch):
    x, kernel, bias = torch.randn(4, 512, 1, 4), torch.randn(512, 512, 3) / 40, torch.randn(512)
    products = []
    product = kernels.product
    monkeypatch.setattr(kernels, "product", lambda *given: products.append(1) or product(*given))
    kernel.requires_grad_()
    with torch.no_grad():
        wanted = convolution_over_time(x, kernel, bias, 1)
        assert not products  # with AVX-512
        processor("AVX2")
        torch.testing.assert_close(convolution_over_time(x, kernel, bias, 1), wanted)
    assert products == [1]


def test_torch_compiles_it_into_one_graph(monkeypatch):
    """A break in the graph would leave a network of many small graphs, slower than none."""
    monkeypatch.undo()  # the question about the processor is what torch cannot compile
    compiled = torch.compile(convolution_over_images, backend="eager", fullgraph=True)
    x, kernel = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    wanted = F.conv2d(x, kernel, None, (1, 1), (1, 1))
    torch.testing.assert_close(compiled(x, kernel, None, (1, 1), (1, 1)), wanted)
