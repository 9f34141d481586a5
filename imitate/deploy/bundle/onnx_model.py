"""Models of ONNX from modules of torch."""

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
"""Version of ONNX's operators; onnxruntime knows it since 1.12."""


def exported(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    opsets: Mapping[str, int] | None = None,
) -> bytes:
    """Return the ONNX model of a module in evaluation mode.

    Args:
        module: takes and gives tensors.
        inputs: examples by name, in the order of the arguments.
        outputs: names.
        opsets: versions of operators beyond ONNX's own, by domain.

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
        raise BundleError(f"ONNX has nothing for it: {_line(error)}") from error
    return without_copies(file.getvalue())


def without_copies(model: bytes) -> bytes:
    """Keep one of the weights that are alike, such as those of a network that is evaluated several times."""
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
    """Attention in operators that ONNX has; no warnings of constant shapes, since a bundle has one batch size."""
    fast = torch.backends.mha.get_fastpath_enabled()
    # Where an operator is missing, torch prints the whole graph to the terminal.
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
