"""Ways to compute convolutions over few steps or pixels, to be measured in turns.

See :mod:`imitate.functional.short_convolution`, which chooses by the processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from imitate.functional import short_convolution

LIMITS = ("SHORT_STEPS", "LARGE_KERNEL", "LARGE_IMAGE_KERNEL")
BY_ONEDNN, GRADIENTS, WHOLE = "oneDNN", "kernels' gradients", "all of large kernels"
WAYS = (BY_ONEDNN, GRADIENTS, WHOLE)
"""By oneDNN alone; the gradients of kernels as products, as with AVX-512; more of it, as with AVX2 alone."""
_UNREACHED = (0, 2**62, 2**62)


def way_here() -> str:
    """Return the way that imitate takes on this processor."""
    return WHOLE if short_convolution._has_avx2_alone() else GRADIENTS


@contextmanager
def convolutions(way: str) -> Iterator[None]:
    """Run the body with one of the ways."""
    chooses = short_convolution._has_avx2_alone
    before = tuple(getattr(short_convolution, name) for name in LIMITS)
    short_convolution._has_avx2_alone = lambda: way == WHOLE
    _set(_UNREACHED if way == BY_ONEDNN else before)
    try:
        yield
    finally:
        short_convolution._has_avx2_alone = chooses
        _set(before)


def _set(limits: tuple[int, ...]) -> None:
    for name, value in zip(LIMITS, limits, strict=True):
        setattr(short_convolution, name, value)
