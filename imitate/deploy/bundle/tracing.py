"""Export one prediction of a policy, from raw observations and noise to raw actions, as an ONNX model."""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from imitate.algo.base.algo import Algo
from imitate.algo.base.policy_state import InnerState
from imitate.errors import BundleError

Give = Callable[[str, tuple[int, ...]], Tensor]
"""Function from a kind (``normal`` or ``exponential``) and a shape to random numbers."""

_FILLS: dict[Any, str] = {
    torch.Tensor.normal_: "normal",
    torch.Tensor.exponential_: "exponential",
    torch.randn_like: "normal",
}
_UNKNOWN = (
    torch.rand,
    torch.rand_like,
    torch.randint,
    torch.randint_like,
    torch.randperm,
    torch.normal,
    torch.multinomial,
    torch.bernoulli,
    torch.Tensor.uniform_,
    torch.Tensor.random_,
    torch.Tensor.multinomial,
    torch.Tensor.bernoulli_,
)


class Draws(TorchFunctionMode):
    """Context that replaces torch's random numbers by given ones.

    Args:
        give: returns the numbers, see :data:`Give`.
    """

    def __init__(self, give: Give) -> None:
        super().__init__()
        self._give = give

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the given numbers for torch's random functions; call all other functions as they are."""
        if func in _FILLS:
            plain = (kwargs or {}).keys() <= {"generator"} and len(args) == 1
            if not plain:
                raise BundleError(
                    "the policy draws numbers with a mean or a rate, which a bundle does not support: deploy the "
                    "checkpoint itself, such as by imitate serve"
                )
            return self._give(_FILLS[func], tuple(args[0].shape))
        if func is torch.randn:
            shape = args[0] if isinstance(args[0], Sequence) else args
            return self._give("normal", tuple(shape))
        if func in _UNKNOWN:
            raise BundleError(
                f"the policy draws numbers by torch's {func.__name__}, which a bundle does not support: "
                "deploy the checkpoint itself, such as by imitate serve"
            )
        return func(*args, **(kwargs or {}))


class Resizing(TorchFunctionMode):
    """Context in which antialiased resizing is done by two matrices, because ONNX has no operator for it."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Resize images by matrices; call all other functions as they are."""
        options = dict(kwargs or {})
        if func is not nn.functional.interpolate or not options.get("antialias"):
            return func(*args, **options)
        image = args[0]
        size = args[1] if len(args) > 1 else options.pop("size")
        height, width = (int(pixels) for pixels in image.shape[-2:])
        rows = self._matrix(height, int(size[0]), options)
        columns = self._matrix(width, int(size[1]), options)
        return rows @ image @ columns.T

    @staticmethod
    def _matrix(before: int, after: int, options: Mapping[str, Any]) -> Tensor:
        """Return the resizing matrix (after, before), measured by resizing unit vectors."""
        # Test images in which one row is white; both columns are equal.
        single = torch.eye(before).unsqueeze(-1).repeat(1, 1, 2).unsqueeze(0)
        resized = nn.functional.interpolate(single, (after, 2), **options)
        return resized[0, :, :, 0].T


class Numbers:
    """Returns given random numbers one after the other.

    Args:
        flat: (N,) numbers of each kind.
    """

    def __init__(self, flat: Mapping[str, Tensor]) -> None:
        self._flat = flat
        self._places = dict.fromkeys(flat, 0)

    def __call__(self, kind: str, shape: tuple[int, ...]) -> Tensor:
        """Return the next numbers; the caller may change them in place."""
        sizes = [int(size) for size in shape]
        start = self._places[kind]
        self._places[kind] = stop = start + torch.Size(sizes).numel()
        return self._flat[kind][start:stop].reshape(sizes).clone()

    @property
    def left(self) -> int:
        """Number of values that have not been returned yet."""
        return sum(len(self._flat[kind]) - place for kind, place in self._places.items())


