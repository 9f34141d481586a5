"""Networks no larger than the weights that a checkpoint brings for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

from imitate.errors import CheckpointError

ROOM = 1 << 24
"""Numbers that may be allocated beside the weights, for tables and scratch space."""

LEAST = 256
"""A tensor counts as so many numbers at least, so that there are not millions of small ones either."""

TIMES = 4
"""Numbers that may be allocated for each stored one: initialization computes with copies."""

_SIZED = frozenset(
    {"empty", "zeros", "ones", "rand", "randn", "new_empty", "new_zeros", "new_ones"}
)
_SIZE_FIRST = frozenset({"full", "new_full", "normal"})


class AllocationLimit(TorchFunctionMode):
    """Limit on tensors made from sizes, by the stored weights; a context manager.

    The configuration in a checkpoint says how large its networks are; a few bytes of it could ask for all memory. The
    error comes before the memory is taken.

    Args:
        stored: numbers in the checkpoint's tensors.
    """

    def __init__(self, stored: int) -> None:
        super().__init__()
        self._stored = stored
        self._left = TIMES * stored + ROOM

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Check the size, then call."""
        given = dict(kwargs or {})
        size = _size(getattr(func, "__name__", ""), args, given)
        self._left -= max(size, LEAST) if size > 0 else 0
        if self._left < 0:
            raise CheckpointError(
                f"the checkpoint's configuration asks for networks with a tensor of {size:,} numbers, but its weights "
                f"are {self._stored:,} numbers in all"
            )
        return func(*args, **given)


def _size(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return the numbers of the tensor that a call of torch makes from a size; 0 for other calls."""
    if name in _SIZED:
        own = args[1:] if name.startswith("new_") else args
        size = kwargs.get("size", own[0] if len(own) == 1 else own)
        return _product(size)
    if name in _SIZE_FIRST:
        own = args[1:] if name.startswith("new_") else args
        return _product(kwargs.get("size", own[0] if own else ()))
    if name in ("arange", "linspace", "eye") and args:
        numbers = [x for x in args if isinstance(x, (int, float))]
        largest = max((abs(x) for x in numbers if math.isfinite(x)), default=0)
        return int(largest) ** (2 if name == "eye" else 1)
    return 0


def _product(size: Any) -> int:
    if isinstance(size, int):
        return size
    if isinstance(size, (tuple, list)) and all(isinstance(x, int) for x in size):
        return math.prod(size) if size else 1
    return 0
