"""A stand-in for CUDA graphs on the CPU: captured operations are written down and repeated on the same memory."""

from contextlib import contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Tape(TorchDispatchMode):
    """Writes down the operations of a capture with their arguments and results."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self):
        """Compute everything again, with the same numbers and in the same memory."""
        for function, args, kwargs, result in self.calls:
            again, _ = tree_flatten(function(*args, **kwargs))
            results = tree_flatten(result)[0] if again != [None] else []
            for old, new in zip(results, again, strict=bool(results)):
                if isinstance(new, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


class Stream:
    """A stream of the CPU, on which everything happens in order anyway."""

    device = torch.device("cpu")

    def __init__(self, device=None):
        pass

    def wait_stream(self, other):
        pass


def simulate(monkeypatch, algo):
    """Let `imitate.algo.base.recorded` record the updates of this algorithm, which is on the CPU; return the tapes."""
    tapes = []

    @contextmanager
    def capture(tape, **_):
        """Capture without effect: a real graph computes nothing until it is replayed."""
        state = [*algo.nets.state_dict().values()]
        for optimizer in algo.optimizers.values():
            state += [x for own in optimizer.state.values() for x in own.values()]
        kept, drawn = [x.clone() for x in state], torch.get_rng_state()
        with tape:
            yield
        with torch.no_grad():
            for value, before in zip(state, kept, strict=True):
                value.copy_(before)
        torch.set_rng_state(drawn)
        tapes.append(tape)

    for name, stand_in in {
        "Stream": Stream,
        "CUDAGraph": Tape,
        "graph": capture,
        "current_stream": Stream,
        "stream": nullcontext,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    return tapes
