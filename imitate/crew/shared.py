"""Large values that many items contain: sent once to each machine and unpacked once in each worker."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import uuid4

from typing_extensions import Self

from imitate.errors import WorkerError

KEPT = 2
"""Shared values that a worker keeps, if no item needs more: the newest, and the one before it."""

Value = TypeVar("Value")


def unpickle(data: bytes | memoryview) -> Any:
    """Return an object that a process of the same crew has pickled; never used for data from files."""
    return pickle.loads(data)


class Shared(Generic[Value]):
    """A value that many items contain, such as the bytes of a checkpoint or the weights of a version.

    Put it anywhere into items in place of the value, and call :meth:`get` in the worker. It is pickled here, once;
    a worker is sent it with the first item that needs it, and keeps the :data:`KEPT` newest. On a cluster each node
    fetches it once. It exists as long as its creator keeps it. Only items may contain it, not factories or results.

    Args:
        value: picklable. A later change of it is not seen by workers.

    Attributes:
        key: its unique name.
        data: the pickled value.
    """

    def __init__(self, value: Value) -> None:
        self.key = uuid4().hex
        self.data: bytes | memoryview = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)

    @classmethod
    def received(cls, key: str, data: bytes) -> Self:
        """Return the value of that name in a worker, from its pickled data."""
        shared = cls.__new__(cls)
        shared.key, shared.data = key, data
        return shared

    def get(self) -> Value:
        """Return the value, unpickled at the first call; it is the same object for all items, so leave it unchanged."""
        if not hasattr(self, "_value"):
            self._value: Value = unpickle(self.data)
        return self._value

    def __reduce__(self) -> Any:
        raise WorkerError("a Shared value can only be sent inside an item of a crew")


@dataclass(frozen=True)
class PackedItem:
    """An item, pickled.

    Attributes:
        data: the item, with names in place of shared values.
        shared: the shared values in it, by name.
    """

    data: bytes
    shared: Mapping[str, Shared[Any]] = field(default_factory=dict)


def packed(item: Any) -> PackedItem:
    """Pickle an item."""
    shared: dict[str, Shared[Any]] = {}

    def named(value: Shared[Any]) -> tuple[Callable[[str], Any], tuple[str]]:
        shared[value.key] = value
        return _held, (value.key,)

    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = copyreg.dispatch_table | {Shared: named}
    pickler.dump(item)
    return PackedItem(stream.getvalue(), shared)


@dataclass(frozen=True)
class ItemHeader:
    """First part of the message that carries an item.

    Attributes:
        keys: names of the shared values that follow, in this order, ahead of the item.
        forgotten: names of those that the worker has and is not to keep.
    """

    keys: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()


class Ledger:
    """Names of the shared values that a worker has been sent and keeps."""

    def __init__(self) -> None:
        self._keys: list[str] = []

    def header(self, wanted: Sequence[str]) -> ItemHeader:
        """Return what to send a worker, and what to let it forget, before it works on an item with these values."""
        missing = tuple(key for key in wanted if key not in self._keys)
        self._keys = [*(key for key in self._keys if key not in wanted), *wanted]
        room = max(KEPT, len(wanted))
        forgotten, self._keys = tuple(self._keys[:-room]), self._keys[-room:]
        return ItemHeader(missing, forgotten)


class Holdings:
    """Shared values in a worker."""

    def __init__(self) -> None:
        self._values: dict[str, Shared[Any]] = {}

    def update(self, header: ItemHeader, receive: Callable[[], bytes]) -> None:
        """Take the values that a header announces, and forget those that it names."""
        for key in header.forgotten:
            del self._values[key]
        for key in header.keys:
            self._values[key] = Shared.received(key, receive())

    def item(self, data: bytes) -> Any:
        """Return an item with its shared values."""
        return _Unpickler(io.BytesIO(data), self._values).load()


class _Unpickler(pickle.Unpickler):
    """Unpickler that finds shared values by name."""

    def __init__(self, stream: io.BytesIO, values: Mapping[str, Shared[Any]]) -> None:
        super().__init__(stream)
        self._values = values

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_held.__module__, _held.__name__):
            return self._values.__getitem__
        return super().find_class(module, name)


def _held(key: str) -> Shared[Any]:
    """Stand for a shared value in a pickled item, until :class:`_Unpickler` finds it."""
    raise WorkerError("an item with shared values is read by its worker only")
