"""A device that is not the CPU, for machines without a GPU: it computes on the CPU, and is as strict as CUDA and MPS.

Tensors on it refuse what CUDA refuses: operations together with tensors of the CPU (numbers without dimensions
excepted), generators of the CPU, ``.numpy()``. As MPS does, it refuses float64. Each transfer for which a GPU would
stop the process is counted, with the place in the code that asked for it: to the host (``item()``, ``cpu()``,
``bool()``, results of a size that depends on values such as ``nonzero``), and to the device unless ``non_blocking``.

torch keeps one place for devices from outside, PrivateUse1, and lets Python fill it. The function for that is new and
may change; the tests of the device are skipped where torch lacks it, and all others run.
"""

from __future__ import annotations

import traceback
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import _VF
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

try:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as set_up
except ImportError:
    set_up = None

NAME = "simgpu"
DEVICE = torch.device("privateuseone", 0)  # of the same type as NAME, once that is registered
CPU = torch.device("cpu")
PACKAGE = str(Path(__file__).parents[2] / "imitate")

aten = torch.ops.aten
SIZE_FROM_VALUES = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
    aten.equal.default,
}
"""Operations whose result the host has to wait for."""
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
"""Operations that take indices of the CPU and copy them."""
VIEWS_IN_PLACE = {"resize_", "set_", "squeeze_", "unsqueeze_", "transpose_", "t_", "as_strided_"}


class SimulatedTensor(torch.Tensor):
    """A tensor of the device; ``raw`` holds its numbers, on the CPU."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw):
        """Wrap a tensor of the CPU."""
        if raw.dtype in (torch.float64, torch.complex128):
            raise TypeError("MPS has no float64")
        return torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=DEVICE,
        )

    def __init__(self, raw):
        self.raw = raw

    def __reduce_ex__(self, protocol):
        """Be saved as torch.load(map_location="cpu") reads it."""
        return self.raw.__reduce_ex__(protocol)

    def __repr__(self):
        return f"simulated({self.raw})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """Calls of torch's functions before they become operations, which no longer know their generators."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, SimulatedTensor)]
        simulated = bool(tensors) or on_device(kwargs.get("device"))
        if simulated and not getattr(kwargs.get("generator"), "simulated", True):
            raise RuntimeError("expected a generator of the device, but found one of the CPU")
        if simulated and func is torch.Tensor.tolist:
            return args[0].cpu().tolist()
        if simulated and func in (_VF.lstm, _VF.gru):
            # Their kernels for devices have no counterpart on the CPU.
            from torch._decomp.decompositions import gru_impl, lstm_impl

            func = lstm_impl if func is _VF.lstm else gru_impl
        return func(*args, **kwargs)


class Transfers(TorchDispatchMode):
    """Within it tensors can be made on the device, and transfers are counted.

    Attributes:
        waits: times that a GPU would have stopped the process, by ``(operation, file:line in the package)``.
    """

    def __init__(self):
        super().__init__()
        self.waits = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {}, self)

    def count(self, func):
        """Count a wait of an operation."""
        self.waits[func.name().removeprefix("aten::"), place()] += 1


def place():
    """The innermost line of the package that is running."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(PACKAGE):
            return f"{frame.filename[len(PACKAGE) + 1 :]}:{frame.lineno} {frame.line}"
    return "elsewhere"


def on_device(device):
    return device is not None and torch.device(device).type == DEVICE.type


def raw_of(x):
    return x.raw if isinstance(x, SimulatedTensor) else x


def leaves(values):
    """The values, and those of lists among them; torch's own trees take several times as long."""
    found = []
    for x in values:
        found.extend(x) if isinstance(x, (list, tuple)) else found.append(x)
    return found


def mapped(x, change):
    """A value of torch's operations with its tensors changed."""
    if isinstance(x, torch.Tensor):
        return change(x)
    return type(x)(mapped(y, change) for y in x) if isinstance(x, (list, tuple)) else x


def run(func, args, kwargs, transfers=None):
    """Compute an operation on the CPU as if tensors of the device were there."""
    flat = leaves((*args, *kwargs.values()))
    simulated = [x for x in flat if isinstance(x, SimulatedTensor)]
    wanted = kwargs.get("device")
    if not simulated and not on_device(wanted):
        return func(*args, **kwargs)
    check(func, args, kwargs, flat, transfers)
    raw_args = mapped(args, raw_of)
    raw_kwargs = {key: mapped(value, raw_of) for key, value in kwargs.items()}
    if "device" in raw_kwargs:
        raw_kwargs["device"] = CPU
        raw_kwargs.pop("pin_memory", None)
    if func in (aten._to_copy.default,) and wanted is not None:
        raw_kwargs["non_blocking"] = False
    out = func(*raw_args, **raw_kwargs)
    stays = on_device(wanted) if wanted is not None else bool(simulated)
    if func is aten.copy_.default:
        return args[0]
    if not stays:
        return out
    given = {id(x.raw): x for x in simulated}
    name = func.name().removeprefix("aten::").partition(".")[0]
    if name in VIEWS_IN_PLACE:
        raise NotImplementedError(f"{name} of a tensor of the simulated device")

    return mapped(out, lambda x: given[id(x)] if id(x) in given else SimulatedTensor(x))


