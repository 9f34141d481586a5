"""A network that is written as a list of steps, each of which may read any earlier result by its name."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

Paths = str | tuple["Paths", ...] | Mapping[str, "Paths"]
"""Path of a result, such as ``input.image``, or a tuple or dict of paths."""
Step = Callable[[Any], Any] | tuple[Paths, Callable[[Any], Any]]


class Sequential(nn.Module):
    """Steps that are computed one after another; each gets the previous result, or the results that it names.

        Sequential(
            image=("input.image", convolutions),
            place=("input.place", nn.Linear(2, 8)),
            joined=(("image", "place"), torch.cat),
            output={"features": "joined", "image": "image"},
        )

    A step is a module or another function of one argument, or a pair of paths and such a function. The result ``input``
    is the whole input; other results have the name of their step, or its number from "0" on. A dot is followed by the
    key of a dict or the name of an attribute. (Like ``Sequential`` of the library ALF, but without states; ``algo.rnn``
    configures recurrent memory.)

    Args:
        *steps: the first steps, numbered from "0" on.
        output: paths of the results that are returned; by default the last result.
        **named: further steps by name, after the numbered ones.

    Raises:
        ValueError: a step is not a function, or reads a result that no earlier step has.
    """

    def __init__(self, *steps: Step, output: Paths | None = None, **named: Step) -> None:
        super().__init__()
        self._steps: list[tuple[str, Paths | None, Callable[[Any], Any]]] = []
        self.nets = nn.ModuleDict()
        known = ["input"]
        for name, step in [*((str(k), step) for k, step in enumerate(steps)), *named.items()]:
            paths, function = step if isinstance(step, tuple) else (None, step)
            if not callable(function):
                raise ValueError(f"step '{name}' is {function!r}: give a function of one argument")
            _check(paths, name, known)
            if isinstance(function, nn.Module):
                self.nets[name] = function
            self._steps.append((name, paths, function))
            known.append(name)
        _check(output, "output", known)
        self._output = output

    def forward(self, x: Any) -> Any:
        """Return the output for an input, such as observations {key: (B, ...)}."""
        results = {"input": x}
        for name, paths, function in self._steps:
            x = function(x if paths is None else _found(paths, results))
            results[name] = x
        return x if self._output is None else _found(self._output, results)


def _check(paths: Paths | None, reader: str, known: list[str]) -> None:
    if isinstance(paths, str):
        if paths.partition(".")[0] not in known:
            raise ValueError(
                f"'{reader}' reads '{paths}', but the earlier results are {', '.join(known)}"
            )
    elif paths is not None:
        for path in paths.values() if isinstance(paths, Mapping) else paths:
            _check(path, reader, known)


def _found(paths: Paths, results: Any) -> Any:
    if isinstance(paths, Mapping):
        return {key: _found(path, results) for key, path in paths.items()}
    if not isinstance(paths, str):
        return tuple(_found(path, results) for path in paths)
    for name in paths.split("."):
        results = results[name] if isinstance(results, Mapping) else getattr(results, name)
    return results
