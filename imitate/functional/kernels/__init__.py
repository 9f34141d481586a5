"""Faster implementations of single operations on the CPU, and the reason for each implementation.

Results equal torch's up to the order of sums, and have gradients of every order. torch's own operations are used
instead when torch compiles, exports or transforms code, on other devices, and for other types than float32.
``IMITATE_KERNELS=0`` disables all of them, for comparisons or debugging. An operation is included only if it
saves at least a tenth of an update.

========================  =====================================================  =======================================
what                      reason                                                 gain (``docs/results/speed.md``)
========================  =====================================================  =======================================
:mod:`.layers`            MKL multiplies float32 matrices at half the speed of   an update of BC 2x1024 takes 0.6 of the
                          an AMD processor with AVX-512; oneDNN, which torch     time
                          has too, at almost full speed
:mod:`.short_convolution` oneDNN reorders a large kernel at each call, which     a pass of the default U-Net takes 0.75
                          takes longer than a convolution over few steps         (AVX-512) or 0.45 (AVX2) of the time
``pack_linears``          linear layers that use the products in training, and   a layer of 1024 x 1024 weights acts in
                          weights packed in blocks for the few rows of acting    0.4 of the time in int8
``mish``, softmax         torch's Mish and softmax of few numbers do not         a plan of TD-MPC2 takes 0.85 of the
                          vectorize                                              time
========================  =====================================================  =======================================
"""

from imitate.functional.kernels.layers import (
    group_softmax,
    has_int8,
    kernels_apply,
    linear,
    linears,
    mish,
    pack_linears,
    with_fast_linears,
)
from imitate.functional.kernels.short_convolution import (
    convolution_over_images,
    convolution_over_time,
)

__all__ = [
    "convolution_over_images",
    "convolution_over_time",
    "group_softmax",
    "has_int8",
    "kernels_apply",
    "linear",
    "linears",
    "mish",
    "pack_linears",
    "with_fast_linears",
]
