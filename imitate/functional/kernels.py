"""Faster implementations of single operations on the CPU, and the reason for each implementation.

Results differ from torch's only by rounding, and have gradients of every order. torch's own operations are used
instead when torch compiles, exports or transforms code, on other devices, and for other types than float32.
``IMITATE_KERNELS=0`` disables all of them, for comparisons or debugging. An operation is included only if it
saves at least a tenth of an update.

========================  =====================================================  =======================================
what                      reason                                                 gain (``docs/results/speed.md``)
========================  =====================================================  =======================================
linear layers             on AMD processors with AVX-512, MKL multiplies         an update of BC 2x1024 takes 0.6 of the
                          float32 matrices at half of the possible speed;        time
                          oneDNN, which torch has too, at almost full speed
short convolutions        oneDNN reorders a large kernel at each call, which     a pass of the default U-Net takes 0.75
                          takes longer than a convolution over few steps         (AVX-512) or 0.45 (AVX2) of the time
``pack_linears``          an acting policy multiplies only a few rows, which is  a layer of 1024 x 1024 weights acts in
                          faster with a copy of the weights packed in blocks     0.4 of the time in int8
``mish``, softmax         torch's Mish and softmax of few numbers do not         a plan of TD-MPC2 takes 0.85 of the
                          vectorize                                              time
========================  =====================================================  =======================================

torch multiplies float32 matrices with MKL, which reaches only half of the possible speed on processors that are not
made by Intel: on an AMD EPYC with AVX-512, MKL reaches 98 billion operations per second and oneDNN, which torch
contains too, 210. On such processors this module computes large products and their gradients with oneDNN. Results
differ only by rounding, because sums are computed in another order.

A layer changed by ``pack_linears`` trains as before, but acts faster. For a few rows, such as the steps of a window,
oneDNN multiplies by a matrix stored in blocks up to twice as fast as torch's default does; results differ only by
rounding. A single row takes as long as reading the matrix, in any layout. In bfloat16 half as much is read, and
weights and inputs are rounded to 8 binary digits. In int8 a quarter is read: each row of weights is rounded to 255
levels with its own scale, and the inputs of each call to 256 levels between their smallest and their largest value
(dynamic quantization), or to 128 levels if the processor has no instruction for sums of such products.

Convolutions over short sequences and small images are computed as matrix products if these are faster. oneDNN reorders
kernels and their gradients between its own layout and the layout of the weights. If a kernel is large and the sequence
or image is small, as at the bottom of a U-Net over action chunks or of a ResNet, this takes longer than the
multiplications. Matrix products in the layout of the weights avoid this reordering. The results are those of ``conv2d``
up to rounding.

Which of the two is faster depends on the processor, so the limits below were measured on two kinds of processors. With
AVX-512 only the gradient of the kernel is computed as a product. With only AVX2, oneDNN is slower: products are faster
for more of the kernels' gradients, and for large kernels also for the result and the gradient of the input.
"""

import os
import warnings
from functools import cache
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@cache
def switched_on() -> bool:
    """Return False if the environment variable ``IMITATE_KERNELS`` is 0."""
    return os.environ.get("IMITATE_KERNELS") != "0"


def kernels_apply() -> bool:
    """Return True in plain eager execution, unless ``IMITATE_KERNELS`` is 0.

    While torch compiles or exports code, or transforms a function (``torch.func``), it supports only its own operators,
    and neither autograd functions nor operators of oneDNN and numpy.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and not torch._C._are_functorch_transforms_active()
        and switched_on()
    )


LEAST_WORK = 2**22
"""Smallest number of multiplications for which oneDNN is faster although each call costs some 20 microseconds."""
LEAST_WORK_OF_EACH = 2**23
"""Like :data:`LEAST_WORK`, for each map of :func:`linears`; larger, because the results of all maps are copied into
one tensor, as are their gradients.
"""
NARROW = 8
"""Largest number of output columns for which MKL is several times faster with all factors transposed."""
ROWS_IF_NARROW = 64
"""Smallest number of rows for which MKL is faster with all factors of such a narrow product transposed."""
LEAST_ROWS = 4
"""Smallest number of rows for oneDNN. With fewer, reading the matrix takes most time, and gradients are slower."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``F.linear``: (*B, D) times weight (E, D), transposed, plus bias (E,), gives (*B, E)."""
    count = x.numel() // weight.shape[1]
    # the number of rows is checked first, because acting takes only microseconds
    if count < LEAST_ROWS or not _is_for_onednn(count, weight.numel(), x, weight):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        y: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        y = onednn_product(rows, weight, bias)
    if x.dim() == 2:
        return y
    # as in torch's own linear: after an ordinary view, in-place activations would be slow
    reshaped: Tensor = torch.ops.aten._unsafe_view(y, (*x.shape[:-1], len(weight)))
    return reshaped


