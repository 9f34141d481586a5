"""Export torch modules as ONNX models."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from imitate.errors import BundleError

OPSET = 17
"""Version of ONNX's operators; onnxruntime supports it since 1.12."""


def exported(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    opsets: Mapping[str, int] | None = None,
) -> bytes:
    """Return the ONNX model of a module in evaluation mode.

    Args:
        module: module with tensors as inputs and outputs.
        inputs: examples by name, in the order of the arguments.
        outputs: names of the outputs.
        opsets: versions of custom operators, by domain.

    Raises:
        BundleError: ONNX lacks an operator.
    """
    file = io.BytesIO()
    try:
        with _plain_export():
            torch.onnx.export(
                module,
                tuple(inputs.values()),
                file,  # type: ignore[arg-type]
                dynamo=False,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                custom_opsets=dict(opsets or {}),
            )
    except (RuntimeError, ValueError, TypeError, torch.onnx.errors.OnnxExporterError) as error:
        raise BundleError(f"ONNX has no equivalent for it: {_line(error)}") from error
    return without_copies(file.getvalue())


def without_copies(model: bytes) -> bytes:
    """Keep only one copy of identical weights, such as those of a network that is evaluated several times."""
    content = onnx.load_from_string(model)
    first: dict[tuple[Any, ...], str] = {}
    renamed: dict[str, str] = {}
    kept = []
    for weight in content.graph.initializer:
        identity = (weight.data_type, *weight.dims, numpy_helper.to_array(weight).tobytes())
        renamed[weight.name] = first.setdefault(identity, weight.name)
        if renamed[weight.name] == weight.name:
            kept.append(weight)
    del content.graph.initializer[:]
    content.graph.initializer.extend(kept)
    for node in content.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    data: bytes = content.SerializeToString()
    return data


@contextlib.contextmanager
def _plain_export() -> Iterator[None]:
    """Use attention operators that ONNX has, and silence warnings about constant shapes (the batch size is fixed)."""
    fast = torch.backends.mha.get_fastpath_enabled()
    # Where an operator is missing, torch would print the whole graph to the terminal.
    log = torch._C._jit_onnx_log
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.mha.set_fastpath_enabled(False)
        torch._C._jit_onnx_log = lambda *_: None
        try:
            yield
        finally:
            torch._C._jit_onnx_log = log
            torch.backends.mha.set_fastpath_enabled(fast)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
