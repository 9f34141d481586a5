"""Calls in the pickle of a checkpoint or of weights, checked before torch executes them.

torch's list of safe functions contains some that allocate memory out of proportion to the file: a byte array of any
size, tensors without storage, and copies, of which a pickle of kilobytes can ask for thousands of a long list or text.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

CALLED = frozenset(
    {
        *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter", "torch Size"),
        "torch device",
        *("collections OrderedDict", "_codecs encode", "numpy dtype"),
        *("numpy.core.multiarray scalar", "numpy.core.multiarray _reconstruct"),
        *("numpy._core.multiarray scalar", "numpy._core.multiarray _reconstruct"),
    }
)
"""Functions that a checkpoint calls."""
_ALLOWED = ("torch", "builtins", "collections", "numpy", "_codecs")
"""Packages from which torch allows functions; it refuses all others itself."""
_TIMES, _ROOM = 16, 2**16
"""Largest number of values in calls: per byte of the pickle, and additionally."""
_COUNTS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
_PUSHING = frozenset(
    {
        *("NONE", "NEWFALSE", "NEWTRUE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE"),
        *("BINFLOAT", "BININT", "BININT1", "BININT2", "LONG1", "GLOBAL", "BINUNICODE"),
        *("SHORT_BINSTRING", "BINGET", "LONG_BINGET"),
    }
)


def wrong_call(pickled: bytes) -> str | None:
    """Describe a call that no checkpoint makes, or one with many more values than the pickle has."""
    left = _TIMES * len(pickled) + _ROOM
    with suppress(ValueError, LookupError, TypeError):  # malformed: torch ends there too
        for function, given in _calls(pickled):
            module, _, name = function.partition(" ")
            if (
                module in ("torch._utils", "torch._tensor", "torch.serialization")
                and function not in CALLED
            ):
                return f"it holds a tensor of another kind ({name})"
            if function not in CALLED:
                known = module.partition(".")[0] in _ALLOWED
                return f"it calls {function}, which no checkpoint does" if known else None
            if not isinstance(given, tuple):
                return f"it calls {function} with what is no tuple"
            if name == "_reconstruct" and given[1:2] != ((0,),):
                return "it makes an array that is not empty"
            left -= 1 + sum(map(_size, given))
            if left < 0:
                return "it makes many copies of a part of it"
    return None


def _calls(pickled: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the function and the arguments of each call.

    Texts, names, whole numbers and tuples stand for themselves, and a list of its length for all else, which grows with
    it. An opcode that torch does not support ends the pickle.
    """
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(pickled):
        name = opcode.name
        if name in _PUSHING:
            stack.append(memo[argument] if name.endswith("GET") else _value(name, argument))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MARK":
            marks.append(stack)
            stack = []
        elif name in _COUNTS or name in ("TUPLE", "APPENDS", "SETITEMS"):
            count = _COUNTS.get(name, len(stack))
            items = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            stack = stack if name in _COUNTS else marks.pop()
            _put(items, stack, name.startswith("TUPLE"))
        elif name == "BINPERSID":
            stack[-1] = [1]
        elif name == "BUILD":
            state = stack.pop()
            yield "numpy dtype", state if isinstance(state, tuple) else (state,)
        elif name in ("REDUCE", "NEWOBJ"):
            given, function = stack.pop(), stack.pop()
            yield str(function), given
            stack.append(
                [2 * sum(map(_size, given))]
            )  # bytes in hexadecimal digits are twice as many
        elif name not in ("PROTO", "STOP"):
            return


def _value(name: str, argument: Any) -> Any:
    """Value that an opcode puts on the stack."""
    if isinstance(argument, str | int):
        return argument
    return () if name == "EMPTY_TUPLE" else [1]


def _put(items: list[Any], stack: list[Any], as_tuple: bool) -> None:
    """Put items on the stack as a tuple, or append them to the container there."""
    if as_tuple:
        stack.append(tuple(items))
    else:
        stack[-1][0] += len(items)


def _size(value: Any) -> int:
    """Return the number of values in a copy."""
    if isinstance(value, str | tuple):
        return len(value)
    return value[0] if isinstance(value, list) else 1
