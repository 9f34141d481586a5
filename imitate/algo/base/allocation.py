"""Limits on the size of networks: by free memory, or by the weights stored in a file."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from imitate.errors import CheckpointError, ConfigError
from imitate.system.memory import free_memory, gigabytes

ROOM = 1 << 24
"""Number of elements that may be allocated beside the weights, for tables and temporary tensors."""

MOST_OMITTED = 32
"""Largest ratio of omitted to stored elements in a checkpoint."""

LEAST = 256
"""A smaller tensor counts as this number of elements, so that the number of small tensors is limited too."""

TIMES = 4
"""Largest ratio of allocated to stored elements; above 1, because initialization makes copies."""

MOST_TENSORS = 1 << 15
"""Largest number of tensors that an algorithm may allocate."""

LOOK_AT = 1 << 22
"""Number of allocated elements after which free memory is measured again."""

NUMBER_BYTES = 4
"""Bytes per element."""

_SIZED = frozenset(
    {"empty", "zeros", "ones", "rand", "randn", "new_empty", "new_zeros", "new_ones"}
)
_SIZE_FIRST = frozenset({"full", "new_full", "normal"})


class _Sizes(TorchFunctionMode):
    """Context manager that checks the sizes of tensors before they are made."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Check the size, then call the function."""
        given = dict(kwargs or {})
        size = _size(getattr(func, "__name__", ""), args, given)
        if size > 0:
            self._check(size)
        return func(*args, **given)

    def _check(self, size: int) -> None:
        raise NotImplementedError


class AllocationLimit(_Sizes):
    """Limit on tensors that are made from sizes, relative to the stored weights.

    The configuration in a checkpoint defines the sizes of the networks, so that a few changed bytes could request all
    memory. The error is raised before memory is allocated.

    Args:
        stored: number of elements in the checkpoint's tensors.
        omitted: number of elements of omitted networks, as the checkpoint states it.
    """

    def __init__(self, stored: int, omitted: int = 0) -> None:
        super().__init__()
        self._stored = stored
        self._left = TIMES * (stored + min(omitted, MOST_OMITTED * stored)) + ROOM

    def _check(self, size: int) -> None:
        self._left -= max(size, LEAST)
        if self._left < 0:
            raise CheckpointError(
                f"the checkpoint's configuration requires a tensor of {size:,} numbers, but its weights are "
                f"{self._stored:,} numbers in all: take another checkpoint, this one was changed or damaged"
            )


class MemoryLimit(_Sizes):
    """Limit on tensors that are made from sizes: each must fit into the free memory."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors = self._unseen = 0

    def _check(self, size: int) -> None:
        self._tensors += 1
        self._unseen += size
        if self._tensors > MOST_TENSORS:
            raise ConfigError(
                f"algo: the networks need more than {MOST_TENSORS:,} tensors: choose fewer layers"
            )
        if self._unseen < LOOK_AT:
            return
        self._unseen, free = 0, free_memory()
        if size * NUMBER_BYTES > free:
            raise ConfigError(
                f"algo: a network requires a tensor of {gigabytes(size * NUMBER_BYTES)}, but "
                f"{gigabytes(free)} of memory are free: choose smaller layers"
            )


def count_numbers(tree: Any) -> int:
    """Count the numbers in the tensors of nested dicts, lists and tuples."""
    if isinstance(tree, Tensor):
        return tree.numel()
    parts = tree.values() if isinstance(tree, Mapping) else tree
    return sum(map(count_numbers, parts)) if isinstance(tree, Mapping | list | tuple) else 0


def _size(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return the number of elements of the tensor that a call of torch makes from a size; 0 for other calls."""
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
