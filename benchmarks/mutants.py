"""Mutants of a module: copies of its syntax tree with one small fault each.

Faults: an operator of a comparison, of arithmetic or of logic is replaced; a number, a truth value or a sign is
changed; a condition is negated; a function is replaced by its opposite (min and max, any and all, ...); a statement is
omitted; None is returned.

Some parts stay unchanged: docstrings, annotations, texts and messages, code for type checkers only, ``strict`` of
``zip``, which only detects programming errors, -1 in ``reshape``, where numpy accepts any negative number, and the
fields of configuration sections, whose defaults and limits the tests of ``imitate.config`` compare with the documented
table. None replaces every returned value except False, which a
condition treats the same; True replaces False.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

Edit = Callable[[Any], None]
"""Function that changes a node of a fresh copy of the tree in place."""

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OPPOSITES = {
    **{"min": "max", "any": "all", "sin": "cos", "floor": "ceil", "zeros": "ones"},
    **{"amin": "amax", "argmin": "argmax", "minimum": "maximum", "zeros_like": "ones_like"},
    **{"cumsum": "cumprod", "sum": "mean", "logical_and": "logical_or", "logsumexp": "sum"},
}
OPPOSITES |= {second: first for first, second in OPPOSITES.items() if first != "logsumexp"}


@dataclass(frozen=True)
class Mutant:
    """A module with one small fault.

    Attributes:
        name: function and source before and after; it stays the same while these lines are unchanged.
        lines: first and last line of the changed part.
        function: path of the function in whose body it is, ("Class", "method"); empty outside of functions.
        around: first and last line of this function; outside of functions, of the changed part.
        source: the original syntax tree of the module.
        number: place of the changed node in ``ast.walk(source)``.
        edit: function that makes the change.
    """

    name: str
    lines: tuple[int, int]
    function: tuple[str, ...]
    around: tuple[int, int]
    source: ast.Module
    number: int
    edit: Edit

    @property
    def tree(self) -> ast.Module:
        """Return a copy of the module's syntax tree with the fault."""
        changed = copy.deepcopy(self.source)
        self.edit(next(islice(ast.walk(changed), self.number, None)))
        return ast.fix_missing_locations(changed)

    @property
    def is_flipped_sign(self) -> bool:
        """Return true if the fault exchanges plus and minus, or omits a minus that is not part of a number."""
        node: Any = next(islice(ast.walk(self.source), self.number, None))
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant)
        changed = copy.deepcopy(node)
        self.edit(changed)  # omits the whole statement, or changes its sign
        return all(isinstance(getattr(x, "op", None), (ast.Add, ast.Sub)) for x in (node, changed))


