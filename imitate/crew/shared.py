"""Large values that many items contain: sent once to each machine and unpacked once in each worker."""

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
"""Number of shared values that a worker keeps, the newest ones; more if an item contains more."""

Value = TypeVar("Value")


def unpickle(data: bytes | memoryview) -> Any:
    """Return an object that a process of the same crew has pickled; never used for data from files."""
    return pickle.loads(data)


class Shared(Generic[Value]):
    """A value that many items contain, such as the bytes of a checkpoint or the weights of a version.

    Put a Shared anywhere into items in place of the value, and call :meth:`get` in the worker. The value is pickled
    once, when the Shared is created, and sent to each worker with the first item that contains it. A worker keeps the
    :data:`KEPT` newest values. On a cluster each node fetches the value once. The value is available as long as its
    creator keeps the Shared. Only items may contain a Shared, not factories or results.

    Args:
        value: a picklable object. Workers do not see later changes of the object.

    Attributes:
        key: unique name of the value.
        data: the pickled value.
    """

    def __init__(self, value: Value) -> None:
        self.key = uuid4().hex
        self.data: bytes | memoryview = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)

    @classmethod
    def received(cls, key: str, data: bytes) -> Self:
        """Return the shared value with this name in a worker, from the pickled data."""
        shared = cls.__new__(cls)
        shared.key, shared.data = key, data
        return shared

    def get(self) -> Value:
        """Return the value, unpickled at the first call; it is the same object for all items, so leave it unchanged."""
        if not hasattr(self, "_value"):
            self._value: Value = unpickle(self.data)
        return self._value

    def __reduce__(self) -> Any:
        raise WorkerError(
            "a Shared value can only be pickled inside an item of a crew: put it into an item, or "
            "send its get() instead"
        )


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
        keys: names of the shared values that follow, in this order, before the item.
        forgotten: names of shared values that the worker must drop.
    """

    keys: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()


class Ledger:
    """Record, in the parent, of the shared values that a worker has."""

    def __init__(self) -> None:
        self._keys: list[str] = []

    def header(self, wanted: Sequence[str]) -> ItemHeader:
        """Return the header of an item with these shared values: the values to send first, and the values to drop."""
        missing = tuple(key for key in wanted if key not in self._keys)
        self._keys = [*(key for key in self._keys if key not in wanted), *wanted]
        room = max(KEPT, len(wanted))
        forgotten, self._keys = tuple(self._keys[:-room]), self._keys[-room:]
        return ItemHeader(missing, forgotten)


class Holdings:
    """The shared values that a worker has, by name."""

    def __init__(self) -> None:
        self._values: dict[str, Shared[Any]] = {}

    def update(self, header: ItemHeader, receive: Callable[[], bytes]) -> None:
        """Receive the shared values that a header announces, and drop the values listed as forgotten."""
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
    """Placeholder of a shared value in a pickled item; :class:`_Unpickler` replaces it by the value."""
    raise WorkerError(
        "an item with shared values can only be unpickled by the worker it was sent to"
    )