class Predictor(nn.Module):
    """One prediction of an algorithm; all tensors have a leading dimension of 1.

    Args:
        algo: algorithm in evaluation mode.

    Attributes:
        memory: initial recurrent memory of the policy, without stacked frames and plans.
    """

    def __init__(self, algo: Algo) -> None:
        super().__init__()
        self.nets = algo.active_nets  # a submodule, so that the exporter finds its weights
        self._algo = algo
        self._fresh = algo._initial_policy_state(1)
        self.memory = self.memory_of(self._fresh)
        self.eval()

    def state_of(self, memory: Mapping[str, Tensor]) -> InnerState:
        """Return a policy state with this memory and without a plan."""
        return with_leaves(self._fresh, memory)

    def memory_of(self, state: InnerState) -> dict[str, Tensor]:
        """Return the tensors of a policy state by dotted names, except the plan."""
        return dict(named_leaves({key: value for key, value in state.items() if key != "chunk"}))

    def predict(
        self,
        obs: Mapping[str, Tensor],
        goal: Mapping[str, Tensor],
        memory: Mapping[str, Tensor],
        give: Give,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return actions (1, K, A) in the units of the data, and the next memory.

        Args:
            obs: raw observations (1, [F,] ...), floats.
            goal: raw goals (1, ...).
            memory: recurrent memory, see :attr:`memory`.
            give: function that returns random numbers.
        """
        algo = self._algo
        # With gradients enabled, networks do not use their faster ways to act, which no exporter supports.
        with torch.enable_grad(), Draws(give), Resizing():
            prepared = algo.preprocess.prepare_obs(obs, tuple(obs))
            target = algo.preprocess.prepare_obs(goal, tuple(goal)) if goal else None
            state = self.state_of(memory)  # without a plan, a chunk is predicted
            step = algo._act(prepared, state, target, explore=False, generator=None)
            chunk = step.extras.get("chunk", step.action[:, None])
            stacked = algo.frame_stack > 1
            newest = {key: value[:, -1] if stacked else value for key, value in prepared.items()}
            actions = algo.preprocess.unnormalize_actions(chunk, newest)
        after = self.memory_of(step.state)
        return actions.detach(), {name: after[name].detach() for name in memory}


class Flat(nn.Module):
    """Wrapper of a :class:`Predictor` for the exporter: tensors in, tensors out.

    Args:
        predictor: the wrapped predictor.
        names: names of the inputs in their order: ``obs/KEY``, ``goal/KEY``, ``memory/NAME``, ``noise/KIND``.
    """

    def __init__(self, predictor: Predictor, names: Sequence[str]) -> None:
        super().__init__()
        self.predictor = predictor
        self.names = tuple(names)
        self.eval()

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return actions and the next memories, in the order of the input memories."""
        groups: dict[str, dict[str, Tensor]] = {"obs": {}, "goal": {}, "memory": {}, "noise": {}}
        for name, value in zip(self.names, values, strict=True):
            group, _, key = name.partition("/")
            groups[group][key] = value
        give = Numbers(groups["noise"])
        actions, after = self.predictor.predict(
            groups["obs"], groups["goal"], groups["memory"], give
        )
        return (actions, *after.values())


def named_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a nested dict with dotted names."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from named_leaves(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def with_leaves(
    tree: Mapping[str, Any], leaves: Mapping[str, Tensor], prefix: str = ""
) -> dict[str, Any]:
    """Return a copy of a nested dict in which the tensors with these dotted names are replaced."""
    return {
        key: with_leaves(value, leaves, f"{prefix}{key}.")
        if isinstance(value, Mapping)
        else leaves.get(f"{prefix}{key}", value)
        for key, value in tree.items()
    }


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
        inputs: example tensors by name, in the order of the arguments.
        outputs: names of the outputs.
        opsets: versions of custom operators, by domain.

    Raises:
        BundleError: ONNX lacks an operator.
    """
    file = io.BytesIO()
    try:
        with plain_export():
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
        raise BundleError(
            f"ONNX has no equivalent for an operation of the policy ({one_line(error)}): deploy the "
            "checkpoint itself, such as by imitate serve"
        ) from error
    return without_copies(file.getvalue())


def without_copies(model: bytes) -> bytes:
    """Keep only one copy of identical weights, such as the weights of a network that is evaluated several times."""
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
def plain_export() -> Iterator[None]:
    """Context with attention operators that ONNX has, without warnings about constant shapes (of the fixed batch)."""
    fast = torch.backends.mha.get_fastpath_enabled()
    # If ONNX lacks an operator, torch would print the whole graph to the terminal.
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


def one_line(error: Exception) -> str:
    """Return at most 200 characters of an error's message, in one line."""
    return " ".join(str(error).split())[:200]