def mutants(source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines."""
    tree = ast.parse(source)
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    made, names = [], Counter[str]()
    for place, node in _changeable(tree, Place()):
        for edit in _edits(node):
            changed = copy.deepcopy(node)
            edit(changed)
            name = f"{'.'.join(place.names) or 'module'}: {_shown(node)} -> {_shown(changed)}"
            names[name] += 1
            if names[name] > 1:
                name += f" (number {names[name]})"
            function = place.names if place.in_function else ()
            lines = (node.lineno, node.end_lineno)
            around = place.lines or lines
            made.append(Mutant(name, lines, function, around, tree, numbers[id(node)], edit))
    return sorted(made, key=lambda mutant: mutant.lines)


@dataclass(frozen=True)
class Place:
    """Position of a node: names of its classes and functions, and lines of its outermost function."""

    names: tuple[str, ...] = ()
    lines: tuple[int, int] | None = None

    @property
    def in_function(self) -> bool:
        """Return the position inside a function."""
        return self.lines is not None

    def inside(self, name: str, lines: tuple[int, int] | None) -> Place:
        """Return the position inside a class, or inside a function of these lines."""
        return self if self.in_function else Place((*self.names, name), lines)


def _changeable(node: ast.AST, place: Place) -> Iterator[tuple[Place, Any]]:
    """Yield the nodes that affect the behaviour."""
    if _is_left_alone(node):
        return
    if isinstance(node, (ast.expr, ast.stmt)):
        yield place, node
    children = [(place, child) for child in _children(node)]
    if isinstance(node, ast.FunctionDef):
        outside = place if place.in_function else Place((*place.names, node.name))
        children = [(outside, default) for default in _defaults(node)]
        children += [
            (place.inside(node.name, (node.lineno, node.end_lineno)), c) for c in node.body
        ]
    elif isinstance(node, ast.ClassDef):
        children = [(place.inside(node.name, None), child) for child in node.body]
    for where, child in children:
        yield from _changeable(child, where)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    left_alone = ["annotation", "returns", "decorator_list", "type_params"]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
        left_alone.append("keywords")
    for name, field in ast.iter_fields(node):
        if name == "args" and _is_reshape(node):
            yield from (size for size in field if ast.unparse(size) != "-1")
        elif name not in left_alone:
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    yield child


def _is_reshape(node: ast.AST) -> bool:
    """Return true for ``x.reshape(...)``, in which numpy reads each negative size as -1."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".reshape")


def _defaults(node: ast.FunctionDef) -> list[ast.expr]:
    return [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func) == "Field"
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id in ("__all__", "tree_defaults")
    return False


def _edits(node: ast.AST) -> Iterator[Edit]:
    for kind, make in _EDITS:
        if isinstance(node, kind):
            yield from make(node)


def _comparison(node: ast.Compare) -> Iterator[Edit]:
    for number, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            yield lambda n, k=number, o=other: n.ops.__setitem__(k, o())


def _arithmetic(node: ast.BinOp | ast.AugAssign) -> Iterator[Edit]:
    other = ARITHMETIC.get(type(node.op))
    if other is not None:
        yield lambda n: setattr(n, "op", other())


def _logic(node: ast.BoolOp) -> Iterator[Edit]:
    other = ast.Or if isinstance(node.op, ast.And) else ast.And
    yield lambda n: setattr(n, "op", other())


def _sign(node: ast.UnaryOp) -> Iterator[Edit]:
    """Replace ``not x``, ``-x`` and ``~x`` by ``x``."""
    if not isinstance(node.op, ast.UAdd):
        yield lambda n: _become(n, n.operand)


def _constant(node: ast.Constant) -> Iterator[Edit]:
    value = node.value
    if isinstance(value, bool):
        yield lambda n: setattr(n, "value", not value)
    elif isinstance(value, int):
        yield lambda n: setattr(n, "value", value + 1)
    elif isinstance(value, float):
        # A small constant against division by zero must change a lot to matter.
        other = 1.0 if value == 0 else value * (1000.0 if abs(value) < 1e-3 else 1.2)
        yield lambda n: setattr(n, "value", other)


def _condition(node: ast.If | ast.IfExp | ast.While) -> Iterator[Edit]:
    if not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
        yield lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))


def _opposite(node: ast.Call) -> Iterator[Edit]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in OPPOSITES:
        field = "attr" if isinstance(function, ast.Attribute) else "id"
        yield lambda n: setattr(n.func, field, OPPOSITES[name])


def _returned(node: ast.Return) -> Iterator[Edit]:
    if node.value is not None and ast.unparse(node.value) not in ("None", "False"):
        yield lambda n: setattr(n, "value", ast.Constant(None))


def _left_out(node: ast.stmt) -> Iterator[Edit]:
    """Omit calls, raised errors, and assignments to an object or an array."""
    stored = isinstance(node, (ast.Assign, ast.AugAssign)) and not _writes_names(node)
    if isinstance(node, (ast.Expr, ast.Raise)) or stored:
        yield lambda n: _become(n, ast.Pass())


def _writes_names(node: Any) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return all(isinstance(target, (ast.Name, ast.Tuple)) for target in targets)


def called_at_import(source: str) -> set[str]:
    """Return the names of functions and classes that a module's code outside of functions calls, or decorates with."""
    found, left = set(), [*ast.parse(source).body]
    while left:
        node: Any = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            plain = (d for d in node.decorator_list if not isinstance(d, ast.Call))
            left += [*node.decorator_list, *(ast.Call(decorator, [], []) for decorator in plain)]
        if isinstance(node, ast.FunctionDef):
            left += _defaults(node)
            continue
        if isinstance(node, ast.Call):
            found.add(ast.unparse(node.func).rpartition(".")[2])
        if not isinstance(node, ast.Lambda):
            left += ast.iter_child_nodes(node)
    return found


_EDITS: tuple[tuple[Any, Callable[[Any], Iterator[Edit]]], ...] = (
    (ast.Compare, _comparison),
    ((ast.BinOp, ast.AugAssign), _arithmetic),
    (ast.BoolOp, _logic),
    (ast.UnaryOp, _sign),
    (ast.Constant, _constant),
    ((ast.If, ast.IfExp, ast.While), _condition),
    (ast.Call, _opposite),
    (ast.Return, _returned),
    (ast.stmt, _left_out),
)


def _become(node: Any, other: Any) -> None:
    """Convert a node to another one, in place, with the same line number."""
    where = {
        name: getattr(node, name)
        for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")
    }
    node.__class__ = other.__class__
    node.__dict__.clear()
    node.__dict__.update(other.__dict__ | where)


def _shown(node: ast.AST) -> str:
    """Return the node's source, or the first line of a compound statement."""
    text = ast.unparse(node).splitlines()
    return text[0] if text else ""
