"""Networks of a bundle: a self-contained ONNX model, run by onnxruntime on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from imitate.errors import BundleError, MissingPackageError
from imitate.system.extras import missing

_DOMAINS = frozenset({"", "ai.onnx"})
# Fields of ONNX's messages (onnx.proto) that lead to tensors, by the kind of message.
_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 8: "opset", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 9: "opset", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_EXTERNAL_DATA, _DATA_LOCATION, _DOMAIN = 13, 14, 1
_MOST_DEPTH = 32


class Graph:
    """An ONNX model.

    Args:
        model: its bytes.
        threads: number of threads per run.

    Attributes:
        inputs: names of its inputs.
        outputs: names of its outputs.

    Raises:
        BundleError: it refers to other files, or onnxruntime cannot load it.
        MissingPackageError: onnxruntime is not installed.
    """

    def __init__(self, model: bytes, threads: int = 1) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingPackageError(f"a bundle: {missing('onnx', error)}") from error
        refuse_external(model)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = (
            4  # its log shows names of the model as they are; errors are raised too
        )
        try:
            self._session: Any = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise BundleError(f"onnxruntime cannot load policy.onnx: {_line(error)}") from error
        self.inputs = tuple(entry.name for entry in self._session.get_inputs())
        self.outputs = tuple(entry.name for entry in self._session.get_outputs())
        self._names = list(self.outputs)
        self._run_options: Any = None
        self._new_options: Any = onnxruntime.RunOptions

    @contextmanager
    def limited(self, limit_s: float) -> Iterator[None]:
        """End a run within the block that takes longer, such as one with a loop without end."""
        options = self._run_options = self._new_options()
        timer = threading.Timer(limit_s, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._run_options = None

    def run(self, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return all outputs; entries of ``feed`` that are not inputs are ignored.

        Raises:
            BundleError: an input is missing or has another shape or type.
        """
        try:
            given = {name: feed[name] for name in self.inputs}
            values = self._session.run(self._names, given, self._run_options)
        except Exception as error:
            raise BundleError(f"policy.onnx cannot be run: {_line(error)}") from error
        return dict(zip(self.outputs, values, strict=True))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def refuse_external(model: bytes) -> None:
    """Refuse a model with weights in other files, or with operators beyond ONNX's own.

    Raises:
        BundleError: there are such, or it is not an ONNX model.
    """
    try:
        _walk(memoryview(model), "model", 0)
    except (IndexError, UnicodeDecodeError) as error:
        raise BundleError("policy.onnx is not an ONNX model") from error


def _walk(message: memoryview, kind: str, depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise BundleError("policy.onnx: graphs are nested too deeply")
    children = _CHILDREN.get(kind, {})
    for number, value in _fields(message):
        if kind == "tensor" and number in (_EXTERNAL_DATA, _DATA_LOCATION) and value:
            raise BundleError("policy.onnx has weights in another file, which is refused")
        if isinstance(value, int):
            continue
        if kind == "opset" and number == _DOMAIN and bytes(value).decode() not in _DOMAINS:
            raise BundleError(
                f"policy.onnx has operators of {bytes(value).decode()!a}, which are refused"
            )
        if number in children:
            _walk(value, children[number], depth + 1)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a protobuf message: field number and value (a number or bytes).

    Raises:
        IndexError: it is truncated or malformed.
    """
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        wire = key & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if wire == 2:
            size, place = _varint(message, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise IndexError(f"wire type {wire}")
        if place + size > end:
            raise IndexError("truncated")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than 64 bits")