def check(func, args, kwargs, flat, transfers):
    """Refuse what CUDA refuses, and count the transfers for which it would wait."""
    if transfers is not None and waits(func, args, kwargs):
        transfers.count(func)
    moves = func in (aten.copy_.default, aten._to_copy.default)
    if not moves and (kwargs.get("device") is None or on_device(kwargs["device"])):
        refuse_mixtures(func, args, flat)


def waits(func, args, kwargs):
    """Return true where a GPU would stop the process for this operation."""
    if func in (aten.copy_.default, aten._to_copy.default):
        if func is aten.copy_.default:
            to, source = (isinstance(x, SimulatedTensor) for x in args[:2])
            asynchronous = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        else:
            source = isinstance(args[0], SimulatedTensor)
            to = source if kwargs.get("device") is None else on_device(kwargs["device"])
            asynchronous = kwargs.get("non_blocking")
        return to != source and not (to and asynchronous)
    if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None:
        return False
    if func in INDEXED:
        return any(
            not isinstance(x, SimulatedTensor) or x.dtype in (torch.bool, torch.uint8)
            for x in args[1]
            if x is not None
        )
    return func is aten._local_scalar_dense.default or func in SIZE_FROM_VALUES


def refuse_mixtures(func, args, flat):
    """Refuse tensors of both devices, but for numbers without dimensions and for indices."""
    indices = [x for x in args[1] if x is not None] if func in INDEXED else []
    tensors = [
        x for x in flat if isinstance(x, torch.Tensor) and not any(x is index for index in indices)
    ]
    strangers = [x for x in tensors if not isinstance(x, SimulatedTensor) and x.dim() > 0]
    if strangers and len(strangers) < len(tensors):
        raise RuntimeError(
            f"expected all tensors to be on the same device, but {func.name()} got "
            f"{tuple(strangers[0].shape)} on the CPU beside {NAME}"
        )


class SimulatedGenerator(torch.Generator):
    """A generator of the device where that is asked for, which torch cannot make for a device in Python."""

    def __new__(cls, device="cpu"):
        """Make a generator of the CPU, and remember what it stands for."""
        self = super().__new__(cls, CPU if on_device(device) else device)
        self.simulated = on_device(device)
        return self

    def __init__(self, device="cpu"):
        pass

    @property
    def device(self):
        return DEVICE if self.simulated else CPU


class Backend:
    """Functions of ``torch.simgpu``, as those of ``torch.cuda``."""

    is_available = is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    manual_seed_all = staticmethod(lambda seed: None)
    _is_in_bad_fork = staticmethod(lambda: False)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])


_kept = []


def register():
    """Give torch the device, once for each process, where torch can take it."""
    if _kept or set_up is None:
        return
    set_up(NAME, backend_module=Backend())
    library = torch.library.Library("aten", "IMPL")

    # torch.tensor(..., device=) comes here without asking the modes that are on.
    def copy_from(source, to, non_blocking=False):
        mode = torch.utils._python_dispatch._get_current_dispatch_mode()
        return run(aten.copy_.default, (to, source, non_blocking), {}, mode)

    def maker(func):
        return lambda *args, **kwargs: run(func, args, kwargs)

    library.impl("_copy_from", copy_from, "PrivateUse1")
    for name, func in (
        ("empty_strided", aten.empty_strided.default),
        ("empty.memory_format", aten.empty.memory_format),
    ):
        library.impl(name, maker(func), "PrivateUse1")
    _kept.append(library)


@contextmanager
def simulated_gpu():
    """Let networks and tensors be moved to the device :data:`NAME`; yields the :class:`Transfers`."""
    if set_up is None:
        pytest.skip(f"torch {torch.__version__} takes no device that is written in Python")
    if torch.cuda.is_available():
        pytest.skip(
            "torch has one accelerator in a process: set CUDA_VISIBLE_DEVICES= to simulate one"
        )
    register()
    generator, inference_mode = torch.Generator, torch.inference_mode
    torch.Generator = SimulatedGenerator
    # Tensors of the inference mode cannot be wrapped.
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else nullcontext()
    try:
        with Functions(), Transfers() as transfers:
            yield transfers
    finally:
        torch.Generator, torch.inference_mode = generator, inference_mode
