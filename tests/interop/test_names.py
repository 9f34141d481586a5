"""Names of tensors in another toolkit, and tensors that are moved by them."""

import pytest
import torch

from imitate.errors import CheckpointError
from imitate.interop.names import MEMBER, Name, NameRule, names_of, same, to_ours, to_theirs, under
from tests.refusals import refused


def test_rules_and_names():
    plain = same(r"layer\.(\d)\.(\w+)", "net.{0}.{1}", lead=1)
    assert plain.of("layer.2.bias") == [Name("layer.2.bias", "net.2.bias", (), 1)]
    assert plain.of("xlayer.2.bias") == plain.of("layer.2.biases.x") == []
    assert same("(a|b)").of("b") == [Name("b", "b")]
    both = same("a", "b").also(same("c", "d"))
    assert both.of("a") == [Name("a", "b", ("d",))]
    (moved,) = under([same("a", "b", transposed=True, trail=2)], "ours.", "one.", "two.")
    assert moved.of("ours.a") == [Name("ours.a", "one.b", ("two.b",), 0, None, True, 2)]
    assert moved.of("oursxa") == []  # the prefix is not a pattern
    stack = NameRule("q", lambda: (f"q.{MEMBER}w", f"target.{MEMBER}w"), members=2)
    assert stack.of("q") == [Name("q", f"q.{n}.w", (f"target.{n}.w",), member=n) for n in range(2)]
    found = names_of(["q", "a"], [same("a", "b"), stack, same("q", "no")], "X")
    assert [name.theirs for name in found] == ["q.0.w", "q.1.w", "b"]
    with refused("X's networks have no counterpart of 'z'", error=CheckpointError):
        names_of(["a", "z"], [same("a", "b")], "X")


W = torch.arange(6.0).reshape(2, 3)
NAMES = [
    Name("w", "w", ("copy",)),
    Name("t", "t", transposed=True),
    Name("lead", "lead", lead=1),
    Name("trail", "trail", trail=2),
    Name("q", "q0", member=0),
    Name("q", "q1", member=1),
]
OURS = {"w": W, "t": W, "lead": W, "trail": W, "q": torch.stack([W, W + 1])}
SHAPES = {name: value.shape for name, value in OURS.items()}


def test_there_and_back():
    theirs = to_theirs(OURS, NAMES)
    shapes = {
        **{"w": (2, 3), "copy": (2, 3), "t": (3, 2), "lead": (1, 2, 3), "trail": (2, 3, 1, 1)},
        **{"q0": (2, 3), "q1": (2, 3)},
    }
    assert {name: tuple(value.shape) for name, value in theirs.items()} == shapes
    assert torch.equal(theirs["t"], W.t()) and torch.equal(theirs["q1"], W + 1)
    assert all(value.is_contiguous() for value in theirs.values())
    ours = to_ours({**theirs, "steps": W}, NAMES, SHAPES, constants=["steps"])
    assert list(ours) == list(OURS)
    assert all(torch.equal(ours[name], value) for name, value in OURS.items())
    assert ours["t"].is_contiguous()
    theirs["w"] += 1  # theirs are not ours
    assert torch.equal(ours["w"], W) and W[0, 0] == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"more": W}, "the file has 1 tensors that no network of imitate has, such as 'more'"),
        ({"t": None}, "the tensor 't', which the file's configuration requires, is missing"),
        (
            {"w": W.t()},
            "'w' has shape (3, 2), which does not fit the file's configuration|expected (2, 3)",
        ),
        ({"q1": W[:1]}, "'q1' has shape (1, 3), which|expected (2, 3)"),
    ],
)
def test_refused_tensors(changed, words):
    theirs = {**to_theirs(OURS, NAMES), **changed}
    theirs = {name: value for name, value in theirs.items() if value is not None}
    with refused(words, error=CheckpointError):
        to_ours(theirs, NAMES, SHAPES)