def linears(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply E linear maps: (E, N, D) times weight (E, D, M), plus bias (E, M), gives (E, N, M)."""
    size = weight.numel() // len(weight)
    is_narrow = weight.shape[2] <= NARROW and x.shape[1] >= ROWS_IF_NARROW
    if is_narrow and x.device.type == "cpu" and kernels_apply():
        return torch.baddbmm(bias.unsqueeze(2), weight.mT, x.mT).mT
    if x.shape[1] * size < LEAST_WORK_OF_EACH or not _is_for_onednn(x.shape[1], size, x, weight):
        return torch.baddbmm(bias.unsqueeze(1), x, weight)
    # unbind, because after indexing the gradient of each part would have the size of the whole tensor
    members = zip(x.unbind(), weight.unbind(), bias.unbind(), strict=True)
    return torch.stack([linear(rows, matrix.t(), shift) for rows, matrix, shift in members])


def onednn_product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply (N, D) by (E, D), transposed, with oneDNN, and add bias (E,); gives (N, E) without a gradient.

    Either factor may be a transposed view, at no extra cost.
    """
    if bias is not None:
        bias = bias.contiguous()  # with other strides, oneDNN reads beyond the end of the bias
    y: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return y


def _is_for_onednn(rows: int, size: int, x: Tensor, weight: Tensor) -> bool:
    """Return True if oneDNN can multiply ``rows`` rows by a matrix of ``size`` numbers faster than torch's default."""
    return (
        kernels_apply()
        and rows >= LEAST_ROWS
        and rows * size >= LEAST_WORK
        and x.dtype is weight.dtype is torch.float32
        and x.device.type == weight.device.type == "cpu"
        and onednn_is_faster()
        and bool(torch.backends.mkldnn.enabled)  # a user may have disabled oneDNN
        and not torch.is_autocast_enabled("cpu")
    )


@cache
def onednn_is_faster() -> bool:
    """Return True if torch computes float32 products with MKL, on a processor on which MKL is slow.

    These are AMD's processors with AVX-512. On those with only AVX2, MKL was as fast, and faster for few rows.
    """
    capability: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    name = str(capability.get("cpu_name", "Intel"))
    is_wide = bool(capability.get("avx512_f", False))
    has_both: bool = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    has_product = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return switched_on() and has_both and is_wide and "Intel" not in name and has_product


class _Linear(torch.autograd.Function):
    """Autograd function of ``F.linear`` for rows (N, D). Its gradients are differentiable products of the same kind."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return onednn_product(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        grad = grad.contiguous()
        return (
            linear(grad, weight.t()) if of_rows else None,
            linear(grad.t(), rows.t()) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


Net = TypeVar("Net", bound=nn.Module)
MOST_ROWS = 64
FEWEST_WEIGHTS = 2**16
"""Smallest number of weights for which packing in blocks saves more than the overhead of the call."""


class FastLinear(nn.Linear):
    """An ``nn.Linear`` that multiplies by :func:`~imitate.functional.kernels.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: ``(*B, D)`` to ``(*B, E)``."""
        return linear(x, self.weight, self.bias)


def with_fast_linears(net: Net) -> Net:
    """Make each ``nn.Linear`` a :class:`FastLinear` if that is faster on this CPU; return the network.

    The layers stay the same objects with another class, so that they keep parameters, hooks (such as those of
    ``torch.nn.utils.spectral_norm``), and their places in other lists.
    """
    if onednn_is_faster():
        for module in net.modules():
            if type(module) is nn.Linear and module.weight.device.type == "cpu":
                module.__class__ = FastLinear
    return net


class PackedLinear(nn.Linear):
    """An ``nn.Linear`` with a second copy of its weights, in blocks for few rows; made by :func:`pack_linears`.

    The copy is made at the first call without gradients, and again whenever the weights have changed. It is not
    included in copies and pickles of the layer.

    Attributes:
        dtype: dtype of the copy: float32, bfloat16, or int8 if :func:`has_int8`. With int8, all rows of a call share
            one scale, so that a row's result depends a little on the others; and inputs must be finite: with NaN or
            infinity among them, torch raises RuntimeError, or the result is finite and wrong.
        fewest_rows: smallest number of rows for which the copy is faster; a single row of float32 is not.
    """

    dtype = torch.float32
    fewest_rows = 2
    _blocks: Any = None
    _copied: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_blocks", "_copied")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: ``(*B, D)`` to ``(*B, E)``."""
        rows = x.numel() // self.in_features
        if torch.is_grad_enabled() or rows > MOST_ROWS:
            return linear(x, self.weight, self.bias)
        if rows < self.fewest_rows:
            return nn.functional.linear(x, self.weight, self.bias)
        if self.dtype is torch.int8:
            quantized: Tensor = torch.ops.quantized.linear_dynamic(
                x.float(), self._packed(rows), needs_reduced_range()
            )
            return quantized.to(x.dtype)
        weight, bias = self._packed(rows)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self.dtype), weight, bias, "none", [], ""
        )
        return y.to(x.dtype)

    def _packed(self, rows: int) -> Any:
        state = (self.weight._version, self.weight.data_ptr())
        if self._blocks is None or state != self._copied:
            weight = self.weight.detach()
            bias = None if self.bias is None else self.bias.detach()
            if self.dtype is torch.int8:
                self._blocks = _quantized(weight, bias)
            else:
                blocks = torch.ops.mkldnn._reorder_linear_weight(weight.to(self.dtype), rows)
                self._blocks = blocks, None if bias is None else bias.to(self.dtype)
            self._copied = state
        return self._blocks


def has_int8() -> bool:
    """Return True if torch can multiply in int8: with fbgemm, on x86 processors."""
    return _available() and torch.backends.quantized.engine in ("fbgemm", "x86")


def pack_linears(net: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Make each large ``nn.Linear`` a :class:`PackedLinear`, on a CPU if torch has oneDNN.

    The layers stay the same objects with another class, so that they keep parameters and hooks. Layers whose weight is
    recomputed in each call, as by ``torch.nn.utils.spectral_norm``, are not changed.

    Args:
        net: the network that contains the layers.
        dtype: dtype of the copies, see :class:`PackedLinear`.
    """
    if not _available() or (dtype is torch.float32 and not switched_on()):
        return
    for module in net.modules():
        is_plain = type(module) in (nn.Linear, FastLinear)
        if isinstance(module, nn.Linear) and is_plain and _is_large(module.weight):
            module.__class__ = PackedLinear
            packed = cast(PackedLinear, module)
            packed.dtype, packed.fewest_rows = dtype, 2 if dtype is torch.float32 else 1


def _is_large(weight: Tensor) -> bool:
    """Return True if packed weights are faster for a layer, and a change of its weights can be detected."""
    on_cpu = weight.device.type == "cpu" and weight.dtype is torch.float32
    return (
        isinstance(weight, nn.Parameter)
        and on_cpu
        and not weight.is_inference()
        and weight.numel() >= FEWEST_WEIGHTS
    )


def _available() -> bool:
    # _reorder_linear_weight, which torch's own compiler uses, is missing in older builds and for some processors.
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def _quantized(weight: Tensor, bias: Tensor | None) -> Any:
    """Return weights (E, D) in int8, each row with its own scale, in the layout of ``linear_dynamic``."""
    scales = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    zeros = torch.zeros(len(weight), dtype=torch.long)
    # torch warns that its quantized tensors are deprecated, but offers no replacement
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rounded = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(rounded, bias)


@cache
def needs_reduced_range() -> bool:
    """Return True if int8 inputs must be limited to 7 bits, because sums of two products could overflow 16 bits."""
    capability: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return not capability.get("avx512_vnni")


LARGEST = 20.0
"""Inputs above this are unchanged by the Mish activation in float32."""


def mish(x: Tensor) -> Tensor:
    """Mish activation ``x tanh(log(1 + e^x))`` (Misra 2020, arXiv:1908.08681).

    Without gradients it is computed as ``x n / (n + 2)`` with w = e^x and n = w (w + 2): one exponential instead of
    torch's three functions.
    """
    if x.device.type != "cpu" or torch.is_grad_enabled() or not kernels_apply():
        return F.mish(x)
    w = x.clamp(max=LARGEST).exp_()
    n = w.add(2.0).mul_(w)
    # written over w, because allocating memory for many rows takes as long as computing them
    torch.add(n, 2.0, out=w)
    return n.div_(w).mul_(x)


def group_softmax(x: Tensor, size: int) -> Tensor:
    """Softmax in each group of ``size`` consecutive numbers of (*B, D); torch's does not vectorize small groups."""
    groups = x.reshape(*x.shape[:-1], -1, size)
    if x.device.type != "cpu" or not kernels_apply():
        return groups.softmax(-1).flatten(-2)
    powers = (groups - groups.amax(-1, keepdim=True).detach()).exp()
    return (powers / powers.sum(-1, keepdim=True)).flatten(-2)


SHORT_STEPS = 4
"""Largest length of the output that counts as short for kernels of any size."""
LARGE_KERNEL = 1024 * 1024
"""Smallest product of input and output channels for which a matrix product is faster at any length."""
LARGE_IMAGE_KERNEL = 256 * 512
"""Smallest product of input and output channels for which a matrix product is faster on few pixels."""
FEW_PIXELS = 1024
"""Largest number of output pixels of a whole batch that counts as few."""

FEW_RESULTS = 16
"""With only AVX2: largest ratio of output positions in a batch to output channels for which the kernel's gradient is
computed as a product.
"""
WHOLE_KERNEL = 512 * 512
"""With only AVX2: smallest product of input and output channels for which everything is computed by products."""
WHOLE_RESULTS = 4
"""With only AVX2: largest ratio of output positions in a batch to output channels for which this is done."""
LEAST_RESULTS = 16
"""With only AVX2: smallest number of output positions in a batch for which this is done; an acting policy has fewer."""

Pair = tuple[int, int]


def convolution_over_time(
    x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int, *, learning: bool = True
) -> Tensor:
    """Convolve over time, with zero padding to ceil(T / stride) steps.

    Args:
        x: (B, I, 1, T); fastest with channels last in memory.
        kernel: (O, I, K), K odd; fastest with I innermost in memory.
        bias: (O,) or None.
        stride: number of steps between results.
        learning: true if the gradient of the kernel may be needed; false if at most the gradient of ``x`` is.

    Returns:
        (B, O, 1, ceil(T / stride)).
    """
    steps = -(-x.shape[-1] // stride)
    is_short = steps <= SHORT_STEPS or kernel.shape[0] * kernel.shape[1] >= LARGE_KERNEL
    kernels, padding = kernel.unsqueeze(2), (0, kernel.shape[2] // 2)
    return _convolution(
        x, kernels, bias, (1, stride), padding, len(x) * steps, is_short, learning=learning
    )


def convolution_over_images(
    x: Tensor, kernel: Tensor, bias: Tensor | None, stride: Pair, padding: Pair
) -> Tensor:
    """Convolve like ``conv2d``: (B, I, H, W) with the kernel (O, I, h, w) to (B, O, H', W')."""
    height, width = _result_size(x, kernel, stride, padding)
    results = len(x) * height * width
    is_small = kernel.shape[0] * kernel.shape[1] >= LARGE_IMAGE_KERNEL and results <= FEW_PIXELS
    return _convolution(x, kernel, bias, stride, padding, results, is_small)


def _convolution(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    results: int,
    is_short: bool,
    *,
    learning: bool = True,
) -> Tensor:
    """Convolve (B, I, H, W) with (O, I, h, w).

    Args:
        x, kernel, bias, stride, padding: arguments of ``conv2d``.
        results: number of output positions in a batch, B H' W'.
        is_short: true if a product computes the kernel's gradient faster on a processor with AVX-512.
        learning: true if the gradient of the kernel may be needed.
    """
    # checked first, because torch.compile cannot put the following code into one graph
    if not _may_use_product(x):
        return F.conv2d(x, kernel, bias, stride, padding)
    outputs, inputs = kernel.shape[:2]
    is_whole = False
    if _has_avx2_alone():
        is_short = results <= FEW_RESULTS * outputs
        fits = LEAST_RESULTS <= results <= WHOLE_RESULTS * outputs
        is_whole = fits and outputs * inputs >= WHOLE_KERNEL
    if is_short or is_whole:
        if torch.is_grad_enabled() and learning and kernel.requires_grad:
            y: Tensor = ProductConvolution.apply(x, kernel, bias, stride, padding, is_whole)  # type: ignore[no-untyped-call]
            return y
        if is_whole and not torch.is_grad_enabled():
            return product(x, kernel, bias, stride, padding)
    return F.conv2d(x, kernel, bias, stride, padding)


def _may_use_product(x: Tensor) -> bool:
    """Return True on the CPU, if kernels are not disabled and autocast is off."""
    return kernels_apply() and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


@cache
def _has_avx2_alone() -> bool:
    """Return True for a processor with AVX2 but without AVX-512."""
    capability: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capability.get("avx2")) and not capability.get("avx512_f")


class ProductConvolution(torch.autograd.Function):
    """``conv2d`` whose kernel gradient is one matrix product; with ``whole``, also its result and input gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        kernel: Tensor,
        bias: Tensor | None,
        stride: Pair,
        padding: Pair,
        whole: bool,
    ) -> Tensor:
        """Convolve, and store what the gradients need."""
        ctx.save_for_backward(x, kernel)
        ctx.stride, ctx.padding, ctx.whole = stride, padding, whole
        convolve = product if whole else F.conv2d
        return convolve(x, kernel, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the needed gradients of the input, the kernel and the bias; they are differentiable themselves."""
        x, kernel = ctx.saved_tensors
        of_x, of_kernel, of_bias, *_ = ctx.needs_input_grad
        given = grad, x, kernel, ctx.stride, ctx.padding
        grad_x = None
        if of_x:
            grad_x = _input_gradient(*given) if ctx.whole else _onednn_input_gradient(*given)
        grad_kernel = _kernel_gradient(*given) if of_kernel else None
        return grad_x, grad_kernel, grad.sum((0, 2, 3)) if of_bias else None, None, None, None


def product(x: Tensor, kernel: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """Compute ``conv2d`` as a matrix product: (B, O, H', W') with the channels last in memory."""
    height, width = _result_size(x, kernel, stride, padding)
    rows = linear(_patches(x, kernel, stride, padding), _matrix(kernel), bias)
    return rows.view(len(x), height, width, len(kernel)).permute(0, 3, 1, 2)


def _input_gradient(grad: Tensor, x: Tensor, kernel: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the gradient (B, I, H, W) of the input: gradients of the patches by a product, then their sum."""
    outputs, inputs, high, wide = kernel.shape
    height, width = grad.shape[2:]
    rows = grad.permute(0, 2, 3, 1).reshape(-1, outputs)
    patches = linear(rows, _matrix(kernel).t()).view(-1, height, width, high, wide, inputs)
    size = [max(n + 2 * pad, (count - 1) * step + window) for n, pad, count, step, window in zip(
        x.shape[2:], padding, (height, width), stride, (high, wide), strict=True
    )]  # fmt: skip
    padded = grad.new_zeros(len(x), *size, inputs)
    for row in range(high):
        for column in range(wide):
            place = padded[:, row :: stride[0], column :: stride[1]]
            place[:, :height, :width].add_(patches[:, :, :, row, column])
    (top, left), (bottom, right) = padding, x.shape[2:]
    return padded[:, top : top + bottom, left : left + right].permute(0, 3, 1, 2)


def _onednn_input_gradient(
    grad: Tensor, x: Tensor, kernel: Tensor, stride: Pair, padding: Pair
) -> Tensor:
    # only the input's gradient: if the bias's gradient were requested too, torch would also compute the kernel's
    mask = [True, False, False]
    grad_x: Tensor
    grad_x, _, _ = torch.ops.aten.convolution_backward(
        grad, x, kernel, None, stride, padding, [1, 1], False, [0, 0], 1, mask
    )
    return grad_x


def _kernel_gradient(
    grad: Tensor, x: Tensor, kernel: Tensor, stride: Pair, padding: Pair
) -> Tensor:
    """Return the gradient (O, I, h, w) of the kernel, with I innermost in memory."""
    outputs, inputs, height, width = kernel.shape
    patches = _patches(x, kernel, stride, padding)
    rows = grad.permute(0, 2, 3, 1).reshape(-1, outputs)
    return linear(rows.T, patches.T).view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def _patches(x: Tensor, kernel: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the input patch of each output position as a row: (B H' W', h w I)."""
    _, inputs, height, width = kernel.shape
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0]))
    # windows: (B, H', W', I, h, w)
    windows = pixels.unfold(1, height, stride[0]).unfold(2, width, stride[1])
    return windows.permute(0, 1, 2, 4, 5, 3).reshape(-1, height * width * inputs)


def _matrix(kernel: Tensor) -> Tensor:
    """Return the kernel as a matrix (O, h w I), without a copy if I is innermost in memory."""
    return kernel.permute(0, 2, 3, 1).reshape(len(kernel), -1)


def _result_size(x: Tensor, kernel: Tensor, stride: Pair, padding: Pair) -> tuple[int, int]:
    """Return the height H' and width W' of the result."""
    height, width = (
        (size + 2 * pad - window) // step + 1
        for size, pad, window, step in zip(
            x.shape[2:], padding, kernel.shape[2:], stride, strict=True
        )
    )
    return height, width
